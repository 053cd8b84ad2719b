"""Explore: walkers move on the surrogate, and every move is an exact test of it before it is a lesson.

There is one cold walker for each chain (at most eight), from where that chain starts, and a few warm ones, whose
posterior is flattened so that they go further out. A round moves each by inner steps on the surrogate and pays for one
exact evaluation where it has come to; it stays there or returns by the rule of the surrogate transition. Moves grow
longer while they are accepted and shorter while they are not. While the surrogate is still far off, anything that
goes down is taken too: this is search, not sampling, and nothing of it is kept as a draw.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from leapwise.adaptation.candidates import Candidates
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.walk import Tempered, find_step, settle, transition, walk
from leapwise.surrogates import Whitening

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


def first_walkers(position: np.ndarray, potential: np.ndarray, rng: np.random.Generator) -> Walkers:
    """Return cold walkers where the chains are, the lowest ones if they are many, and warm ones among them."""
    dim = position.shape[1]
    cold = np.sort(np.argsort(potential)[:MOST_COLD])
    # Nobody begins where there is no mass.
    cold = np.where(np.isfinite(potential[cold]), cold, np.argmin(potential))
    warm = rng.choice(cold, N_WARM)
    rows = np.concatenate([cold, warm])
    exponent = np.ones(len(rows))
    exponent[len(cold) :] = 1.0 / (1.0 + 2.0 / np.sqrt(dim))
    return Walkers(position[rows], potential[rows], exponent)
