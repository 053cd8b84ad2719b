"""Examples of everything that a resumed run needs: kernels, and the surrogates that they use."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np

from leapwise import (
    FITC,
    HMC,
    NUTS,
    RMHMC,
    DenseMetric,
    DiagonalMetric,
    Evaluator,
    ForwardTarget,
    GaussianLikelihood,
    GaussianProcess,
    Mixture,
    NormalPrior,
    OutputSurrogate,
    QuadraticNetwork,
    RBFNetwork,
    SoftplusNetwork,
    State,
    Streams,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
    TrainingSet,
    UniformPrior,
    UnitMetric,
)
from leapwise.dynamics import HessianMetric
from leapwise.run.class_tags import pack, unpack

DIM = 4
LINK = np.eye(DIM) - 0.6 * np.eye(DIM, k=-1)
COVARIANCE = LINK @ LINK.T


def forward(x):
    return np.array([x[0] + 0.3 * x[1] ** 2, np.sin(x[1]) + x[2], x[2] * x[3], x[3], x.sum()])


def jacobian(x):
    rows = np.zeros((5, DIM))
    rows[0, 0], rows[0, 1] = 1.0, 0.6 * x[1]
    rows[1, 1], rows[1, 2] = np.cos(x[1]), 1.0
    rows[2, 2], rows[2, 3] = x[3], x[2]
    rows[3, 3] = 1.0
    rows[4] = 1.0
    return forward(x), rows


class Cauchy:
    """A likelihood whose gradient is not linear."""

    def log_density(self, points):
        return -np.log1p((points - 0.5) ** 2).sum(axis=1)

    def gradient(self, points):
        return -2.0 * (points - 0.5) / (1.0 + (points - 0.5) ** 2)


def make_target(likelihood=None, prior=None):
    likelihood = GaussianLikelihood(np.linspace(0.0, 1.0, 5), sd=0.5) if likelihood is None else likelihood
    prior = NormalPrior(0.1, 1.0, dim=DIM) if prior is None else prior
    return ForwardTarget(forward, likelihood, prior, jacobian=jacobian)


def make_training(target, *, gradients=True, n=60, seed=0):
    position = 0.7 * np.random.default_rng(seed).standard_normal((n, DIM))
    found = Evaluator(target).value_and_gradient(position)
    return TrainingSet(position, found.potential, found.gradient if gradients else None, found.outputs)


#: Name to a function of a target that returns a trained surrogate.
SURROGATES = {
    "softplus": lambda target: SoftplusNetwork(30),
    "radial": lambda target: RBFNetwork(30),
    "quadratic": lambda target: QuadraticNetwork(),
    "quadratic with nodes": lambda target: QuadraticNetwork(20, radial=True),
    "process": lambda target: GaussianProcess(max_rows=100),
    "process with trend": lambda target: GaussianProcess("rational_quadratic", "radial", max_rows=100),
    "process on values": lambda target: GaussianProcess(trend="quadratic", use_gradients=False, max_rows=100),
    "fitc": lambda target: FITC(15),
    "outputs": lambda target: OutputSurrogate.of(target),
    "outputs with nodes": lambda target: OutputSurrogate.of(target, 10),
}
#: What their targets are like.
TARGETS = {
    "normal": make_target,
    "bounded": lambda: make_target(prior=UniformPrior(-4.0, 4.0, dim=DIM)),
    "cauchy": lambda: make_target(Cauchy()),
}


def fit(name, target, *, gradients=True, updated=False):
    training = make_training(target, gradients=gradients)
    fitted = SURROGATES[name](target).fit(training, np.random.default_rng(1))
    if updated:
        fitted = fitted.update(make_training(target, gradients=gradients, n=9, seed=2))
    return fitted


def make_leader():
    return QuadraticNetwork().fit(make_training(make_target()), np.random.default_rng(6))


#: Settings that the kernel of draws may have besides.
OPTIONS = {"centre": {"centre": np.full(DIM, 0.1)}}
if "leader" in (each.name for each in fields(SurrogateTransition)):
    OPTIONS["leader"] = {**OPTIONS["centre"], "leader": make_leader()}


def make_kernels(surrogate):
    dense = DenseMetric(COVARIANCE)
    hmc = HMC(0.3, 4, metric=dense)
    curved = HessianMetric(surrogate, "softabs", 0.5)
    return {
        "HMC": HMC(0.3, (2, 5), metric=DiagonalMetric(np.diag(COVARIANCE))),
        "HMC, step sizes of each": HMC([0.2, 0.3, 0.4], trajectory_length=1.2, metric=UnitMetric()),
        "NUTS": NUTS(0.3, metric=dense, max_depth=5),
        "RMHMC": RMHMC(0.3, 3, metric=curved),
        "SurrogateHMC": SurrogateHMC(0.3, 4, surrogate=surrogate, metric=dense),
        "SurrogateRMHMC": SurrogateRMHMC(0.3, 3, surrogate=surrogate, metric=curved),
        "SurrogateTransition": SurrogateTransition(0.3, 4, surrogate=surrogate, metric=dense, inner_steps=3),
        "Mixture": Mixture(
            (SurrogateTransition(0.3, 4, surrogate=surrogate, metric=dense, inner_steps=2), hmc), (0.7, 0.4)
        ),
    } | {
        f"SurrogateTransition, {name}": SurrogateTransition(
            0.5, 4, surrogate=surrogate, metric=dense, **option
        )
        for name, option in OPTIONS.items()
    }


def begin(kernel, target, n_steps=5):
    """Return kernel, state and streams after a few steps."""
    evaluator, streams = Evaluator(target), Streams(3, 3)
    position = 0.3 * np.random.default_rng(4).standard_normal((3, DIM))
    state = State.from_evaluation(evaluator.value_and_gradient(position))
    for _ in range(n_steps):
        state, _ = kernel.step(streams, state, evaluator)
    return {"kernel": kernel, "state": state, "streams": streams}


def go_on(at, target, n_steps=20):
    """Return all numbers of further steps, as bytes."""
    evaluator, state, seen = Evaluator(target), at["state"], []
    for _ in range(n_steps):
        state, info = at["kernel"].step(at["streams"], state, evaluator)
        seen += [state.position, state.potential, *vars(info).values()]
    seen += [evaluator.counts.n_values, evaluator.counts.n_gradients]
    return [None if each is None else np.asarray(each).tobytes() for each in seen]


def through(value, references=None, again=None):
    """Return a value after a round trip through bytes and JSON; `again` are the references of the reader."""
    arrays, meta = pack(value, references)
    # At an odd address, and read-only, as bytes of a file are.
    stored = {
        name: np.frombuffer(b"-" + array.tobytes(), dtype=np.uint8)[1:].view(array.dtype).reshape(array.shape)
        if array.dtype == bool
        else np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape)
        for name, array in arrays.items()
    }
    return unpack(
        stored, json.loads(json.dumps(meta, allow_nan=False)), references if again is None else again
    )
