"""Basins: what several descents have found is not to be lost again.

Chains begin far apart so that separate modes have a chance to be found. Two more descents, from the other side of where
the lowest chains begin and further out, make it a fairer one where nobody has said where to begin. A walker that leaves
a basin while the surrogate is still poor may leave it empty, and nothing that the others meet would tell. So where
descents have ended somebody must be able to come by, on the surrogate; if not, the walker of that chain is called back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.descent import Descent
from leapwise.adaptation.explore import Explorer
from leapwise.adaptation.find import Start, typical_height
from leapwise.adaptation.frontier import surrogate_draws
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.spacing import first_apart
from leapwise.adaptation.walk import Energy
from leapwise.kernels import State

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
        if not lost.any():
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
