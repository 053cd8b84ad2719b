r"""The posterior of the inverse problem, its Fisher metric, and pictures of the inferred field.

With J the Jacobian of the outputs, noise of standard deviation :math:`\sigma` and prior standard deviation
:math:`\sigma_\theta`, the metric is

.. math::
    G = \sigma^{-2} J^T J + \sigma_\theta^{-2} I, \qquad
    J_k = O\, U_k, \quad U_k = \partial_k u = -K^{-1} \partial_k K\, u ,

in the notation of `leapwise.problems.elliptic`. So in this file U is not the potential.

**Quadratic contraction.** Hold the velocity v and :math:`w = \sigma^{-2} J v` fixed. Then
:math:`\nu_i = v^T \partial_i G\, v = 2\, \partial_i (w^T J v)`. Write :math:`\dot a` for the derivative of
a along v, so that :math:`w^T J v = w^T O \dot u` with :math:`K \dot u = -\dot K u`. Differentiating the latter
once more gives

.. math::
    K\, \partial_i \dot u = -\partial_i K\, \dot u - \partial_i \dot K\, u - \dot K\, U_i ,

and, with one adjoint solve :math:`K \mu = O^T w`,

.. math::
    \nu_i = -2 \left[ \mu^T \partial_i K\, \dot u + \mu^T \partial_i \dot K\, u + (\dot K \mu)^T U_i \right] .

Since :math:`K = D^T \mathrm{diag}(P c) D` and :math:`c = e^{\Phi\theta}`, both :math:`\partial_i K` and
:math:`\partial_i \dot K` have the factor :math:`\Phi_i` at each Gauss point (and :math:`\dot K`,
:math:`\partial_i \dot K` the factor :math:`\Phi v`). So one product with :math:`\Phi^T` and one with the stored
:math:`U` give all i. A velocity costs one solve; :math:`\dot u = U v` costs none.

**Trace.** :math:`\tau_i = \mathrm{tr}(G^{-1} \partial_i G) = 2 \sum_k w_k^T\, \partial_i J_k` with
:math:`w_k = \sigma^{-2} (J G^{-1})_k`. This is the same sum for the unit velocities, each with its own w, and
takes d solves in one block. No matrix :math:`\partial_i G` and no second derivative of u is formed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.dynamics.metrics import batched_cholesky
from leapwise.errors import InputError
from leapwise.problems.datasets import load_mat
from leapwise.problems.elliptic.model import EllipticModel, SolvedPoint, karhunen_loeve
from leapwise.problems.elliptic.solver import (
    Slopes,
    dot,
    dot_sum,
    modulate_sum,
    pair_sums,
    slopes,
    slopes_transposed,
    times_stiffness,
)
from leapwise.problems.registry import Problem
from leapwise.results.plots import require_picture
from leapwise.targets import ForwardTarget, GaussianLikelihood, NormalPrior

#: Standard deviations of the errors and of the prior, as in the paper.
NOISE_SD = 0.1
PRIOR_SD = 0.5
#: Meshes that are allowed: coarser ones cannot resolve the modes, finer ones take gigabytes.
MIN_N, MAX_N = 10, 500
# Simulated data come from a mesh much finer than the one that is used to infer.
_DATA_N = 250
_DATA_SEED = 20150602
# Points along each side of a picture: smooth for modes of length scale 0.2.
_RESOLUTION = 121


class FisherMetric:
    """The Fisher information of independent Gaussian errors plus the precision of a normal prior.

    Parameters
    ----------
    model : EllipticModel
        The forward model.
    noise_sd, prior_sd : float
        Standard deviations of the errors and of each parameter.

    Examples
    --------
    >>> from leapwise.problems.elliptic import elliptic_pde
    >>> local = elliptic_pde(n=10).metric.at(np.zeros((2, 20)))
    >>> local.matrix.shape, local.quadratic_contraction(np.ones((2, 20))).shape
    ((2, 20, 20), (2, 20))
    """

    def __init__(self, model: EllipticModel, noise_sd: float, prior_sd: float) -> None:
        self.model = model
        self.noise_sd, self.prior_sd = noise_sd, prior_sd

    @cached_property
    def _basis(self) -> np.ndarray:
        """All modes at the Gauss points; made when first needed, since a fine mesh has many points."""
        return self.model.field.basis()

    def at(self, position: np.ndarray) -> LocalFisher:
        """Evaluate the metric at positions ``(n, dim)``; NaN where the equation cannot be solved."""
        tangents = [self._tangent(row) for row in position]
        dim = self.model.dim
        matrix = np.full((len(position), dim, dim), np.nan)
        for one, tangent in zip(matrix, tangents, strict=True):
            if tangent is not None:
                one[:] = tangent.jacobian @ tangent.jacobian.T / self.noise_sd**2
                one[np.diag_indices(dim)] += self.prior_sd**-2
        return LocalFisher(matrix, batched_cholesky(matrix), tangents)

    def _tangent(self, weights: np.ndarray) -> Tangent | None:
        state = self.model.state(weights)
        if state is None:
            return None
        gradient = slopes(state.solution.pressure)
        loads = times_stiffness(state.sensitivity * self._basis, gradient)
        derivatives = -state.solution.respond(loads)
        jacobian = self.model.observe(derivatives)
        return Tangent(self.model, state, self._basis, self.noise_sd**-2, gradient, derivatives, jacobian)


@dataclass(eq=False)
class LocalFisher:
    """The metric at n positions."""

    matrix: np.ndarray
    cholesky: np.ndarray
    _tangents: list[Tangent | None]

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`\nu_i = v^T \partial_i G\, v`, ``(n, dim)``; one solve per row."""
        contraction = np.full_like(velocity, np.nan)
        with np.errstate(over="ignore", invalid="ignore"):
            for i, tangent in enumerate(self._tangents):
                if tangent is not None:
                    contraction[i] = tangent.quadratic_contraction(velocity[i])
        return contraction

    def trace_contraction(self) -> np.ndarray:
        r"""Return :math:`\tau_i = \mathrm{tr}(G^{-1} \partial_i G)`, ``(n, dim)``; computed once."""
        return self._trace

    @cached_property
    def _trace(self) -> np.ndarray:
        contraction = np.full(self.matrix.shape[:2], np.nan)
        for i, tangent in enumerate(self._tangents):
            if tangent is not None and np.isfinite(self.cholesky[i]).all():
                contraction[i] = tangent.trace_contraction(self.matrix[i])
        return contraction


