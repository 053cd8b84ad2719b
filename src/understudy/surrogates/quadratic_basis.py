"""Features of a `QuadraticNetwork`, and what it learns from seen through them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from understudy.surrogates.base import Basis
from understudy.surrogates.bases import SoftplusBasis, SumBasis
from understudy.surrogates.elm import Lesson
from understudy.surrogates.trend import TrendBasis

_LINEAR_PENALTY = 0.01
_MAX_BLOCK = 2**22


@dataclass(frozen=True, eq=False)
class QuadraticBasis(SumBasis):
    """A trend, then hidden nodes, if any."""

    @classmethod
    def draw(
        cls,
        white: np.ndarray,
        n_hidden: int,
        gain: float,
        radial: bool,
        spread: np.ndarray,
        rng: np.random.Generator,
    ) -> QuadraticBasis:
        """Draw hidden nodes whose kinks pass through training points ``(n, dim)``.

        Their directions are normal with covariance `spread`, of trace dim, times the squared gain over dim.
        """
        dim = white.shape[1]
        bases: list[Basis] = [TrendBasis(dim, radial)]
        if n_hidden:
            directions = rng.standard_normal((n_hidden, dim)) @ np.linalg.cholesky(spread).T
            directions *= gain / np.sqrt(dim)
            bases.append(SoftplusBasis.through(white, directions, rng))
        return cls(tuple(bases))

    @property
    def trend(self) -> TrendBasis:
        """The first part."""
        trend = self.bases[0]
        assert isinstance(trend, TrendBasis)
        return trend

    def gradient_gram(self, white: np.ndarray) -> np.ndarray:
        """Return the Gram matrix ``(size, size)`` of all gradient rows, which are formed in blocks."""
        gram = np.zeros((self.size, self.size))
        for rows in self._gradient_blocks(white):
            gram += rows.reshape(-1, self.size).T @ rows.reshape(-1, self.size)
        return gram

    def gradient_moment(self, white: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return gradient rows times gradients ``(n, dim)``, summed to ``(size,)``."""
        moment, done = np.zeros(self.size), 0
        for rows in self._gradient_blocks(white):
            moment += rows.reshape(-1, self.size).T @ target[done : done + len(rows)].ravel()
            done += len(rows)
        return moment

    def _gradient_blocks(self, white: np.ndarray) -> Iterator[np.ndarray]:
        step = max(1, _MAX_BLOCK // (white.shape[1] * self.size))
        return (self.gradient_features(white[start : start + step]) for start in range(0, len(white), step))


@dataclass(frozen=True, eq=False)
class QuadraticLesson(Lesson):
    """Evaluations seen through a trend and hidden nodes."""

    basis: QuadraticBasis

    @property
    def penalty(self) -> np.ndarray:
        """Relative penalties of linear, quadratic, radial and hidden weights, and of the offset, ``(size + 1,)``."""
        trend = self.basis.trend
        n_hidden = self.basis.size - trend.size
        penalty = np.append(np.ones(self.basis.size), 0.0)
        penalty[: trend.dim] = _LINEAR_PENALTY
        penalty[trend.size : -1] = n_hidden
        return penalty
