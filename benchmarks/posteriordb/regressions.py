r"""Linear regressions, :math:`y \sim N(X \beta, \sigma^2)`.

With :math:`X = QR` the sum of squares is :math:`\|y - X \beta\|^2 = \|Q^T y - R \beta\|^2 + \|y - Q Q^T y\|^2`. That is
exact to rounding, unlike :math:`X^T X`, however correlated the columns, and costs no more for many rows than for few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.transforms import Block, Positive, Real, Space, vector


def cauchy(x: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-density of a half-Cauchy, up to a constant, and its derivative."""
    x = x / scale
    return -2.0 * np.log(np.hypot(1.0, x)), -2.0 / (scale * (1.0 / x + x))


def normal(x: np.ndarray, scale: Any, mean: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-density of a normal or half-normal, up to a constant, and its derivative."""
    x = (x - mean) / scale
    return -0.5 * x**2, -x / scale


def flat(x: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-density of an improper flat prior and its derivative."""
    return np.zeros_like(x), np.zeros_like(x)


PRIORS = {"cauchy": cauchy, "normal": normal, "flat": flat}


@dataclass(frozen=True)
class Regression:
    """Coefficients with a normal prior (flat if their scale is infinite) and a residual scale, the last parameter.

    Attributes
    ----------
    triangle, projection : ndarray
        R ``(k, k)`` and Q^T y ``(k,)``.
    squares, n : float, int
        The sum of squares outside the columns of X, and the number of rows.
    mean, scale : ndarray
        Of the coefficients' normal priors.
    prior, prior_scale : str, float
        Of the residual scale; one of `PRIORS`.
    """

    triangle: np.ndarray
    projection: np.ndarray
    squares: float
    n: int
    mean: np.ndarray
    scale: np.ndarray
    prior: str
    prior_scale: float

    def __call__(self, y: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        beta, sigma = y[:, :-1], y[:, -1]
        residual = (self.projection - beta @ self.triangle.T) / sigma[:, None]
        squares = (residual**2).sum(axis=1) + self.squares / sigma / sigma
        by_prior, prior_slope = normal(beta, self.scale, self.mean)
        by_sigma, sigma_slope = PRIORS[self.prior](sigma, self.prior_scale)
        value = by_prior.sum(axis=1) + by_sigma - self.n * np.log(sigma) - 0.5 * squares
        if not gradient:
            return value, None
        slope = np.empty_like(y)
        slope[:, :-1] = residual @ self.triangle / sigma[:, None] + prior_slope
        slope[:, -1] = (squares - self.n) / sigma + sigma_slope
        return value, slope


def regression(
    name: str,
    columns: list[np.ndarray],
    response: np.ndarray,
    *,
    names: tuple[str, ...] = (),
    mean: Any = 0.0,
    scale: Any = np.inf,
    prior: str = "flat",
    prior_scale: float = 1.0,
) -> Posterior:
    """Make the posterior of coefficients `names` (by default beta) of `columns`, and of sigma."""
    design = np.column_stack(columns).astype(float)
    k = design.shape[1]
    q, triangle = np.linalg.qr(design)
    projection = q.T @ response
    residual = response - q @ projection
    mean, scale = np.broadcast_to(mean, k).astype(float), np.broadcast_to(scale, k).astype(float)
    density = Regression(
        triangle, projection, float(residual @ residual), len(design), mean, scale, prior, prior_scale
    )
    blocks: list[Block] = [Real(names or vector("beta", k)), Positive(("sigma",))]
    return Posterior(name, Space(*blocks), density)


def earn_height(name: str, data: dict[str, Any]) -> Posterior:
    """Earnings by height, unscaled; flat priors."""
    return regression(name, [np.ones(data["N"]), data["height"]], data["earn"])


def logearn_interaction(name: str, data: dict[str, Any]) -> Posterior:
    """Log-earnings by height, sex and both; flat priors."""
    height, male = data["height"], data["male"]
    return regression(name, [np.ones(data["N"]), height, male, height * male], np.log(data["earn"]))


def kilpisjarvi(name: str, data: dict[str, Any]) -> Posterior:
    """Summer temperatures by year, not centred; normal priors on intercept and slope, a flat one on sigma."""
    return regression(
        name,
        [np.ones(data["N"]), data["x"]],
        data["y"],
        names=("alpha", "beta"),
        mean=[data["pmualpha"], data["pmubeta"]],
        scale=[data["psalpha"], data["psbeta"]],
    )


def kidscore_momiq(name: str, data: dict[str, Any]) -> Posterior:
    """Test scores of children by their mothers'; half-Cauchy prior on sigma."""
    columns = [np.ones(data["N"]), data["mom_iq"]]
    return regression(name, columns, data["kid_score"], prior="cauchy", prior_scale=2.5)


def kidscore_interaction(name: str, data: dict[str, Any]) -> Posterior:
    """Test scores of children by their mothers', by schooling, and both; half-Cauchy prior on sigma."""
    school, score = data["mom_hs"], data["mom_iq"]
    columns = [np.ones(data["N"]), school, score, school * score]
    return regression(name, columns, data["kid_score"], prior="cauchy", prior_scale=2.5)


def mesquite(name: str, data: dict[str, Any]) -> Posterior:
    """Weight of bushes by six measures; flat priors."""
    measures = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return regression(name, [np.ones(data["N"]), *(data[m] for m in measures)], data["weight"])


def nes(name: str, data: dict[str, Any]) -> Posterior:
    """Party identification of voters, age in four classes; flat priors."""
    ages = [data["age_discrete"] == k for k in (2, 3, 4)]
    columns = [np.ones(data["N"]), data["real_ideo"], data["race_adj"], *ages]
    columns += [data["educ1"], data["gender"], data["income"]]
    return regression(name, columns, data["partyid7"])


def blr(name: str, data: dict[str, Any]) -> Posterior:
    """Simulated data without an intercept; normal priors and a half-normal one."""
    return regression(name, [data["X"]], data["y"], scale=10.0, prior="normal", prior_scale=10.0)


def ark(name: str, data: dict[str, Any]) -> Posterior:
    """An autoregression: each value by the K before it; normal priors and a half-Cauchy one."""
    y, k = data["y"], data["K"]
    lags = [y[k - lag : len(y) - lag] for lag in range(1, k + 1)]
    return regression(
        name,
        [np.ones(len(y) - k), *lags],
        y[k:],
        names=("alpha", *vector("beta", k)),
        scale=10.0,
        prior="cauchy",
        prior_scale=2.5,
    )
