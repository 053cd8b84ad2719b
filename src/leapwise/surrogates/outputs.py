r"""A surrogate that emulates the outputs of a forward model, and leaves likelihood and prior as they are.

.. math:: \tilde U(q) = -\log L\big(\tilde F(q)\big) + V(q), \qquad V(q) = -\log \pi(x(q)) - \log |dx/dq|,

where only :math:`\tilde F` is learnt, from values of the outputs: no gradient is needed. Where gradients of the
potential are known they are used too, for what they say of the Jacobian (see `leapwise.surrogates.outputs`).
One set of features serves all outputs, which are compressed to their principal components (see
`leapwise.surrogates.output_space`) and, for a Gaussian likelihood, to fewer once more when they are learnt (see
`leapwise.surrogates.output_space`). Everything happens at unconstrained positions q; what bounds do to the prior is
in V, which is exact.

The features are linear, quadratic and cubic, with hidden softplus nodes if asked for, and are not all penalised alike
(see `leapwise.surrogates.emulator`): with fewer evaluations than features that is worth a good deal.

**Far out** a likelihood that is bounded above keeps the surrogate above :math:`V` less a constant: it cannot fall
below the exact potential by more than the exact misfit itself, and grows wherever the prior does.

Derivatives of the components are closed-form. With c, K the gradient and Hessian of :math:`-\log L` in
components and J the Jacobian, the Hessian is :math:`J^T K J + \sum_k c_k \nabla^2 a_k` plus that of V, no
Gauss-Newton approximation.

What gradients of the potential say about outputs.

Where the outputs are known, so is the likelihood's gradient c in components, and the gradient of the potential less
that of the prior is one product of c with the Jacobian: :math:`J^T c = g`. In the weights W of the features that is
linear, but it couples all components:

.. math:: \min_W \|\Phi W - X\|^2 + \omega \sum_j \big| \nabla\Phi_j\, W \hat c_j - \hat g_j \big|^2
    + \lambda \sum_i p_i |W_i|^2,

with :math:`\hat c = c/|c|`, :math:`\hat g = g/|c|`. Weights are as if drawn from a normal with covariance
:math:`C = (\lambda\, \mathrm{diag}\, p)^{-1}`, the same for all components, so nothing larger than the number of rows
is ever factorised. With :math:`A = \Phi C \Phi^T + I` the rows of values alone have the solution :math:`W_0` and leave
the covariance P of the weights,

.. math:: W_0 = C \Phi^T A^{-1} X, \qquad P = C - C \Phi^T A^{-1} \Phi\, C,

and the gradient rows G add to it

.. math::
    W = W_0 + P G^T (\alpha \hat C), \qquad (K + \omega^{-1} I)\, \alpha = \hat g - (G W_0) \cdot \hat C,
    \qquad K = (G P G^T) \circ (\hat C \hat C^T).

More rows of values than features are first made as many by a QR factorisation, which changes nothing.
:math:`\omega = d/3` as in `leapwise.surrogates.quadratic`. The strength is the one under which the values predict
the gradients best: the marginal likelihood of the gradients given the values, over a grid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from leapwise.checks import require_callable, require_positive, require_whole
from leapwise.errors import InputError
from leapwise.surrogates.emulator import Emulator, OutputFeatures, determine_lines
from leapwise.surrogates.online import RowUpdater
from leapwise.surrogates.output_space import (
    Bounded,
    CheapDensity,
    OutputSpace,
    Potential,
    PriorPotential,
    QuadraticPotential,
    as_quadratic,
    component_potential,
    condense,
    in_white,
    prior_potential,
)
from leapwise.surrogates.ridge import require_ridge, solve_ridge
from leapwise.surrogates.training import TrainingSet, require_same_dim
from leapwise.surrogates.whitening import Whitening

#: So many gradient rows are used at most; of more evaluations, an evenly spaced part.
MAX_ROWS = 3000
# What a weight without a penalty gets, so that all have a variance; it is far below any penalty.
_NO_PENALTY = 1e-6
_LEAST_STRENGTH = 1e-8
_STRENGTHS = 10.0 ** np.arange(-6.0, 1.1)


@dataclass(frozen=True, eq=False)
class Pulls:
    """Products of the Jacobian of components with known vectors.

    Attributes
    ----------
    white : ndarray of shape (k, dim)
    cotangent : ndarray of shape (k, p)
        Of unit length.
    pulled : ndarray of shape (k, dim)
        The transposed Jacobian times it.
    """

    white: np.ndarray
    cotangent: np.ndarray
    pulled: np.ndarray

    @classmethod
    def of(cls, white: np.ndarray, cotangent: np.ndarray, pulled: np.ndarray) -> Pulls:
        """Scale to unit length; leave out what says nothing, and some of what is too much."""
        length = np.linalg.norm(cotangent, axis=1)
        kept = np.flatnonzero(length > 0)
        kept = kept[:: 1 + (max(kept.size * white.shape[1], 1) - 1) // MAX_ROWS]
        length = length[kept, None]
        return cls(white[kept], cotangent[kept] / length, pulled[kept] / length)

    def solve(
        self, features: OutputFeatures, rows: np.ndarray, components: np.ndarray, ridge: float | None
    ) -> tuple[np.ndarray, float]:
        """Return weights ``(n_features, p)`` and the strength of the ridge, given or chosen."""
        if len(rows) > rows.shape[1]:
            turn, rows = np.linalg.qr(rows)
            components = turn.T @ components
        strengths = _STRENGTHS if ridge is None else np.array([ridge])
        prior = 1.0 / np.maximum(features.penalty, _NO_PENALTY)
        slopes = features.gradient_rows(self.white)
        problem = _Problem(
            of_values=(rows * prior) @ rows.T,
            across=(slopes * prior) @ rows.T,
            of_slopes=(slopes * prior) @ slopes.T,
            components=components,
            cotangent=np.repeat(self.cotangent, self.white.shape[1], axis=0),
            pulled=self.pulled.ravel(),
            noise=3.0 / self.white.shape[1],
        )
        # A strength of 0 would need rows that decide every weight.
        tried = [problem.solve(max(float(strength), _LEAST_STRENGTH)) for strength in strengths]
        best = int(np.argmin([score for _, _, score in tried]))
        by_values, by_slopes, _ = tried[best]
        weights = prior[:, None] * (rows.T @ by_values + slopes.T @ by_slopes)
        return weights, float(strengths[best])


@dataclass(frozen=True, eq=False)
class _Problem:
    """Covariances of rows under a strength of 1, and what the rows are to be.

    Attributes
    ----------
    of_values, across, of_slopes : ndarray of shape (n, n), (r, n) and (r, r)
    components : ndarray of shape (n, p)
    cotangent, pulled : ndarray of shape (r, p) and (r,)
    noise : float
        The inverse weight of gradient rows.
    """

    of_values: np.ndarray
    across: np.ndarray
    of_slopes: np.ndarray
    components: np.ndarray
    cotangent: np.ndarray
    pulled: np.ndarray
    noise: float

    def solve(self, ridge: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Return the weights of rows of values ``(n, p)`` and gradients ``(r, p)`` in those of features, and a score.

        The score is minus twice the log marginal likelihood of the gradients given the values, but for a constant.
        """
        factor = cho_factor(self.of_values / ridge + np.eye(len(self.of_values)))
        across = self.across / ridge
        alone, reach = cho_solve(factor, self.components), cho_solve(factor, across.T)
        residual = self.pulled - np.einsum("rp,rp->r", across @ alone, self.cotangent)
        kernel = (self.of_slopes / ridge - across @ reach) * (self.cotangent @ self.cotangent.T)
        kernel.flat[:: len(kernel) + 1] += self.noise
        inner = cho_factor(kernel)
        dual = cho_solve(inner, residual)
        score = len(dual) * np.log(max(residual @ dual, np.finfo(float).tiny))
        score += 2.0 * np.log(np.diag(inner[0])).sum()
        by_slopes = dual[:, None] * self.cotangent
        return (alone - reach @ by_slopes) / ridge, by_slopes / ridge, float(score)


