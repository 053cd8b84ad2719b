"""A posterior: a space of parameters, a density on the constrained ones, and reference draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from benchmarks.posteriordb.data import read_draws
from benchmarks.posteriordb.transforms import Space

from leapwise import Target

# A log-density below this counts as overflow: no sampler can use such values, and gradients may overflow.
LOWEST = -1e150


class Density(Protocol):
    """The log-density of constrained parameters ``(n, k)``, up to a constant: values and gradients."""

    def __call__(self, y: np.ndarray, gradient: bool, /) -> tuple[np.ndarray, np.ndarray | None]: ...


def _same(values: np.ndarray) -> np.ndarray:
    return values


@dataclass(frozen=True)
class Posterior:
    """One of the sixteen.

    Attributes
    ----------
    name : str
        As in posteriordb.
    space : Space
        The parameters, constrained and not.
    density : Density
        Log-density of the constrained parameters, without the Jacobian.
    columns : tuple of str
        The quantities of the reference draws: the constrained parameters, unless `to_draws` and `from_draws`
        turn these into other quantities and back.
    """

    name: str
    space: Space
    density: Density
    columns: tuple[str, ...] = ()
    to_draws: Callable[[np.ndarray], np.ndarray] = _same
    from_draws: Callable[[np.ndarray], np.ndarray] = _same

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", self.columns or self.space.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the unconstrained parameters."""
        return self.space.free_names

    @property
    def dim(self) -> int:
        """The number of unconstrained parameters."""
        return len(self.names)

    def target(self) -> Target:
        """Return the posterior with its gradient."""
        return Target(
            self.log_density,
            value_and_gradient=self.value_and_gradient,
            dim=self.dim,
            names=self.names,
            vectorized=True,
        )

    def values(self) -> Target:
        """Return the posterior without its gradient."""
        return Target(self.log_density, dim=self.dim, names=self.names, vectorized=True)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the log-densities ``(n,)`` of unconstrained rows ``(n, dim)``."""
        with np.errstate(all="ignore"):
            value, _ = self.density(self.space.constrain(x), False)
            return self._bounded(value + self.space.log_jacobian(x))

    def value_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-densities and their gradients ``(n, dim)``."""
        with np.errstate(all="ignore"):
            y = self.space.constrain(x)
            value, by_y = self.density(y, True)
            assert by_y is not None
            value = self._bounded(value + self.space.log_jacobian(x))
            slope = self.space.pull_back(x, y, by_y)
            lost = (value == -np.inf) | ~np.isfinite(slope).all(axis=1)
        slope[lost] = 0.0
        return value, slope

    def constrain(self, x: np.ndarray) -> np.ndarray:
        """Return the `columns` of unconstrained rows."""
        with np.errstate(all="ignore"):
            return self.to_draws(self.space.constrain(x))

    def unconstrain(self, draws: np.ndarray) -> np.ndarray:
        """Return the unconstrained parameters ``(n, dim)`` of rows that hold the `columns`."""
        return self.space.unconstrain(self.from_draws(draws))

    def reference(self) -> np.ndarray:
        """Return the reference draws, unconstrained: ``(chains, draws, dim)``, nearly independent."""
        draws = read_draws(self.name, self.columns)
        return self.unconstrain(draws.reshape(-1, len(self.columns))).reshape(*draws.shape[:2], self.dim)

    @staticmethod
    def _bounded(value: np.ndarray) -> np.ndarray:
        return np.where((value > LOWEST) & (value < np.inf), value, -np.inf)
