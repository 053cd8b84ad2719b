"""Reach: how far to go along each axis until the potential tells something, and what is so flat that it never does.

A step is good if the potential rises by enough to be told from rounding, and not so much that the step is out of the
typical set. Where it rises by nothing, however far one goes, the posterior has no width to be found: it is improper,
or its scales are so far apart that numbers cannot hold them together.
"""

from __future__ import annotations

import numpy as np

from understudy.dynamics import DenseMetric
from understudy.errors import ImproperError
from understudy.kernels import SurrogateTransition
from understudy.surrogates import Whitening
from understudy.targets import AnyTarget
from understudy.warmup.rehearsal.diary import Diary

#: Rises of the potential between which a step tells the curvature well.
LEAST_RISE, MOST_RISE = 0.003, 10.0
#: Rounds for all axes, and for those along which nothing rises yet.
ROUNDS, FLAT_ROUNDS = 4, 14
#: A step grows by so much at most. As far out as this, relative to where the search began, nothing is looked for.
GROWTH, FAR = 50.0, 1e9
#: Widths of a frame, in the same units, that call for a look whether the posterior is so wide; and how far it goes.
SUSPECT, LOOK = 1e6, 10.0
#: A rise that far out that is none.
LITTLE = 0.1


class Reach:
    """The steps along each axis of a frame; `todo` has the axes for which there is no good one yet."""

    def __init__(self, frame: Whitening) -> None:
        dim = frame.mean.size
        self.step, self.todo = np.ones(dim), np.arange(dim)
        self._frame, self._wall, self._flat = frame, np.full(dim, np.inf), np.zeros(dim, dtype=bool)

    @property
    def places(self) -> np.ndarray:
        """Positions to evaluate next, one for each axis to do."""
        return self._frame.from_white(np.eye(len(self.step))[self.todo] * self.step[self.todo, None])

    def learn(self, rise: np.ndarray) -> None:
        """Choose further steps where a rise, infinite beyond the support, was not good."""
        size, todo = np.abs(rise), self.todo
        told, good = np.isfinite(size), (size > LEAST_RISE) & (size < MOST_RISE)
        self._wall[todo[~told]] = self.step[todo[~told]]
        with np.errstate(all="ignore"):
            better = self.step[todo] * np.where(told, np.clip(np.sqrt(0.7 / size), 1e-8, GROWTH), 0.1)
        better = np.minimum(better, 0.5 * self._wall[todo])  # an edge that was met is not stepped over again
        self._flat[todo] = told & (size <= LEAST_RISE) & np.isinf(self._wall[todo])
        self.step[todo], self.todo = np.where(good, self.step[todo], better), todo[~good]

    def keep_flat(self) -> None:
        """Go on with axes alone along which nothing has risen yet."""
        self.todo = self.todo[self._flat[self.todo]]

    def refuse_flat(self, target: AnyTarget) -> None:
        """Raise if an axis still to do goes out as far as can be."""
        away = self.places - self._frame.mean
        far = np.flatnonzero(np.abs(away).max(axis=1) > GROWTH * FAR * (1.0 + np.abs(self._frame.mean).max()))
        if far.size:
            raise improper(target, away[far[0]], "does not fall off")


def frame_of_values(diary: Diary, frame: Whitening, potential: float) -> Whitening:
    """Return a frame whose axes are as wide as values along them tell, about its centre, of known `potential`.

    Axes along which one step of the frame rises as it should are left as they are.
    """
    reach, width = Reach(frame), np.ones(frame.mean.size)
    for turn in range(FLAT_ROUNDS):
        asked, step = reach.todo, reach.step[reach.todo]
        rise = diary.evaluate(reach.places).potential - potential
        if turn:
            with np.errstate(all="ignore"):
                width[asked] = np.where(
                    np.isfinite(rise) & (rise != 0), step / np.sqrt(2.0 * np.abs(rise)), step
                )
        reach.learn(rise)
        if turn >= ROUNDS:
            reach.keep_flat()
            reach.refuse_flat(diary.evaluator.target)
        if not reach.todo.size:
            break
    return Whitening(frame.mean, frame.factor * width)


def refuse_flat_direction(diary: Diary, centre: np.ndarray, potential: float, away: np.ndarray) -> None:
    """Raise if the potential does not rise along a direction, however far one goes."""
    far = FAR * (1.0 + np.abs(centre).max())
    while np.abs(away).max() < GROWTH * far:
        rise = float(diary.evaluate((centre + away)[None]).potential[0]) - potential
        if not abs(rise) <= LEAST_RISE:
            return
        away = GROWTH * away
    raise improper(diary.evaluator.target, away, "does not fall off")


def refuse_absurd_width(diary: Diary, kernel: SurrogateTransition, most: int) -> None:
    """Raise if a kernel that was learnt goes absurdly far, and the posterior goes on beyond even so.

    At most 3 of `most` exact values are spent, and none where widths are as usual.
    """
    assert isinstance(kernel.metric, DenseMetric)
    values, vectors = np.linalg.eigh(np.asarray(kernel.metric.covariance))
    away = vectors[:, -1] * np.sqrt(max(float(values[-1]), 0.0))
    begun = diary.everything[0].position
    if most < 3 or not np.abs(away).max() > SUSPECT * (1.0 + np.abs(begun).max()):
        return
    centre = kernel.centre if kernel.leaps is None or kernel.centre is not None else kernel.leaps.centres[0]
    places = centre + np.array([-LOOK, 0.0, LOOK])[:, None] * away
    low, middle, high = diary.evaluator.value(places).potential
    if min(low, high) - middle < LITTLE:
        raise improper(diary.evaluator.target, LOOK * (away if high <= low else -away), "does not fall off")


def improper(target: AnyTarget, away: np.ndarray, what: str) -> ImproperError:
    """Return the error of a log-density that goes on without end in a direction."""
    names = (
        [f"{target.names}[{i}]" for i in range(target.dim)] if isinstance(target.names, str) else target.names
    )
    share = away / np.abs(away).max()
    chosen = np.flatnonzero(np.abs(share) > 0.1)[:4]
    along = ", ".join(f"{'+' if share[i] > 0 else '-'}{names[i]}" for i in chosen)
    prior = "a prior that is proper" if hasattr(target, "likelihood") else "them a prior, or bounds="
    return ImproperError(
        f"the log-density {what} along {along}, seen as far as {np.abs(away).max():.0e} away, so the posterior may be "
        f"improper; give {prior}, or rescale the parameters if they are meant to be so large"
    )
