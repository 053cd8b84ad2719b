r"""The forward model of the inverse problem and its adjoint: from mode weights to observed pressures and back.

**Forward and adjoint.** The diffusivity at the Gauss points is :math:`c = \exp(\Phi\theta)` with the
Karhunen-Loeve modes as columns of :math:`\Phi`. The outputs are :math:`F(\theta) = O\, u`, the pressure
interpolated at the observation points. Differentiating :math:`K(c)\, u = f` and :math:`F = O u` gives, for a
cotangent r of the outputs and :math:`\lambda = K^{-1} O^T r`,

.. math::
    (J^T r)_k = - \lambda^T \, \partial_k K \, u
    = - \sum_g \tfrac{h^2}{4}\, c_g\, \Phi_{gk}\, \nabla\lambda_g \cdot \nabla u_g,

which takes one solve with the factorisation that gave u, and one product with :math:`\Phi^T`.

**Modes.** The log-diffusivity is a squared-exponential random field on the unit square. Its kernel is a product
over the two coordinates,

.. math::
    C(x, x') = \sigma^2 \, k(x_1, x_1') \, k(x_2, x_2'), \qquad
    k(s, t) = \exp\left(-\frac{(s - t)^2}{2 l^2}\right),

so its eigenfunctions are products of those of :math:`k` on [0, 1] and its eigenvalues products of theirs. The
one-dimensional problem :math:`\int_0^1 k(s, t)\, v(t)\, dt = \mu\, v(s)` is solved with Nystrom's method: on
Gauss-Legendre nodes :math:`t_j` with weights :math:`w_j` it is a small symmetric eigenproblem, and

.. math::
    v(s) = \frac1\mu \sum_j w_j \, k(s, t_j) \, v(t_j)

extends its solution to any :math:`s`. The modes are therefore the same functions on every mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh

from leapwise.errors import InputError
from leapwise.problems.elliptic.solver import EllipticSolver, Solution, SolveError, dot, interpolation, slopes

# Quadrature nodes of Nystrom's method: the kernel is analytic, and so many give the modes to rounding.
_N_NODES = 64
# Nystrom's extension divides by the eigenvalue: with 100 modes of length 0.2 it keeps 8 digits.
MAX_MODES = 100
# The log-diffusivity is held within these limits, 24 prior standard deviations of the paper's problem. The prior
# probability beyond them is about 1e-120, so no draw is affected. Without limits, a trajectory that strays far
# enough would stop the run: from about +-18 on, the contrast of the diffusivity exceeds 1 / rounding and the
# stiffness matrix is singular to rounding, and further out the diffusivity overflows.
MAX_LOG_DIFFUSIVITY = 12.0
# Larger weights are held at this, so that products with the modes do not overflow.
_MAX_WEIGHT = 1e100
# Factorisations that are kept from a value to its gradient may take this much memory; a guess at what is harmless.
_KEPT_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class KarhunenLoeve:
    r"""The leading modes :math:`\sqrt{\lambda_k}\, v_k(x)`; make them with `karhunen_loeve`.

    Attributes
    ----------
    eigenvalues : ndarray of shape (n_modes,)
        :math:`\lambda_k`, decreasing.
    pairs : ndarray of int, shape (n_modes, 2)
        The one-dimensional modes along x1 and along x2 that make up mode k.
    length : float
        Length scale of the kernel.
    """

    eigenvalues: np.ndarray
    pairs: np.ndarray
    length: float
    _nodes: np.ndarray
    _extension: np.ndarray

    @property
    def n_modes(self) -> int:
        """Number of modes."""
        return len(self.eigenvalues)

    def along(self, coordinate: np.ndarray) -> np.ndarray:
        """Return the one-dimensional modes at coordinates ``(n,)``, as ``(n, n_modes_1d)``."""
        return np.asarray(_kernel(coordinate, self._nodes, self.length) @ self._extension)

    def at(self, points: np.ndarray) -> np.ndarray:
        r"""Return :math:`\sqrt{\lambda_k}\, v_k` at points ``(n, 2)``, as ``(n, n_modes)``."""
        first, second = self.along(points[:, 0]), self.along(points[:, 1])
        return np.asarray(
            np.sqrt(self.eigenvalues) * first[:, self.pairs[:, 0]] * second[:, self.pairs[:, 1]]
        )

    def on_grid(self, x1: np.ndarray, x2: np.ndarray) -> GridField:
        """Return the map from weights to fields on the grid of all ``(x1[i], x2[j])``."""
        return GridField(self.along(x1), self.along(x2), self.pairs, np.sqrt(self.eigenvalues))


@dataclass(frozen=True, eq=False)
class GridField:
    r"""The map from weights :math:`\theta` to :math:`\sum_k \theta_k \sqrt{\lambda_k}\, v_k` on a grid.

    It and its transpose use the p x p table of one-dimensional modes (p is 5 for 20 modes). That takes two
    small products instead of one with a tall matrix that has a row for every grid point.
    """

    _first: np.ndarray  # (len(x1), p)
    _second: np.ndarray  # (len(x2), p)
    _pairs: np.ndarray
    _scales: np.ndarray

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Return the field ``(len(x1), len(x2))`` of mode weights ``(n_modes,)``."""
        p = self._first.shape[1]
        table = np.zeros((p, p))
        table[self._pairs[:, 0], self._pairs[:, 1]] = weights * self._scales
        return np.asarray(self._first @ table @ self._second.T)

    def transpose(self, field: np.ndarray) -> np.ndarray:
        """Return the inner product ``(n_modes,)`` of every mode with a field on the grid."""
        table = self._first.T @ field @ self._second
        return np.asarray(table[self._pairs[:, 0], self._pairs[:, 1]] * self._scales)

    def basis(self) -> np.ndarray:
        """Return every mode on the grid, ``(n_modes, len(x1), len(x2))``."""
        first = self._scales[:, None] * self._first.T[self._pairs[:, 0]]
        return np.asarray(first[:, :, None] * self._second.T[self._pairs[:, 1]][:, None, :])


