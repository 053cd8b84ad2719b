r"""The Hessian of a potential as a Riemannian metric, in three forms.

With :math:`H(q)` the Hessian of a smooth potential (in this file H is not the Hamiltonian):

- ``"full"``: :math:`G = H`, where that is positive definite;
- ``"diagonal"``: :math:`G = \mathrm{diag}(g(H_{ii}))` with :math:`g(h) = \frac12 (h + \sqrt{h^2 + 4 f^2})`, a smooth
  floor: close to h where h is far above f, and positive everywhere;
- ``"softabs"`` (Betancourt): :math:`G = Q\, g(\Lambda)\, Q^T` with :math:`H = Q \Lambda Q^T` and
  :math:`g(\lambda) = \lambda \coth(\lambda / f)`, which is close to :math:`|\lambda|`, and at least f.

The dynamics need two contractions of :math:`\partial_i G`. Each equals a contraction of :math:`\partial_i H`,
:math:`\mathrm{tr}(A\, \partial_i H)`, with a matrix A that is cheap to compute, so the array of third derivatives is
never computed. For :math:`\nu_i = v^T \partial_i G\, v` and :math:`\tau_i = \mathrm{tr}(G^{-1} \partial_i G)`:

=========  =======================================================  =========================================
form       A for :math:`\nu`                                          A for :math:`\tau`
=========  =======================================================  =========================================
full       :math:`v v^T`                                             :math:`H^{-1}`
diagonal   :math:`\mathrm{diag}(v_i^2\, g'(H_{ii}))`                 :math:`\mathrm{diag}(g'(H_{ii}) / g(H_{ii}))`
softabs    :math:`Q\, (J \circ w w^T)\, Q^T`, :math:`w = Q^T v`      :math:`Q\, \mathrm{diag}(g'/g)\, Q^T`
=========  =======================================================  =========================================

with :math:`J_{ij} = (g(\lambda_i) - g(\lambda_j)) / (\lambda_i - \lambda_j)`, or :math:`g'(\lambda_i)` where the two
eigenvalues are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from leapwise.checks import ask_surrogate, require_positive
from leapwise.dynamics.metrics import LocalMetric, batched_cholesky
from leapwise.errors import InputError

Form = Literal["full", "diagonal", "softabs"]


class HessianPotential(Protocol):
    """A potential with second derivatives and contractions of its third derivatives."""

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians ``(n, dim, dim)``."""
        ...

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        r"""Return :math:`v^T \partial_i H\, v`, ``(n, dim)``."""
        ...

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return :math:`\mathrm{tr}(A\, \partial_i H)`, ``(n, dim)``."""
        ...


@dataclass(frozen=True, eq=False)
class HessianMetric:
    """A metric made from the Hessian of a potential, such as a trained surrogate.

    Parameters
    ----------
    potential : object
        It has the methods ``hessian``, ``quadratic_contraction`` and ``trace_contraction``, like every trained
        surrogate.
    form : {"full", "diagonal", "softabs"}
        How the Hessian is made positive definite. "full" does not change it; where it is not positive definite,
        proposals are rejected.
    floor : float
        Smallest curvature f of the other two forms, approximately.

    Examples
    --------
    >>> import numpy as np
    >>> from leapwise import HessianMetric, QuadraticNetwork, TrainingSet
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((20, 2))
    >>> quadratic = QuadraticNetwork().fit(TrainingSet(x, (x**2) @ [0.5, 2.0], x * [1.0, 4.0]), rng)
    >>> HessianMetric(quadratic).at(np.zeros((1, 2))).matrix.round(6) + 0.0
    array([[[1., 0.],
            [0., 4.]]])
    """

    potential: HessianPotential
    form: Form = "full"
    floor: float = 1e-3

    def __post_init__(self) -> None:
        missing = [
            name
            for name in ("hessian", "quadratic_contraction", "trace_contraction")
            if not callable(getattr(self.potential, name, None))
        ]
        if missing or isinstance(self.potential, type):
            raise InputError(
                f"HessianMetric needs a potential with methods hessian, quadratic_contraction and trace_contraction, "
                f"got {getattr(self.potential, '__name__', type(self.potential).__name__)}; give a trained surrogate"
            )
        if self.form not in get_args(Form):
            raise InputError(
                f"form must be one of {', '.join(map(repr, get_args(Form)))}, got {self.form!r}; "
                "'softabs' suits any potential"
            )
        require_positive(self.floor, "floor", ())

    def product(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the metric times each row of `velocity`, by the potential's `hessian_product` if it has one."""
        with np.errstate(all="ignore"):
            if self.form == "full" and hasattr(self.potential, "hessian_product"):
                product = self.potential.hessian_product
                return ask_surrogate(
                    self.potential, product, position.shape, "products with Hessians", position, velocity
                )
            return np.asarray(np.einsum("nij,nj->ni", self.at(position).matrix, velocity))

    def at(self, position: np.ndarray) -> LocalMetric:
        """Evaluate the metric at positions ``(n, dim)``."""
        with np.errstate(all="ignore"):
            shape = (*position.shape, position.shape[1])
            hessian = ask_surrogate(self.potential, self.potential.hessian, shape, "Hessians", position)
            if self.form == "full":
                return _Full(self.potential, position, hessian, batched_cholesky(hessian))
            if self.form == "diagonal":
                return _diagonal(self.potential, position, hessian, self.floor)
            return _softabs(self.potential, position, hessian, self.floor)


