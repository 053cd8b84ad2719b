"""Separate modes: whether chains of the surrogate pass from one walker to the others, and jumps if they do not.

Walkers may stand in several basins with high ground between them. Draws could then be right within each of them and
wrong about how much mass each has. But the surrogate knows all of them, so chains may jump on it from one to another
(`leapwise.kernels.jumps`), at no exact cost.

Where walkers stand is not all that is known. Of exact evaluations that are as low as draws are, those are looked at too
that high ground of the surrogate separates from all walkers: nobody is there, because there are fewer walkers than
modes, or because the one who was has left.

What belongs together is seen from clouds of draws of the surrogate, one from each of these places: two of which each
has hardly any draws that might be the other's are two modes.

Basins: what several descents have found is not to be lost again.

Chains begin far apart so that separate modes have a chance to be found. Two more descents, from the other side of where
the lowest chains begin and further out, make it a fairer one where nobody has said where to begin. A walker that leaves
a basin while the surrogate is still poor may leave it empty, and nothing that the others meet would tell. So where
descents have ended somebody must be able to come by, on the surrogate; if not, the walker of that chain is called back.

Parts of a mode that is bent, or of lobes that touch, between which chains jump.

Along a bent valley, or over the saddle between two lobes, trajectories get on slowly, and a draw takes many inner
steps. But a few normal distributions cover the surrogate's draws, each a part of the mode, and a jump from one part to
another is a far move along the valley for one potential of the surrogate. Jumps are exact whatever the parts are
(`leapwise.kernels.jumps`): the better these fit, the more jumps are accepted.

Parts are found by classification: each draw belongs to the part of which its density is largest, as in a jump, and
each part is the normal distribution of its draws, until that changes nothing. The number of parts is that whose jumps
go furthest, by the mean squared distance of those that are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.coverage import surrogate_draws, usual_height
from leapwise.adaptation.explore import Explorer, first_apart
from leapwise.adaptation.initialise import Start, typical_height
from leapwise.adaptation.minimise import Descent
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.walk import Energy, find_step, trace, transition
from leapwise.kernels import Jumps, State
from leapwise.surrogates import Whitening

#: Further starts: so many times as far out as the lowest ones, on the other side.
REACH = np.array([2.0, 6.0])
#: A rise of the surrogate on the way, above both ends, that chains hardly climb; and points at which it is looked for.
BARRIER, N_ON_THE_WAY = 4.0, 9


def with_more_starts(record: EvaluationRecord, state: State) -> State:
    """Return the state with further starts, opposite to the lowest ones and further out."""
    lowest = np.argsort(state.potential)[: len(REACH)]
    more = -REACH[: len(lowest), None] * state.position[lowest]
    found = State.from_evaluation(record.evaluate(more))
    usable = np.isfinite(found.potential)
    gradient = None
    if state.gradient is not None and found.gradient is not None:
        gradient = np.concatenate([state.gradient, found.gradient[usable]])
    return State(
        np.concatenate([state.position, found.position[usable]]),
        np.concatenate([state.potential, found.potential[usable]]),
        gradient,
    )


def spread_out(start: Start, n_chains: int) -> Start:
    """Return as many starts as there are chains: those they have, but for one far from all where they crowd."""
    white = start.frame.to_white(start.position)
    chosen = list(range(n_chains))
    far = np.sqrt(2.0 * white.shape[1]) + 4.0
    for i in range(n_chains, len(white)):
        between = np.linalg.norm(white[chosen][:, None] - white[chosen][None], axis=2)
        np.fill_diagonal(between, np.inf)
        if n_chains > 1 and np.linalg.norm(white[chosen] - white[i], axis=1).min() > far:
            chosen[int(between.min(axis=1).argmin())] = i
    return Start(start.position[chosen], start.frame)


@dataclass
class Homes:
    """Where cold walkers belong: somebody must be able to come by there.

    Parameters
    ----------
    position : ndarray of shape (n, dim)
        One for each cold walker.
    potential : ndarray of shape (n,)
        Exact potentials there.
    """

    position: np.ndarray
    potential: np.ndarray

    @classmethod
    def of(cls, explorer: Explorer) -> Homes:
        """Return those of walkers that are at home."""
        walkers = explorer.walkers
        return cls(walkers.position[walkers.cold], walkers.potential[walkers.cold])

    def call_back(self, explorer: Explorer) -> bool:
        """Put cold walkers back home if nobody comes by there; return whether any was."""
        lost = abandoned(explorer, self.position, self.potential)
        if not lost.any() or not explorer.record.settings.stages.restore_modes:
            return False
        explorer.put(np.flatnonzero(explorer.walkers.cold)[lost], self.position[lost], self.potential[lost])
        return True

    def send(self, explorer: Explorer, ends: list[Descent]) -> bool:
        """Give cold walkers new homes where descents have ended, the first of those that are far apart.

        Those go that have another cold one in their basin, so that one stays wherever there was any. Where there are no
        others, warm ones go. Return whether there was anywhere to go.
        """
        if not ends:
            return False
        position, potential = (
            np.stack([each.position for each in ends]),
            np.array([each.potential for each in ends]),
        )
        white = explorer.frame.to_white(position)
        chosen = first_apart(white, np.arange(len(ends)), len(ends), np.sqrt(2.0 * white.shape[1]))
        cold, warm = np.flatnonzero(explorer.walkers.cold), np.flatnonzero(~explorer.walkers.cold)
        spare = np.array(_spare(explorer)[: len(chosen)], dtype=int)
        mine, others = np.split(chosen, [len(spare)])
        self.position[spare], self.potential[spare] = position[mine], potential[mine]
        explorer.put(cold[spare], position[mine], potential[mine])
        others = others[: len(warm)]
        explorer.put(warm[: len(others)], position[others], potential[others])
        return True


def _spare(explorer: Explorer) -> list[int]:
    """Return which cold walkers are not needed where they are, the most crowded first."""
    position = explorer.walkers.position[explorer.walkers.cold]
    one, other = np.triu_indices(len(position), 1)
    apart = np.linalg.norm(explorer.frame.vector_to_white(position[one] - position[other]), axis=1)
    near = np.argsort(apart, kind="stable")
    together = climbs(explorer.candidates.surrogate, position[one], position[other]) < BARRIER
    spare: list[int] = []
    for i, j in zip(one[near][together[near]], other[near][together[near]], strict=True):
        if i not in spare and j not in spare:
            spare.append(int(j))
    return spare


def abandoned(explorer: Explorer, home: np.ndarray, potential: np.ndarray) -> np.ndarray:
    """Return which homes have mass and cannot be reached from draws of the surrogate."""
    surrogate, frame = explorer.candidates.surrogate, explorer.frame
    lost = potential < explorer.record.lowest + 0.5 * typical_height(home.shape[1])
    draws = np.concatenate(
        [surrogate_draws(explorer, cold=True), explorer.walkers.position[explorer.walkers.cold]]
    )
    apart = np.linalg.norm(frame.to_white(home)[:, None] - frame.to_white(draws)[None], axis=2)
    nearest = draws[apart.argmin(axis=1)]
    far = apart.min(axis=1) > np.sqrt(2.0 * home.shape[1])
    return np.asarray(lost & far & ~(climbs(surrogate, home, nearest) < BARRIER))


def climbs(surrogate: Energy, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return how far the surrogate rises above both ends on the ways between positions ``(n, dim)``, or NaN."""
    share = np.linspace(0.0, 1.0, N_ON_THE_WAY)[:, None, None]
    way = one + share * (other - one)
    with np.errstate(all="ignore"):
        height = surrogate.potential(way.reshape(-1, one.shape[1])).reshape(N_ON_THE_WAY, -1)
        return np.asarray(height.max(axis=0) - np.maximum(height[0], height[-1]))