@dataclass(frozen=True, eq=False)
class Tangent:
    """The equation and its derivatives with respect to all parameters, at one position."""

    model: EllipticModel
    state: SolvedPoint
    basis: np.ndarray  # (dim, 2n, 2n)
    precision: float
    gradient: Slopes  # of u
    derivatives: np.ndarray  # (dim, n+1, n+1): U
    jacobian: np.ndarray  # (dim, m): J transposed

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        """Contract with one velocity twice."""
        cotangent = self.precision * (velocity @ self.jacobian)
        adjoint = slopes(self.state.solution.respond(self.model.observe_transposed(cotangent)))
        along = slopes(np.einsum("k,kij->ij", velocity, self.derivatives))
        direction = self.model.field(velocity)
        local = dot(adjoint, along) + direction * dot(adjoint, self.gradient)
        loads = times_stiffness(self.state.sensitivity * direction, adjoint)
        return self._contract(local, loads)

    def trace_contraction(self, matrix: np.ndarray) -> np.ndarray:
        """Contract with the inverse of the metric."""
        # gesv instead of potrs: OpenBLAS spreads the triangular solves of potrs over threads, even small ones.
        cotangents = self.precision * np.linalg.solve(matrix, self.jacobian)
        adjoint = slopes(self.state.solution.respond(self.model.observe_transposed(cotangents)))
        along = slopes(self.derivatives)
        first, second = modulate_sum(self.basis, adjoint)
        local = dot_sum(adjoint, along)
        local += first * np.repeat(self.gradient[0], 2, axis=0)
        local += second * np.repeat(self.gradient[1], 2, axis=1)
        sensitivity = self.state.sensitivity
        fluxes = pair_sums(sensitivity * first)[0], pair_sums(sensitivity * second)[1]
        return self._contract(local, slopes_transposed(fluxes))

    def _contract(self, local: np.ndarray, loads: np.ndarray) -> np.ndarray:
        """Take the products with Phi and with U that both contractions end with."""
        through_modes = self.model.field.transpose(self.state.sensitivity * local)
        return np.asarray(-2.0 * (through_modes + np.einsum("kij,ij->k", self.derivatives, loads)))


@dataclass(frozen=True, eq=False, kw_only=True)
class EllipticProblem(Problem):
    """A `Problem` that also has its forward model, for pictures of the field."""

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
        Elements along each side of the mesh, 10 to 500. The paper uses 30; the cost grows about as n cubed.
    observations : {"simulated", "paper"}
        Data simulated from known parameters (no file needed), or the authors' own.
    n_modes : int
        Number of modes, and so of parameters.

    Returns
    -------
    EllipticProblem
        Its target has an adjoint gradient, which adds about half the cost of a value. Its metric is the
        Fisher information.

    Notes
    -----
    Simulated data come from a solve on a mesh of 250 x 250, the same data for every `n`. If they were made on
    the mesh that is used to infer, the errors of the mesh would cancel, and the problem would look easier than
    it is (the "inverse crime"). `true_parameters` has the weights that they were made from.

    The log-diffusivity is held within +-12, which does not affect any draw; see
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
    """Draw weights from the prior and data given them; the first weights are the same for any number of modes."""
    weights_rng, noise_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(_DATA_SEED).spawn(2))
    truth = PRIOR_SD * weights_rng.standard_normal(n_modes)
    model = EllipticModel(_DATA_N, karhunen_loeve(n_modes))
    noise = NOISE_SD * noise_rng.standard_normal(model.n_outputs)
    return truth, model.forward(truth[None])[0] + noise


