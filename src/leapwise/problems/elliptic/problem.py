"""The inverse problem as a posterior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from leapwise.errors import InputError
from leapwise.problems.datasets import load_mat
from leapwise.problems.elliptic.fisher import FisherMetric
from leapwise.problems.elliptic.karhunen_loeve import karhunen_loeve
from leapwise.problems.elliptic.model import EllipticModel
from leapwise.problems.problem import Problem
from leapwise.targets import ForwardTarget, GaussianLikelihood, NormalPrior

NOISE_SD = 0.1
PRIOR_SD = 0.5
MIN_N, MAX_N = 10, 500
_DATA_N = 250
_DATA_SEED = 20150602


@dataclass(frozen=True, eq=False, kw_only=True)
class EllipticProblem(Problem):
    """A `Problem` that also gives its forward model, for pictures of the field."""

    model: EllipticModel


def elliptic_pde(n: int = 30, *, observations: str = "simulated", n_modes: int = 20) -> EllipticProblem:
    r"""Infer a diffusivity field from noisy pressures (the paper's section 5.2).

    The pressure u obeys :math:`\nabla \cdot (c \nabla u) = 0` on the unit square, with :math:`u = x_1` at
    :math:`x_2 = 0`, :math:`u = 1 - x_1` at :math:`x_2 = 1`, and no flux through the other two sides. It is
    observed on an 11 x 11 grid, x2 fastest, with errors of standard deviation 0.1. The log-diffusivity is a
    sum of K-L modes of a Gaussian field (variance 1, length scale 0.2) with weights theta, which are
    independent and :math:`N(0, 0.5^2)` a priori.

    Parameters
    ----------
    n : int
        Elements along each side of the mesh, 10 to 500. The paper's is 30; the cost grows about as its cube.
    observations : {"simulated", "paper"}
        Data made from known parameters (no file needed), or the authors' own.
    n_modes : int
        Number of modes, and so of parameters.

    Returns
    -------
    EllipticProblem
        Its target has an adjoint gradient, which adds about half the price of a value; its metric is the
        Fisher information.

    Notes
    -----
    Simulated data come from a solve on a mesh of 250 x 250, the same data for every `n`. Were they made on
    the mesh that is used to infer, the errors of the mesh would cancel and the problem look easier than it
    is (the "inverse crime"). `true_parameters` holds the weights they were made from.

    The log-diffusivity is held within +-12, which no draw ever notices; see
    `leapwise.problems.elliptic.model`.

    Examples
    --------
    >>> problem = elliptic_pde(n=10)
    >>> problem.target
    ForwardTarget(dim=20, gradient=True, vectorized=True)
    >>> bool(np.isfinite(problem.target.evaluate(np.zeros((4, 20)), gradient=True).gradient).all())
    True
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not MIN_N <= n <= MAX_N:
        raise InputError(
            f"n must be a whole number from {MIN_N} to {MAX_N}, got {n!r}; the paper's mesh has n=30"
        )
    if observations not in ("simulated", "paper"):
        raise InputError(f"observations must be 'simulated' or 'paper', got {observations!r}")
    model = EllipticModel(int(n), karhunen_loeve(n_modes))
    truth = None
    if observations == "paper":
        data = _paper_data()
    else:
        truth, data = _simulated_data(model.dim)
    target = ForwardTarget(
        model.forward,
        GaussianLikelihood(data, sd=NOISE_SD),
        NormalPrior(0.0, PRIOR_SD, dim=model.dim),
        vjp=model.vjp,
        names="theta",
        vectorized=True,
    )
    return EllipticProblem(
        name="elliptic-pde",
        description=(
            f"diffusivity of an elliptic PDE from 121 noisy pressures ({n} x {n} mesh, {model.dim} modes)"
        ),
        target=target,
        metric=FisherMetric(model, NOISE_SD, PRIOR_SD),
        true_parameters=None if truth is None else truth.copy(),
        settings={"hmc": (0.16, 10), "rmhmc": (0.8, 3)},
        model=model,
    )


@lru_cache(maxsize=4)
def _simulated_data(n_modes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw weights from the prior and data from them; the first weights are the same for any number."""
    weights_rng, noise_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(_DATA_SEED).spawn(2))
    truth = PRIOR_SD * weights_rng.standard_normal(n_modes)
    model = EllipticModel(_DATA_N, karhunen_loeve(n_modes))
    noise = NOISE_SD * noise_rng.standard_normal(model.n_outputs)
    return truth, model.forward(truth[None])[0] + noise


def _paper_data() -> np.ndarray:
    return np.asarray(load_mat("elliptic_pde.mat")["y"], dtype=float).ravel()
