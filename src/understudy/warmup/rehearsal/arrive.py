"""Arrive: descend on emulators of the outputs that are learnt from what is near, until descents agree.

One emulator for the whole prior is a poor guide where the posterior is a hundred times narrower, or has several basins.
So from the lowest place a trust region goes on: outputs are emulated from what is known within it (a few evaluations
more where a direction has not been looked at), the minimum of that inside it is evaluated, and it grows where that was
foretold and shrinks where it was not. One descent may end in a hollow or on a plateau: others follow from the next
lowest chains until two are equally low, and from fresh draws of the prior as long as nothing fits the data. A chain
that is still far up then starts again, around where descents have ended, in the coordinates that the curvature there
gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from understudy.surrogates import Fitted, OutputSurrogate, TrainingSet, Whitening
from understudy.targets import AnyTarget, GaussianLikelihood
from understudy.warmup.rehearsal.diary import Diary
from understudy.warmup.rehearsal.find import Start, typical_height

#: Share of the evaluations left that arriving may take.
SHARE = 0.6
#: Positions are looked at so far out of the prior's draws, in units of their spread, and so many times as far as the
#: lowest one: models need not work further out.
REACH, FURTHER = 3.5, 1.5
#: Descents end at gains below this, and at radii below this in units of the prior's spread.
GAIN, LEAST_RADIUS = 0.5, 1e-6
#: What a trust region learns from: positions within so many radii, which vary at least so much in every direction.
LOCAL, LEAST_SPREAD = 2.0, 0.15
#: Draws of the prior of which the lowest is the start of a further descent, for each parameter and one.
N_FRESH = 2
#: So many of them, as long as nothing fits the data: a misfit so many standard deviations above what its errors account
#: for does not.
MOST_FRESH, FAR_OFF = 3, 6.0


@dataclass
class Descent:
    """A trust region around the lowest position of one chain.

    Attributes
    ----------
    position : ndarray of shape (dim,)
    potential : float
        Exact.
    radius : float
        In units of the frame.
    curvature : ndarray of shape (dim, dim) or None
        Of the emulated potential at the position, in the frame.
    settled : bool
        Whether there is nothing more to gain.
    """

    position: np.ndarray
    potential: float
    radius: float
    curvature: np.ndarray | None = None
    settled: bool = False


@dataclass
class Arrival:
    """What descents have in common.

    Parameters
    ----------
    diary : Diary
    target : ForwardTarget
    frame : Whitening
        Of the prior.
    rng : Generator
    """

    diary: Diary
    target: AnyTarget
    frame: Whitening
    rng: np.random.Generator
    most: int = 0

    def __post_init__(self) -> None:
        limit, known = self.diary.evaluator.limit, len(self.diary)
        self.most = known + int(SHARE * (limit - known)) if limit is not None else known + 200

    @property
    def is_over(self) -> bool:
        """Whether the share of the evaluations is spent."""
        return len(self.diary) >= self.most

    @property
    def fits(self) -> bool:
        """Whether the lowest place is as near to the data as errors let it be; not known but for Gaussian ones."""
        likelihood, known = getattr(self.target, "likelihood", None), self.diary.training()
        if not isinstance(likelihood, GaussianLikelihood) or known.outputs is None:
            return True
        m = likelihood.data.size
        both = np.stack([likelihood.data, known.outputs[int(known.potential.argmin())]])
        misfit = -2.0 * np.diff(likelihood.log_density(both))[0]
        return bool(misfit < m + FAR_OFF * np.sqrt(2.0 * m))

    def are_low(self, potential: ArrayLike) -> np.ndarray:
        """Return which potentials are those of the typical set, as far as is known."""
        return np.asarray(potential) < self.diary.lowest + typical_height(self.frame.mean.size)

    def begin(self, position: np.ndarray) -> Descent:
        """Return a descent from the lowest of positions."""
        found = self.diary.evaluate(position)
        lowest = int(found.potential.argmin())
        return Descent(found.position[lowest], float(found.potential[lowest]), 1.0)

    def descend(self, descent: Descent) -> None:
        """Follow the trust region to its end."""
        while not (descent.settled or self.is_over or descent.radius < LEAST_RADIUS):
            self._step(descent)

    def _step(self, descent: Descent) -> None:
        known = self._local(descent)
        around = Whitening(descent.position, descent.radius * self.frame.factor)
        recipe = replace(OutputSurrogate.of(self.target), whitening=around)  # type: ignore[arg-type]
        emulated = recipe.fit(known, self.rng)
        descent.curvature = (
            self.frame.factor.T @ emulated.hessian(descent.position[None])[0] @ self.frame.factor
        )
        end = self._minimum(emulated, around)
        before, after = emulated.potential(np.stack([descent.position, end]))
        gain = float(before - after)
        if not gain > GAIN:
            descent.settled = abs(before - descent.potential) < 1.0
            descent.radius *= 0.4
            return
        found = float(self.diary.evaluate(end[None]).potential[0])
        ratio = (descent.potential - found) / gain
        far = np.abs(around.to_white(end[None])).max() > 0.8
        if found < descent.potential:
            descent.position, descent.potential = end, found
        if ratio < 0.25:
            descent.radius *= 0.4
        elif ratio > 0.7 and far:
            descent.radius *= 2.5

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
            self.diary.evaluate(self.frame.from_white(white))
            known, _ = self._nearest(descent)
        # All of it is of use: the emulator is not to leave out what lies high.
        height = float(known.potential.min()) + known.typical_height
        return replace(known, potential=np.minimum(known.potential, height))

    def _nearest(self, descent: Descent) -> tuple[TrainingSet, np.ndarray]:
        known = self.diary.training()
        dim = known.dim
        apart = self.frame.vector_to_white(known.position - descent.position)
        distance = np.linalg.norm(apart, axis=1)
        most = np.sort(distance)[: (dim + 1) * (dim + 4) // 2][-1]
        chosen = distance <= min(most, LOCAL * descent.radius)
        return known.rows(chosen), apart[chosen]

    def _minimum(self, emulated: Fitted, around: Whitening) -> np.ndarray:
        """Return the minimum inside the trust region."""
        size = np.diag(around.factor) / np.diag(self.frame.factor)
        centre, reach = self.frame.to_white(around.mean[None])[0], self.reach
        low, high = np.clip((-reach - centre) / size, -1.0, 0.0), np.clip((reach - centre) / size, 0.0, 1.0)
        return minimum(emulated, around, around.mean, list(zip(low, high, strict=True)))

    @property
    def reach(self) -> float:
        """How far out positions are looked at."""
        known = self.diary.training()
        lowest = self.frame.to_white(known.position[[int(known.potential.argmin())]])
        return max(REACH, FURTHER * float(np.abs(lowest).max()))

    def within(self, white: np.ndarray) -> np.ndarray:
        """Return positions in the frame, not further out than the reach."""
        return np.clip(white, -self.reach, self.reach)


def minimum(
    surrogate: Fitted,
    frame: Whitening,
    position: np.ndarray,
    bounds: list[tuple[float, float]] | None = None,
    iterations: int = 200,
) -> np.ndarray:
    """Return a minimum of the surrogate near a position, within bounds in the frame."""
    from scipy.optimize import minimize  # slow to import

    def height(white: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            potential, gradient = surrogate.potential_and_gradient(frame.from_white(white[None]))
        if not (np.isfinite(potential).all() and np.isfinite(gradient).all()):
            return 1e100, np.zeros_like(white)
        return float(potential[0]), frame.gradient_to_white(gradient)[0]

    start = frame.to_white(position[None])[0]
    found = minimize(
        height, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations}
    )
    return frame.from_white(found.x[None])[0]


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
        found = arrival.diary.evaluate(homes + white @ frame.factor.T)
        position[lost] = np.where(arrival.are_low(found.potential)[:, None], found.position, homes)
    return position
