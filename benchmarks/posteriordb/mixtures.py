"""A mixture of two normals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.regressions import normal
from benchmarks.posteriordb.transforms import Ordered, Positive, Space, simplex, vector
from scipy.special import expit


@dataclass(frozen=True)
class Mixture:
    """Two normals; parameters: means, scales, and both weights, since 1 - theta would lose its digits near zero."""

    y: np.ndarray

    def __call__(self, parameters: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        mu, sigma, weight = (parameters[:, i : i + 2] for i in (0, 2, 4))
        scaled = (self.y - mu[:, :, None]) / sigma[:, :, None]
        part = np.log(weight / sigma)[:, :, None] - 0.5 * scaled**2
        prior, prior_slope = normal(parameters[:, :4], 2.0)
        value = np.logaddexp(part[:, 0], part[:, 1]).sum(axis=1)
        value += prior.sum(axis=1) + 4.0 * np.log(weight).sum(axis=1)  # beta(5, 5)
        if not gradient:
            return value, None
        share = np.empty_like(part)
        share[:, 0] = expit(part[:, 0] - part[:, 1])
        share[:, 1] = 1.0 - share[:, 0]
        pull = share * scaled
        count = share.sum(axis=2)
        slope = np.empty_like(parameters)
        slope[:, 0:2] = pull.sum(axis=2) / sigma
        slope[:, 2:4] = ((pull * scaled).sum(axis=2) - count) / sigma
        slope[:, :4] += prior_slope
        slope[:, 4:] = (count + 4.0) / weight
        return value, slope


def _without_rest(parameters: np.ndarray) -> np.ndarray:
    return parameters[:, :-1]


def _with_rest(draws: np.ndarray) -> np.ndarray:
    return np.concatenate([draws, 1.0 - draws[:, -1:]], axis=1)


def low_dim_gauss_mix(name: str, data: dict[str, Any]) -> Posterior:
    """A mixture of two normals with ordered means; normal, half-normal and beta priors."""
    mu, sigma = vector("mu", 2), vector("sigma", 2)
    return Posterior(
        name,
        Space(Ordered(mu), Positive(sigma), simplex(("theta", "1 - theta"))),
        Mixture(data["y"]),
        columns=(*mu, *sigma, "theta"),
        to_draws=_without_rest,
        from_draws=_with_rest,
    )
