r"""A surrogate of a forward model's outputs where likelihood and prior share parameters.

The log-density is :math:`\log p(x, F(x_I))`: the model F sees only its inputs :math:`x_I`, some of the parameters x,
and everything else (priors, hierarchies, unknown noise, scales) is cheap and exact. So is the surrogate

.. math:: \tilde U(q) = -\log p\big(x(q), \tilde F(q_I)\big) - \log |dx/dq|,

where only :math:`\tilde F` is learned, as a function of the inputs alone. It has fewer dimensions than the posterior,
and no evaluation is spent on how the posterior depends on the other parameters.

The emulator of the outputs is that of `leapwise.surrogates.outputs`. That module serves the common case in which the
likelihood has no parameters of its own and the model sees them all; the potential is then a function of fewer
components, which is faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from leapwise.errors import InputError
from leapwise.surrogates.base import Fitted
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate
from leapwise.surrogates.output_space import Bounded, PriorPotential
from leapwise.surrogates.outputs import FittedOutputs, OutputSurrogate
from leapwise.surrogates.training import TrainingSet
from leapwise.surrogates.whitening import Whitening


class CheapJoint(Protocol):
    """The cheap part of a target: a log-density of parameters ``(n, dim)`` and outputs ``(n, m)`` together."""

    def log_density(self, parameters: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return log-densities ``(n,)``."""
        ...

    def gradient(self, parameters: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradients by parameters, ``(n, dim)``, and by outputs, ``(n, m)``."""
        ...


class JointTarget(Protocol):
    """The cheap parts of a target whose model sees some of the parameters."""

    joint: CheapJoint | None
    transform: Bounded
    inputs: np.ndarray


@dataclass(frozen=True, eq=False)
class JointPotential:
    """Minus a joint log-density, as a function of unconstrained positions and outputs; log-Jacobian included."""

    joint: CheapJoint
    transform: Bounded

    def value(self, position: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        parameters = self.transform.to_parameters(position)
        return -(self.joint.log_density(parameters, outputs) + self.transform.log_jacobian(position))

    def gradient(self, position: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients by positions and by outputs."""
        by_parameters, by_outputs = self.joint.gradient(self.transform.to_parameters(position), outputs)
        return -self.transform.pull_back(position, by_parameters), -by_outputs


@dataclass(frozen=True, eq=False)
class FrozenLikelihood:
    """A joint log-density as a function of the outputs alone, at fixed parameters ``(dim,)``."""

    joint: CheapJoint
    parameters: np.ndarray

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return log-densities ``(n,)``."""
        return self.joint.log_density(self._repeated(points), points)

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return gradients ``(n, m)``."""
        return self.joint.gradient(self._repeated(points), points)[1]

    def _repeated(self, points: np.ndarray) -> np.ndarray:
        return np.tile(self.parameters, (len(points), 1))


@dataclass(frozen=True)
class NoPrior:
    """A potential of 0: the emulator's own potential is not used, only its outputs are."""

    def __call__(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros ``(n,)`` and ``(n, dim)``."""
        return np.zeros(len(position)), np.zeros_like(position)


@dataclass(frozen=True)
class JointSurrogate:
    """Emulate the outputs as functions of the model's inputs; keep everything else exact.

    Parameters
    ----------
    joint : CheapJoint
        Log-density of parameters and outputs together.
    transform : Bounded
        From unconstrained positions to parameters.
    inputs : ndarray of int
        Which parameters the model sees.
    n_hidden : int
        Number of hidden softplus units besides the polynomial features.
    whitening : Whitening, optional
        Of all parameters; the coordinates to train in are those of the inputs among them.

    Examples
    --------
    A model of one output that sees one of two parameters; the other is the logarithm of the noise.

    >>> from leapwise.targets.transforms import Transform
    >>> class Joint:
    ...     def log_density(self, x, y):
    ...         return -0.5 * (y[:, 0] / np.exp(x[:, 1])) ** 2 - x[:, 1] - 0.5 * (x**2).sum(axis=1)
    ...     def gradient(self, x, y):
    ...         square = (y[:, 0] / np.exp(x[:, 1])) ** 2
    ...         by_noise = np.stack([0.0 * square, square - 1.0], axis=1)
    ...         return by_noise - x, -y / np.exp(2.0 * x[:, [1]])
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((30, 2))
    >>> y = x[:, :1] ** 2 + x[:, :1]
    >>> training = TrainingSet(x, -Joint().log_density(x, y), outputs=y)
    >>> recipe = JointSurrogate(Joint(), Transform.from_bounds(None, 2), np.array([0]))
    >>> here = np.array([[0.5, -1.0]])
    >>> bool(abs(recipe.fit(training, rng).potential(here) + Joint().log_density(here, np.array([[0.75]]))) < 1e-6)
    True
    """

    joint: CheapJoint
    transform: Bounded
    inputs: np.ndarray
    n_hidden: int = 0
    whitening: Whitening | None = None

    @classmethod
    def of(cls, target: JointTarget) -> JointSurrogate:
        """Return the surrogate for a `ForwardTarget` whose likelihood and prior share parameters."""
        assert target.joint is not None
        return cls(target.joint, target.transform, target.inputs)

    def fit(
        self, training: TrainingSet, rng: np.random.Generator, plain: FittedJoint | None = None
    ) -> FittedJoint:
        """Train on the outputs of exact evaluations; `plain` is as for `OutputSurrogate.fit`."""
        if training.outputs is None:
            raise InputError(
                "a JointSurrogate needs outputs, got a training set without any; give TrainingSet(outputs=...), or use "
                "a surrogate of the potential"
            )
        known, frozen = self._seen_by_the_model(training)
        recipe = OutputSurrogate(
            frozen,
            NoPrior(),
            self.n_hidden,
            whitening=None if self.whitening is None else marginal(self.whitening, self.inputs),
        )
        fitted = recipe.fit(known, rng, None if plain is None else plain.emulated)
        return FittedJoint(fitted, JointPotential(self.joint, self.transform), self.inputs)

    def _seen_by_the_model(self, training: TrainingSet) -> tuple[TrainingSet, FrozenLikelihood]:
        """Return the evaluations as functions of the inputs, with all other parameters as at the lowest potential.

        An evaluation that is high only because the noise or another parameter is far off tells as much about the model
        as any other. So those to train on are selected by the potential with these parameters fixed.
        """
        assert training.outputs is not None
        parameters = self.transform.to_parameters(training.position)
        best = parameters[int(training.potential.argmin())]
        fixed = np.tile(best, (len(parameters), 1))
        fixed[:, self.inputs] = parameters[:, self.inputs]
        with np.errstate(all="ignore"):
            potential = -self.joint.log_density(fixed, training.outputs)
        potential = np.where(np.isfinite(potential), potential, training.potential)
        seen = TrainingSet(training.position[:, self.inputs], potential, outputs=training.outputs)
        return seen, FrozenLikelihood(self.joint, best)


#: Steps of the differences for second and third derivatives, relative to a position's size plus 1. They are for the
#: frame and for Riemannian metrics, which need few digits.
_STEP, _WIDE_STEP = 1e-5, 1e-3


class _ByDifferences(ABC):
    """Second and third derivatives of a surrogate by differences of its gradient."""

    @abstractmethod
    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""

    def hessian(self, position: np.ndarray) -> np.ndarray:
        """Return Hessians ``(n, dim, dim)``."""
        step = _STEP * (1.0 + np.abs(position))
        moves = step[:, None, :] * np.eye(position.shape[1])
        ahead, behind = (self._gradients(position, sign * moves) for sign in (1.0, -1.0))
        found = (ahead - behind) / (2.0 * step[:, :, None])
        return np.asarray(0.5 * (found + found.swapaxes(1, 2)))

    def quadratic_contraction(self, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the third derivative applied twice to `velocity`."""
        return self._third(position, velocity[:, None, :])[:, 0]

    def trace_contraction(self, position: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        """Return the third derivative contracted with symmetric matrices, along their eigenvectors."""
        values, vectors = np.linalg.eigh(matrix)
        return np.asarray((values[:, :, None] * self._third(position, vectors.swapaxes(1, 2))).sum(axis=1))

    def _third(self, position: np.ndarray, directions: np.ndarray) -> np.ndarray:
        length = np.maximum(np.linalg.norm(directions, axis=2, keepdims=True), np.finfo(float).tiny)
        size = _WIDE_STEP * (1.0 + np.abs(position).max(axis=1))[:, None, None]
        moves = size * directions / length
        ahead, here, behind = (self._gradients(position, sign * moves) for sign in (1.0, 0.0, -1.0))
        return np.asarray((ahead - 2.0 * here + behind) * (length / size) ** 2)

    def _gradients(self, position: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """Return gradients at positions plus moves ``(n, k, dim)``, in their shape."""
        moved = (position[:, None, :] + moves).reshape(-1, position.shape[1])
        return self.potential_and_gradient(moved)[1].reshape(moves.shape)


@dataclass(frozen=True, eq=False)
class FittedJoint(_ByDifferences):
    """A trained `JointSurrogate`.

    Attributes
    ----------
    emulated : FittedOutputs
        Whose `outputs` are functions of the inputs' positions.
    potentials : JointPotential
    inputs : ndarray of int
    """

    emulated: FittedOutputs
    potentials: JointPotential
    inputs: np.ndarray

    def outputs(self, position: np.ndarray) -> np.ndarray:
        """Return emulated outputs ``(n, m)``."""
        return self.emulated.outputs(position[:, self.inputs])

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        return self.potentials.value(position, self.outputs(position))

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""
        outputs, gradient = self._slopes(position)
        return self.potentials.value(position, outputs), gradient

    def compiled(self) -> CompiledSurrogate:
        """Return potential and gradient as functions of positions, for trajectories, which need no potentials."""
        return CompiledSurrogate(self.potential, lambda position: self._slopes(position)[1])

    def _slopes(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return emulated outputs and the gradient of the potential, by the chain rule."""
        whitening, emulator, space = self.emulated.whitening, self.emulated.emulator, self.emulated.space
        white = whitening.to_white(position[:, self.inputs])
        components, slopes = emulator.components_and_slopes(white)
        outputs = space.decode(components)
        gradient, by_outputs = self.potentials.gradient(position, outputs)
        back = emulator.pull_back(white, slopes, by_outputs @ space.decoder.T)
        gradient[:, self.inputs] += whitening.gradient_from_white(back)
        return outputs, gradient

    def update(self, training: TrainingSet) -> FittedJoint:
        """Return a surrogate that is trained on further evaluations as well."""
        seen = TrainingSet(training.position[:, self.inputs], training.potential, outputs=training.outputs)
        return replace(self, emulated=self.emulated.update(seen))


@dataclass(frozen=True, eq=False)
class WithPrior(_ByDifferences):
    """A trained surrogate of an expensive likelihood's potential, plus the exact potential of the prior.

    Attributes
    ----------
    likelihood : Fitted
        Of minus the log-likelihood, at the positions of its inputs.
    prior : PriorPotential
        Log-Jacobian of bounds included.
    inputs : ndarray of int
        Which parameters the likelihood sees.
    """

    likelihood: Fitted
    prior: PriorPotential
    inputs: np.ndarray

    def potential(self, position: np.ndarray) -> np.ndarray:
        """Return potentials ``(n,)``."""
        return self.likelihood.potential(position[:, self.inputs]) + self.prior(position)[0]

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials and their gradients."""
        value, slope = self.likelihood.potential_and_gradient(position[:, self.inputs])
        more, gradient = self.prior(position)
        gradient[:, self.inputs] += slope
        return value + more, gradient

    def compiled(self) -> CompiledSurrogate:
        """Return potential and gradient as functions of positions."""
        fast = compile_surrogate(self.likelihood)

        def gradient(position: np.ndarray) -> np.ndarray:
            found = self.prior(position)[1]
            found[:, self.inputs] += fast.gradient(position[:, self.inputs])
            return found

        return CompiledSurrogate(
            lambda position: fast.potential(position[:, self.inputs]) + self.prior(position)[0], gradient
        )

    def variance(self, position: np.ndarray) -> np.ndarray:
        """Return the predictive variance ``(n,)``, if the surrogate of the likelihood has one."""
        return np.asarray(self.likelihood.variance(position[:, self.inputs]))  # type: ignore[attr-defined]

    def update(self, training: TrainingSet) -> WithPrior:
        """Return a surrogate that is trained on further evaluations as well."""
        seen = without_prior(training, self.prior, self.inputs)
        return replace(self, likelihood=self.likelihood.update(seen))


def without_prior(training: TrainingSet, prior: PriorPotential, inputs: np.ndarray) -> TrainingSet:
    """Return a training set of the likelihood alone: potentials and gradients less those of the prior."""
    value, slope = prior(training.position)
    gradient = None if training.gradient is None else (training.gradient - slope)[:, inputs]
    return TrainingSet(training.position[:, inputs], training.potential - value, gradient)


def marginal(whitening: Whitening, columns: np.ndarray) -> Whitening:
    """Return the coordinates of some parameters alone, with the same mean and covariance."""
    rows = whitening.factor[columns]
    return Whitening(whitening.mean[columns], np.linalg.cholesky(rows @ rows.T))


def surrogate_of_outputs(target: Any) -> Any:
    """Return the surrogate that emulates a forward model's outputs and keeps all that is cheap exact.

    It is an `OutputSurrogate`, or a `JointSurrogate` if likelihood and prior share parameters.
    """
    return OutputSurrogate.of(target) if target.joint is None else JointSurrogate.of(target)