def karhunen_loeve(n_modes: int = 20, *, variance: float = 1.0, length: float = 0.2) -> KarhunenLoeve:
    r"""Find the leading modes of the field with kernel :math:`\sigma^2 \exp(-|x - x'|^2 / 2 l^2)`.

    Modes are in the order of decreasing eigenvalue. Of a degenerate pair :math:`v_a(x_1) v_b(x_2)`,
    :math:`v_b(x_1) v_a(x_2)`, the one with the smaller index along x1 comes first. Every one-dimensional mode
    is positive at 0.

    Parameters
    ----------
    n_modes : int
        Number of modes, at most 100.
    variance, length : float
        :math:`\sigma^2` and :math:`l`.

    Examples
    --------
    >>> modes = karhunen_loeve(3)
    >>> modes.pairs.tolist()
    [[0, 0], [0, 1], [1, 0]]
    >>> float(modes.eigenvalues.sum().round(3))  # of the variance, 1
    0.458
    """
    if (
        isinstance(n_modes, bool)
        or not isinstance(n_modes, (int, np.integer))
        or not 1 <= n_modes <= MAX_MODES
    ):
        raise InputError(f"n_modes must be a whole number from 1 to {MAX_MODES}, got {n_modes!r}")
    nodes, weights = np.polynomial.legendre.leggauss(_N_NODES)
    nodes, weights = 0.5 * (nodes + 1.0), 0.5 * weights
    root = np.sqrt(weights)
    mu, vectors = eigh(root[:, None] * _kernel(nodes, nodes, length) * root)
    mu, vectors = mu[::-1], vectors[:, ::-1]

    # The product (a, b) is at most any with a' <= a and b' <= b, so (a+1)(b+1) <= n_modes and a, b < n_modes.
    size = min(n_modes, _N_NODES)
    products = np.outer(mu[:size], mu[:size]).ravel()
    order = np.lexsort((np.arange(size * size), -products))[:n_modes]
    pairs = np.column_stack(np.unravel_index(order, (size, size)))
    used = pairs.max() + 1
    extension = root[:, None] * vectors[:, :used] / mu[:used]
    extension *= np.sign(_kernel(np.zeros(1), nodes, length) @ extension)
    return KarhunenLoeve(variance * products[order], pairs, length, nodes, extension)


def _kernel(s: np.ndarray, t: np.ndarray, length: float) -> np.ndarray:
    return np.asarray(np.exp(-0.5 * ((s[:, None] - t) / length) ** 2))


@dataclass(frozen=True, eq=False)
class SolvedPoint:
    """The solution of the equation at one point."""

    solution: Solution
    _log_diffusivity: np.ndarray  # before the limits are applied

    @cached_property
    def sensitivity(self) -> np.ndarray:
        """Derivative of the diffusivity by its logarithm; zero where the logarithm is held at its limits."""
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
        Points along each side of the uniform grid on which the pressure is observed, edges included.

    Notes
    -----
    The log-diffusivity is held within +-12, so that the outputs are finite wherever a trajectory goes.

    Examples
    --------
    >>> from leapwise.problems.elliptic.model import karhunen_loeve
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

        Factorisations are kept from the outputs to the cotangents, up to a gigabyte; further rows are solved
        again.
        """
        outputs = np.empty((len(parameters), self.n_outputs))
        states: list[SolvedPoint | None] = []
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

    def state(self, weights: np.ndarray) -> SolvedPoint | None:
        """Solve the equation for mode weights ``(dim,)``; None if it has no finite solution."""
        if not np.isfinite(weights).all():
            return None
        log_diffusivity = self.field(np.clip(weights, -_MAX_WEIGHT, _MAX_WEIGHT))
        diffusivity = np.exp(np.clip(log_diffusivity, -MAX_LOG_DIFFUSIVITY, MAX_LOG_DIFFUSIVITY))
        try:
            solution = self.solver.solve(diffusivity)
        except SolveError:
            return None
        return SolvedPoint(solution, log_diffusivity)

    def observe(self, nodal: np.ndarray) -> np.ndarray:
        """Interpolate nodal functions ``(..., n+1, n+1)`` at the observation points, ``(..., m)``."""
        values = self._interpolation @ nodal @ self._interpolation.T
        return np.asarray(values.reshape(*nodal.shape[:-2], -1))

    def observe_transposed(self, cotangents: np.ndarray) -> np.ndarray:
        """Return the nodal loads ``(..., n+1, n+1)`` of cotangents ``(..., m)``."""
        side = self.observed.size
        square = cotangents.reshape(*cotangents.shape[:-1], side, side)
        return np.asarray(self._interpolation.T @ square @ self._interpolation)

    def _outputs(self, state: SolvedPoint | None) -> np.ndarray:
        return np.full(self.n_outputs, np.nan) if state is None else self.observe(state.solution.pressure)

    def _adjoint(self, state: SolvedPoint | None, cotangent: np.ndarray) -> np.ndarray:
        if state is None:
            return np.full(self.dim, np.nan)
        adjoint = state.solution.respond(self.observe_transposed(cotangent))
        product = dot(slopes(adjoint), slopes(state.solution.pressure))
        return -self.field.transpose(state.sensitivity * product)
