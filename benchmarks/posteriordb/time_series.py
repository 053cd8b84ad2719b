r"""Two time series whose states follow a linear recursion, :math:`s_t = u_t + a s_{t-1}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.regressions import cauchy, normal
from benchmarks.posteriordb.transforms import Positive, Real, Space, parts_of_one


def recursion(drive: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Solve s_t = u_t + a s_(t-1), from s_0 = u_0, for rows u ``(n, T)``, each with its a ``(n,)``.

    After j rounds s_t holds the last 2^j terms of its sum over a^k u_(t-k): log2(T) rounds instead of T steps.
    """
    state, power, lag = drive.copy(), factor[:, None], 1
    while lag < drive.shape[1]:
        state[:, lag:] += power * state[:, :-lag]
        power, lag = power * power, 2 * lag
    return state


def adjoint(slope: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Turn the gradient by the states into that by the drive: the same recursion, backwards in time."""
    return recursion(slope[:, ::-1], factor)[:, ::-1]


@dataclass(frozen=True)
class Arma:
    """ARMA(1, 1): errors e_t = y_t - mu - phi y_(t-1) - theta e_(t-1) are normal; parameters mu, phi, theta, sigma."""

    y: np.ndarray

    def __call__(self, parameters: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        mu, phi, theta, sigma = parameters.T
        drive = self.y - mu[:, None] * np.ones_like(self.y)
        drive[:, 0] -= phi * mu
        drive[:, 1:] -= phi[:, None] * self.y[:-1]
        error = recursion(drive, -theta)
        scaled = error / sigma[:, None]
        squares = (scaled**2).sum(axis=1)
        priors, slopes = normal(parameters[:, :3], (10.0, 2.0, 2.0))
        by_sigma, sigma_slope = cauchy(sigma, 2.5)
        value = priors.sum(axis=1) + by_sigma - len(self.y) * np.log(sigma) - 0.5 * squares
        if not gradient:
            return value, None
        by_drive = adjoint(-scaled / sigma[:, None], -theta)
        first, rest = by_drive[:, 0], by_drive[:, 1:]
        slope = np.empty_like(parameters)
        slope[:, 0] = -(1.0 + phi) * first - rest.sum(axis=1)
        slope[:, 1] = -mu * first - rest @ self.y[:-1]
        slope[:, 2] = -(rest * error[:, :-1]).sum(axis=1)
        slope[:, :3] += slopes
        slope[:, 3] = (squares - len(self.y)) / sigma + sigma_slope
        return value, slope


@dataclass(frozen=True)
class Garch:
    """GARCH(1, 1): y_t has mean mu and variance v_t = alpha0 + alpha1 (y_(t-1) - mu)^2 + beta1 v_(t-1)."""

    y: np.ndarray
    first: float

    def __call__(self, parameters: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        mu, alpha0, alpha1, beta1 = parameters.T
        residual = self.y - mu[:, None]
        squares = residual**2
        drive = np.empty_like(squares)
        drive[:, 0] = self.first
        drive[:, 1:] = alpha0[:, None] + alpha1[:, None] * squares[:, :-1]
        variance = recursion(drive, beta1)
        ratio = squares / variance
        value = -0.5 * (np.log(variance) + ratio).sum(axis=1)
        if not gradient:
            return value, None
        rest = adjoint(0.5 * (ratio - 1.0) / variance, beta1)[:, 1:]
        slope = np.empty_like(parameters)
        slope[:, 0] = (residual / variance).sum(axis=1) - 2.0 * alpha1 * (rest * residual[:, :-1]).sum(axis=1)
        slope[:, 1] = rest.sum(axis=1)
        slope[:, 2] = (rest * squares[:, :-1]).sum(axis=1)
        slope[:, 3] = (rest * variance[:, :-1]).sum(axis=1)
        return value, slope


def arma11(name: str, data: dict[str, Any]) -> Posterior:
    """ARMA(1, 1) with normal priors, and a half-Cauchy one on sigma."""
    return Posterior(name, Space(Real(("mu", "phi", "theta")), Positive(("sigma",))), Arma(data["y"]))


def garch11(name: str, data: dict[str, Any]) -> Posterior:
    """GARCH(1, 1) with flat priors where alpha1 + beta1 < 1."""
    space = Space(Real(("mu",)), Positive(("alpha0",)), parts_of_one(("alpha1", "beta1")))
    return Posterior(name, space, Garch(data["y"], data["sigma1"] ** 2))
