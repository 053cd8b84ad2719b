"""How the surrogate methods learn: once, from exploration; or on and on, while draws are made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leapwise.dynamics import check_metric
from leapwise.errors import InputError, LeapwiseError, SurrogateError
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels import RMHMC, Info, Kernel, State, Streams, SurrogateHMC, SurrogateRMHMC
from leapwise.surrogates import TrainingSet
from leapwise.warmup.collector import Collector, take_accepted
from leapwise.warmup.gradient_check import check_values
from leapwise.warmup.methods import ARNSHMC, SurrogateMethod
from leapwise.warmup.schedule import HMCWarmup, Learner, NoWarmup


class Exploration:
    """Explore with exact HMC, collect, and train a surrogate at the end."""

    n_adaptive = 0
    start = None

    def __init__(
        self, method: SurrogateMethod, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
    ) -> None:
        self._method, self._evaluator, self._rng = method, evaluator, streams.shared
        self._explore = HMCWarmup(method.exploration, n_steps, evaluator, streams, state)
        self._collector = Collector(method.most_training(method.surrogate, evaluator.target.dim))
        self._skip = n_steps // 5 if method.skip is None else method.skip
        self._done = 0
        self._state = state
        self.n_metrics = 0
        self.training: TrainingSet | None = None
        self._heard: list[Evaluation] = []
        evaluator.observer = self._heard.append

    @property
    def kernel(self) -> Kernel:
        """Kernel for the next step of exploring."""
        return self._explore.kernel

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        self._explore.learn(before, state, info)
        self._state = state
        self._done += 1
        if self._done > self._skip:
            for each in lessons(self._method, self._heard, state, info):
                self._collector.add(each)
        self._heard.clear()

    def freeze(self) -> Kernel:
        """Train the surrogate, and return the kernel that follows it."""
        self._evaluator.observer = None
        self.training = training = self._collector.training()
        check_values(self._evaluator, self._state)
        name = type(self._method.surrogate).__name__
        try:
            surrogate = self._method.surrogate.fit(training, self._rng)
        except LeapwiseError:
            raise
        except Exception as error:
            raise SurrogateError(
                f"{name}.fit raised {type(error).__name__}: {error}; mend it, or use another surrogate (what was "
                "collected is in the attribute run.training of this error)"
            ) from error
        if isinstance(self._method, ARNSHMC) and not callable(getattr(surrogate, "update", None)):
            raise InputError(
                f"ARNSHMC needs a surrogate that can be updated, and what {name} fits has no method update; use RNSHMC"
            )
        kernel = self._method.kernel(surrogate, self._explore.freeze(), training)
        if isinstance(kernel, SurrogateRMHMC):
            self.n_metrics += check_metric_at(self._state, kernel)
        return kernel


class OnlineLearning:
    """Let the surrogate learn from every exact value, and publish it now and then."""

    def __init__(self, method: ARNSHMC, kernel: SurrogateHMC, evaluator: Evaluator, streams: Streams) -> None:
        assert kernel.surrogate is not None
        self.kernel: SurrogateHMC = kernel
        self._method, self._evaluator, self._rng = method, evaluator, streams.shared
        self._newest, self._done = kernel.surrogate, 0
        self._heard: list[Evaluation] = []
        evaluator.observer = self._heard.append

    @property
    def n_adaptive(self) -> int:
        """Steps made so far with a surrogate that was still learning."""
        return self._done

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains, and publish what was learnt if chance says so."""
        limit = self._method.freeze_after
        if limit is not None and self._done >= limit:
            return
        self._done += 1
        for each in lessons(self._method, self._heard, state, info):
            usable = np.isfinite(each.potential)
            if usable.any():
                outputs = None if each.outputs is None else each.outputs[usable]
                self._newest = self._newest.update(
                    TrainingSet(each.position[usable], each.potential[usable], outputs=outputs)
                )
        self._heard.clear()
        publish = self._rng.random() < self._chance()
        if publish or self._done == limit:
            self.kernel = replace(self.kernel, surrogate=self._newest)
        if self._done == limit:
            self._evaluator.observer = None

    def _chance(self) -> float:
        chance = float(self._method.refit_probability(self._done))
        if not 0 <= chance <= 1:
            raise InputError(
                f"refit_probability must be between 0 and 1, got {chance} at step {self._done}; "
                "for example lambda t: 1 / t"
            )
        return chance


def check_metric_at(state: State, kernel: RMHMC | SurrogateRMHMC) -> int:
    """Raise if a kernel's metric contradicts itself where the first chain is; return how often it was asked."""
    assert kernel.metric is not None
    normals = np.random.default_rng(0).standard_normal((2, state.position.shape[1]))
    return check_metric(kernel.metric, state.position[:1], normals)


def lessons(method: SurrogateMethod, heard: list[Evaluation], state: State, info: Info) -> list[Evaluation]:
    """Return what a method learns from, of all that was evaluated in one step."""
    if method.collect == "all":
        return heard
    accepted = take_accepted(heard, state.position[info.accepted])
    return [] if accepted is None else [accepted]


def learner_for(method: object, kernel: Kernel, evaluator: Evaluator, streams: Streams) -> Learner:
    """Return what steps, and learns, while draws are made; most methods no longer learn."""
    if isinstance(method, ARNSHMC) and method.freeze_after != 0:
        assert isinstance(kernel, SurrogateHMC)
        return OnlineLearning(method, kernel, evaluator, streams)
    return NoWarmup(kernel)
