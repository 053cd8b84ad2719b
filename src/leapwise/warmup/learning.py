"""Training of the paper's methods, and which warm-up each method needs.

`Exploration` explores with exact HMC, collects exact evaluations and trains a surrogate once at the end.
`OnlineLearning` keeps updating it while draws are made (`ARNSHMC`). Training data are picked up from the evaluator as
they are computed: nothing is evaluated for training alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from leapwise.dynamics import check_metric
from leapwise.errors import InputError, LeapwiseError, SurrogateError
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels import HMC, NUTS, RMHMC, Info, Kernel, State, Streams, SurrogateHMC, SurrogateRMHMC
from leapwise.surrogates import TrainingSet
from leapwise.warmup.gradient_check import check_values
from leapwise.warmup.hmc import (
    FIRST_STEPS,
    HMCWarmup,
    KernelTuner,
    NoWarmup,
    RMHMCWarmup,
    TrajectoryWarmup,
    Warmup,
)
from leapwise.warmup.methods import ARNSHMC, RNSHMC, RNSRMHMC, SurrogateMethod, Training


class TrainingCollector:
    """Stores exact evaluations as they come, thinned evenly once there are too many.

    Positions without mass are left out. When more than `most` are stored, every second one is dropped, and from then on
    only every second new one is stored, and so on. So the stored ones always cover the whole time evenly.

    Parameters
    ----------
    most : int
        Largest number of evaluations stored.

    Examples
    --------
    >>> collector = TrainingCollector(most=3)
    >>> for i in range(8):
    ...     collector.add(Evaluation(np.array([[float(i)]]), np.array([0.5 * i])))
    >>> collector.training().position.ravel().tolist()
    [0.0, 4.0]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self._n_seen = 0
        self._numbers = np.empty(0, dtype=int)
        self._batches: list[Evaluation] = []

    def add(self, evaluation: Evaluation) -> None:
        """Store the usable rows."""
        usable = np.isfinite(evaluation.potential)
        if evaluation.outputs is not None:
            usable &= np.isfinite(evaluation.outputs).all(axis=1)
        numbers = self._n_seen + np.arange(int(usable.sum()))
        self._n_seen += numbers.size
        kept = numbers % self._stride == 0
        if kept.any():
            self._batches.append(_rows(evaluation, np.flatnonzero(usable)[kept]))
            self._numbers = np.concatenate([self._numbers, numbers[kept]])
        while self._numbers.size > self._most:
            self._stride *= 2
            left = np.flatnonzero(self._numbers % self._stride == 0)
            self._batches, self._numbers = [_rows(_joined(self._batches), left)], self._numbers[left]

    def training(self) -> TrainingSet:
        """Return the stored evaluations."""
        if not self._batches:
            raise InputError(
                "there is nothing to train the surrogate on; explore longer (tune=) or collect earlier (skip=)"
            )
        found = _joined(self._batches)
        return TrainingSet(found.position, found.potential, found.gradient, found.outputs)


def take_accepted(evaluations: list[Evaluation], position: np.ndarray) -> Evaluation | None:
    """Return the values at these positions, from the evaluations of a step, without gradients."""
    if not evaluations or not len(position):
        return None
    found = _joined(evaluations)
    same = (found.position[:, None, :] == position[None, :, :]).all(axis=2)
    chosen = _rows(found, np.flatnonzero(same.any(axis=1)))
    return Evaluation(chosen.position, chosen.potential, None, chosen.outputs)


def _rows(evaluation: Evaluation, rows: np.ndarray) -> Evaluation:
    return Evaluation(
        evaluation.position[rows],
        evaluation.potential[rows],
        None if evaluation.gradient is None else evaluation.gradient[rows],
        None if evaluation.outputs is None else evaluation.outputs[rows],
    )


def _joined(batches: list[Evaluation]) -> Evaluation:
    """Concatenate batches; rows without a gradient have NaN."""
    has_gradient = any(each.gradient is not None for each in batches)
    outputs = [each.outputs for each in batches if each.outputs is not None]
    return Evaluation(
        np.concatenate([each.position for each in batches]),
        np.concatenate([each.potential for each in batches]),
        np.concatenate([_gradient(each) for each in batches]) if has_gradient else None,
        np.concatenate(outputs) if len(outputs) == len(batches) else None,
    )


def _gradient(evaluation: Evaluation) -> np.ndarray:
    if evaluation.gradient is None:
        return np.full_like(evaluation.position, np.nan)
    return evaluation.gradient


