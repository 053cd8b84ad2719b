r"""Explore: chains that move on the surrogate and pay for one exact evaluation per move.

**Exploring chains.** There is one cold chain for each chain of the run (at most eight) and a few tempered ones. Cold
chains target the posterior, tempered ones a flattened one, so that they go further out; both move on the surrogate. In
a round each chain makes some inner steps on the surrogate. The exact evaluation at their end is first compared with the
prediction, and then added to the training data. The move is accepted or rejected by the rule of the surrogate
transition. Moves get longer while they are accepted and shorter while they are not. While the surrogate is still far
off, every descent is accepted: this is search, and no draw is kept.

**Uncertain points.** A surrogate that has no data in a region may be far too high there. Chains on it then meet a
*wall*: they stay outside, and nothing they do shows it. So some evaluations go to points that the surrogate would
hardly visit: tempered draws of it and points beside the data, where a Gaussian process has a large standard deviation
and its mean minus two standard deviations is low. Where there are none, nothing is spent.

**Edges** (`check_support`). Exploring chains shorten their moves while these leave the support, so their comparisons
say little about the long moves of the draws: a surrogate knows no edge, and most draws may be proposed beyond it. So
where an edge was met, a few moves of the final kernel are tried.

**Moves** (`sd_at_moves`). Without a gradient such moves are always tried, and learned from: the surrogate may be far
too low in a region far from all data, which only long moves reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from leapwise.adaptation.record import EvaluationRecord, Kind, effective_sd
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.settings import AdaptationSettings
from leapwise.adaptation.surrogate_chains import (
    Tempered,
    find_step_size,
    learn_frame,
    move,
    surrogate_kernel,
)
from leapwise.dynamics import DenseMetric
from leapwise.kernels import HMC
from leapwise.surrogates import Whitening
from leapwise.surrogates.base import hessians
from leapwise.surrogates.gp import FittedProcess
from leapwise.surrogates.joint import WithPrior

if TYPE_CHECKING:
    from leapwise.adaptation.adapt import AdaptationResult


@dataclass
class ExploringChains:
    """Positions, exact potentials and inverse temperatures: 1 for cold chains, less for tempered ones."""

    position: np.ndarray  # (n, dim)
    potential: np.ndarray  # (n,)
    exponent: np.ndarray  # (n,)

    @property
    def cold(self) -> np.ndarray:
        """Which of them target the posterior, not a flattened one."""
        return self.exponent == 1.0

    @classmethod
    def begin(
        cls,
        position: np.ndarray,
        potential: np.ndarray,
        rng: np.random.Generator,
        settings: AdaptationSettings,
    ) -> ExploringChains:
        """Return cold chains at positions, the lowest ones if they are many, and tempered ones among them."""
        dim = position.shape[1]
        cold = np.sort(np.argsort(potential)[: settings.explore.max_cold])
        # No chain begins outside the support.
        cold = np.where(np.isfinite(potential[cold]), cold, np.argmin(potential))
        tempered = rng.choice(cold, settings.explore.n_tempered if settings.stages.tempered else 0)
        rows = np.concatenate([cold, tempered])
        exponent = np.ones(len(rows))
        exponent[len(cold) :] = 1.0 / (1.0 + 2.0 / np.sqrt(dim))
        return cls(position[rows], potential[rows], exponent)


@dataclass
class Explorer:
    """Moves exploring chains on the candidate in use, round by round.

    Parameters
    ----------
    record, candidates
        The evaluations, and the surrogates trained on them.
    frame : Whitening
        Coordinates of the moves; learned again at every training.
    chains : ExploringChains
    rng : Generator
    lowest : float
        The lowest potential that was known when the chains began.
    """

    record: EvaluationRecord
    candidates: Candidates
    frame: Whitening
    chains: ExploringChains
    rng: np.random.Generator
    lowest: float = -np.inf
    length: float = 1.0
    inner_steps: int = 1
    step_size: float | None = None
    accepted: list[float] = field(default_factory=list)

    @property
    def settings(self) -> AdaptationSettings:
        """Of all stages."""
        return self.record.settings

    @property
    def inner_step(self) -> float:
        """The step size of chains on the surrogate, found once for each training."""
        if self.step_size is None:
            self.step_size = find_step_size(
                self.candidates.surrogate,
                self.frame,
                self.chains.position,
                self.rng,
                min(self.length, 1.5),
                settings=self.settings,
            )
        return self.step_size

    def round(self) -> None:
        """Move every chain once, and train if there are enough new data."""
        chains, surrogate = self.chains, self.candidates.surrogate
        ends, step_size = np.array(chains.position), self.inner_step
        for exponent in np.unique(chains.exponent):
            rows = chains.exponent == exponent
            tempered = surrogate if exponent == 1.0 else Tempered(surrogate, float(exponent))
            kernel = surrogate_kernel(
                tempered, self.frame, step_size, self.length, self.inner_steps, settings=self.settings
            )
            ends[rows], _ = move(kernel, chains.position[rows], self.rng)
        self._accept(ends)
        self._adapt_length()
        if self.candidates.is_due:
            self.train()
        before = self.candidates.chosen
        self.candidates.choose()
        if self.candidates.chosen != before:
            self.step_size = None

    def rounds(self, n: int) -> None:
        """Move every chain `n` times, and train."""
        for _ in range(n):
            self.round()
        self.train()

    def train(self) -> None:
        """Choose the frame anew, and train all candidates on all data.

        Where the potential has just fallen so far that there is one position left to train on, nothing changes.
        """
        if not self.candidates.can_train:
            return
        if self.candidates.sd < self.settings.explore.fair:
            # From cold chains: a tempered one may have been sent where this surrogate is known to be wrong.
            cold = self.chains.position[self.chains.cold]
            self.frame = learn_frame(
                self.candidates.surrogate, self.frame, cold, self.rng, settings=self.settings
            )
        else:
            near = self.record.training().select(self.settings.heights.mass(self.frame.mean.size))
            if len(near) > 2 * near.dim:
                self.frame = Whitening.from_positions(near.position)
        self.candidates.train(self.frame)
        self.step_size = None

    def put(self, rows: np.ndarray, position: np.ndarray, potential: np.ndarray) -> None:
        """Put some chains at other positions, whose exact potentials are known."""
        new_position, new_potential = self.chains.position.copy(), self.chains.potential.copy()
        new_position[rows], new_potential[rows] = position, potential
        self.chains = ExploringChains(new_position, new_potential, self.chains.exponent)

    def send_tempered(self, position: np.ndarray, potential: np.ndarray) -> None:
        """Put tempered chains at positions, the lowest ones first."""
        tempered = np.flatnonzero(~self.chains.cold)
        lowest = np.argsort(potential)[: len(tempered)]
        self.put(tempered[: len(lowest)], position[lowest], potential[lowest])

    def narrow_frame(self) -> None:
        """Make the frame as narrow as the surrogate is at the lowest chain: in one too wide no chain moves."""
        lowest = self.chains.position[self.chains.potential.argmin()]
        with np.errstate(all="ignore"):
            hessian = hessians(self.candidates.surrogate, lowest[None], self.frame.factor)[0]
        precision = self.frame.factor.T @ (0.5 * (hessian + hessian.T)) @ self.frame.factor
        if not np.isfinite(precision).all():
            return
        values, axes = np.linalg.eigh(precision)
        factor = self.frame.factor @ axes / np.sqrt(np.maximum(values, 1.0))  # never wider
        triangle = np.linalg.qr(factor.T)[1].T
        self.frame, self.step_size = Whitening(lowest, triangle * np.sign(np.diag(triangle))), None

    def _accept(self, ends: np.ndarray) -> None:
        """Evaluate the ends of moves, and accept or reject them."""
        chains = self.chains
        moved = (ends != chains.position).any(axis=1)
        self.accepted.append(0.0)
        if not moved.any():
            return
        potential = np.array(chains.potential)
        kinds: tuple[tuple[np.ndarray, Kind], ...] = (
            (moved & chains.cold, "cold"),
            (moved & ~chains.cold, "tempered"),
        )
        for rows, kind in kinds:
            if rows.any():
                found = self.record.compare(ends[rows], kind, self.candidates.predict(ends[rows]))
                potential[rows], ends = found.potential, found.into(ends, rows)
        surrogate = self.candidates.surrogate
        with np.errstate(all="ignore"):
            before = chains.potential - surrogate.potential(chains.position)
            after = potential - surrogate.potential(ends)
            chance = np.exp(np.minimum(0.0, chains.exponent * (before - after)))
        chance = np.where(np.isfinite(chance), chance, 0.0)
        if self.candidates.sd > self.settings.explore.far_off:
            chance = np.where(potential < chains.potential, 1.0, chance)
        self.accepted[-1] = float(chance[moved].mean())
        accepted = (self.rng.random(len(chance)) < chance) & moved & np.isfinite(potential)
        self.chains = ExploringChains(
            np.where(accepted[:, None], ends, chains.position),
            np.where(accepted, potential, chains.potential),
            chains.exponent,
        )

    def _adapt_length(self) -> None:
        settings, recent = self.settings.explore, float(np.mean(self.accepted[-2:]))
        if recent > settings.accepted_often:
            if self.length < settings.longest:
                self.length = min(settings.lengthen * self.length, settings.longest)
            else:
                self.inner_steps = min(self.inner_steps + 1, settings.max_inner_steps)
        elif recent < settings.accepted_rarely:
            self.length, self.inner_steps = settings.shorten * self.length, 1


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


def uncertain_points(explorer: Explorer) -> np.ndarray:
    """Return a few positions where the process is uncertain and may be too high, ``(k, dim)``; none if it is sure."""
    settings = explorer.settings.explore
    process: Any = explorer.candidates.fitted.get("process")
    learned = process.likelihood if isinstance(process, WithPrior) else process
    if not isinstance(learned, FittedProcess) or not explorer.settings.stages.uncertain_points:
        return np.empty((0, explorer.frame.mean.size))
    pool = _pool(explorer)
    with np.errstate(all="ignore"):
        mean, sd = process.potential(pool), np.sqrt(np.maximum(process.variance(pool), 0.0))
        hope = mean - 2.0 * sd
    limit = explorer.record.lowest + explorer.settings.heights.mass(pool.shape[1])
    worth = np.flatnonzero((sd > settings.unsure) & (hope < limit))
    white, order = explorer.frame.to_white(pool), worth[np.argsort(hope[worth])]
    return np.asarray(pool[first_apart(white, order, settings.n_uncertain, settings.apart)])


def _pool(explorer: Explorer) -> np.ndarray:
    """Return tempered draws of the surrogate, and points beside known ones."""
    settings, frame, rng = explorer.settings.explore, explorer.frame, explorer.rng
    found, known = [], explorer.record.training().select().position
    places = np.concatenate([explorer.chains.position, known])
    for exponent in settings.pool_exponents:
        tempered = Tempered(explorer.candidates.surrogate, exponent)
        start = places[rng.integers(len(places), size=settings.pool_size)]
        step_size = find_step_size(tempered, frame, start, rng, settings=explorer.settings)
        kernel = surrogate_kernel(
            tempered, frame, step_size, 2.0, settings.pool_steps, settings=explorer.settings
        )
        found.append(move(kernel, start, rng)[0])
    beside = known[rng.integers(len(known), size=2 * settings.pool_size)]
    found.append(beside + frame.from_white(rng.standard_normal(beside.shape)) - frame.mean)
    pool = np.concatenate(found)
    return pool[np.isfinite(pool).all(axis=1)]


def exact_kernel(explorer: Explorer) -> HMC:
    """Return HMC with exact gradients in the explorer's frame."""
    settings, factor = explorer.settings.explore, explorer.frame.factor
    step_size = max(explorer.inner_step, settings.trajectory_length / settings.max_trajectory_steps)
    return HMC(step_size, trajectory_length=settings.trajectory_length, metric=DenseMetric(factor @ factor.T))