#: Chains from each walker, steps that they take, and how many of the last are kept.
N_EACH, N_STEPS, N_KEPT = 16, 24, 12
#: Places that are looked at, walkers included, and known positions that may be such.
MOST_PLACES, MOST_KNOWN = 16, 128
#: Share of draws that belong to another cloud rather than to their own from which on both are one.
SHARED = 0.05


def places(explorer: Explorer) -> np.ndarray:
    """Return where cold walkers are, and where there is mass behind high ground, ``(k, dim)``."""
    walkers, known = explorer.walkers, explorer.record.training()
    low = known.select(usual_height(known.dim))
    lowest = low.position[np.argsort(low.potential, kind="stable")]
    some = np.linspace(0, len(lowest) - 1, min(len(lowest), MOST_KNOWN)).astype(int)
    return separate_places(explorer.candidates.surrogate, walkers.position[walkers.cold], lowest[some])


def separate_places(surrogate: Energy, position: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return positions and, of known ones with mass, lowest first, those that are separate from all before."""
    found, nearest = list(position), np.full(len(known), np.inf)
    for place in position:
        nearest = np.minimum(nearest, _ways(surrogate, known, place))
    while len(found) < MOST_PLACES and (nearest > BARRIER).any():
        found.append(known[int((nearest > BARRIER).argmax())])
        nearest = np.minimum(nearest, _ways(surrogate, known, found[-1]))
        nearest[(known == found[-1]).all(axis=1)] = 0.0
    return np.stack(found)


def _ways(surrogate: Energy, known: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return how far the surrogate climbs from each known position to a place; nothing where it does not say."""
    return np.nan_to_num(climbs(surrogate, known, np.broadcast_to(place, known.shape)), nan=0.0)


def find_jumps(
    surrogate: Energy, frame: Whitening, position: np.ndarray, rng: np.random.Generator
) -> Jumps | None:
    """Return jumps between the modes that positions ``(n, dim)`` are in; None if it is one."""
    one, other = np.triu_indices(len(position), 1)
    if not (climbs(surrogate, position[one], position[other]) > BARRIER).any():
        return None
    n, dim = position.shape
    start = np.repeat(position, N_EACH, axis=0)
    step_size = find_step(surrogate, frame, start, rng, everywhere=False)
    draws = trace(transition(surrogate, frame, step_size, 2.0, 1), start, rng, N_STEPS)[-N_KEPT:]
    if not np.isfinite(draws).all():
        return None
    clouds = list(draws.reshape(N_KEPT, n, N_EACH, dim).transpose(1, 0, 2, 3).reshape(n, -1, dim))
    while len(clouds) > 1:
        jumps = _between(clouds)
        pair = _one(jumps, clouds)
        if pair is None:
            return jumps
        i, j = pair
        clouds[i] = np.concatenate([clouds[i], clouds.pop(j)])
    return None


def _between(clouds: list[np.ndarray]) -> Jumps:
    """Return jumps between clouds of draws."""
    frames = [Whitening.from_positions(cloud) for cloud in clouds]
    return Jumps(np.stack([each.mean for each in frames]), np.stack([each.factor for each in frames]))


def _one(jumps: Jumps, clouds: list[np.ndarray]) -> tuple[int, int] | None:
    """Return the two clouds that share most, the first of them first, if that is more than hardly any."""
    shares = np.zeros((len(clouds), len(clouds)))
    for i, cloud in enumerate(clouds):
        shares[i] = np.bincount(jumps.modes(cloud), minlength=len(clouds)) / len(cloud)
    np.fill_diagonal(shares, 0.0)
    if not shares.max() > SHARED:
        return None
    i, j = sorted(divmod(int(shares.argmax()), len(clouds)))
    return i, j


#: Numbers of parts of a mode that are tried, how often from other starts, and how long.
N_PARTS, N_TRIES, MOST_ROUNDS = (2, 3, 4, 6, 8), 2, 20
#: Draws that a part has at least: so many, and so many for each parameter.
FEWEST, FEWEST_EACH = 16, 2


def find_parts(
    surrogate: Energy, frame: Whitening, draws: np.ndarray, rng: np.random.Generator, modes: Jumps | None
) -> Jumps | None:
    """Return jumps between parts of the modes of a surrogate's draws ``(n, dim)``; None if there are no such parts.

    Parameters
    ----------
    surrogate : Energy
    frame : Whitening
        In which distances are measured.
    draws : ndarray of shape (n, dim)
    rng : Generator
    modes : Jumps or None
        Separate modes, if there are.
    """
    with np.errstate(all="ignore"):
        height = surrogate.potential(draws)
    known = np.isfinite(draws).all(axis=1) & np.isfinite(height)
    draws, height = draws[known], height[known]
    best, chosen = 0.0, None
    for n_parts in N_PARTS:
        for _ in range(N_TRIES):
            jumps = _all_parts(frame, draws, n_parts, rng, modes)
            if jumps is None:
                continue
            found = _progress(surrogate, frame, jumps, draws, height, rng)
            if found > best:
                best, chosen = found, jumps
    return chosen


def _all_parts(
    frame: Whitening, draws: np.ndarray, n_parts: int, rng: np.random.Generator, modes: Jumps | None
) -> Jumps | None:
    """Return jumps between `n_parts` parts of each mode, or of those that have enough draws."""
    if modes is None:
        return parts(frame, draws, n_parts, rng)
    mode, split = modes.modes(draws), False
    centres, factors, belongs = [], [], []
    for i in range(modes.n_modes):
        found = parts(frame, draws[mode == i], n_parts, rng)
        split |= found is not None
        centres.append(modes.centres[[i]] if found is None else found.centres)
        factors.append(modes.factors[[i]] if found is None else found.factors)
        belongs += [i] * len(centres[-1])
    return Jumps(np.concatenate(centres), np.concatenate(factors), np.array(belongs)) if split else None


def parts(frame: Whitening, draws: np.ndarray, n_parts: int, rng: np.random.Generator) -> Jumps | None:
    """Return jumps between parts of one mode; None if one of them has too few draws."""
    fewest = FEWEST + FEWEST_EACH * draws.shape[1]
    if len(draws) < n_parts * fewest:
        return None
    part, jumps = _first_parts(frame.to_white(draws), n_parts, rng), None
    for _ in range(MOST_ROUNDS):
        if np.bincount(part, minlength=n_parts).min() < fewest:
            return None
        each = [Whitening.from_positions(draws[part == i]) for i in range(n_parts)]
        jumps = Jumps(
            np.stack([one.mean for one in each]),
            np.stack([one.factor for one in each]),
            np.zeros(n_parts, dtype=int),
        )
        before, part = part, jumps.components(draws)
        if (part == before).all():
            break
    return jumps


def _first_parts(white: np.ndarray, n_parts: int, rng: np.random.Generator) -> np.ndarray:
    """Return the nearest of `n_parts` draws that are far apart (k-means++), for each draw."""
    apart = np.empty((n_parts, len(white)))
    chosen = int(rng.integers(len(white)))
    for i in range(n_parts):
        apart[i] = ((white - white[chosen]) ** 2).sum(axis=1)
        nearest = apart[: i + 1].min(axis=0)
        if nearest.any():
            chosen = int(rng.choice(len(white), p=nearest / nearest.sum()))
    return np.asarray(apart.argmin(axis=0))


def _progress(
    surrogate: Energy,
    frame: Whitening,
    jumps: Jumps,
    draws: np.ndarray,
    height: np.ndarray,
    rng: np.random.Generator,
) -> float:
    """Return the mean squared distance of jumps that are accepted."""
    end, stretch, counts = jumps.propose(draws, rng.random(len(draws)))
    with np.errstate(all="ignore"):
        accepted = np.exp(np.minimum(height - surrogate.potential(end) + stretch, 0.0))
    far = (frame.vector_to_white(end - draws) ** 2).sum(axis=1)
    return float(np.mean(np.where(counts & np.isfinite(accepted), accepted, 0.0) * far))