class Exploration:
    """Explores with exact HMC, collects evaluations, and trains a surrogate at the end."""

    n_adaptive = 0
    start = None

    def __init__(
        self, method: SurrogateMethod, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
    ) -> None:
        self._method, self._evaluator, self._rng = method, evaluator, streams.shared
        self._explore = HMCWarmup(method.exploration, n_steps, evaluator, streams, state)
        self._collector = TrainingCollector(method.most_training(method.surrogate, evaluator.target.dim))
        self._skip = n_steps // 5 if method.skip is None else method.skip
        self._done = 0
        self._state = state
        self.n_metrics = 0
        self.training: TrainingSet | None = None
        self._heard: list[Evaluation] = []
        evaluator.observe(self._heard.append)

    @property
    def kernel(self) -> Kernel:
        """Kernel for the next step of exploration."""
        return self._explore.kernel

    def learn(self, before: State, state: State, info: Info) -> None:
        """Learn from one step of all chains."""
        self._explore.learn(before, state, info)
        self._state = state
        self._done += 1
        if self._done > self._skip:
            for each in chosen_for_training(self._method, self._heard, state, info):
                self._collector.add(each)
        self._heard.clear()

    def freeze(self) -> Kernel:
        """Train the surrogate, and return the kernel that follows it."""
        self._evaluator.observe(None)
        self.training = training = self._collector.training()
        check_values(self._evaluator, self._state)
        name = type(self._method.surrogate).__name__
        try:
            surrogate = self._method.surrogate.fit(training, self._rng)
        except LeapwiseError:
            raise
        except Exception as error:
            raise SurrogateError(
                f"{name}.fit raised {type(error).__name__}: {error}; fix it, or use another surrogate (the training "
                "data are in the attribute run.training of this error)"
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
    """Updates the surrogate with every exact value, and passes it on to the kernel at random times."""

    def __init__(self, method: ARNSHMC, kernel: SurrogateHMC, evaluator: Evaluator, streams: Streams) -> None:
        assert kernel.surrogate is not None
        self.kernel: SurrogateHMC = kernel
        self._method, self._evaluator, self._rng = method, evaluator, streams.shared
        self._newest, self._done = kernel.surrogate, 0
        self._heard: list[Evaluation] = []
        evaluator.observe(self._heard.append)

    @property
    def n_adaptive(self) -> int:
        """Steps made so far with a surrogate that was still changing."""
        return self._done

    def learn(self, before: State, state: State, info: Info) -> None:
        """Update the surrogate with one step of all chains, and pass it on with the refit probability."""
        limit = self._method.freeze_after
        if limit is not None and self._done >= limit:
            return
        self._done += 1
        for each in chosen_for_training(self._method, self._heard, state, info):
            usable = np.isfinite(each.potential)
            if usable.any():
                outputs = None if each.outputs is None else each.outputs[usable]
                self._newest = self._newest.update(
                    TrainingSet(each.position[usable], each.potential[usable], outputs=outputs)
                )
        self._heard.clear()
        publish = self._rng.random() < self._refit_probability()
        if publish or self._done == limit:
            self.kernel = replace(self.kernel, surrogate=self._newest)
        if self._done == limit:
            self._evaluator.observe(None)

    def _refit_probability(self) -> float:
        probability = float(self._method.refit_probability(self._done))
        if not 0 <= probability <= 1:
            raise InputError(
                f"refit_probability must be between 0 and 1, got {probability} at step {self._done}; "
                "for example lambda t: 1 / t"
            )
        return probability


def check_metric_at(state: State, kernel: RMHMC | SurrogateRMHMC) -> int:
    """Raise if a kernel's metric is inconsistent at the first chain; return the number of evaluations."""
    assert kernel.metric is not None
    normals = np.random.default_rng(0).standard_normal((2, state.position.shape[1]))
    return check_metric(kernel.metric, state.position[:1], normals)


def chosen_for_training(
    method: SurrogateMethod, evaluations: list[Evaluation], state: State, info: Info
) -> list[Evaluation]:
    """Return the evaluations of one step that a method trains on."""
    if method.collect == "all":
        return evaluations
    accepted = take_accepted(evaluations, state.position[info.accepted])
    return [] if accepted is None else [accepted]


def tuner_for(method: object, kernel: Kernel, evaluator: Evaluator, streams: Streams) -> KernelTuner:
    """Return the tuner of the kept draws; for all methods but `ARNSHMC` the kernel no longer changes."""
    if isinstance(method, ARNSHMC) and method.freeze_after != 0:
        assert isinstance(kernel, SurrogateHMC)
        return OnlineLearning(method, kernel, evaluator, streams)
    return NoWarmup(kernel)


def warmup_for(
    method: Kernel | Training, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
) -> Warmup:
    """Return the warm-up of a method; finding a first step size may cost a few gradients."""
    if isinstance(method, (RNSHMC, RNSRMHMC)):
        return Exploration(method, n_steps, evaluator, streams, state)
    if isinstance(method, NUTS) or (isinstance(method, HMC) and has_no_settings(method)):
        return TrajectoryWarmup(method, n_steps, evaluator, streams, state)
    if isinstance(method, HMC):
        return HMCWarmup(method, n_steps, evaluator, streams, state)
    if isinstance(method, RMHMC):
        return RMHMCWarmup(method, n_metrics=check_metric_at(state, method))
    assert not isinstance(method, Training)
    warmup = NoWarmup(method)
    if isinstance(method, SurrogateRMHMC):
        warmup.n_metrics = check_metric_at(state, method)
    return warmup


def has_no_settings(method: HMC) -> bool:
    """Return whether neither step size, number of steps nor length is given."""
    return method.step_size is None and method.n_steps is None and method.trajectory_length is None


def require_tuning_steps(method: Kernel | Training, n_steps: int) -> None:
    """Raise if a method has settings to learn and too few steps to learn them."""
    if isinstance(method, (RNSHMC, RNSRMHMC)):
        skip = n_steps // 5 if method.skip is None else method.skip
        if n_steps <= skip:
            raise InputError(
                f"tune must leave steps to collect training data from, got tune={n_steps} of which {skip} are "
                "skipped; use a larger tune, or a smaller skip"
            )
        require_tuning_steps(method.exploration, n_steps)
        return
    if isinstance(method, (HMC, NUTS)):
        learns = not method.is_set or method.metric in ("diagonal", "dense")
    else:
        learns = isinstance(method, RMHMC) and method.step_size is None
    if learns and n_steps < 2 * FIRST_STEPS:
        raise InputError(
            f"tune must be at least {2 * FIRST_STEPS} steps to learn the method's settings, got {n_steps}; "
            "use tune=500, or give the method its step_size and n_steps"
        )
