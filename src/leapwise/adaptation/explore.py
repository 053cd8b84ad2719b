"""Explore: walkers move on the surrogate, and every move is an exact test of it before it is a lesson.

There is one cold walker for each chain (at most eight), from where that chain starts, and a few warm ones, whose
posterior is flattened so that they go further out. A round moves each by inner steps on the surrogate and pays for one
exact evaluation where it has come to; it stays there or returns by the rule of the surrogate transition. Moves grow
longer while they are accepted and shorter while they are not. While the surrogate is still far off, anything that
goes down is taken too: this is search, not sampling, and nothing of it is kept as a draw.

Places that keep their distance from one another: each of several evaluations is to say something new.

Scout: look where the surrogate is unsure, and may be too high.

A surrogate that has never seen a region can put a wall around it. Chains then stay outside, and nothing they do shows
it. So a share of warm-up goes to positions that the surrogate would hardly visit itself: hot draws of it, and points
beside known ones, of which those are taken that could hold mass as far as anyone knows: the mean less two standard
deviations of a Gaussian process is low there, and the standard deviation is not small. Where there are none, nothing is
spent.

Audit: a few trajectories with exact gradients, from where the walkers are.

They follow the posterior itself, so they go where a surrogate may have put a wall. What they find is held against what
was predicted before anyone learns from it. An audit can object; it certifies nothing.

Pilot: a few moves of the draws themselves, where walkers may have been too kind a test.

Walkers shorten their moves while these lead out of the support, so what they met says little of the far moves that
draws are made with: a surrogate has no notion of an edge, and most of them may end beyond it. And what is known of a
surrogate is how those before it did: the last training, which nobody has tried, can have made it far worse.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from leapwise.adaptation.initialise import typical_height
from leapwise.adaptation.record import EvaluationRecord, Trial, middle, spread
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.stopping import USELESS
from leapwise.adaptation.walk import Tempered, find_step, settle, transition, walk
from leapwise.dynamics import DenseMetric
from leapwise.kernels import HMC, SharedStream
from leapwise.surrogates import Whitening
from leapwise.surrogates.gp import FittedProcess

if TYPE_CHECKING:
    from leapwise.adaptation.adapt import Outcome

MOST_COLD, N_WARM = 8, 4
LONGEST, MOST_INNER = 2.2, 3
#: sd(D) below which draws of the surrogate tell the frame, and above which going down is reason enough to move.
FAIR, FAR_OFF = 1.5, 3.0


@dataclass
class Walkers:
    """Where each walker is, its exact potential, and the exponent of its posterior (1 for cold ones)."""

    position: np.ndarray  # (n, dim)
    potential: np.ndarray  # (n,)
    exponent: np.ndarray  # (n,)

    @property
    def cold(self) -> np.ndarray:
        """Which of them walk for the posterior itself."""
        return self.exponent == 1.0


@dataclass
class Explorer:
    """Moves walkers on the playing candidate, round by round.

    Parameters
    ----------
    record, candidates
        What is known, and who plays.
    frame : Whitening
        Coordinates of the moves; learnt again at every training.
    walkers : Walkers
    rng : Generator
    lowest : float
        The lowest potential that was known when they set out.
    """

    record: EvaluationRecord
    candidates: Candidates
    frame: Whitening
    walkers: Walkers
    rng: np.random.Generator
    lowest: float = -np.inf
    length: float = 1.0
    inner_steps: int = 1
    step_size: float | None = None
    accepted: list[float] = field(default_factory=list)

    def round(self) -> None:
        """Move every walker once, and learn if there is enough to learn from."""
        walkers, surrogate = self.walkers, self.candidates.surrogate
        ends, step_size = np.array(walkers.position), self.inner_step
        for exponent in np.unique(walkers.exponent):
            rows = walkers.exponent == exponent
            tempered = surrogate if exponent == 1.0 else Tempered(surrogate, float(exponent))
            kernel = transition(tempered, self.frame, step_size, self.length, self.inner_steps)
            ends[rows], _ = walk(kernel, walkers.position[rows], self.rng)
        self._judge(ends)
        self._adapt_length()
        if self.candidates.is_due:
            self.learn()
        before = self.candidates.playing
        self.candidates.choose()
        if self.candidates.playing != before:
            self.step_size = None

    @property
    def inner_step(self) -> float:
        """The step size of walks on the surrogate, found once for each training."""
        if self.step_size is None:
            surrogate, position = self.candidates.surrogate, self.walkers.position
            self.step_size = find_step(surrogate, self.frame, position, self.rng, min(self.length, 1.5))
        return self.step_size

    def rounds(self, n: int) -> None:
        """Move every walker several times, and learn from it."""
        for _ in range(n):
            self.round()
        self.learn()

    def learn(self) -> None:
        """Choose the frame anew, and train all candidates on all that is known.

        Where the potential has just fallen so far that there is but one position to learn from, nothing changes.
        """
        if not self.candidates.can_train:
            return
        if self.candidates.sd < FAIR:
            # From cold walkers: a warm one may have been sent where this surrogate is known to be wrong.
            cold = self.walkers.position[self.walkers.cold]
            self.frame = settle(self.candidates.surrogate, self.frame, cold, self.rng)
        else:
            near = self.record.training().select(0.5 * self.frame.mean.size + 10.0)
            if len(near) > 2 * near.dim:
                self.frame = Whitening.from_positions(near.position)
        self.candidates.train(self.frame)
        self.step_size = None

    def put(self, rows: np.ndarray, position: np.ndarray, potential: np.ndarray) -> None:
        """Put some walkers elsewhere, at exact potentials that are known."""
        new_position, new_potential = self.walkers.position.copy(), self.walkers.potential.copy()
        new_position[rows], new_potential[rows] = position, potential
        self.walkers = Walkers(new_position, new_potential, self.walkers.exponent)

    def narrow_frame(self) -> None:
        """Make the frame as narrow as the surrogate is where the lowest walker stands: in one too wide nobody moves."""
        lowest = self.walkers.position[self.walkers.potential.argmin()]
        with np.errstate(all="ignore"):
            hessian = self.candidates.surrogate.hessian(lowest[None])[0]
        precision = self.frame.factor.T @ (0.5 * (hessian + hessian.T)) @ self.frame.factor
        if not np.isfinite(precision).all():
            return
        values, axes = np.linalg.eigh(precision)
        factor = self.frame.factor @ axes / np.sqrt(np.maximum(values, 1.0))  # wider it does not get
        triangle = np.linalg.qr(factor.T)[1].T
        self.frame, self.step_size = Whitening(lowest, triangle * np.sign(np.diag(triangle))), None

    def _judge(self, ends: np.ndarray) -> None:
        """Pay for where the walkers have come to, and decide who stays there."""
        walkers = self.walkers
        moved = (ends != walkers.position).any(axis=1)
        self.accepted.append(0.0)
        if not moved.any():
            return
        potential = np.array(walkers.potential)
        for rows, kind in ((moved & walkers.cold, "walk"), (moved & ~walkers.cold, "warm")):
            if rows.any():
                predicted = self.candidates.predict(ends[rows])
                found = self.record.try_out(ends[rows], kind, predicted)  # type: ignore[arg-type]
                potential[rows], ends = found.potential, found.into(ends, rows)
        surrogate = self.candidates.surrogate
        with np.errstate(all="ignore"):
            before = walkers.potential - surrogate.potential(walkers.position)
            after = potential - surrogate.potential(ends)
            chance = np.exp(np.minimum(0.0, walkers.exponent * (before - after)))
        chance = np.where(np.isfinite(chance), chance, 0.0)
        if self.candidates.sd > FAR_OFF:
            chance = np.where(potential < walkers.potential, 1.0, chance)
        self.accepted[-1] = float(chance[moved].mean())
        stays = (self.rng.random(len(chance)) < chance) & moved & np.isfinite(potential)
        self.walkers = Walkers(
            np.where(stays[:, None], ends, walkers.position),
            np.where(stays, potential, walkers.potential),
            walkers.exponent,
        )

    def _adapt_length(self) -> None:
        recent = float(np.mean(self.accepted[-2:]))
        if recent > 0.5:
            if self.length < LONGEST:
                self.length = min(1.4 * self.length, LONGEST)
            else:
                self.inner_steps = min(self.inner_steps + 1, MOST_INNER)
        elif recent < 0.25:
            self.length, self.inner_steps = 0.7 * self.length, 1


def first_walkers(
    position: np.ndarray, potential: np.ndarray, rng: np.random.Generator, n_warm: int = N_WARM
) -> Walkers:
    """Return cold walkers where the chains are, the lowest ones if they are many, and warm ones among them."""
    dim = position.shape[1]
    cold = np.sort(np.argsort(potential)[:MOST_COLD])
    # Nobody begins where there is no mass.
    cold = np.where(np.isfinite(potential[cold]), cold, np.argmin(potential))
    warm = rng.choice(cold, n_warm)
    rows = np.concatenate([cold, warm])
    exponent = np.ones(len(rows))
    exponent[len(cold) :] = 1.0 / (1.0 + 2.0 / np.sqrt(dim))
    return Walkers(position[rows], potential[rows], exponent)


def first_apart(white: np.ndarray, order: np.ndarray, n: int, least: float) -> np.ndarray:
    """Return the first `n` rows in an order that are further than `least` from all before them.

    Examples
    --------
    >>> first_apart(np.array([[0.0], [0.1], [2.0], [5.0]]), np.array([1, 0, 2, 3]), 2, 0.5)
    array([1, 2])
    """
    chosen: list[int] = []
    for i in order:
        if len(chosen) == n:
            break
        if all(np.linalg.norm(white[i] - white[j]) > least for j in chosen):
            chosen.append(int(i))
    return np.array(chosen, dtype=int)


EXPONENTS = (0.4, 0.15)
UNSURE = 0.5
N_EACH = 48
#: Steps of hot walks: few, from many places, so that rounding does not grow into other places.
N_STEPS = 4
#: Least distance between scouts, in units of the frame.
APART = 0.5


def scouts(explorer: Explorer, n: int) -> np.ndarray:
    """Return at most `n` positions worth a look, ``(k, dim)``; none if the process is sure enough."""
    process = explorer.candidates.fitted.get("process")
    if not isinstance(process, FittedProcess) or not explorer.record.settings.stages.uncertain_points:
        return np.empty((0, explorer.frame.mean.size))
    pool = _pool(explorer.candidates, explorer.frame, explorer.walkers.position, explorer.rng)
    with np.errstate(all="ignore"):
        mean, sd = process.potential(pool), np.sqrt(np.maximum(process.variance(pool), 0.0))
        hope = mean - 2.0 * sd
    limit = explorer.record.lowest + 0.5 * typical_height(pool.shape[1])
    worth = np.flatnonzero((sd > UNSURE) & (hope < limit))
    chosen = first_apart(explorer.frame.to_white(pool), worth[np.argsort(hope[worth])], n, APART)
    return np.asarray(pool[chosen])


def _pool(
    candidates: Candidates, frame: Whitening, position: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return hot draws of the surrogate, and points beside known ones."""
    found, known = [], candidates.record.training().select().position
    places = np.concatenate([position, known])
    for exponent in EXPONENTS:
        hot = Tempered(candidates.surrogate, exponent)
        start = places[rng.integers(len(places), size=N_EACH)]
        step_size = find_step(hot, frame, start, rng, everywhere=False)
        found.append(walk(transition(hot, frame, step_size, 2.0, N_STEPS), start, rng)[0])
    beside = known[rng.integers(len(known), size=2 * N_EACH)]
    found.append(beside + frame.from_white(rng.standard_normal(beside.shape)) - frame.mean)
    pool = np.concatenate(found)
    return pool[np.isfinite(pool).all(axis=1)]