def check_support(
    record: EvaluationRecord, result: AdaptationResult, rng: np.random.Generator, most: int
) -> tuple[AdaptationResult, float]:
    """Return the result with sd(D) at moves of its kernel, and the share of these that left the support.

    Where the adaptation met no edge of the support, nothing is spent, and the share is 0.

    Parameters
    ----------
    record : EvaluationRecord
    result : AdaptationResult
    rng : Generator
    most : int
        Exact evaluations that may be spent.
    """
    settings = record.settings.explore
    outside = record.outside(result.surrogate_kind)
    if outside < settings.edge:
        return result, 0.0
    if most < settings.fewest_moves:
        return result, outside
    discrepancy = _discrepancies_of_moves(record, result, rng, min(settings.n_moves, most))
    if len(discrepancy) < settings.fewest_moves:
        return replace(result, sd=np.inf), outside
    sd = effective_sd(discrepancy, record.settings.score)
    return replace(result, sd=sd), float(np.isposinf(discrepancy).mean())


def sd_at_moves(
    record: EvaluationRecord, result: AdaptationResult, rng: np.random.Generator, n_draws: int
) -> float:
    """Return sd(D) at a few moves of the final kernel, whose ends become training data; NaN if nothing was spent.

    It costs a small share of the `n_draws` to be made.
    """
    settings = record.settings.explore
    n = min(settings.n_moves, int(settings.move_share * n_draws))
    if n < settings.fewest_moves:
        return np.nan
    return effective_sd(_discrepancies_of_moves(record, result, rng, n, train=True), record.settings.score)


def _discrepancies_of_moves(
    record: EvaluationRecord,
    result: AdaptationResult,
    rng: np.random.Generator,
    n: int,
    *,
    train: bool = False,
) -> np.ndarray:
    """Return D at the ends of `n` moves from known positions; fewer if the kernel hardly moves at all.

    They become training data if that is wanted. Values without gradients do not where there are gradients.
    """
    position = result.training.position
    near = result.training.potential < record.lowest + record.settings.heights.draws(position.shape[1])
    start = position[near][rng.integers(near.sum(), size=n)]
    places, _ = move(result.kernel, start, rng)
    places = places[(places != start).any(axis=1) & np.isfinite(places).all(axis=1)]
    if len(places) < record.settings.explore.fewest_moves:
        return np.empty(0)
    with np.errstate(all="ignore"):
        predicted = np.asarray(result.kernel.surrogate.potential(places))  # type: ignore[union-attr]
    if train:
        discrepancy = record.evaluate(places).potential - predicted
    else:
        with record.evaluator.observed_by(None):
            discrepancy = record.evaluator.value(places).potential - predicted
    return discrepancy[~np.isnan(discrepancy)]
