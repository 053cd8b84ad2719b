r"""The exact evaluations of the adaptation, and how well candidates predicted them.

Every exact evaluation is first a test of the surrogates, since it is compared with what they predicted, and then part
of the training set. The quality of a candidate is sd(D), the standard deviation of the discrepancy D (exact minus
predicted potential) over such comparisons. Only differences of D matter for acceptance, so D is measured from its
median.

This record is of warm-up, and its evaluations are what surrogates are trained on. What each step of a chain leaves,
in the draws too, is kept by `leapwise.run.recorder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from leapwise.adaptation.settings import DEFAULT, AdaptationSettings, ScoreSettings
from leapwise.adaptation.stopping import efficiency
from leapwise.errors import InputError
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels import State
from leapwise.surrogates import TrainingSet
from leapwise.surrogates.quality import discrepancy_sd, median_discrepancy

#: Where an evaluation was made: by a cold or a tempered chain, at an uncertain point, or beyond the outermost
#: draws.
Kind = Literal["cold", "tempered", "uncertain", "beyond"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Exact potentials beside what each candidate predicted before it was trained on them."""

    kind: Kind
    n: int  # evaluations known when predicted
    potential: np.ndarray
    predicted: dict[str, np.ndarray]


@dataclass
class EvaluationRecord:
    """Collects every exact evaluation for training, and compares candidates with them.

    Parameters
    ----------
    evaluator : Evaluator
        Is observed from now on.
    gradient : bool
        Whether gradients are evaluated too.
    earlier : list of Evaluation
        Evaluations of another run: they are trained on, and not counted.
    settings : AdaptationSettings
        Of all stages; the record carries them.

    Attributes
    ----------
    evaluations : list of Evaluation
        Those of this adaptation, in order.
    untrained : list of Evaluation
        Those of this adaptation that are not trained on.
    comparisons : list of Comparison
    n_before : int
        Exact evaluations that were made before this record began.
    start : State or None
        Where the chains were to start, once that is known.
    """

    evaluator: Evaluator
    gradient: bool
    earlier: list[Evaluation] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    settings: AdaptationSettings = DEFAULT
    n_before: int = field(default=0, init=False)
    untrained: list[Evaluation] = field(default_factory=list, init=False)
    start: State | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.evaluator.observe(self.evaluations.append)
        self.n_before = self.evaluator.counts.n_exact

    @classmethod
    def of(
        cls,
        evaluator: Evaluator,
        earlier: list[Evaluation] | None = None,
        settings: AdaptationSettings | None = None,
    ) -> EvaluationRecord:
        """Begin a record; gradients are worth their price unless the outputs of a model are emulated."""
        if not isinstance(settings, AdaptationSettings | None):
            raise InputError(
                f"Auto takes an AdaptationSettings as its settings, got {settings!r}; leave it out, or change "
                "leapwise.adaptation.settings.DEFAULT with dataclasses.replace"
            )
        target = evaluator.target
        gradient = target.has_gradient and not target.emulates_outputs
        return cls(evaluator, gradient, list(earlier or []), settings=settings or DEFAULT)

    def __len__(self) -> int:
        return sum(len(each.potential) for each in (*self.evaluations, *self.untrained))

    @property
    def all_evaluations(self) -> list[Evaluation]:
        """Evaluations of earlier runs, and those of this adaptation."""
        return self.earlier + self.evaluations

    @property
    def lowest(self) -> float:
        """The lowest potential."""
        return min(
            (float(each.potential.min(initial=np.inf)) for each in self.all_evaluations), default=np.inf
        )

    def evaluate(self, position: np.ndarray) -> Evaluation:
        """Evaluate positions, with gradients if they are wanted."""
        if self.gradient:
            return self.evaluator.value_and_gradient(position)
        return self.evaluator.value(position)

    def compare(self, position: np.ndarray, kind: Kind, predicted: dict[str, np.ndarray]) -> Evaluation:
        """Evaluate positions, and keep what was predicted there beside the result."""
        known = len(self)
        found = self.evaluate(position)
        self.comparisons.append(Comparison(kind, known, found.potential, predicted))
        return found

    def leave_out(self, first: int, height: float) -> None:
        """Do not train on evaluations from number `first` on, except potentials below `height` (an absolute one here).

        Descents from far away pass where there are no draws; training there makes a surrogate worse elsewhere.
        """
        for i, each in enumerate(self.evaluations[first:], first):
            low = each.potential < height
            self.evaluations[i] = _rows(each, low)
            self.untrained.append(_rows(each, ~low))

    def training(self, *, with_untrained: bool = False) -> TrainingSet:
        """Return the training set, each position once; with everything that was left out, if that is wanted."""
        everything = self.all_evaluations + (self.untrained if with_untrained else [])
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

    def look_up(self, position: np.ndarray) -> tuple[Evaluation, np.ndarray]:
        """Return the evaluations nearest to positions, one for each, and whether they are the same up to rounding.

        A potential belongs to the position at which it was evaluated, to the last bit. So whoever takes the potential
        takes that position, too.
        """
        everything = self.all_evaluations
        seen = np.concatenate([each.position for each in everything])
        # For each parameter by itself: one may be a million times as large as another.
        size = np.abs(position) + np.ptp(self.training().select().position, axis=0)
        apart = np.abs(seen[None] - position[:, None]) / np.maximum(size, np.finfo(float).tiny)[:, None]
        apart = apart.max(axis=2)
        row = apart.argmin(axis=1)
        gradient = np.concatenate([_gradient(each) for each in everything])[row] if self.gradient else None
        potential = np.concatenate([each.potential for each in everything])[row]
        return Evaluation(seen[row], potential, gradient), apart.min(axis=1) < self.settings.score.same

    def state(self, position: np.ndarray, potential: np.ndarray) -> State:
        """Return positions as a state, with their gradients if all are known: none is evaluated twice."""
        if not self.gradient:
            return State(position, potential)
        found, _ = self.look_up(position)
        assert found.gradient is not None
        is_known = (found.position == position).all() and np.isfinite(found.gradient).all()
        return State(position, potential, found.gradient if is_known else None)

    def discrepancies(self, candidate: str) -> np.ndarray:
        """Return D of one candidate at the moves of cold chains, in order, without NaN."""
        found = [each.potential - each.predicted[candidate] for each in self._of_cold(candidate)]
        joined = np.concatenate(found) if found else np.empty(0)
        return joined[~np.isnan(joined)]

    def _of_cold(self, *candidates: str) -> list[Comparison]:
        """Return comparisons of cold chains that candidates took part in."""
        return [
            each
            for each in self.comparisons
            if each.kind == "cold" and all(name in each.predicted for name in candidates)
        ]

    def sd(self, candidate: str) -> float:
        """Return sd(D) of a candidate over its recent comparisons; infinite while there are too few."""
        return effective_sd(self._recent(candidate), self.settings.score)

    def outside(self, candidate: str) -> float:
        """Return the share of the same comparisons that were outside the support, where the log-density is -inf."""
        found = self._recent(candidate)
        return float(np.isposinf(found).mean()) if len(found) else 0.0

    def _recent(self, candidate: str) -> np.ndarray:
        """Return the later half of the discrepancies; of emulators, those that describe it as it is now.

        An emulator of outputs improves everywhere. One of the potential may err where chains rarely are, such as the
        neck of a funnel, and a few good comparisons in a row are no reason to trust it.
        """
        found = self.discrepancies(candidate)
        if self.evaluator.target.emulates_outputs:
            return recent(found, self.settings.score)
        return found[-max(self.settings.score.min_tests, len(found) // 2) :]

    def relative_sd(self, candidate: str, other: str) -> float:
        """Return sd(D) of a candidate divided by that of another, over the later half of what both predicted.

        Both are compared at the same positions, so that luck with positions cancels. Infinite while there are too few.
        """
        both = [
            (each.potential - each.predicted[candidate], each.potential - each.predicted[other])
            for each in self._of_cold(candidate, other)
        ]
        if not both:
            return np.inf
        settings = self.settings.score
        found = np.array([np.concatenate(part) for part in zip(*both, strict=True)])
        found = found[:, ~np.isnan(found).any(axis=0)]
        found = found[:, -max(settings.min_tests, found.shape[1] // 2) :]
        first, second = (effective_sd(each, settings) for each in found)
        return first / second if np.isfinite(first) and second > 0 else np.inf

    def rate(self, candidate: str) -> float:
        """Return how fast sd(D) falls: like n to the power of minus this.

        It is estimated from the earlier and the later half of the comparisons, and averaged with the usual rate by the
        precisions of both.
        """
        settings, usual = self.settings.score, self.settings.stopping.usual_rate
        found = self._of_cold(candidate)
        halves = found[: len(found) // 2], found[len(found) // 2 :]
        parts = [
            np.concatenate([e.potential - e.predicted[candidate] for e in half]) for half in halves if half
        ]
        if len(parts) < 2 or min(map(len, parts)) < settings.min_tests:
            return usual
        sds = [effective_sd(part[~np.isnan(part)], settings) for part in parts]
        growth = np.log(np.mean([e.n for e in halves[1]]) / np.mean([e.n for e in halves[0]]))
        if not (growth > 0 and np.isfinite(sds).all() and min(sds) > 0):
            return usual
        # The logarithm of an sd from m values has the standard error (2 m)^-1/2.
        weight = min(map(len, parts)) * growth**2
        rate = float(np.clip(np.log(sds[0] / sds[1]) / growth, 0.0, 2.0))
        return (weight * rate + settings.rate_precision * usual) / (weight + settings.rate_precision)

    def surprises(self, candidate: str) -> float:
        """Return the share of recent comparisons that found mass where it was not predicted (`is_surprise`)."""
        usual, last = self.discrepancies(candidate), self.settings.score.n_last
        found = [each for each in self.comparisons if each.kind != "tempered" and candidate in each.predicted]
        if not len(usual) or not found:
            return 1.0
        potential = np.concatenate([each.potential for each in found])[-last:]
        predicted = np.concatenate([each.predicted[candidate] for each in found])[-last:]
        return float(self.is_surprise(potential, predicted, median_discrepancy(usual)).mean())

    def is_surprise(self, potential: np.ndarray, predicted: np.ndarray, usual: float) -> np.ndarray:
        """Return which exact potentials are surprises: clearly below the prediction, and low enough to matter.

        The `usual` discrepancy is added to the prediction.
        """
        matters = potential < self.lowest + self.settings.heights.mass(self.evaluator.target.dim)
        with np.errstate(invalid="ignore"):
            return np.asarray(matters & (potential - predicted - usual < -self.settings.score.surprise))


def recent(discrepancy: np.ndarray, settings: ScoreSettings = DEFAULT.score) -> np.ndarray:
    """Return the last discrepancies, as many as describe the candidate as it is now: the later half at most.

    The last few are doubled while the ones added are not clearly wider, since those belong to a candidate that had
    fewer data. The logarithm of the ratio of two sds of m values each has the standard error m^-1/2; more than
    ``settings.clearly_wider`` of these is clear.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> early, late = rng.normal(0.0, 3.0, 100), rng.normal(0.0, 0.3, 40)
    >>> len(recent(np.concatenate([early, late]))), len(recent(late))
    (24, 20)
    """
    n = settings.min_tests
    most = max(n, len(discrepancy) // 2)
    while n < most:
        before = effective_sd(discrepancy[-2 * n : -n], settings)
        ratio = before / max(effective_sd(discrepancy[-n:], settings), 1e-300)
        if ratio > np.exp(settings.clearly_wider / np.sqrt(n)):
            break
        n *= 2
    return discrepancy[-min(n, most) :]


def effective_sd(discrepancy: np.ndarray, settings: ScoreSettings = DEFAULT.score) -> float:
    """Return sd(D) with what proposals outside the support cost; infinite if there are few discrepancies.

    Such proposals are always rejected, but unlike other rejected ones they hold no chain back. They count by the
    efficiency that they cost (`equivalent_sd`).
    """
    inside = discrepancy[~np.isposinf(discrepancy)]
    if len(inside) < settings.min_tests // 2:
        return np.inf
    return equivalent_sd(discrepancy_sd(inside), 1.0 - len(inside) / len(discrepancy))


def equivalent_sd(sd: float, outside: float) -> float:
    """Return the sd(D) that is worth as much as `sd` with a share of proposals `outside` the support.

    If proposals are accepted with probability (1 - p) a instead of a, the efficiency e (see `stopping`) becomes
    1 / ((1 + 1 / e) / (1 - p) - 1).

    Examples
    --------
    >>> equivalent_sd(0.3, 0.0), round(equivalent_sd(0.0, 0.5), 2)
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


def _outputs(evaluations: list[Evaluation]) -> np.ndarray | None:
    """Return all outputs, NaN where the model was not run; None if there are none at all."""
    widths = {each.outputs.shape[1] for each in evaluations if each.outputs is not None}
    if not widths:
        return None
    (width,) = widths
    return np.concatenate(
        [
            np.full((len(each.potential), width), np.nan) if each.outputs is None else each.outputs
            for each in evaluations
        ]
    )
