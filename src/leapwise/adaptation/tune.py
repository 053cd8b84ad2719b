r"""Walks on a surrogate alone: they cost no exact evaluation.

Freeze: choose the inner steps of the draws, on the surrogate alone.

Chains of the surrogate, which cost nothing, tell for each trajectory length, its jitter and number of inner steps k how
far a move still resembles its start: the correlation :math:`\rho` of parameters and of their squares. With acceptance a
the chain of draws then has lag-one correlation :math:`r = 1 - a + a \rho` and about :math:`(1 - r)/(1 + r)` effective
draws for each value. Chosen is the largest harmonic mean of that of parameters and that of squares, so that neither is
bought with the other; twice as many gradients of the surrogate must gain three in a hundred, since they are not free
where the model is cheap. That goes by their number and not by a clock, so that a run does the same everywhere.

Where the surrogate is nearly Gaussian, an odd number of trajectories a little longer than a quarter of a turn, all of
about the same length, ends on the other side: on a Gaussian of one frequency with :math:`\rho = c` for parameters and
:math:`c^2` for squares. A c of -0.2 repays the draws that are rejected and costs squares little.

Where many inner steps are needed, the posterior is bent or has lobes. Chains that jump between parts of it (see
`leapwise.adaptation.modes`) are then tried beside the one that was chosen, and taken if clearly better.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import binom

from leapwise.adaptation.modes import find_parts
from leapwise.adaptation.settings import DEFAULT, AdaptationSettings
from leapwise.adaptation.stopping import USELESS, acceptance
from leapwise.adaptation.walk import Energy, find_step, settle, trace, transition, walk, within_mode
from leapwise.kernels import Jumps, SurrogateTransition
from leapwise.surrogates import Whitening

#: Lengths of trajectories that are tried, with their jitter.
SHAPES = ((1.6, 0.4), (2.0, 0.4), (2.5, 0.4), (1.8, 0.1), (2.1, 0.1), (2.25, 0.1))
INNER_STEPS = (1, 2, 3, 4, 5, 6, 8, 11, 15)
N_CHAINS, N_SETTLE, MORE = 128, 12, 3
#: Gradients of the surrogate that a draw may take, unless few inner steps take more: each is some tens of microseconds.
MOST_GRADIENTS = 160
#: Power of the number of gradients that they must be worth; more of it where less is sure.
WORTH, WORTH_UNSURE = 0.04, 0.07
#: How many times as much jumps between parts must be worth: what is seen of it is unsure too.
CLEARLY = 1.05
#: Of inner steps: those that are not accepted undo what the others gain.
ACCEPTANCE = 0.95
LEAST_ACCEPTANCE = 0.01
#: Inner steps that are many: jumps between parts of a mode may do with fewer. These are tried, for so many draws.
MANY, FEWER_STEPS, N_DRAWS = 5, (3, 6), 10
#: Lags of draws that are looked at, an odd number, and the least autocorrelation time that is believed.
MOST_LAGS, LEAST_TIME = 5, 0.3
#: What is left of a sum of two lags in the next two, at most.
MOST_LEFT = 0.95
FURTHEST = 4.0


def freeze(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    sd: float,
    rng: np.random.Generator,
    jumps: Jumps | None = None,
    settings: AdaptationSettings = DEFAULT,
) -> SurrogateTransition:
    """Return the kernel of the draws, for a surrogate with sd(D) = `sd`; nothing changes from here on.

    Between modes it takes one jump, whatever the number of inner steps, which is then chosen for what is within modes.
    Where that is many, jumps between parts of a mode are tried.
    """
    if not sd < USELESS:  # hardly anything will be drawn with it
        frame = settle(surrogate, frame, position, rng, jumps)
        step_size = find_step(surrogate, frame, position, rng, wanted=ACCEPTANCE, jumps=jumps)
        return transition(surrogate, frame, step_size, SHAPES[0][0], FEWER_STEPS[0], jumps)
    accept = max(acceptance(sd), LEAST_ACCEPTANCE)
    chosen, settled, seen = _shaped(surrogate, frame, position, accept, rng, jumps)
    if chosen.inner_steps < MANY or not settings.stages.components:
        return chosen
    parts = find_parts(surrogate, settled, seen, rng, jumps)
    if parts is None:
        return chosen
    within, _, _ = _shaped(surrogate, frame, position, accept, rng, parts, WORTH_UNSURE)
    others = [replace(chosen, inner_steps=k, jumps=parts) for k in FEWER_STEPS]
    start = seen[rng.integers(len(seen), size=N_CHAINS)]
    best = 0.0
    for kernel in (chosen, within, *others):
        moves = _chain(trace(kernel, start, rng, N_DRAWS), settled, None)
        found = _worth_of_draws(moves, accept) * _n_gradients(kernel) ** -WORTH
        if found > best:
            best, chosen = found * (CLEARLY if kernel.jumps is jumps else 1.0), kernel
    return chosen


def _shaped(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    accept: float,
    rng: np.random.Generator,
    jumps: Jumps | None,
    worth: float = WORTH,
) -> tuple[SurrogateTransition, Whitening, np.ndarray]:
    """Return the kernel of the best shape, coordinates in which modes are about normal, and draws ``(n, dim)``."""
    frame = settle(surrogate, frame, position, rng, jumps)
    start = position[rng.integers(len(position), size=N_CHAINS)]
    step_size = find_step(surrogate, frame, start, rng, wanted=ACCEPTANCE, jumps=jumps)
    start, _ = walk(transition(surrogate, frame, step_size, 1.7, N_SETTLE, jumps), start, rng)
    best, chosen, seen = 0.0, transition(surrogate, frame, step_size, SHAPES[0][0], 3, jumps), []
    for length, jitter in SHAPES:
        kernel = replace(transition(surrogate, frame, step_size, length, 1, jumps), jitter=jitter)
        price, numbers = _n_gradients(kernel), np.array(INNER_STEPS)
        numbers = numbers[numbers <= max(MOST_GRADIENTS / price, FEWER_STEPS[0])]
        draws = trace(kernel, start, rng, int(numbers[-1]) + MORE)
        seen += [draws[len(draws) // 2], draws[-1]]
        found = _worths(_chain(draws, frame, jumps), accept)[numbers - 1] * (price * numbers) ** -worth
        if found.max() > best:
            best, chosen = found.max(), replace(kernel, inner_steps=int(numbers[found.argmax()]))
    return chosen, frame, np.concatenate(seen)


def _n_gradients(kernel: SurrogateTransition) -> float:
    """Return about how many gradients of the surrogate a move costs."""
    return kernel.inner_steps * float(np.ceil(kernel.trajectory_length / np.asarray(kernel.step_size)))


def _chain(draws: np.ndarray, frame: Whitening, modes: Jumps | None) -> np.ndarray:
    """Return successive positions ``(steps, chains, dim)`` of many chains in the frame, each in its mode.

    They are measured in quartiles and held within `FURTHEST`, so that one chain far out does not speak for all.
    """
    chain = np.stack([frame.vector_to_white(within_mode(each, modes)) for each in draws])
    low, middle, high = np.quantile(chain, [0.25, 0.5, 0.75], axis=(0, 1))
    return np.clip((chain - middle) / np.where(high > low, (high - low) / 1.35, 1.0), -FURTHEST, FURTHEST)


def _worths(chain: np.ndarray, accept: float) -> np.ndarray:
    """Return effective draws for each value with 1, 2, ... inner steps, of parameters and squares together.

    Inner steps are reversible, so that autocorrelations at even lags are positive and fall, and one at an odd lag is no
    larger than the one before. Without that, the best of many that are estimated would mostly be a lucky one.
    """
    values, lags = [], np.arange(1, len(chain) - MORE + 1)
    for power in (1, 2):
        each = np.stack([_correlations(chain**power, int(k)) for k in lags])
        each[1::2] = np.minimum.accumulate(np.maximum(each[1::2], 0.0))
        bound = each[1::2][: len(each[2::2])]
        each[2::2] = np.clip(each[2::2], -bound, bound)
        noise = lags / ((len(chain) - lags) * chain.shape[1])
        lag = 1.0 - accept + accept * _slow(each, noise)
        values.append((1.0 - lag) / (1.0 + lag))
    return np.asarray(2.0 / (1.0 / values[0] + 1.0 / values[1]))


def _worth_of_draws(chain: np.ndarray, accept: float) -> float:
    """Return effective draws for each value from successive moves on the surrogate, of parameters and squares together.

    A chain that jumps may resemble what it was two moves ago more than what it was one ago, so that one lag does not
    tell. With acceptance a, draws have made j of k moves with a binomial probability, and their correlation at lag k is
    the mean of those of moves at lag j. These are added up in pairs, whose sums a reversible chain has positive and
    falling (Geyer 1992), and go on falling as they did last.
    """
    values = []
    for power in (1, 2):
        lags = [1.0]
        for j in range(1, MOST_LAGS + 1):
            noise = j / ((len(chain) - j) * chain.shape[1])
            lags.append(float(_slow(_correlations(chain**power, j), noise)))
        pairs = (_binomial(MOST_LAGS, accept) @ lags).reshape(-1, 2).sum(axis=1)
        pairs = np.minimum.accumulate(np.maximum(pairs, 0.0))
        fall = min(pairs[-1] / max(pairs[-2], 1e-300), MOST_LEFT)
        time = 2.0 * (pairs.sum() + pairs[-1] * fall / (1.0 - fall)) - 1.0
        values.append(1.0 / max(time, LEAST_TIME))
    return 2.0 / (1.0 / values[0] + 1.0 / values[1])


def _binomial(most: int, share: float) -> np.ndarray:
    """Return how likely j of k are made, for j and k up to `most`, where each is made with probability `share`."""
    k, j = np.arange(most + 1)[:, None], np.arange(most + 1)
    return np.asarray(binom(k, j) * share**j * (1.0 - share) ** np.maximum(k - j, 0))


def _correlations(chain: np.ndarray, lag: int) -> np.ndarray:
    """Return how far each parameter of chains ``(steps, chains, dim)`` resembles what it was, ``(dim,)``."""
    before, after = (part.reshape(-1, chain.shape[2]) for part in (chain[:-lag], chain[lag:]))
    before, after = before - before.mean(axis=0), after - after.mean(axis=0)
    size = np.sqrt((before**2).sum(axis=0) * (after**2).sum(axis=0))
    with np.errstate(all="ignore"):
        return np.where(size > 0, (before * after).sum(axis=0) / size, 1.0)


def _slow(each: np.ndarray, noise: np.ndarray | float) -> np.ndarray:
    """Return the correlation of a parameter that forgets slowly: the mean over parameters and their spread."""
    spread = np.sqrt(np.maximum(each.var(axis=-1) - noise, 0.0))
    return np.asarray(np.minimum(each.mean(axis=-1) + 1.5 * spread, 0.999))