@dataclass(frozen=True, eq=False)
class _Full:
    potential: HessianPotential
    position: np.ndarray
    matrix: np.ndarray
    cholesky: np.ndarray

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        contract, shape = self.potential.quadratic_contraction, self.position.shape
        return ask_surrogate(self.potential, contract, shape, "contractions", self.position, velocity)

    def trace_contraction(self) -> np.ndarray:
        inverse = np.full_like(self.matrix, np.nan)
        usable = np.isfinite(self.cholesky).all(axis=(1, 2))
        factor = np.linalg.inv(self.cholesky[usable])
        inverse[usable] = np.matmul(np.swapaxes(factor, 1, 2), factor)
        return _trace(self.potential, self.position, inverse)


@dataclass(frozen=True, eq=False)
class _Spectral:
    """A metric :math:`Q\\, g\\, Q^T` from the eigenvalues of the Hessian, or from its diagonal (then Q is None)."""

    potential: HessianPotential
    position: np.ndarray
    matrix: np.ndarray
    cholesky: np.ndarray
    vectors: np.ndarray | None  # (n, dim, dim): Q
    values: np.ndarray  # (n, dim): g
    slopes: np.ndarray  # (n, dim): g', or (n, dim, dim): J

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        if self.vectors is None:
            return _trace(self.potential, self.position, _diagonals(velocity**2 * self.slopes))
        along = np.einsum("nji,nj->ni", self.vectors, velocity)
        return self._contract(self.slopes * along[:, :, None] * along[:, None, :])

    def trace_contraction(self) -> np.ndarray:
        if self.vectors is None:
            return _trace(self.potential, self.position, _diagonals(self.slopes / self.values))
        slopes = np.diagonal(self.slopes, axis1=1, axis2=2)
        return self._contract(_diagonals(slopes / self.values))

    def _contract(self, inner: np.ndarray) -> np.ndarray:
        assert self.vectors is not None
        matrix = self.vectors @ inner @ np.swapaxes(self.vectors, 1, 2)
        return _trace(self.potential, self.position, matrix)


def _trace(potential: HessianPotential, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return ask_surrogate(
        potential, potential.trace_contraction, position.shape, "contractions", position, matrix
    )


def _diagonal(
    potential: HessianPotential, position: np.ndarray, hessian: np.ndarray, floor: float
) -> _Spectral:
    found = np.diagonal(hessian, axis1=1, axis2=2)
    root = np.hypot(found, 2.0 * floor)
    # For negative h the other form avoids the cancellation in h + sqrt(h^2 + 4 f^2).
    values = np.where(found >= 0, 0.5 * (found + root), 2.0 * floor**2 / (root - found))
    cholesky = _diagonals(np.sqrt(values))
    return _Spectral(potential, position, _diagonals(values), cholesky, None, values, values / root)


def _softabs(
    potential: HessianPotential, position: np.ndarray, hessian: np.ndarray, floor: float
) -> _Spectral:
    finite = np.isfinite(hessian).all(axis=(1, 2))
    eigenvalues, vectors = np.full(position.shape, np.nan), np.full(hessian.shape, np.nan)
    eigenvalues[finite], vectors[finite] = np.linalg.eigh(hessian[finite])
    values, slopes = _soft_absolute(eigenvalues, floor)
    matrix = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    gap = eigenvalues[:, :, None] - eigenvalues[:, None, :]
    mean = 0.5 * (slopes[:, :, None] + slopes[:, None, :])
    apart = np.abs(gap) > 1e-4 * (floor + np.abs(eigenvalues[:, :, None]))
    quotient = (values[:, :, None] - values[:, None, :]) / np.where(apart, gap, 1.0)
    slopes = np.where(apart, quotient, mean)
    return _Spectral(potential, position, matrix, batched_cholesky(matrix), vectors, values, slopes)


def _soft_absolute(value: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Return :math:`g = \lambda \coth(\lambda/f)` and its derivative."""
    x = value / floor
    small, large = np.abs(x) < 1e-3, np.abs(x) > 300.0
    safe = np.where(small | large, 1.0, x)
    tanh, sinh = np.tanh(safe), np.sinh(safe)
    coth = np.where(large, np.sign(x), 1.0 / tanh)
    soft = np.where(small, 1.0 + x**2 / 3.0, x * coth)
    slope = np.where(small, 2.0 * x / 3.0, coth - np.where(large, 0.0, safe / sinh**2))
    return floor * soft, slope


def _diagonals(rows: np.ndarray) -> np.ndarray:
    """Return diagonal matrices ``(n, dim, dim)``."""
    return np.asarray(rows[:, :, None] * np.eye(rows.shape[1]))