class Forward(Protocol):
    """What a target with a forward model knows of its cheap parts."""

    likelihood: CheapDensity
    prior: CheapDensity
    transform: Bounded


@dataclass(frozen=True)
class OutputSurrogate:
    """Emulate outputs with shared polynomial features.

    Evaluations far above the typical set are left out, by the rule of `TrainingSet.select`, but the lowest
    ``2 (dim + 1)`` are always kept: outputs are of use there too.

    Parameters
    ----------
    likelihood : object with log_density(outputs) and gradient(outputs)
        On batches ``(n, m)``.
    prior : callable
        Takes positions ``(n, dim)`` and returns the potential of the prior there, log-Jacobian of bounds included, and
        its gradient; see `prior_potential`.
    n_hidden : int
        Number of softplus nodes besides the polynomial features.
    ridge : float, optional
        Strength of the ridge; chosen by leave-one-out if not given.
    gain : float
        Standard deviation of the hidden nodes' projections.
    whitening : Whitening, optional
        Coordinates to learn in; from the training positions if not given.

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
    prior: PriorPotential
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
        """Make one for a target with a forward model, such as `ForwardTarget`."""
        if not all(hasattr(target, name) for name in ("likelihood", "prior", "transform")):
            raise InputError(
                f"OutputSurrogate.of needs a ForwardTarget, whose outputs it learns, got {type(target).__name__}; "
                "use QuadraticNetwork or another surrogate of the potential"
            )
        return cls(target.likelihood, prior_potential(target.prior, target.transform), n_hidden)

    def fit(
        self, training: TrainingSet, rng: np.random.Generator, plain: FittedOutputs | None = None
    ) -> FittedOutputs:
        """Learn from the outputs of exact evaluations.

        Parameters
        ----------
        training : TrainingSet
        rng : Generator
            Draws hidden nodes.
        plain : FittedOutputs, optional
            The same with other hidden nodes or none, trained on the same evaluations in the same coordinates: all but
            the nodes is taken from it.
        """
        training.require_variety()
        kept = self._select(training)
        if kept.outputs is None:
            raise InputError(
                "an OutputSurrogate learns from outputs and the training set has none; "
                "give TrainingSet(outputs=...), or use a surrogate of the potential"
            )
        whitening = Whitening.from_positions(kept.position) if self.whitening is None else self.whitening
        require_same_dim(kept, whitening)
        white = whitening.to_white(kept.position)
        if plain is None:
            plain = self._prepare(kept, whitening, rng)
        elif not _is_of(plain, kept, whitening):
            raise InputError(
                "plain must have been trained on the same evaluations in the same coordinates; leave it out"
            )
        features = plain.features.with_nodes(white, self.n_hidden, self.gain, rng)
        unsolved = replace(plain, features=features, ridge=self.ridge, solution=None, updater=None)
        solution, ridge = unsolved.solve()
        return replace(unsolved, solution=solution, ridge=ridge)

    def _select(self, training: TrainingSet) -> TrainingSet:
        """Leave out what is far up, but for as many of the lowest as tell how outputs change in every direction.

        Those on a ridge thinner than rounding say nothing of what is across it.
        """
        n = 2 * (training.dim + 1)
        kept = training.select(at_least=n)
        while self.whitening is not None and len(kept) < len(training):
            require_same_dim(kept, self.whitening)
            if determine_lines(self.whitening.to_white(kept.position)):
                break
            n = 2 * max(n, len(kept))
            kept = training.select(at_least=n)
        return kept

    def _prepare(self, kept: TrainingSet, whitening: Whitening, rng: np.random.Generator) -> FittedOutputs:
        """Return all but hidden nodes and weights."""
        assert kept.outputs is not None
        white = whitening.to_white(kept.position)
        space = OutputSpace.learn(kept.outputs, int(kept.potential.argmin()), self.likelihood, rng)
        components = space.encode(kept.outputs)
        return FittedOutputs(
            whitening=whitening,
            misfit=component_potential(self.likelihood, space, components),
            prior=as_quadratic(in_white(self.prior, whitening), white),
            space=space,
            features=OutputFeatures.learn(white, components),
            likelihood=self.likelihood,
            training=kept,
        )


@dataclass(frozen=True, eq=False)
class FittedOutputs:
    """A trained `OutputSurrogate`.

    Attributes
    ----------
    whitening : Whitening
    misfit : Potential
        Minus the log-likelihood, of components.
    prior : Potential
        Of whitened positions, bounds included.
    space : OutputSpace
    training : TrainingSet
        What it has learnt from.
    ridge : float
        Strength of the ridge, given or chosen.
    solution : ndarray or None
        Weights of the features; None if they are still to be solved for.
    updater : RowUpdater or None
        What it has learnt, as a factor that takes further rows; None if it has learnt from gradients, or not more than
        at first.
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
        """From whitened positions to components of the outputs; solved for when it is first asked for."""
        if self.updater is not None:
            return self.features.emulator(self.updater.weights)
        return self.features.emulator(self.solve()[0] if self.solution is None else self.solution)

    @cached_property
    def acting(self) -> tuple[Emulator, Potential]:
        """What potentials go through: emulator and misfit, of few components if the likelihood is Gaussian."""
        if not isinstance(self.misfit, QuadraticPotential):
            return self.emulator, self.misfit
        return condense(self.emulator, self.misfit, self.whitening.to_white(self.training.position))

    def outputs(self, position: np.ndarray) -> np.ndarray:
        """Return emulated outputs ``(n, m)``."""
        return self.space.decode(self.emulator.components(self.whitening.to_white(position)))

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        white = self.whitening.to_white(position)
        emulator, misfit = self.acting
        value, _ = misfit.value_and_gradient(emulator.components(white))
        return value + self.prior.value_and_gradient(white)[0]

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""
        white = self.whitening.to_white(position)
        emulator, misfit = self.acting
        components, slopes = emulator.components_and_slopes(white)
        value, cotangent = misfit.value_and_gradient(components)
        prior, gradient = self.prior.value_and_gradient(white)
        gradient = gradient + emulator.pull_back(white, slopes, cotangent)
        return value + prior, self.whitening.gradient_from_white(gradient)

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians."""
        white = self.whitening.to_white(position)
        n, d = white.shape
        emulator, misfit = self.acting
        components, jacobian = emulator.components(white), emulator.jacobian(white)
        cotangent = misfit.value_and_gradient(components)[1]
        bent = misfit.curvature(components, np.swapaxes(jacobian, 1, 2))
        hessian = bent @ jacobian + emulator.hessian(white, cotangent)
        hessian += self.prior.curvature(white, np.broadcast_to(np.eye(d), (n, d, d)))
        return self.whitening.hessian_from_white(0.5 * (hessian + np.swapaxes(hessian, 1, 2)))

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        return self.trace_contraction(position, velocity[:, :, None] * velocity[:, None, :])

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        r"""Return the third derivative contracted with `matrix` M.

        .. math::
            2 \sum_{jl} M_{jl}\, \partial_i \partial_j a \cdot K J_l + K J_i \cdot \mathrm{tr}(M \nabla^2 a)
            + \sum_k c_k\, \mathrm{tr}(M \partial_i \nabla^2 a_k) + L'''[J M J^T] \cdot J_i + V'''[M]_i,

        where third derivatives of likelihood and prior are taken along the eigenvectors of M. It is NaN where M is not
        finite, as for a metric that is not positive definite.
        """
        known = np.isfinite(matrix).all(axis=(1, 2))
        if not known.all():
            total = np.full_like(position, np.nan)
            if known.any():
                total[known] = self.trace_contraction(position[known], matrix[known])
            return total
        white, matrix = self.whitening.to_white(position), self.whitening.matrix_to_white(matrix)
        emulator, misfit = self.acting
        components, jacobian = emulator.components(white), emulator.jacobian(white)
        cotangent = misfit.value_and_gradient(components)[1]
        bent = misfit.curvature(components, np.swapaxes(jacobian, 1, 2))
        values, vectors = np.linalg.eigh(matrix)
        axes, values = np.swapaxes(vectors, 1, 2), values[:, :, None]
        pushed = axes @ np.swapaxes(jacobian, 1, 2)
        inner = (values * misfit.bend(components, pushed)).sum(axis=1)
        inner = emulator.laplacian(white, matrix)[:, None, :] @ np.swapaxes(bent, 1, 2) + (
            inner[:, None, :] @ jacobian
        )
        total = inner[:, 0, :] + 2.0 * emulator.mixed(white, np.swapaxes(bent, 1, 2) @ matrix)
        total += emulator.trace(white, cotangent, matrix)
        total += (values * self.prior.bend(white, axes)).sum(axis=1)
        return self.whitening.gradient_from_white(total)

    def update(self, training: TrainingSet) -> FittedOutputs:
        """Return a surrogate that has learnt from further evaluations too.

        Features, components and ridge stay as they are, and nothing is left out. A new row costs O(s^2) for s features,
        whatever came before, and weights are solved for when they are first used; where gradients are known, that is
        everything again.
        """
        require_same_dim(training, self.whitening)
        if training.outputs is None or training.outputs.shape[1] != len(self.space.mean):
            raise InputError(
                f"further evaluations must have {len(self.space.mean)} outputs like those trained on; "
                "give TrainingSet(outputs=...)"
            )
        everything = self.training.join(training)
        if everything.gradient is not None:
            return replace(self, training=everything, solution=None, updater=None)
        updater = self.updater
        if updater is None:
            updater = RowUpdater.from_rows(*self._rows(self.training), self.ridge * self.features.penalty)
        return replace(self, training=everything, updater=updater.append(*self._rows(training)))

    def solve(self) -> tuple[np.ndarray, float]:
        """Return weights ``(n_features, p)`` learnt from the whole training set, and the ridge, given or chosen."""
        rows, components = self._rows(self.training)
        if self.training.gradient is None:
            solution = solve_ridge(rows, components, ridge=self.ridge, penalty=self.features.penalty)
            return solution.weights, solution.ridge
        known = self.training.rows(~np.isnan(self.training.gradient[:, 0]))
        assert known.gradient is not None and known.outputs is not None
        white = self.whitening.to_white(known.position)
        gradient = self.whitening.gradient_to_white(known.gradient)
        pulls = Pulls.of(
            white,
            -self.likelihood.gradient(known.outputs) @ self.space.decoder.T,
            gradient - self.prior.value_and_gradient(white)[1],
        )
        return pulls.solve(self.features, rows, components, self.ridge)

    def _rows(self, training: TrainingSet) -> tuple[np.ndarray, np.ndarray]:
        """Return features and components of evaluations."""
        assert training.outputs is not None
        white = self.whitening.to_white(training.position)
        return self.features.rows(white), self.space.encode(training.outputs)


def _is_of(plain: FittedOutputs, training: TrainingSet, whitening: Whitening) -> bool:
    """Whether a surrogate was trained on these evaluations, in these coordinates."""
    pairs = (
        (plain.training.position, training.position),
        (plain.training.potential, training.potential),
        (plain.whitening.mean, whitening.mean),
        (plain.whitening.factor, whitening.factor),
    )
    return all(np.array_equal(one, other) for one, other in pairs)