N_TRAJECTORIES = 2
LENGTH = 1.6
MOST_STEPS = 12


def audit(explorer: Explorer) -> float:
    """Follow exact trajectories of the cold walkers; return the share of what they saw that was a surprise.

    What a surprise is, says `EvaluationRecord.is_surprise`.
    """
    walkers, candidates, record = explorer.walkers, explorer.candidates, explorer.record
    start = walkers.position[walkers.cold]
    kernel = exact_kernel(explorer)
    first, known = len(record.heard), len(record)
    state = record.state(start, walkers.potential[walkers.cold])
    streams = SharedStream(explorer.rng, len(start))
    for _ in range(N_TRAJECTORIES):
        state, _ = kernel.step(streams, state, record.evaluator)
    new = record.heard[first:]
    position = np.concatenate([each.position for each in new])
    potential = np.concatenate([each.potential for each in new])
    seen = np.isfinite(potential)
    predicted = candidates.predict(position[seen])
    found = record.discrepancies(candidates.playing)
    record.trials.append(Trial("audit", known, potential[seen], predicted))
    if not seen.any() or not len(found):
        return 1.0
    return float(record.is_surprise(potential[seen], predicted[candidates.playing], middle(found)).mean())


def exact_kernel(explorer: Explorer) -> HMC:
    """Return HMC with exact gradients in the explorer's frame."""
    step_size = max(explorer.inner_step, LENGTH / MOST_STEPS)
    factor = explorer.frame.factor
    return HMC(step_size, trajectory_length=LENGTH, metric=DenseMetric(factor @ factor.T))


