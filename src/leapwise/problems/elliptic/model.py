r"""From mode weights to observed pressures, and back: the forward model and its adjoint.

The diffusivity at the Gauss points is :math:`c = \exp(\Phi\theta)` with the K-L modes as columns of
:math:`\Phi`; the outputs are :math:`F(\theta) = O\, u`, the pressure interpolated at the observation
points. Differentiating :math:`K(c)\, u = f` and :math:`F = O u` gives, for a cotangent r of the outputs and
:math:`\lambda = K^{-1} O^T r`,

.. math::
    (J^T r)_k = - \lambda^T \, \partial_k K \, u
    = - \sum_g \tfrac{h^2}{4}\, c_g\, \Phi_{gk}\, \nabla\lambda_g \cdot \nabla u_g,

one solve with the factorisation that found u, and one product with :math:`\Phi^T`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from leapwise.problems.elliptic.grid import dot, interpolation, slopes
from leapwise.problems.elliptic.karhunen_loeve import KarhunenLoeve
from leapwise.problems.elliptic.solver import EllipticSolver, Solution, SolveError

# The log-diffusivity is held within these limits, 24 prior standard deviations of the paper's problem:
# beyond them lies a prior probability of about 1e-120, which no draw will ever notice. Without limits, a
# trajectory that strays far enough meets a diffusivity whose contrast exceeds 1 / rounding (from about
# +-18), where the stiffness matrix is singular to rounding, or one that overflows, and a run would stop
# there for nothing.
MAX_LOG_DIFFUSIVITY = 12.0
_MAX_WEIGHT = 1e100
_KEPT_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class State:
    """The equation solved at one point."""

    solution: Solution
    _log_diffusivity: np.ndarray  # before it is held within its limits

    @cached_property
    def sensitivity(self) -> np.ndarray:
        """Derivative of the diffusivity by its logarithm; zero where that is held at its limits."""
        return np.asarray(self.solution.diffusivity * (np.abs(self._log_diffusivity) <= MAX_LOG_DIFFUSIVITY))


class EllipticModel:
    """The forward model of the inverse problem, on batches of mode weights.

    Parameters
    ----------
    n : int
        Elements along each side of the mesh.
    modes : KarhunenLoeve
        Modes of the log-diffusivity.
    n_observed : int
        The pressure is observed on a uniform grid with so many points along each side, edges included.

    Notes
    -----
    The log-diffusivity is held within +-12, so that the outputs are finite wherever a trajectory may stray.

    Examples
    --------
    >>> from leapwise.problems.elliptic.karhunen_loeve import karhunen_loeve
    >>> model = EllipticModel(10, karhunen_loeve(20))
    >>> outputs, pull_back = model.vjp(np.zeros((3, 20)))
    >>> outputs.shape, pull_back(np.ones((3, 121))).shape
    ((3, 121), (3, 20))
    """

    def __init__(self, n: int, modes: KarhunenLoeve, n_observed: int = 11) -> None:
        self.modes = modes
        self.solver = EllipticSolver(n)
        self.field = modes.on_grid(self.solver.gauss, self.solver.gauss)
        self.observed = np.linspace(0.0, 1.0, n_observed)  # along each side
        self._interpolation = interpolation(n, self.observed)
        self._n_kept = max(1, _KEPT_BYTES // self.solver.factor_bytes)

    @property
    def dim(self) -> int:
        """Number of mode weights."""
        return self.modes.n_modes

    @property
    def n_outputs(self) -> int:
        """Number of observed pressures."""
        return self.observed.size**2

    def forward(self, parameters: np.ndarray) -> np.ndarray:
        """Return the observed pressures ``(n, m)``, x2 fastest; NaN in rows that cannot be solved."""
        outputs = np.empty((len(parameters), self.n_outputs))
        for i, row in enumerate(parameters):
            outputs[i] = self._outputs(self.state(row))
        return outputs

    def vjp(self, parameters: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Return the outputs and the transposed Jacobian as a function of cotangents ``(n, m)``.

        Factorisations are kept from one to the other, up to a gigabyte of them; further rows are solved
        again.
        """
        outputs = np.empty((len(parameters), self.n_outputs))
        states: list[State | None] = []
        for i, row in enumerate(parameters):
            state = self.state(row)
            outputs[i] = self._outputs(state)
            states.append(state if i < self._n_kept else None)

        def pull_back(cotangents: np.ndarray) -> np.ndarray:
            gradients = np.empty((len(parameters), self.dim))
            for i, state in enumerate(states):
                gradients[i] = self._adjoint(state or self.state(parameters[i]), cotangents[i])
            return gradients

        return outputs, pull_back

    def state(self, weights: np.ndarray) -> State | None:
        """Solve the equation for mode weights ``(dim,)``; None if it has no finite solution."""
        if not np.isfinite(weights).all():
            return None
        log_diffusivity = self.field(np.clip(weights, -_MAX_WEIGHT, _MAX_WEIGHT))
        diffusivity = np.exp(np.clip(log_diffusivity, -MAX_LOG_DIFFUSIVITY, MAX_LOG_DIFFUSIVITY))
        try:
            solution = self.solver.solve(diffusivity)
        except SolveError:
            return None
        return State(solution, log_diffusivity)

    def observe(self, nodal: np.ndarray) -> np.ndarray:
        """Interpolate nodal functions ``(..., n+1, n+1)`` at the observation points, ``(..., m)``."""
        values = self._interpolation @ nodal @ self._interpolation.T
        return np.asarray(values.reshape(*nodal.shape[:-2], -1))

    def observe_transposed(self, cotangents: np.ndarray) -> np.ndarray:
        """Return the nodal loads ``(..., n+1, n+1)`` of cotangents ``(..., m)``."""
        side = self.observed.size
        square = cotangents.reshape(*cotangents.shape[:-1], side, side)
        return np.asarray(self._interpolation.T @ square @ self._interpolation)

    def _outputs(self, state: State | None) -> np.ndarray:
        return np.full(self.n_outputs, np.nan) if state is None else self.observe(state.solution.pressure)

    def _adjoint(self, state: State | None, cotangent: np.ndarray) -> np.ndarray:
        if state is None:
            return np.full(self.dim, np.nan)
        adjoint = state.solution.respond(self.observe_transposed(cotangent))
        product = dot(slopes(adjoint), slopes(state.solution.pressure))
        return -self.field.transpose(state.sensitivity * product)