def _paper_data() -> np.ndarray:
    return np.asarray(load_mat("elliptic_pde.mat")["y"], dtype=float).ravel()


def plot_field(problem: EllipticProblem, draws: ArrayLike, path: str | PathLike[str]) -> Path:
    """Draw mean and standard deviation of the log-diffusivity, beside the truth if it is known.

    Truth and mean share one colour scale, white at zero. Dots mark the points where the pressure was observed.

    Parameters
    ----------
    problem : EllipticProblem
        From `elliptic_pde`.
    draws : array_like of shape (..., dim)
        Draws of the mode weights, of any number of chains.
    path : path-like
        File to write; its ending gives the format. Missing folders are made.

    Returns
    -------
    Path
        The file that was written.
    """
    if not isinstance(problem, EllipticProblem):
        raise InputError(f"plot_field draws the field of elliptic_pde(), got {type(problem).__name__}")
    mean, sd, truth, x = _fields(problem, draws)
    file = require_picture(path)
    from matplotlib.figure import Figure

    panels = [] if truth is None else [("true log-diffusivity", truth)]
    panels.append(("posterior mean", mean))
    figure = Figure(figsize=(3.6 * (len(panels) + 1) + 1.2, 3.9), layout="constrained")
    axes = figure.subplots(1, len(panels) + 1, sharex=True, sharey=True)
    limit = max(float(np.abs(field).max()) for _, field in panels) or 1.0
    for axis, (title, field) in zip(axes, panels, strict=False):
        image = _panel(axis, x, field, title, problem, cmap="PuOr_r", vmin=-limit, vmax=limit)
        _contours(axis, x, field, np.linspace(-limit, limit, 11), "0.3")
    figure.colorbar(image, ax=axes[: len(panels)], shrink=0.85, pad=0.02)
    image = _panel(axes[-1], x, sd, "posterior sd", problem, cmap="cividis", vmin=0.0, vmax=float(sd.max()))
    _contours(axes[-1], x, sd, np.linspace(0.0, sd.max(), 13), "0.9")
    figure.colorbar(image, ax=axes[-1], shrink=0.85, pad=0.04)
    axes[0].set_ylabel("$x_2$")
    figure.savefig(file, dpi=150)
    return file


def _fields(
    problem: EllipticProblem, draws: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Return mean, standard deviation and truth of the log-diffusivity on a fine grid, and the grid."""
    modes = problem.model.modes
    weights = np.asarray(draws, dtype=float)
    if weights.ndim < 2 or weights.shape[-1] != modes.n_modes or weights[..., 0].size < 2:
        raise InputError(
            f"draws must have shape (..., {modes.n_modes}) and hold at least two, got {weights.shape}; "
            "pass the draws of theta"
        )
    weights = weights.reshape(-1, modes.n_modes)
    x = np.linspace(0.0, 1.0, _RESOLUTION)
    field = modes.on_grid(x, x)
    # The field is linear in its weights, so its moments follow from theirs.
    basis = field.basis().reshape(modes.n_modes, -1)
    covariance = np.atleast_2d(np.cov(weights, rowvar=False))
    variance = np.einsum("kg,kg->g", basis, covariance @ basis).reshape(_RESOLUTION, _RESOLUTION)
    truth = None if problem.true_parameters is None else field(problem.true_parameters)
    return field(weights.mean(axis=0)), np.sqrt(np.maximum(variance, 0.0)), truth, x


def _panel(
    axis: Any, x: np.ndarray, field: np.ndarray, title: str, problem: EllipticProblem, **colours: Any
) -> Any:
    image = axis.imshow(field.T, origin="lower", extent=(0, 1, 0, 1), interpolation="bilinear", **colours)
    observed = problem.model.observed
    first, second = np.meshgrid(observed, observed, indexing="ij")
    axis.plot(first.ravel(), second.ravel(), "o", ms=2.6, mfc="white", mec="black", mew=0.5, clip_on=False)
    axis.set(title=title, xlabel="$x_1$", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axis.set_xticklabels(("0", "0.5", "1"))
    axis.set_yticklabels(("0", "0.5", "1"))
    return image


def _contours(axis: Any, x: np.ndarray, field: np.ndarray, levels: np.ndarray, colour: str) -> None:
    inside = levels[(levels > field.min()) & (levels < field.max())]
    if inside.size:  # a flat field has no lines, and matplotlib would warn
        axis.contour(x, x, field.T, levels=inside, colors=colour, linewidths=0.5)