#: Share of trials outside the support from which on there is an edge; moves that are made, and the fewest that tell.
EDGE, N_MOVES, FEWEST = 0.03, 32, 12
#: What moves may cost, as a share of the draws, where nothing has been met that speaks for them.
SHARE = 0.02


def pilot(
    record: EvaluationRecord, outcome: Outcome, rng: np.random.Generator, most: int
) -> tuple[Outcome, float]:
    """Return the outcome with sd(D) at moves of its kernel, and the share of these that ended outside the support.

    Where the support has no edge that warm-up has met, nothing is spent, and the share is 0.

    Parameters
    ----------
    record : EvaluationRecord
    outcome : Outcome
    rng : Generator
    most : int
        Exact evaluations that may be spent.
    """
    outside = record.outside(outcome.playing)
    if outside < EDGE:
        return outcome, 0.0
    if most < FEWEST:
        return outcome, outside
    discrepancy = _discrepancies(record, outcome, rng, min(N_MOVES, most))
    if len(discrepancy) < FEWEST:
        return replace(outcome, sd=np.inf), outside
    return replace(outcome, sd=spread(discrepancy)), float(np.isposinf(discrepancy).mean())


def tried(record: EvaluationRecord, outcome: Outcome, rng: np.random.Generator, n_draws: int) -> Outcome:
    """Return the outcome, with sd(D) at moves of its kernel if it is of no use there.

    It can take trust away, and gives none: moves of a surrogate say nothing of mass that it has walled off. It costs
    at most `SHARE` of the `n_draws` to be made; where that is too little to tell, nothing is spent.
    """
    n = min(N_MOVES, int(SHARE * n_draws))
    if n < FEWEST:
        return outcome
    discrepancy = _discrepancies(record, outcome, rng, n)
    sd = spread(discrepancy) if len(discrepancy) >= FEWEST else np.inf
    return replace(outcome, sd=sd) if sd > max(USELESS, outcome.sd) else outcome


def _discrepancies(
    record: EvaluationRecord, outcome: Outcome, rng: np.random.Generator, n: int
) -> np.ndarray:
    """Return D at the ends of `n` moves from known positions; fewer, if the kernel hardly moves at all."""
    position = outcome.training.position
    near = outcome.training.potential < record.lowest + 0.5 * position.shape[1] + 4.0
    start = position[near][rng.integers(near.sum(), size=n)]
    places, _ = walk(outcome.kernel, start, rng)
    places = places[(places != start).any(axis=1) & np.isfinite(places).all(axis=1)]
    if len(places) < FEWEST:
        return np.empty(0)
    with np.errstate(all="ignore"):
        predicted = np.asarray(outcome.kernel.surrogate.potential(places))  # type: ignore[union-attr]
    with record.evaluator.observed_by(None):  # values without gradients are not learnt from
        discrepancy = record.evaluator.value(places).potential - predicted
    return discrepancy[~np.isnan(discrepancy)]
