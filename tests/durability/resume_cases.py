"""Models that write down each call they complete, and the runs that the tests of resuming make of them.

The log is independent of the library: one line for each completed call, ``session kind hash``, where the kind is "v"
for a value and "g" for a value with its gradient and the hash is of the bytes of the parameters. It is opened for
appending and each line is one write, so that lines of several processes do not mix and a kill leaves no half of one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from hashlib import blake2b

import numpy as np

import leapwise as lw

#: Which of several runs in a row this is, for the log; workers inherit it.
SESSION = "RESUME_SESSION"


def mark(position):
    """Return a short hash of a position."""
    return blake2b(np.ascontiguousarray(position, dtype="<f8").tobytes(), digest_size=8).hexdigest()


class Model:
    """A skewed density of three parameters that takes its time and writes down what it has done."""

    dim = 3

    def __init__(self, log=None, pause=0.0, shift=0.0):
        self.log, self.pause, self.shift = log, pause, shift

    def value(self, x):
        found = _log_density(x, self.shift)
        self.done("v", x)
        return found

    def both(self, x):
        found = _log_density(x, self.shift), _gradient(x, self.shift)
        self.done("g", x)
        return found

    def values(self, points):
        """Take many points at once; in products whose rounding depends on how many there are."""
        found = _log_density(points.T, self.shift) + np.tanh(points @ _WAYS) @ _WEIGHTS
        self.done("v", *points)
        return found

    def all_both(self, points):
        bent = np.tanh(points @ _WAYS)
        found = (
            _log_density(points.T, self.shift) + bent @ _WEIGHTS,
            _gradient(points.T, self.shift).T + ((1.0 - bent**2) * _WEIGHTS) @ _WAYS.T,
        )
        self.done("g", *points)
        return found

    def outputs(self, x):
        found = np.array(
            [
                x[0] + self.shift,
                x[1] - 0.3 * x[0] ** 2,
                np.exp(0.2 * x[2]),
                x[2] + 0.1 * x[0],
                np.sin(x[1]),
            ]
        )
        self.done("v", x)
        return found

    def done(self, kind, *points):
        if self.pause:
            time.sleep(self.pause)
        if self.log is not None:
            session = os.environ.get(SESSION, "0")
            text = "".join(f"{session} {kind} {mark(point)}\n" for point in points)
            os.write(_descriptor(self.log), text.encode())


_WAYS = np.random.default_rng(1).normal(size=(3, 64))
_WEIGHTS = np.random.default_rng(2).normal(size=64) / 8.0
_DESCRIPTORS: dict[tuple[int, str], int] = {}


def _descriptor(path):
    key = os.getpid(), str(path)
    if key not in _DESCRIPTORS:
        _DESCRIPTORS[key] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return _DESCRIPTORS[key]


def _log_density(x, shift):
    bend = x[1] - 0.3 * x[0] ** 2
    return -0.5 * ((x[0] - shift) ** 2 + bend**2 + 0.7 * x[2] ** 2 + 0.1 * x[2] ** 4)


def _gradient(x, shift):
    bend = x[1] - 0.3 * x[0] ** 2
    return np.array([-(x[0] - shift) + 0.6 * x[0] * bend, -bend, -0.7 * x[2] - 0.2 * x[2] ** 3])


DATA = np.array([0.4, 0.1, 1.1, -0.2, 0.3])


def target(kind, model):
    """Return a target of a model: with gradients, values alone, outputs, many points at once, or bounds."""
    if kind == "gradient":
        return lw.Target(model.value, value_and_gradient=model.both, dim=3)
    if kind == "values":
        return lw.Target(model.value, dim=3)
    if kind == "bounded":
        return lw.Target(
            model.value, value_and_gradient=model.both, dim=3, bounds=[(-3, 3), None, (-2, None)]
        )
    if kind == "vectorized":
        return lw.Target(model.values, dim=3, vectorized=True)
    if kind == "vectorized gradient":
        return lw.Target(model.values, value_and_gradient=model.all_both, dim=3, vectorized=True)
    assert kind == "outputs"
    return lw.ForwardTarget(
        model.outputs, lw.GaussianLikelihood(DATA, sd=0.5), lw.NormalPrior(0.0, 1.0, dim=3)
    )


#: What is sampled, by name: the kind of target, and the settings. Three chains and three parameters: a batch of as many
#: points as parameters is where a target of many points is asked in two parts at first.
CASES = {
    "auto": ("gradient", {}),
    "auto, values": ("values", {}),
    "auto, outputs": ("outputs", {}),
    "auto, bounds": ("bounded", {}),
    "auto, vectorized": ("vectorized", {}),
    "auto, vectorized gradient": ("vectorized gradient", {}),
    "HMC": ("gradient", {"method": lw.HMC(), "tune": 20, "draws": 15}),
    "NUTS": ("gradient", {"method": lw.NUTS(), "tune": 20, "draws": 15}),
    "RNSHMC": ("gradient", {"method": lw.RNSHMC(lw.SoftplusNetwork(30)), "tune": 25}),
}


def settings(case, **changes):
    """Return the settings of a case."""
    return {"draws": 40, "chains": 3, "random_seed": 7, **CASES[case][1], **changes}


def arrays(run):
    """Return all of a run that must be the same however it came about."""
    found = {"draws": run.draws, "warmup": run.warmup.draws, "complete": np.array(run.complete)}
    found |= {f"stat {name}": values for name, values in run.posterior.stats.items()}
    cost = run.cost
    found["cost"] = np.array(
        [cost.n_values, cost.n_gradients, cost.n_metrics, cost.n_failures, cost.n_failed_attempts]
    )
    return found


def assert_same(found, wanted):
    """Assert that two sets of arrays are the same to the last bit."""
    assert sorted(found) == sorted(wanted)
    for name, values in wanted.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape, name
        assert np.array_equal(found[name], values, equal_nan=values.dtype.kind == "f"), name


def calls(log):
    """Return how often each call was completed, by session: ``{session: Counter of (kind, hash)}``."""
    found: dict[str, Counter] = {}
    if os.path.exists(log):
        with open(log) as lines:
            for line in lines:
                session, kind, point = line.split()
                found.setdefault(session, Counter())[kind, point] += 1
    return found
