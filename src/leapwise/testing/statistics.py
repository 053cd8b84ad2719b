"""What is looked at before and after a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapwise.errors import InputError

#: Takes positions ``(n, dim)`` and exact potentials ``(n,)``; returns named columns ``(n,)``.
Statistics = Callable[[np.ndarray, np.ndarray], Mapping[str, np.ndarray]]


CUT = -0.5  # off the centre, where symmetric targets would hide a sign


@dataclass(frozen=True, eq=False)
class MomentStatistics:
    """Powers of each coordinate, an indicator of it, its product with the next, and the potential.

    Parameters
    ----------
    center, scale : ndarray of shape (dim,) or float
        What is taken off positions, and what they are divided by.

    Examples
    --------
    >>> MomentStatistics()(np.array([[1.0, 2.0]]), np.array([2.5]))["q0 q1"]
    array([2.])
    """

    center: np.ndarray | float = 0.0
    scale: np.ndarray | float = 1.0

    def __call__(self, position: np.ndarray, potential: np.ndarray) -> dict[str, np.ndarray]:
        """Return all of them, by name."""
        q = (position - self.center) / self.scale
        square = q**2
        kinds = {"q{}": q, "q{}^2": square, "q{}^4": square**2, f"q{{}} < {CUT}": (q < CUT).astype(float)}
        columns = {name.format(i): kind[:, i] for name, kind in kinds.items() for i in range(q.shape[1])}
        columns |= {f"q{i} q{i + 1}": q[:, i] * q[:, i + 1] for i in range(q.shape[1] - 1)}
        return {**columns, "U": potential}


def standardized(pilot: np.ndarray) -> MomentStatistics:
    """Return moments about the middle of a pilot sample ``(n, dim)``, in units of its spread."""
    low, middle, high = np.quantile(pilot, [0.16, 0.5, 0.84], axis=0)
    spread = (high - low) / 2.0
    return MomentStatistics(middle, np.where(spread > 0, spread, 1.0))


def columns(statistics: Statistics, position: np.ndarray, potential: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each chain, checked."""
    found: Any = statistics(position, potential)
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"statistics must return a dict of named arrays, got {type(found).__name__}; "
            'for example lambda q, u: {"mean": q[:, 0], "potential": u}'
        )
    checked = {str(name): np.asarray(column, dtype=float) for name, column in found.items()}
    for name, column in checked.items():
        if column.shape != (len(position),):
            raise InputError(
                f"the statistic {name!r} must have shape {(len(position),)}, one number for each chain, "
                f"got {column.shape}"
            )
    return checked
