r"""Four small models for simulation-based calibration, a thousand data sets of each moved at once.

Parameters are drawn from the prior and data from the parameters; the parameters then are an *exact draw* of the
posterior given the data, so `leapwise.testing.sequential.exact_ranks` gives ranks that are uniform whatever the mixing.

To move the chains of many data sets in one batch, a position has one coordinate more: the number of its data set. It
has no density of its own, and so great a mass that nothing moves it by as much as the last digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import digamma, expit, gammaln, log_expit

from leapwise import DiagonalMetric, ForwardTarget, Target
from leapwise.testing import ExactTarget

IMMOVABLE = 1e-300  # variance that a metric gives the number of the data set


@dataclass
class Model:
    """A prior to draw from, data to simulate, and log-densities with gradients.

    ``likelihood(parameters, data)`` and ``prior(parameters)`` return values ``(n,)`` and gradients ``(n, dim)``.
    """

    name: str
    dim: int
    draw: Callable
    simulate: Callable
    likelihood: Callable
    prior: Callable
    step_size: float
    n_steps: int
    bounds: list = field(default_factory=list)
    data: np.ndarray = field(default_factory=lambda: np.empty(0))

    def replications(self) -> ExactTarget:
        """Return the posteriors of all data sets as one target; each draw simulates them anew."""
        bounds = [*(self.bounds or [None] * self.dim), None]
        target = Target(
            lambda x: self.value_and_gradient(x)[0],
            dim=self.dim + 1,
            bounds=bounds,
            vectorized=True,
            value_and_gradient=self.value_and_gradient,
        )
        return ExactTarget(target, self.joint_draw, self.name)

    def posterior(self, data: np.ndarray) -> Target:
        """Return the posterior of one data set ``(1, ...)``, as a user would write it."""

        def value_and_gradient(x):
            value, slope = self.likelihood(x, np.repeat(data, len(x), axis=0))
            more, extra = self.prior(x)
            return value + more, slope + extra

        return Target(
            lambda x: value_and_gradient(x)[0],
            dim=self.dim,
            bounds=self.bounds or None,
            vectorized=True,
            value_and_gradient=value_and_gradient,
        )

    def joint_draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        parameters = self.draw(rng, n)
        self.data = self.simulate(rng, parameters)
        return np.column_stack([parameters, np.arange(n)])

    def data_of(self, numbers: np.ndarray) -> np.ndarray:
        return self.data[np.round(numbers).astype(int)]

    def value_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):  # far from everything, densities underflow
            value, slope = self.likelihood(x[:, :-1], self.data_of(x[:, -1]))
            more, extra = self.prior(x[:, :-1])
        total, gradient = value + more, np.column_stack([slope + extra, np.zeros(len(x))])
        total[~(np.isfinite(total) & np.isfinite(gradient).all(axis=1))] = -np.inf
        return total, gradient

    def statistics(self, transform) -> Callable:
        """Return what is ranked: every parameter, and the log-likelihood."""

        def look(position, potential):
            x = transform.to_parameters(position)
            ranked = {f"parameter {i}": x[:, i] for i in range(self.dim)}
            return {**ranked, "log-likelihood": self.likelihood(x[:, :-1], self.data_of(x[:, -1]))[0]}

        return look

    @property
    def metric(self) -> DiagonalMetric:
        return DiagonalMetric([*[1.0] * self.dim, IMMOVABLE])


def standard_normal(x):
    return -0.5 * (x**2).sum(axis=1), -x


def normal_mean() -> Model:
    """The mean of five normal variables, each seen twice: the posterior is normal, with variance 1 / 3."""

    def likelihood(x, data):
        residual = data - x[:, None, :]
        return -0.5 * (residual**2).sum(axis=(1, 2)), residual.sum(axis=1)

    return Model(
        "normal mean",
        5,
        lambda rng, n: rng.normal(size=(n, 5)),
        lambda rng, x: x[:, None, :] + rng.normal(size=(len(x), 2, 5)),
        likelihood,
        standard_normal,
        step_size=0.45,
        n_steps=4,
    )


def logistic() -> Model:
    """Two coefficients of a logistic regression with thirty rows."""
    features = np.column_stack([np.linspace(-2.0, 2.0, 30), np.tile([1.5, -1.0, 0.2], 10)])

    def likelihood(x, data):
        margin = x @ features.T
        return (data * margin + log_expit(-margin)).sum(axis=1), (data - expit(margin)) @ features

    return Model(
        "logistic regression",
        2,
        lambda rng, n: rng.normal(size=(n, 2)),
        lambda rng, x: (rng.random((len(x), 30)) < expit(x @ features.T)).astype(float),
        likelihood,
        standard_normal,
        step_size=0.5,
        n_steps=4,
    )


class Decay(Model):
    """A forward model with outputs: eight values of a decay, amplitude exp(-rate t) plus a level, seen with noise."""

    times = np.linspace(0.2, 3.0, 8)
    noise = 0.4

    def outputs(self, x):
        """Return the outputs, the number of the data set as one more, and their Jacobian."""
        with np.errstate(over="ignore"):
            rate = np.exp(0.5 * x[:, 1:2])
            shape = np.exp(-rate * self.times)
        jacobian = np.zeros((len(x), self.times.size + 1, 4))
        jacobian[:, :-1, 0] = shape
        with np.errstate(all="ignore"):
            jacobian[:, :-1, 1] = np.nan_to_num(-x[:, :1] * shape * 0.5 * rate * self.times)
        jacobian[:, :-1, 2] = jacobian[:, -1, 3] = 1.0
        return np.column_stack([x[:, :1] * shape + x[:, 2:3], x[:, 3]]), jacobian

    def replications(self) -> ExactTarget:
        model = self

        class Misfit:
            def log_density(self, outputs):
                residual = (model.data_of(outputs[:, -1]) - outputs[:, :-1]) / model.noise
                return -0.5 * (residual**2).sum(axis=1)

            def gradient(self, outputs):
                residual = (model.data_of(outputs[:, -1]) - outputs[:, :-1]) / model.noise**2
                return np.column_stack([residual, np.zeros(len(outputs))])

        class Prior:
            def log_density(self, x):
                return standard_normal(x[:, :-1])[0]

            def gradient(self, x):
                return np.column_stack([-x[:, :-1], np.zeros(len(x))])

        target = ForwardTarget(
            lambda x: self.outputs(x)[0], Misfit(), Prior(), jacobian=self.outputs, dim=4, vectorized=True
        )
        return ExactTarget(target, self.joint_draw, self.name)


def decay() -> Model:
    def predict(x):
        return model.outputs(np.column_stack([x, np.zeros(len(x))]))

    def likelihood(x, data):
        outputs, jacobian = predict(x)
        residual = (data - outputs[:, :-1]) / model.noise
        slope = np.einsum("nm,nmd->nd", residual / model.noise, jacobian[:, :-1, :-1])
        return -0.5 * (residual**2).sum(axis=1), slope

    model = Decay(
        "decay",
        3,
        lambda rng, n: rng.normal(size=(n, 3)),
        lambda rng, x: predict(x)[0][:, :-1] + 0.4 * rng.normal(size=(len(x), 8)),
        likelihood,
        standard_normal,
        step_size=0.16,
        n_steps=12,
    )
    return model


def gamma() -> Model:
    """Shape and rate of a gamma distribution, both positive, from eight values: skewed and correlated."""

    def likelihood(x, data):
        shape, rate = x[:, 0], x[:, 1]
        logs, sums, m = np.log(data).sum(axis=1), data.sum(axis=1), data.shape[1]
        value = m * (shape * np.log(rate) - gammaln(shape)) + (shape - 1.0) * logs - rate * sums
        slope = [m * (np.log(rate) - digamma(shape)) + logs, m * shape / rate - sums]
        return value, np.stack(slope, axis=1)

    return Model(
        "gamma",
        2,
        lambda rng, n: rng.gamma(4.0, 0.5, size=(n, 2)),
        lambda rng, x: rng.gamma(x[:, :1], 1.0 / x[:, 1:], size=(len(x), 8)),
        likelihood,
        lambda x: ((3.0 * np.log(x) - 2.0 * x).sum(axis=1), 3.0 / x - 2.0),
        step_size=0.25,
        n_steps=6,
        bounds=[(0, None)] * 2,
    )


MODELS = {model.name: model for model in (normal_mean(), logistic(), decay(), gamma())}


@dataclass
class Crude:
    """A surrogate of a model's potential at unconstrained positions: too flat by a fifth, and tilted."""

    target: object

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def potential_and_gradient(self, position):
        transform = self.target.transform
        raw = self.target.evaluate(transform.to_parameters(position), gradient=True)
        tilt = np.array([*[0.1] * (position.shape[1] - 1), 0.0])
        value = -raw.log_density - transform.log_jacobian(position)
        return 0.8 * value + position @ tilt, -0.8 * transform.pull_back(position, raw.gradient) + tilt


@dataclass
class Curved:
    """A metric of position: G = diag(c + tanh(q)^2 / 2), with the number of the data set immovable."""

    floor: float

    def at(self, position):
        return LocalCurved(position, self.floor)


@dataclass
class LocalCurved:
    position: np.ndarray
    floor: float

    def __post_init__(self):
        tanh = np.tanh(self.position[:, :-1])
        self.diagonal = np.column_stack([self.floor + 0.5 * tanh**2, np.full(len(tanh), 1.0 / IMMOVABLE)])
        self.slope = np.column_stack([tanh * (1.0 - tanh**2), np.zeros(len(tanh))])
        self.matrix = self.diagonal[:, :, None] * np.eye(self.position.shape[1])
        self.cholesky = np.sqrt(self.matrix)

    def quadratic_contraction(self, velocity):
        return self.slope * velocity**2

    def trace_contraction(self):
        return self.slope / self.diagonal
