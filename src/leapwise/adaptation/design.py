"""What is evaluated before there is anything to walk on, where no gradient shows the way.

*Outputs.* A forward model is run at draws from the prior. Then, until the chains have arrived, each is sent to where
the emulator of its outputs would have it: down to the minimum of the emulated potential, no further than a radius that
it earns, and a little astray, so that all of them learn something different. What is then still to be found is found by
descents on emulators of what is near (see `leapwise.adaptation.arrive`).

*Values.* Descent by differences has found the lowest point and some of the curvature, and one value along each axis
how wide it is; draws from the normal distribution that this suggests are enough of them to determine a quadratic.
"""

from __future__ import annotations

import numpy as np

from leapwise.adaptation.arrive import Arrival, arrive
from leapwise.adaptation.candidates import Candidates
from leapwise.adaptation.descent import minimum
from leapwise.adaptation.find import Start, typical_height
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.walk import find_step, transition, walk
from leapwise.kernels import State
from leapwise.surrogates import Whitening
from leapwise.targets import AnyTarget

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
