"""What has been spent on exact evaluations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """What has been spent.

    Attributes
    ----------
    n_values, n_gradients : int
        Positions evaluated for their value alone, and for value and gradient together; retries count.
    value_seconds, gradient_seconds : float
        Time inside the target for either.
    n_failures : int
        Positions that failed for good.
    """

    n_values: int = 0
    n_gradients: int = 0
    value_seconds: float = 0.0
    gradient_seconds: float = 0.0
    n_failures: int = 0

    @property
    def n_exact(self) -> int:
        """All requests, with gradient or without."""
        return self.n_values + self.n_gradients

    def copy(self) -> Counts:
        """Return a snapshot."""
        return Counts(**vars(self))

    def since(self, earlier: Counts) -> Counts:
        """Return what was spent after an earlier snapshot."""
        return Counts(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})
