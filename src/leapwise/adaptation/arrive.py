"""Arrive: descend on emulators of the outputs that are learnt from what is near, until descents agree.

One emulator for the whole prior is a poor guide where the posterior is a hundred times narrower, or has several basins.
So from the lowest place a trust region goes on: outputs are emulated from what is known within it (a few evaluations
more where a direction has not been looked at), the minimum of that inside it is evaluated, and it grows where that was
predicted and shrinks where it was not. One descent may end in a hollow or on a plateau: others follow from the next
lowest chains until two are equally low, and from fresh draws of the prior as long as nothing fits the data. A chain
that is still far up then starts again, around where descents have ended, in the coordinates that the curvature there
gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.descent import Descent, Region
from leapwise.adaptation.find import Start, typical_height
from leapwise.surrogates import TrainingSet, Whitening
from leapwise.targets import GaussianLikelihood

#: Share of the evaluations left that arriving may take.
SHARE = 0.6
#: Descents end at radii below this, in units of the prior's spread.
LEAST_RADIUS = 1e-6
#: What a trust region learns from: positions within so many radii, which vary at least so much in every direction.
LOCAL, LEAST_SPREAD = 2.0, 0.15
#: Draws of the prior of which the lowest is the start of a further descent, for each parameter and one.
N_FRESH = 2
#: So many of them, as long as nothing fits the data: a misfit so many standard deviations above what its errors account
#: for does not.
MOST_FRESH, FAR_OFF = 3, 6.0


@dataclass
class Arrival(Region):
    """The descents by which chains arrive, and what they may cost."""

    most: int = 0

    def __post_init__(self) -> None:
        limit, known = self.record.evaluator.limit, len(self.record)
        self.most = known + int(SHARE * (limit - known)) if limit is not None else known + 200

    @property
    def is_over(self) -> bool:
        """Whether the share of the evaluations is spent."""
        return len(self.record) >= self.most

    @property
    def fits(self) -> bool:
        """Whether the lowest place is as near to the data as errors let it be; not known but for Gaussian ones."""
        likelihood, known = getattr(self.target, "likelihood", None), self.record.training()
        if not isinstance(likelihood, GaussianLikelihood) or known.outputs is None:
            return True
        m = likelihood.data.size
        both = np.stack([likelihood.data, known.outputs[int(known.potential.argmin())]])
        misfit = -2.0 * np.diff(likelihood.log_density(both))[0]
        return bool(misfit < m + FAR_OFF * np.sqrt(2.0 * m))

    def are_low(self, potential: ArrayLike) -> np.ndarray:
        """Return which potentials are those of the typical set, as far as is known."""
        return np.asarray(potential) < self.record.lowest + typical_height(self.frame.mean.size)

    def begin(self, position: np.ndarray) -> Descent:
        """Return a descent from the lowest of positions."""
        found = self.record.evaluate(position)
        lowest = int(found.potential.argmin())
        return Descent(found.position[lowest], float(found.potential[lowest]), 1.0)

    def descend(self, descent: Descent) -> None:
        """Follow the trust region to its end."""
        while not (descent.settled or self.is_over or descent.radius < LEAST_RADIUS):
            self._step(descent)

    def _step(self, descent: Descent) -> None:
        proposed = self.propose(descent, self._local(descent))
        if proposed is not None:
            end, gain = proposed
            self.judge(descent, end, gain, float(self.record.evaluate(end[None]).potential[0]))

    def _local(self, descent: Descent) -> TrainingSet:
        """Return what is known within the trust region; pay for directions that have not been looked at."""
        dim = descent.position.size
        known, apart = self._nearest(descent)
        _, sizes, axes = np.linalg.svd(apart / descent.radius, full_matrices=True)
        sizes = np.concatenate([sizes, np.zeros(dim - len(sizes))])
        lacking = axes[sizes < LEAST_SPREAD]
        if len(lacking):
            signs = self.rng.choice([-0.5, 0.5], size=(len(lacking), 1))
            centre = self.frame.to_white(descent.position[None])
            white = self.within(centre + signs * descent.radius * lacking)
            self.record.evaluate(self.frame.from_white(white))
            known, _ = self._nearest(descent)
        return known

    def _nearest(self, descent: Descent) -> tuple[TrainingSet, np.ndarray]:
        known = self.record.training()
        dim = known.dim
        apart = self.frame.vector_to_white(known.position - descent.position)
        distance = np.linalg.norm(apart, axis=1)
        most = np.sort(distance)[: (dim + 1) * (dim + 4) // 2][-1]
        chosen = distance <= min(most, LOCAL * descent.radius)
        return known.rows(chosen), apart[chosen]


def arrive(
    arrival: Arrival,
    position: np.ndarray,
    potential: np.ndarray,
    radius: np.ndarray,
    fresh: Iterator[np.ndarray],
) -> Start:
    """Descend until two chains agree on what fits the data; those that are still far up start again there.

    Parameters
    ----------
    arrival : Arrival
    position, potential, radius
        Of the chains, as they have come so far; the lowest of them goes first.
    fresh : iterator of ndarray of shape (dim,)
        Draws of the prior, as positions.
    """
    position, potential, descents = np.array(position), np.array(potential), []
    for chain in np.argsort(potential):
        earned = float(np.clip(radius[chain], 0.1, 3.0))
        descents.append(Descent(position[chain].copy(), float(potential[chain]), earned))
        arrival.descend(descents[-1])
        position[chain], potential[chain] = descents[-1].position, descents[-1].potential
        if arrival.is_over or (arrival.fits and np.sum(arrival.are_low(potential)) > 1):
            break
    while not (arrival.is_over or arrival.fits or len(descents) >= len(position) + MOST_FRESH):
        descents.append(
            arrival.begin(np.stack([next(fresh) for _ in range(N_FRESH * (position.shape[1] + 1))]))
        )
        arrival.descend(descents[-1])
    ends = [each for each in descents if arrival.are_low(each.potential)]
    frame = _frame(min(ends, key=lambda each: each.potential), arrival.frame) if ends else arrival.frame
    return Start(_gathered(arrival, position, potential, ends, frame), frame)


def _frame(lowest: Descent, frame: Whitening) -> Whitening:
    """Return coordinates from the curvature at the lowest place, nowhere wider than the prior."""
    if lowest.curvature is None or not np.isfinite(lowest.curvature).all():
        return frame
    values, vectors = np.linalg.eigh(lowest.curvature)
    root = frame.factor @ (vectors / np.sqrt(np.maximum(values, 1.0)))
    return Whitening(lowest.position, np.linalg.cholesky(root @ root.T))


def _gathered(
    arrival: Arrival, position: np.ndarray, potential: np.ndarray, ends: list[Descent], frame: Whitening
) -> np.ndarray:
    """Return the positions of chains, of those that are still far up around where descents have ended, in turn."""
    lost = np.flatnonzero(~arrival.are_low(potential))
    if len(lost) and ends:
        homes = np.stack([ends[i % len(ends)].position for i in range(len(lost))])
        white = arrival.rng.standard_normal(homes.shape)
        found = arrival.record.evaluate(homes + white @ frame.factor.T)
        position[lost] = np.where(arrival.are_low(found.potential)[:, None], found.position, homes)
    return position
