r"""Find the typical set: where the mass is, and how wide it is.

The chain that starts lowest descends (see `leapwise.adaptation.minimise`), along exact gradients or, where
there are none, along differences. At its end the curvature is measured (`leapwise.adaptation.curvature`),
which gives the *frame*: coordinates in which the posterior is about a standard normal. With it comes a test of the end
itself, how far a quadratic of that curvature would still fall, :math:`\tfrac12 g^T H^{-1} g`. If that is far, the
descent goes on, now in the frame, so that neither scales nor correlations hold it up; and so on until there is no
further to fall.

The other chains descend in this frame, for a few steps only; one that is still far up afterwards is put on the line
from where it is to the lowest point, at the distance of the typical set.

Arrive: descend on emulators of the outputs that are learnt from what is near, until descents agree.

One emulator for the whole prior is a poor guide where the posterior is a hundred times narrower, or has several basins.
So from the lowest place a trust region goes on: outputs are emulated from what is known within it (a few evaluations
more where a direction has not been looked at), the minimum of that inside it is evaluated, and it grows where that was
predicted and shrinks where it was not. One descent may end in a hollow or on a plateau: others follow from the next
lowest chains until two are equally low, and from fresh draws of the prior as long as nothing fits the data. A chain
that is still far up then starts again, around where descents have ended, in the coordinates that the curvature there
gives.

What is evaluated before there is anything to walk on, where no gradient shows the way.

*Outputs.* A forward model is run at draws from the prior. Then, until the chains have arrived, each is sent to where
the emulator of its outputs would have it: down to the minimum of the emulated potential, no further than a radius that
it earns, and a little astray, so that all of them learn something different. What is then still to be found is found by
descents on emulators of what is near (see `leapwise.adaptation.initialise`).

*Values.* Descent by differences has found the lowest point and some of the curvature, and one value along each axis
how wide it is; draws from the normal distribution that this suggests are enough of them to determine a quadratic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.curvature import improper, measure
from leapwise.adaptation.minimise import (
    FIRST_DIFFERENCE,
    Descended,
    Descent,
    Differences,
    Exact,
    Region,
    minimise,
    minimum,
)
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.walk import find_step, transition, walk
from leapwise.errors import BudgetError
from leapwise.kernels import State
from leapwise.surrogates import TrainingSet, Whitening
from leapwise.targets import AnyTarget, GaussianLikelihood

#: Descents, each in the frame of the curvature where the last has ended; and calls of one, for each parameter and else.
MOST_DESCENTS, CALLS, CALLS_EACH = 10, 60, 8
#: A quadratic may still fall so far, for each parameter and else, at the end of the last descent.
STILL_FALLS, STILL_FALLS_EACH = 1.0, 0.05
FEW_CALLS = 10
#: Modes that are descended to, each far below the one before.
MOST_MODES = 4
#: As far from its start, relative to that, a descent is taken to have no end; and one that is out of evaluations is.
ENDLESS, ENDLESS_SO_FAR = 1e15, 1e6
#: Positions with mass that a surrogate needs to begin with, for each parameter and else; and tries to find them, each
#: that much nearer to the lowest point than the one before.
FEWEST, FEWEST_EACH, MOST_TRIES, NEARER = 3, 1, 6, 0.5
#: Differences that are taken once the frame is known, in its units.
SMALL = 0.05


@dataclass(frozen=True, eq=False)
class Start:
    """Where the chains are, and the frame."""

    position: np.ndarray  # (chains, dim)
    frame: Whitening


def typical_height(dim: int) -> float:
    """Return how far above the lowest potential there is mass worth learning."""
    return 12.0 + 1.5 * dim


def find(record: EvaluationRecord, state: State, rng: np.random.Generator) -> Start:
    """Descend from where the chains start, and measure the curvature; `state` has been evaluated."""
    dim = state.position.shape[1]
    position, potential = np.array(state.position), np.array(state.potential)
    first = int(np.argmin(potential))
    for _ in range(MOST_MODES):
        low, frame = _mode(record, _row(state, first), rng)
        position[first], potential[first] = low.position, low.potential
        for i in np.argsort(state.potential):
            if i == first:
                continue
            if (state.position[i] == state.position[first]).all():  # one start for all: spread about its end
                position[i] = frame.from_white(rng.standard_normal((1, dim)))[0]
            else:
                position[i], potential[i] = _join(record, _row(state, i), frame, low.potential)
        lower = int(np.argmin(potential))
        if potential[lower] > low.potential - typical_height(dim):
            break
        # Another chain is far below already: this was not the lowest mode.
        state, first = State(position.copy(), potential.copy()), lower
    far = potential > low.potential + typical_height(dim)
    position[far] = on_the_way(frame, position[far])
    return Start(position, frame)


def _mode(record: EvaluationRecord, start: State, rng: np.random.Generator) -> tuple[Descended, Whitening]:
    """Return the lowest point of descents that begin at one state, and the frame there."""
    dim = start.position.shape[1]
    frame, scaled = Whitening(np.zeros(dim), np.eye(dim)), False
    begun, calls = start.position[0], CALLS + CALLS_EACH * dim
    for _ in range(MOST_DESCENTS):
        slope = _slope(record, frame, start.position[0], scaled)
        try:
            low = minimise(
                slope,
                start,
                frame,
                calls,
                scaled=scaled,
                told=partial(_refuse_endless, record, begun, ENDLESS),
            )
        except BudgetError:
            _refuse_endless(record, begun, ENDLESS_SO_FAR, _lowest(record))
            raise
        curved = measure(record, low, _axes(low.inverse))
        frame, scaled = curved.frame, True
        if curved.falls < STILL_FALLS + STILL_FALLS_EACH * dim:
            break
        start = State(low.position[None], np.array([low.potential]), curved.gradient[None])
    _surround(record, frame, rng)
    return low, frame


def _slope(
    record: EvaluationRecord, frame: Whitening, position: np.ndarray, scaled: bool
) -> Exact | Differences:
    """Return gradients, exact ones if there are any."""
    if record.gradient:
        return Exact(record)
    step = np.full(len(position), SMALL) if scaled else FIRST_DIFFERENCE * (1.0 + np.abs(position))
    return Differences(record, frame, step)


def _axes(inverse: np.ndarray) -> np.ndarray:
    """Return axes along which an inverse Hessian is the identity; none is absurdly narrow against the others."""
    width = np.sqrt(np.maximum(np.diag(inverse), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(inverse / width / width[:, None])
    return np.asarray(width[:, None] * (vectors * np.sqrt(np.maximum(values, 1e-12 * values[-1]))))


def _surround(record: EvaluationRecord, frame: Whitening, rng: np.random.Generator) -> None:
    """See that enough positions with mass are known for a surrogate to begin with, nearer and nearer to the centre."""
    dim = frame.mean.size
    for turn in range(MOST_TRIES):
        lacking = FEWEST + FEWEST_EACH * dim - len(record.training().select())
        if lacking <= 0:
            break
        record.evaluate(frame.from_white(NEARER ** (1 + turn) * rng.standard_normal((lacking, dim))))


def _lowest(record: EvaluationRecord) -> np.ndarray:
    """Return the position of the lowest potential that is known."""
    best = min(record.heard, key=lambda each: float(each.potential.min(initial=np.inf)))
    return np.asarray(best.position[int(best.potential.argmin())])


def _refuse_endless(record: EvaluationRecord, begun: np.ndarray, far: float, position: np.ndarray) -> None:
    """Raise if a descent has come absurdly far from where it began."""
    away = position - begun
    if np.abs(away).max() > far * (1.0 + np.abs(begun).max()):
        raise improper(record.evaluator.target, away, "goes on rising")


def _join(
    record: EvaluationRecord, start: State, frame: Whitening, lowest: float
) -> tuple[np.ndarray, float]:
    """Bring one more chain nearer to the typical set, of this mode or of another; return where it is, and how high."""
    dim = start.position.shape[1]
    calls = FEW_CALLS if record.gradient else 2
    slope = _slope(record, frame, start.position[0], scaled=True)
    found = minimise(slope, start, frame, calls, enough=lowest + 0.5 * dim + 4.0, scaled=True)
    return found.position, found.potential


def _row(state: State, i: int) -> State:
    """Return the state of one chain."""
    gradient = None if state.gradient is None else state.gradient[i : i + 1]
    return State(state.position[i : i + 1], state.potential[i : i + 1], gradient)


def on_the_way(frame: Whitening, position: np.ndarray) -> np.ndarray:
    """Return positions on the line to the frame's centre, at the distance of the typical set or nearer."""
    white = frame.to_white(position)
    distance = np.linalg.norm(white, axis=1, keepdims=True)
    return frame.from_white(white * np.minimum(1.0, np.sqrt(white.shape[1]) / np.maximum(distance, 1e-300)))


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


