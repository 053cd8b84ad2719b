"""What a target says about a batch of points, on its way to the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Raw:
    """Answers for n points in the target's own terms: checked for shape and dtype, not for finiteness.

    Attributes
    ----------
    log_density : ndarray of shape (n,)
    gradient : ndarray of shape (n, dim) or None
        Of the log-density; None if it was not asked for.
    outputs : ndarray of shape (n, m) or None
        Of a forward model; NaN in rows where it was not run, None if there is none or it was not run at all.
    n_run : int or None
        How many rows the model was run on, if not on all of them.

    Examples
    --------
    >>> raw = Raw(np.array([-1.0, np.nan]))
    >>> raw.failures()
    array([False,  True])
    """

    log_density: np.ndarray
    gradient: np.ndarray | None = None
    outputs: np.ndarray | None = None
    n_run: int | None = None

    @property
    def is_finite(self) -> bool:
        """Whether every number is, so that no row can have failed."""
        return bool(
            np.isfinite(self.log_density).all()
            and (self.gradient is None or np.isfinite(self.gradient).all())
        )

    def failures(self) -> np.ndarray:
        """Say which rows are NaN, +inf, or have a non-finite gradient where the density is not zero."""
        failed = ~(self.log_density < np.inf)  # NaN as well
        if self.gradient is not None:
            failed |= ~np.isfinite(self.gradient).all(axis=1) & (self.log_density > -np.inf)
        return failed

    def row(self, i: int) -> Raw:
        """Return row `i` alone."""
        return Raw(
            self.log_density[i : i + 1],
            None if self.gradient is None else self.gradient[i : i + 1],
            None if self.outputs is None else self.outputs[i : i + 1],
        )

    def scatter(self, rows: np.ndarray, log_density: np.ndarray) -> Raw:
        """Put these answers at `rows`, a mask; the others were not run and have this log-density."""
        full = np.array(log_density)
        full[rows] = self.log_density
        gradient = outputs = None
        if self.gradient is not None:
            gradient = np.zeros((len(rows), self.gradient.shape[1]))
            gradient[rows] = self.gradient
        if self.outputs is not None:
            outputs = np.full((len(rows), self.outputs.shape[1]), np.nan)
            outputs[rows] = self.outputs
        return Raw(full, gradient, outputs, len(self.log_density) if self.n_run is None else self.n_run)


def stack(parts: Sequence[Raw]) -> Raw:
    """Join answers of the same kind; where the model was not run, its outputs are NaN."""
    gradients = [part.gradient for part in parts if part.gradient is not None]
    width = next((part.outputs.shape[1] for part in parts if part.outputs is not None), None)
    outputs = None
    if width is not None:
        not_run = [np.full((len(part.log_density), width), np.nan) for part in parts]
        outputs = np.concatenate(
            [nan if part.outputs is None else part.outputs for part, nan in zip(parts, not_run, strict=True)]
        )
    log_density = np.concatenate([part.log_density for part in parts])
    return Raw(log_density, np.concatenate(gradients) if gradients else None, outputs)
