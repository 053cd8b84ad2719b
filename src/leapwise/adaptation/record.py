"""What warm-up has paid for, and how well it was predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from leapwise.adaptation.settings import DEFAULT, AdaptationSettings
from leapwise.adaptation.stopping import USUAL_RATE, efficiency
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels import State
from leapwise.surrogates import TrainingSet

Kind = Literal["walk", "warm", "scout", "audit", "frontier"]
#: A discrepancy counts as at most this far from the median: beyond it a proposal is as lost as can be.
CLIP = 4.0
#: Positions so near each other, relative to their size, are one: recorded ones may differ in rounding.
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class Trial:
    """Exact potentials beside what each candidate had predicted before it learnt from them."""

    kind: Kind
    n: int  # evaluations known when predicted
    potential: np.ndarray
    predicted: dict[str, np.ndarray]


@dataclass
class EvaluationRecord:
    """Hears every exact evaluation, keeps it for training, and keeps score of the candidates.

    Parameters
    ----------
    evaluator : Evaluator
        Is observed from now on.
    gradient : bool
        Whether to pay for gradients.
    known : list of Evaluation
        What was paid for before, by others: it is learnt from, and does not count.
    """

    evaluator: Evaluator
    gradient: bool
    known: list[Evaluation] = field(default_factory=list)
    heard: list[Evaluation] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    settings: AdaptationSettings = DEFAULT
    begun: int = field(default=0, init=False)  # exact evaluations before it was begun
    aside: list[Evaluation] = field(default_factory=list, init=False)  # heard, but not learnt from

    def __post_init__(self) -> None:
        self.evaluator.observer = self.heard.append
        self.begun = self.evaluator.counts.n_exact

    @classmethod
    def of(
        cls,
        evaluator: Evaluator,
        known: list[Evaluation] | None = None,
        settings: AdaptationSettings | None = None,
    ) -> EvaluationRecord:
        """Begin one: gradients are worth their price but for models whose outputs are emulated."""
        target = evaluator.target
        gradient = target.has_gradient and not target.emulates_outputs
        return cls(evaluator, gradient, list(known or []), settings=settings or DEFAULT)

    @property
    def everything(self) -> list[Evaluation]:
        """What was known before, and what was heard since."""
        return self.known + self.heard

    def __len__(self) -> int:
        return sum(len(each.potential) for each in (*self.heard, *self.aside))

    def set_aside(self, first: int, height: float) -> None:
        """Learn nothing from what was heard from the `first` time on, but for potentials below a `height`.

        Where descents come by from far away there are no draws: a surrogate that learns it knows less of the rest.
        """
        for i, each in enumerate(self.heard[first:], first):
            low = each.potential < height
            self.heard[i] = _rows(each, low)
            self.aside.append(_rows(each, ~low))

    @property
    def lowest(self) -> float:
        """The lowest potential seen."""
        return min((float(each.potential.min(initial=np.inf)) for each in self.everything), default=np.inf)

    def evaluate(self, position: np.ndarray) -> Evaluation:
        """Pay for exact answers, with gradients if they are to be had."""
        if self.gradient:
            return self.evaluator.value_and_gradient(position)
        return self.evaluator.value(position)

    def try_out(self, position: np.ndarray, kind: Kind, predicted: dict[str, np.ndarray]) -> Evaluation:
        """Pay for exact answers, and hold what was predicted against them."""
        known = len(self)
        found = self.evaluate(position)
        self.trials.append(Trial(kind, known, found.potential, predicted))
        return found

    def training(self, *, with_aside: bool = False) -> TrainingSet:
        """Return all that can be learnt from, each position once; and what was set aside, if that is wanted too."""
        everything = self.everything + (self.aside if with_aside else [])
        position = np.concatenate([each.position for each in everything])
        potential = np.concatenate([each.potential for each in everything])
        usable = np.isfinite(potential)
        gradient = np.concatenate([_gradient(each) for each in everything]) if self.gradient else None
        outputs = _outputs(everything)
        if outputs is not None:
            usable &= np.isfinite(outputs).all(axis=1)
        _, first = np.unique(position, axis=0, return_index=True)
        chosen = np.sort(first[usable[first]])
        return TrainingSet(
            position[chosen],
            potential[chosen],
            None if gradient is None else gradient[chosen],
            None if outputs is None else outputs[chosen],
        )

    def state(self, position: np.ndarray, potential: np.ndarray) -> State:
        """Return positions as a state, with their gradients if all are known: none is paid for twice."""
        if not self.gradient:
            return State(position, potential)
        row, known = self.recall(position)
        gradient = np.concatenate([_gradient(each) for each in self.everything])[row]
        return State(position, potential, gradient if known.all() and np.isfinite(gradient).all() else None)

    @property
    def potentials(self) -> np.ndarray:
        """All that are known."""
        return np.concatenate([each.potential for each in self.everything])

    def recall(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which evaluations are nearest to positions, and whether they are there, but for rounding."""
        seen = np.concatenate([each.position for each in self.everything])
        apart = np.abs(seen[None] - position[:, None]).max(axis=2)
        return apart.argmin(axis=1), apart.min(axis=1) < SAME * (1.0 + np.abs(position).max(axis=1))

    def discrepancies(self, candidate: str, kinds: tuple[Kind, ...] = ("walk",)) -> np.ndarray:
        """Return exact less predicted potentials of one candidate, in order, finite ones only."""
        parts = [
            each.potential - each.predicted[candidate]
            for each in self.trials
            if each.kind in kinds and candidate in each.predicted
        ]
        found = np.concatenate(parts) if parts else np.empty(0)
        return found[~np.isnan(found)]

    def sd(self, candidate: str) -> float:
        """Return sd(D) of a candidate over its recent trials; infinite while there are too few."""
        return spread(self._recent(candidate))

    def outside(self, candidate: str) -> float:
        """Return the share of the same trials that were outside the support, where the log-density is -inf."""
        found = self._recent(candidate)
        return float(np.isposinf(found).mean()) if len(found) else 0.0

    def _recent(self, candidate: str) -> np.ndarray:
        """Return the later half of its discrepancies, of emulators those that tell of it as it is now.

        An emulator of outputs errs less and less everywhere. One of the potential may err where walkers rarely are, as
        in the neck of a funnel, and a few good trials in a row are no reason to trust it.
        """
        found = self.discrepancies(candidate)
        if self.evaluator.target.emulates_outputs:
            return recent(found)
        return found[-max(MIN_TRIALS, len(found) // 2) :]

    def gain(self, candidate: str, other: str) -> float:
        """Return what sd(D) of a candidate is of that of another, over the later half of the trials of both.

        Both are held against the same positions, so that it makes no difference who was lucky with them; infinite while
        there are too few.
        """
        both = [
            (each.potential - each.predicted[candidate], each.potential - each.predicted[other])
            for each in self.trials
            if each.kind == "walk" and candidate in each.predicted and other in each.predicted
        ]
        if not both:
            return np.inf
        found = np.array([np.concatenate(part) for part in zip(*both, strict=True)])
        found = found[:, ~np.isnan(found).any(axis=0)]
        found = found[:, -max(MIN_TRIALS, found.shape[1] // 2) :]
        first, second = spread(found[0]), spread(found[1])
        return first / second if np.isfinite(first) and second > 0 else np.inf

    def rate(self, candidate: str) -> float:
        """Return how fast sd(D) falls: like n to the power of minus this.

        From the earlier and the later half of the trials, as far as they are enough to tell, and what is usual.
        """
        trials = [each for each in self.trials if each.kind == "walk" and candidate in each.predicted]
        halves = trials[: len(trials) // 2], trials[len(trials) // 2 :]
        parts = [
            np.concatenate([e.potential - e.predicted[candidate] for e in half]) for half in halves if half
        ]
        if len(parts) < 2 or min(map(len, parts)) < MIN_TRIALS:
            return USUAL_RATE
        sds = [spread(part[~np.isnan(part)]) for part in parts]
        growth = np.log(np.mean([e.n for e in halves[1]]) / np.mean([e.n for e in halves[0]]))
        if not (growth > 0 and np.isfinite(sds).all() and min(sds) > 0):
            return USUAL_RATE
        # The logarithm of an sd from m trials errs by (2 m)^-1/2.
        weight = min(map(len, parts)) * growth**2
        found = float(np.clip(np.log(sds[0] / sds[1]) / growth, 0.0, 2.0))
        return (weight * found + DOUBT * USUAL_RATE) / (weight + DOUBT)

    def surprises(self, candidate: str, last: int = 12) -> float:
        """Return the share of recent trials that found mass where it was not predicted.

        There the potential is more than 1 below what was predicted, beyond the usual, and low enough to matter.
        """
        usual = self.discrepancies(candidate)
        trials = [each for each in self.trials if each.kind != "warm" and candidate in each.predicted]
        if not len(usual) or not trials:
            return 1.0
        potential = np.concatenate([each.potential for each in trials])[-last:]
        predicted = np.concatenate([each.predicted[candidate] for each in trials])[-last:]
        return float(self.is_surprise(potential, predicted, middle(usual)).mean())

    def is_surprise(self, potential: np.ndarray, predicted: np.ndarray, usual: float) -> np.ndarray:
        """Return which exact potentials are surprises, with the `usual` discrepancy."""
        dim = self.evaluator.target.dim
        matters = potential < self.lowest + 0.5 * dim + 2.0 * np.sqrt(dim) + 3.0
        with np.errstate(invalid="ignore"):
            return np.asarray(matters & (potential - predicted - usual < -1.0))


MIN_TRIALS = 12
CLEARLY_WIDER = 3.0
#: Inverse variance of the usual rate among posteriors.
DOUBT = 4.0


def recent(discrepancy: np.ndarray) -> np.ndarray:
    """Return the last discrepancies, as many as tell of the candidate as it is now: the later half at most.

    Beginning with the last few, as many again are added while they are not clearly wider: those are of a candidate
    that knew less. The logarithm of the ratio of two sds, of m each, errs by m^-1/2, and `CLEARLY_WIDER` times that is
    clear.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> early, late = rng.normal(0.0, 3.0, 100), rng.normal(0.0, 0.3, 40)
    >>> len(recent(np.concatenate([early, late]))), len(recent(late))
    (24, 20)
    """
    most = max(MIN_TRIALS, len(discrepancy) // 2)
    n = MIN_TRIALS
    while n < most:
        ratio = spread(discrepancy[-2 * n : -n]) / max(spread(discrepancy[-n:]), 1e-300)
        if ratio > np.exp(CLEARLY_WIDER / np.sqrt(n)):
            break
        n *= 2
    return discrepancy[-min(n, most) :]


def spread(discrepancy: np.ndarray) -> float:
    """Return the root mean square of discrepancies about their median, each clipped; infinite if there are few.

    Proposals outside the support are lost, but unlike others that are they keep no chain where it is: they count by
    the efficiency that they cost.
    """
    inside = discrepancy[~np.isposinf(discrepancy)]
    if len(inside) < MIN_TRIALS // 2:
        return np.inf
    about = np.clip(inside - middle(inside), -CLIP, CLIP)
    return of_same_worth(float(np.sqrt(np.mean(about**2))), 1.0 - len(inside) / len(discrepancy))


def of_same_worth(sd: float, outside: float) -> float:
    """Return the sd(D) that is worth as much as one of `sd` and a share of proposals `outside` the support.

    Of proposals that are accepted with probability a, a share 1 - p stays inside: with (1 - p) a in its place the law
    of efficiency e (see `law`) becomes 1 / ((1 + 1 / e) / (1 - p) - 1).

    Examples
    --------
    >>> of_same_worth(0.3, 0.0), round(of_same_worth(0.0, 0.5), 2)
    (0.3, 0.72)
    """
    if outside == 0.0:
        return sd
    worth = 1.0 / ((1.0 + 1.0 / max(efficiency(sd), 1e-9)) / (1.0 - outside) - 1.0)
    low, high = sd, 5.0
    while high - low > 1e-3:
        half = 0.5 * (low + high)
        low, high = (half, high) if efficiency(half) > worth else (low, half)
    return high


def middle(discrepancy: np.ndarray) -> float:
    """Return the median of those that are finite: where there is no mass the discrepancy is infinite."""
    finite = discrepancy[np.isfinite(discrepancy)]
    return float(np.median(finite)) if len(finite) else 0.0


def _rows(evaluation: Evaluation, chosen: np.ndarray) -> Evaluation:
    """Return some of the evaluations, by a mask."""
    gradient, outputs = evaluation.gradient, evaluation.outputs
    return Evaluation(
        evaluation.position[chosen],
        evaluation.potential[chosen],
        None if gradient is None else gradient[chosen],
        None if outputs is None else outputs[chosen],
    )


def _gradient(evaluation: Evaluation) -> np.ndarray:
    if evaluation.gradient is None:
        return np.full_like(evaluation.position, np.nan)
    return evaluation.gradient


def _outputs(heard: list[Evaluation]) -> np.ndarray | None:
    """Return all outputs, NaN where the model was not run; None if there are none at all."""
    widths = {each.outputs.shape[1] for each in heard if each.outputs is not None}
    if not widths:
        return None
    (width,) = widths
    return np.concatenate(
        [
            np.full((len(each.potential), width), np.nan) if each.outputs is None else each.outputs
            for each in heard
        ]
    )