N_PRIOR = 200
MOST_ROUNDS = 15


def find_by_outputs(record: EvaluationRecord, candidates: Candidates, state: State) -> Start:
    """Run the model at draws from the prior, then follow its emulator to the typical set."""
    target, rng, dim = candidates.target, candidates.rng, state.position.shape[1]
    prior = prior_draws(target, rng)
    frame = Whitening.from_positions(prior)
    n_different = len(np.unique(state.position, axis=0))  # all chains may start at one place
    record.evaluate(prior[: max(dim + 2 - n_different, 0)])
    arrival = Arrival(record, target, frame, rng)
    position, potential = np.array(state.position), np.array(state.potential)
    radius = np.full(len(position), np.sqrt(dim))
    for _ in range(MOST_ROUNDS):
        candidates.train(frame)
        ends = np.stack([minimum(candidates.surrogate, frame, each, iterations=50) for each in position])
        step_size = find_step(candidates.surrogate, frame, ends, rng, 1.0, everywhere=False)
        ends, _ = walk(transition(candidates.surrogate, frame, step_size, 1.0, 1), ends, rng)
        ends = frame.from_white(arrival.within(frame.to_white(_no_further(frame, position, ends, radius))))
        found = record.evaluate(ends).potential
        lower = found < potential
        gain = np.where(lower, potential - found, 0.0)
        position[lower], potential[lower] = record.heard[-1].position[lower], found[lower]
        radius *= np.where(lower, 2.0, 0.5)
        near = potential < record.lowest + typical_height(dim)
        if near.all() and gain.max() < 0.5 * dim + 4.0:
            break
    candidates.fitted = {}
    return arrive(arrival, position, potential, radius, iter(prior[::-1]))


def prior_draws(target: AnyTarget, rng: np.random.Generator) -> np.ndarray:
    """Return draws from the prior, as positions; uniform ones where it cannot be drawn from."""
    first = target.sample_start(rng)
    if first is None:
        return rng.uniform(-2.0, 2.0, (N_PRIOR, target.dim))
    draws = np.stack([first, *(np.asarray(target.sample_start(rng)) for _ in range(N_PRIOR - 1))])
    return np.asarray(target.transform.to_position(draws))


def _no_further(frame: Whitening, position: np.ndarray, ends: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Return the ends, or points on the way to them at the radius."""
    way = frame.vector_to_white(ends - position)
    distance = np.linalg.norm(way, axis=1)
    share = np.minimum(1.0, radius / np.maximum(distance, 1e-300))
    return position + share[:, None] * (ends - position)
