r"""A surrogate that emulates the outputs of a forward model and keeps likelihood and prior exact.

.. math:: \tilde U(q) = -\log L\big(\tilde F(q)\big) + V(q), \qquad V(q) = -\log \pi(x(q)) - \log |dx/dq|,

where only :math:`\tilde F` is learned, from values of the outputs; gradients of the potential are used where they are
known. The first link of the chain `outputs` -> `output_space` -> `emulator`. Outputs are compressed to principal
components and, for a Gaussian likelihood, condensed to fewer once more (`leapwise.surrogates.output_space`). All
components share linear, quadratic and cubic features, with hidden softplus units if wanted, and the features have
different penalties (`leapwise.surrogates.emulator`). Everything is at unconstrained positions q; the effect of bounds
is in V, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from leapwise.checks import require_callable, require_positive, require_whole
from leapwise.errors import InputError
from leapwise.surrogates.emulator import Emulator, OutputFeatures, determines_lines
from leapwise.surrogates.online import RowUpdater
from leapwise.surrogates.output_space import (
    Bounded,
    CheapDensity,
    ComponentMisfit,
    OutputSpace,
    Potential,
    PriorPotential,
    QuadraticPotential,
    SmoothPotential,
    WhitePrior,
    as_quadratic,
    condense,
)
from leapwise.surrogates.ridge import require_ridge, solve_ridge
from leapwise.surrogates.training import TrainingSet, require_same_dim
from leapwise.surrogates.whitening import Whitening


class Forward(Protocol):
    """The cheap parts of a target with a forward model."""

    likelihood: CheapDensity
    prior: CheapDensity
    transform: Bounded
    joint: Any


@dataclass(frozen=True)
class OutputSurrogate:
    """Emulate the outputs of a forward model with shared polynomial features.

    Evaluations far above the typical set are left out, as by `TrainingSet.select`, but the lowest ``2 (dim + 1)`` are
    always kept.

    Parameters
    ----------
    likelihood : object with log_density(outputs) and gradient(outputs)
        Both take outputs ``(n, m)``.
    prior : callable
        Takes positions ``(n, dim)`` and returns the potential of the prior, log-Jacobian of bounds included, and its
        gradient; see `PriorPotential`.
    n_hidden : int
        Number of hidden softplus units besides the polynomial features.
    ridge : float, optional
        Strength of the ridge. By default it is chosen by leave-one-out, or with gradients by marginal likelihood.
    gain : float
        Standard deviation of the hidden units' projections.
    whitening : Whitening, optional
        Coordinates to train in; by default from the training positions.

    Examples
    --------
    >>> class Normal:
    ...     def log_density(self, points):
    ...         return -0.5 * (points**2).sum(axis=1)
    ...     def gradient(self, points):
    ...         return -points
    >>> surrogate = OutputSurrogate(Normal(), lambda q: (0.5 * (q**2).sum(axis=1), q))
    >>> rng = np.random.default_rng(0)
    >>> q = rng.standard_normal((30, 2))
    >>> outputs = np.stack([q[:, 0] ** 2 - 1, q[:, 0] * q[:, 1], q[:, 1]], axis=1)
    >>> potential = 0.5 * (outputs**2).sum(axis=1) + 0.5 * (q**2).sum(axis=1)
    >>> fitted = surrogate.fit(TrainingSet(q, potential, outputs=outputs), rng)
    >>> fitted.potential(np.array([[1.0, 2.0]])).round(6)
    array([6.5])
    """

    likelihood: CheapDensity
    prior: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    n_hidden: int = 0
    ridge: float | None = None
    gain: float = 1.0
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        require_callable("prior", self.prior)
        require_whole("n_hidden", self.n_hidden, 0)
        require_positive(self.gain, "gain", ())
        if self.ridge is not None:
            require_ridge(self.ridge)

    @classmethod
    def of(cls, target: Forward, n_hidden: int = 0) -> OutputSurrogate:
        """Return the surrogate for a `ForwardTarget`, with its likelihood and prior."""
        if not getattr(target, "emulates_outputs", False):
            raise InputError(
                f"OutputSurrogate.of needs a ForwardTarget, whose outputs it emulates, got {type(target).__name__}; "
                "use QuadraticNetwork or another surrogate of the potential"
            )
        return cls(target.likelihood, PriorPotential(target.prior, target.transform), n_hidden)

    def fit(
        self, training: TrainingSet, rng: np.random.Generator, plain: FittedOutputs | None = None
    ) -> FittedOutputs:
        """Train on the outputs of exact evaluations.

        Parameters
        ----------
        training : TrainingSet
        rng : Generator
            Draws hidden units.
        plain : FittedOutputs, optional
            A surrogate trained on the same evaluations in the same coordinates, with other hidden units or none.
            Everything except hidden units and weights is taken from it, which saves time.
        """
        training.require_variety()
        kept = self._select(training)
        if kept.outputs is None:
            raise InputError(
                "an OutputSurrogate needs outputs, got a training set without any; "
                "give TrainingSet(outputs=...), or use a surrogate of the potential"
            )
        whitening = Whitening.from_positions(kept.position) if self.whitening is None else self.whitening
        require_same_dim(kept, whitening)
        white = whitening.to_white(kept.position)
        if plain is None:
            plain = self._prepare(kept, whitening, rng)
        elif not _is_trained_on(plain, kept, whitening):
            raise InputError(
                "plain must be trained on the same evaluations in the same coordinates, got others; leave it out"
            )
        features = plain.features.with_hidden(white, self.n_hidden, self.gain, rng)
        unsolved = replace(plain, features=features, ridge=self.ridge, solution=None, updater=None)
        solution, ridge = unsolved.solve()
        return replace(unsolved, solution=solution, ridge=ridge)

    def _select(self, training: TrainingSet) -> TrainingSet:
        """Select evaluations near the typical set, and as many of the lowest as determine all slopes of the outputs.

        Evaluations on a ridge that is thinner than rounding do not determine the slopes across it.
        """
        n = 2 * (training.dim + 1)
        kept = training.select(at_least=n)
        while self.whitening is not None and len(kept) < len(training):
            require_same_dim(kept, self.whitening)
            if determines_lines(self.whitening.to_white(kept.position)):
                break
            n = 2 * max(n, len(kept))
            kept = training.select(at_least=n)
        return kept

    def _prepare(self, kept: TrainingSet, whitening: Whitening, rng: np.random.Generator) -> FittedOutputs:
        """Return everything except hidden units and weights."""
        assert kept.outputs is not None
        white = whitening.to_white(kept.position)
        space = OutputSpace.learn(kept.outputs, int(kept.potential.argmin()), self.likelihood, rng)
        components = space.encode(kept.outputs)
        return FittedOutputs(
            whitening=whitening,
            misfit=as_quadratic(SmoothPotential(ComponentMisfit(self.likelihood, space)), components),
            prior=as_quadratic(SmoothPotential(WhitePrior(self.prior, whitening)), white),
            space=space,
            features=OutputFeatures.learn(white, components),
            likelihood=self.likelihood,
            training=kept,
        )


@dataclass(frozen=True, eq=False)
class FittedOutputs:
    r"""A trained `OutputSurrogate`.

    **Far out** a likelihood that is bounded above keeps the surrogate above :math:`V` less a constant. So the surrogate
    cannot be below the exact potential by more than the exact misfit, and it grows wherever the prior's potential does.

    **Derivatives** are closed-form. With c, K the gradient and Hessian of :math:`-\log L` by components and J the
    Jacobian of the components, the Hessian is :math:`J^T K J + \sum_k c_k \nabla^2 a_k` plus that of V; it is not a
    Gauss-Newton approximation.

    Attributes
    ----------
    whitening : Whitening
    misfit : Potential
        Minus the log-likelihood as a function of components.
    prior : Potential
        Of whitened positions, log-Jacobian of bounds included.
    space : OutputSpace
    features : OutputFeatures
    likelihood : object with log_density(outputs) and gradient(outputs)
    training : TrainingSet
        All evaluations it is trained on.
    ridge : float
        Strength of the ridge, given or chosen.
    solution : ndarray or None
        Weights of the features; None if not yet solved for.
    updater : RowUpdater or None
        A factorisation to which further rows are added; None before the first update, and with gradients.
    """

    whitening: Whitening
    misfit: Potential
    prior: Potential
    space: OutputSpace
    features: OutputFeatures
    likelihood: CheapDensity
    training: TrainingSet
    ridge: float | None = None
    solution: np.ndarray | None = None
    updater: RowUpdater | None = None

    @cached_property
    def emulator(self) -> Emulator:
        """The map from whitened positions to components, solved for when it is first needed."""
        if self.updater is not None:
            return self.features.emulator(self.updater.weights)
        return self.features.emulator(self.solve()[0] if self.solution is None else self.solution)

    @cached_property
    def condensed(self) -> tuple[Emulator, Potential]:
        """Emulator and misfit that define the potential, of few components if the likelihood is Gaussian."""
        if not isinstance(self.misfit, QuadraticPotential):
            return self.emulator, self.misfit
        return condense(self.emulator, self.misfit, self.whitening.to_white(self.training.position))

    def outputs(self, position: np.ndarray) -> np.ndarray:
        """Return emulated outputs ``(n, m)``."""
        return self.space.decode(self.emulator.components(self.whitening.to_white(position)))

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        white = self.whitening.to_white(position)
        emulator, misfit = self.condensed
        value, _ = misfit.value_and_gradient(emulator.components(white))
        return value + self.prior.value_and_gradient(white)[0]

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""
        white = self.whitening.to_white(position)
        emulator, misfit = self.condensed
        components, slopes = emulator.components_and_slopes(white)
        value, cotangent = misfit.value_and_gradient(components)
        prior, gradient = self.prior.value_and_gradient(white)
        gradient = gradient + emulator.pull_back(white, slopes, cotangent)
        return value + prior, self.whitening.gradient_from_white(gradient)

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians."""
        white = self.whitening.to_white(position)
        n, d = white.shape
        emulator, _ = self.condensed
        _, jacobian, cotangent, bent = self._second_order(white)
        hessian = bent @ jacobian + emulator.hessian(white, cotangent)
        hessian += self.prior.hessian_product(white, np.broadcast_to(np.eye(d), (n, d, d)))
        return self.whitening.hessian_from_white(0.5 * (hessian + np.swapaxes(hessian, 1, 2)))

    def _second_order(self, white: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return components, their Jacobian J, the misfit's gradient by components, and J^T times its Hessian."""
        emulator, misfit = self.condensed
        components, jacobian = emulator.components(white), emulator.jacobian(white)
        cotangent = misfit.value_and_gradient(components)[1]
        return (
            components,
            jacobian,
            cotangent,
            misfit.hessian_product(components, np.swapaxes(jacobian, 1, 2)),
        )

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        return self.trace_contraction(position, velocity[:, :, None] * velocity[:, None, :])

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return the third derivative contracted with `matrix` M.

        .. math::
            2 \sum_{jl} M_{jl}\, \partial_i \partial_j a \cdot K J_l + K J_i \cdot \mathrm{tr}(M \nabla^2 a)
            + \sum_k c_k\, \mathrm{tr}(M \partial_i \nabla^2 a_k) + L'''[J M J^T] \cdot J_i + V'''[M]_i,

        where third derivatives of likelihood and prior are taken along the eigenvectors of M. The result is NaN where M
        is not finite, as for a metric that is not positive definite.
        """
        known = np.isfinite(matrix).all(axis=(1, 2))
        if not known.all():
            total = np.full_like(position, np.nan)
            if known.any():
                total[known] = self.trace_contraction(position[known], matrix[known])
            return total
        white, matrix = self.whitening.to_white(position), self.whitening.matrix_to_white(matrix)
        emulator, misfit = self.condensed
        components, jacobian, cotangent, bent = self._second_order(white)
        values, vectors = np.linalg.eigh(matrix)
        axes, values = np.swapaxes(vectors, 1, 2), values[:, :, None]
        pushed = axes @ np.swapaxes(jacobian, 1, 2)
        inner = (values * misfit.third_product(components, pushed)).sum(axis=1)
        inner = emulator.laplacian(white, matrix)[:, None, :] @ np.swapaxes(bent, 1, 2) + (
            inner[:, None, :] @ jacobian
        )
        total = inner[:, 0, :] + 2.0 * emulator.mixed(white, np.swapaxes(bent, 1, 2) @ matrix)
        total += emulator.trace(white, cotangent, matrix)
        total += (values * self.prior.third_product(white, axes)).sum(axis=1)
        return self.whitening.gradient_from_white(total)

    def update(self, training: TrainingSet) -> FittedOutputs:
        """Return a surrogate that is trained on further evaluations as well.

        Features, components and ridge stay the same, and no evaluation is left out. Weights are solved for when they
        are first needed. Without gradients a new row costs O(s^2) for s features; with gradients the whole regression
        is solved again.
        """
        require_same_dim(training, self.whitening)
        if training.outputs is None or training.outputs.shape[1] != len(self.space.mean):
            raise InputError(
                f"further evaluations must have {len(self.space.mean)} outputs like the training set, got "
                f"{'none' if training.outputs is None else training.outputs.shape[1]}; give TrainingSet(outputs=...)"
            )
        everything = self.training.join(training)
        if everything.gradient is not None:
            return replace(self, training=everything, solution=None, updater=None)
        updater = self.updater
        if updater is None:
            updater = RowUpdater.from_rows(*self._rows(self.training), self.ridge * self.features.penalty)
        return replace(self, training=everything, updater=updater.append(*self._rows(training)))

    def solve(self) -> tuple[np.ndarray, float]:
        """Return weights ``(n_features, p)`` fitted to the whole training set, and the ridge, given or chosen."""
        rows, components = self._rows(self.training)
        if self.training.gradient is None:
            solution = solve_ridge(rows, components, ridge=self.ridge, penalty=self.features.penalty)
            return solution.weights, solution.ridge
        known = self.training.rows(~np.isnan(self.training.gradient[:, 0]))
        assert known.gradient is not None and known.outputs is not None
        white = self.whitening.to_white(known.position)
        gradient = self.whitening.gradient_to_white(known.gradient)
        products = JacobianProducts.normalised(
            white,
            -self.likelihood.gradient(known.outputs) @ self.space.decoder.T,
            gradient - self.prior.value_and_gradient(white)[1],
        )
        return products.solve(self.features, rows, components, self.ridge)

    def _rows(self, training: TrainingSet) -> tuple[np.ndarray, np.ndarray]:
        """Return features ``(n, n_features)`` and components ``(n, p)`` of evaluations."""
        assert training.outputs is not None
        white = self.whitening.to_white(training.position)
        return self.features.rows(white), self.space.encode(training.outputs)


def _is_trained_on(plain: FittedOutputs, training: TrainingSet, whitening: Whitening) -> bool:
    """Whether a surrogate was trained on these evaluations in these coordinates."""
    pairs = (
        (plain.training.position, training.position),
        (plain.training.potential, training.potential),
        (plain.whitening.mean, whitening.mean),
        (plain.whitening.factor, whitening.factor),
    )
    return all(np.array_equal(one, other) for one, other in pairs)


#: Most gradient rows that are used, which bounds the cost of their factorisation; of more evaluations, an evenly spaced
#: part is taken. A guess.
MAX_GRADIENT_ROWS = 3000
#: Penalty of weights without one, so that all have a finite variance; far below the penalties of the other features.
_NO_PENALTY = 1e-6
#: Least ridge strength with gradients: with 0 the covariance of undetermined weights would be infinite.
_LEAST_STRENGTH = 1e-8
#: Ridge strengths to choose from with gradients: decades from nearly none to as strong as the rows.
_STRENGTHS = 10.0 ** np.arange(-6.0, 1.1)


@dataclass(frozen=True, eq=False)
class JacobianProducts:
    r"""Known products of the transposed Jacobian of components with vectors: the gradient rows of a fit.

    Where outputs are known, so is the likelihood's gradient c, and the gradient of the potential less that of the prior
    is one product with the Jacobian: :math:`J^T c = g`. This is linear in the weights W of the features, but it couples
    all components:

    .. math:: \min_W \|\Phi W - X\|^2 + \omega \sum_j \big| \nabla\Phi_j\, W \hat c_j - \hat g_j \big|^2
        + \lambda \sum_i p_i |W_i|^2,

    with :math:`\hat c = c/|c|`, :math:`\hat g = g/|c|`. :math:`\omega = d/3` in d dimensions, as in
    `leapwise.surrogates.quadratic`. The strength :math:`\lambda` maximises the marginal likelihood of the gradients
    given the values, over a grid. More rows of values than features are first reduced to as many as features by a QR
    factorisation, which does not change the solution.

    Attributes
    ----------
    white : ndarray of shape (k, dim)
        Whitened positions.
    cotangent : ndarray of shape (k, p)
        Vectors of unit length.
    product : ndarray of shape (k, dim)
        The transposed Jacobian times the vectors.
    """

    white: np.ndarray
    cotangent: np.ndarray
    product: np.ndarray

    @classmethod
    def normalised(cls, white: np.ndarray, cotangent: np.ndarray, product: np.ndarray) -> JacobianProducts:
        """Scale vectors to unit length; leave out zero vectors, and rows beyond the largest number."""
        length = np.linalg.norm(cotangent, axis=1)
        kept = np.flatnonzero(length > 0)
        kept = kept[:: 1 + (max(kept.size * white.shape[1], 1) - 1) // MAX_GRADIENT_ROWS]
        length = length[kept, None]
        return cls(white[kept], cotangent[kept] / length, product[kept] / length)

    def solve(
        self, features: OutputFeatures, rows: np.ndarray, components: np.ndarray, ridge: float | None
    ) -> tuple[np.ndarray, float]:
        """Fit values and gradients.

        Parameters
        ----------
        features : OutputFeatures
        rows : ndarray of shape (n, n_features)
            Features at the positions of values.
        components : ndarray of shape (n, p)
        ridge : float or None
            Strength of the ridge; None to choose it.

        Returns
        -------
        weights : ndarray of shape (n_features, p)
        ridge : float
        """
        if len(rows) > rows.shape[1]:
            rotation, rows = np.linalg.qr(rows)
            components = rotation.T @ components
        strengths = _STRENGTHS if ridge is None else np.array([ridge])
        prior = 1.0 / np.maximum(features.penalty, _NO_PENALTY)
        slopes = features.gradient_rows(self.white)
        problem = _CoupledRidge(
            values=(rows * prior) @ rows.T,
            cross=(slopes * prior) @ rows.T,
            slopes=(slopes * prior) @ slopes.T,
            components=components,
            cotangent=np.repeat(self.cotangent, self.white.shape[1], axis=0),
            product=self.product.ravel(),
            noise=3.0 / self.white.shape[1],
        )
        tried = [problem.solve(max(float(strength), _LEAST_STRENGTH)) for strength in strengths]
        best = int(np.argmin([score for _, _, score in tried]))
        by_values, by_slopes, _ = tried[best]
        weights = prior[:, None] * (rows.T @ by_values + slopes.T @ by_slopes)
        return weights, float(strengths[best])


@dataclass(frozen=True, eq=False)
class _CoupledRidge:
    r"""The ridge regression of values and gradients, through covariances of rows.

    The penalty is a normal prior of the weights with covariance :math:`C = (\lambda\, \mathrm{diag}\, p)^{-1}`, the
    same for all components, so no matrix larger than the number of rows is factorised. With
    :math:`A = \Phi C \Phi^T + I` the rows of values alone have the solution :math:`W_0` and leave the weights with the
    covariance P,

    .. math:: W_0 = C \Phi^T A^{-1} X, \qquad P = C - C \Phi^T A^{-1} \Phi\, C,

    and the gradient rows G add (:math:`\hat C` has the rows :math:`\hat c`, one for each row of G)

    .. math::
        W = W_0 + P G^T (\alpha \hat C), \qquad (K + \omega^{-1} I)\, \alpha = \hat g - (G W_0) \cdot \hat C,
        \qquad K = (G P G^T) \circ (\hat C \hat C^T).

    Attributes
    ----------
    values, cross, slopes : ndarray of shape (n, n), (r, n) and (r, r)
        Prior covariances of the n rows of values and the r gradient rows, for a strength of 1.
    components : ndarray of shape (n, p)
        The values.
    cotangent, product : ndarray of shape (r, p) and (r,)
        Vectors of unit length, and products of gradient rows with them.
    noise : float
        The inverse weight of gradient rows.
    """

    values: np.ndarray
    cross: np.ndarray
    slopes: np.ndarray
    components: np.ndarray
    cotangent: np.ndarray
    product: np.ndarray
    noise: float

    def solve(self, ridge: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Solve for one strength.

        Returns
        -------
        by_values, by_slopes : ndarray of shape (n, p) and (r, p)
            The weights of features are sums of rows with these coefficients.
        score : float
            Minus twice the log marginal likelihood of the gradients given the values, up to a constant.
        """
        factor = cho_factor(self.values / ridge + np.eye(len(self.values)))
        cross = self.cross / ridge
        alone, reach = cho_solve(factor, self.components), cho_solve(factor, cross.T)
        residual = self.product - np.einsum("rp,rp->r", cross @ alone, self.cotangent)
        kernel = (self.slopes / ridge - cross @ reach) * (self.cotangent @ self.cotangent.T)
        kernel.flat[:: len(kernel) + 1] += self.noise
        inner = cho_factor(kernel)
        dual = cho_solve(inner, residual)
        score = len(dual) * np.log(max(residual @ dual, np.finfo(float).tiny))
        score += 2.0 * np.log(np.diag(inner[0])).sum()
        by_slopes = dual[:, None] * self.cotangent
        return (alone - reach @ by_slopes) / ridge, by_slopes / ridge, float(score)
