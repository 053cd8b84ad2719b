r"""Tune: choose the kernel of the draws, on the surrogate alone.

Draws are to give good means and good variances. How well a mean is known depends on the autocorrelation of the
parameter; how well a variance is known depends on that of its square. So both count here: the parameters, and the
*squares*, which are the squared parameters. There are two parts: the inner steps, and the components between which
chains jump.

**Inner steps.** Chains of the surrogate, which cost no exact value, measure for each trajectory length, jitter and
number of inner steps how much a move still resembles its start: the correlation :math:`\rho` of parameters and of
squares. With acceptance a the chain of draws then has lag-one correlation :math:`r = 1 - a + a \rho` and about
:math:`(1 - r)/(1 + r)` effective draws per exact value. This is computed for parameters and for squares, and the
settings with the largest harmonic mean of the two are chosen: it is large only if both are. Twice as many gradients of
the surrogate must gain 3 %, since they are not free where the model is cheap. Gradients are counted, not timed, so that
a run does the same on every machine.

Where the surrogate is nearly Gaussian, a trajectory a little longer than a quarter of a turn ends on the other side of
the mean, and so does an odd number of them, if all have about the same length. On a Gaussian of one frequency the
correlation is then some c < 0 for parameters, and :math:`c^2` for squares. With c = -0.2 successive draws of parameters
are negatively correlated, which makes up for rejected draws, and the correlation of squares is only 0.04.

**Components.** Along a bent valley, or over the saddle between two lobes that touch, trajectories make slow progress
and a draw takes many inner steps. But a few normal distributions, the components, cover the surrogate's draws, and a
jump from one component to another is a far move for one potential of the surrogate. Jumps are exact whatever the
components are (`leapwise.kernels.jumps`): the better these fit, the more jumps are accepted. Components are found by
classification: each draw belongs to the component with the largest density there, as in a jump, and each component is
the normal distribution of its draws, until nothing changes. The number of components is the one whose accepted jumps
have the largest mean squared distance. Kernels with such jumps are compared with the one without, and taken if clearly
better.

**Turns.** Where the prior has hierarchies, inner steps may be made by turns in non-centred coordinates
(`leapwise.kernels.coordinates`). Centred chains alone hardly reach the neck of a funnel, and would not miss it. So the
frame of the other coordinates is learned in rounds, from draws of chains by turns, and the kernels with and without
turns are compared on chains that start from such draws: there a kernel that is slow in the neck shows it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import binom

from leapwise.adaptation.settings import DEFAULT, AdaptationSettings, TuneSettings
from leapwise.adaptation.stopping import acceptance
from leapwise.adaptation.surrogate_chains import (
    Energy,
    find_step_size,
    learn_frame,
    move,
    relative_to_mode,
    surrogate_kernel,
    trace,
)
from leapwise.kernels import Jumps, SurrogateTransition
from leapwise.kernels.coordinates import ChangedSurrogate, NonCentred
from leapwise.kernels.transition import Turns
from leapwise.surrogates import Whitening


def tune_kernel(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    sd: float,
    rng: np.random.Generator,
    jumps: Jumps | None = None,
    settings: AdaptationSettings = DEFAULT,
    coordinates: NonCentred | None = None,
) -> SurrogateTransition:
    """Return the kernel of the draws, for a surrogate with sd(D) = `sd`; nothing changes from here on.

    Between modes it makes one jump, whatever the number of inner steps, which is then chosen for moves within modes.
    With `coordinates`, inner steps by turns in these are tried. Otherwise, or if they gain nothing, and where the
    number of inner steps is large, jumps between components of a mode are tried.
    """
    tune = settings.tune
    if not sd < settings.stopping.useless:  # hardly anything will be drawn with it
        frame = learn_frame(surrogate, frame, position, rng, jumps, settings)
        step_size = find_step_size(
            surrogate, frame, position, rng, wanted=tune.acceptance, jumps=jumps, settings=settings
        )
        few = tune.fewer_steps[0]
        return surrogate_kernel(surrogate, frame, step_size, tune.lengths[0], few, jumps, settings)
    accept = max(acceptance(sd), tune.least_acceptance)
    chosen, frame_of_draws, draws = _best_trajectory(
        surrogate, frame, position, accept, rng, jumps, settings, tune.worth
    )
    if coordinates is not None:
        turned = _with_turns(surrogate, coordinates, chosen, frame_of_draws, draws, accept, rng, settings)
        if turned is not None:
            return turned
    if chosen.inner_steps < tune.many or not settings.stages.components:
        return chosen
    components = find_components(surrogate, frame_of_draws, draws, rng, jumps, tune)
    if components is None:
        return chosen
    within, _, _ = _best_trajectory(
        surrogate, frame, position, accept, rng, components, settings, tune.worth_unsure
    )
    others = [replace(chosen, inner_steps=k, jumps=components) for k in tune.fewer_steps]
    start = draws[rng.integers(len(draws), size=tune.n_chains)]
    best = 0.0
    for kernel in (chosen, within, *others):
        moves = _in_quartiles(trace(kernel, start, rng, tune.n_draws), frame_of_draws, None, tune)
        found = _efficiency_of_draws(moves, accept, tune) * _n_gradients(kernel) ** -tune.worth
        if found > best:
            best, chosen = found * (tune.clearly if kernel.jumps is jumps else 1.0), kernel
    return chosen


def _best_trajectory(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    accept: float,
    rng: np.random.Generator,
    jumps: Jumps | None,
    settings: AdaptationSettings,
    worth: float,
) -> tuple[SurrogateTransition, Whitening, np.ndarray]:
    """Return the kernel with the best trajectories, the frame of the modes, and draws ``(n, dim)``."""
    tune = settings.tune
    frame = learn_frame(surrogate, frame, position, rng, jumps, settings)
    start = position[rng.integers(len(position), size=tune.n_chains)]
    step_size = find_step_size(
        surrogate, frame, start, rng, wanted=tune.acceptance, jumps=jumps, settings=settings
    )

    def kernel_of(length: float, inner_steps: int) -> SurrogateTransition:
        return surrogate_kernel(surrogate, frame, step_size, length, inner_steps, jumps, settings)

    start, _ = move(kernel_of(tune.first_length, tune.n_discarded), start, rng)
    best, chosen, seen = 0.0, kernel_of(tune.lengths[0], 3), []
    for length, jitter in zip(tune.lengths, tune.jitters, strict=True):
        kernel = replace(kernel_of(length, 1), jitter=jitter)
        price, numbers = _n_gradients(kernel), np.array(tune.inner_steps)
        numbers = numbers[numbers <= max(tune.max_gradients / price, tune.fewer_steps[0])]
        draws = trace(kernel, start, rng, int(numbers[-1]) + tune.more)
        seen += [draws[len(draws) // 2], draws[-1]]
        chain = _in_quartiles(draws, frame, jumps, tune)
        found = _efficiencies(chain, accept, tune)[numbers - 1] * (price * numbers) ** -worth
        if found.max() > best:
            best, chosen = found.max(), replace(kernel, inner_steps=int(numbers[found.argmax()]))
    return chosen, frame, np.concatenate(seen)


def _with_turns(
    surrogate: Energy,
    coordinates: NonCentred,
    chosen: SurrogateTransition,
    frame: Whitening,
    draws: np.ndarray,
    accept: float,
    rng: np.random.Generator,
    settings: AdaptationSettings,
) -> SurrogateTransition | None:
    """Return the best kernel with inner steps by turns in other coordinates; None if none is better than `chosen`.

    Parameters
    ----------
    surrogate, coordinates, accept, rng, settings
    chosen : SurrogateTransition
        The best kernel without turns.
    frame : Whitening
        Of that kernel.
    draws : ndarray of shape (n, dim)
        Of the surrogate, by a kernel without turns.
    """
    tune, jumps = settings.tune, chosen.jumps
    found = _learn_turns(surrogate, coordinates, chosen, draws, rng, settings)
    if found is None:
        return None
    turns, draws = found
    own_frame = learn_frame(surrogate, frame, draws, rng, jumps, settings)
    start = draws[rng.integers(len(draws), size=tune.n_chains)]
    step_size = find_step_size(surrogate, own_frame, start, rng, jumps=jumps, settings=settings)
    one = surrogate_kernel(surrogate, own_frame, step_size, tune.turn_length, 1, jumps, settings)
    kernels = []
    for share in tune.turn_shares:
        kernel = replace(one, turns=replace(turns, probability=share))
        price, numbers = _n_gradients(kernel), np.array(tune.turn_steps)
        numbers = numbers[numbers <= max(tune.max_turn_gradients / price, tune.fewer_steps[0])]
        chain = _in_quartiles(trace(kernel, start, rng, int(numbers[-1]) + tune.more), own_frame, jumps, tune)
        worth = _efficiencies(chain, accept, tune)[numbers - 1] * (price * numbers) ** -tune.worth
        kernels.append(replace(kernel, inner_steps=int(numbers[worth.argmax()])))
    best, better = 0.0, None
    for kernel in (chosen, *kernels):
        moves = _in_quartiles(trace(kernel, start, rng, tune.n_draws), own_frame, jumps, tune)
        value = _efficiency_of_draws(moves, accept, tune) * _n_gradients(kernel) ** -tune.worth
        if kernel is chosen:
            best = tune.clearly * value
        elif value > best:
            best, better = value, kernel
    return better


def _learn_turns(
    surrogate: Energy,
    coordinates: NonCentred,
    kernel: SurrogateTransition,
    draws: np.ndarray,
    rng: np.random.Generator,
    settings: AdaptationSettings,
) -> tuple[Turns, np.ndarray] | None:
    """Return steps in other coordinates and draws of the surrogate by turns; None if chains leave finite numbers."""
    tune, changed = settings.tune, ChangedSurrogate(surrogate, coordinates)
    frame = turns = None
    for _ in range(tune.turn_rounds):
        other = coordinates.to(draws)
        with np.errstate(all="ignore"):
            usable = np.isfinite((other**2).sum(axis=1))
        if not usable.sum() > 2 * other.shape[1]:
            return None
        draws, other = draws[usable], other[usable]
        frame = Whitening.from_positions(other) if frame is None else frame
        frame = learn_frame(changed, frame, other, rng, settings=settings)
        some = rng.integers(len(draws), size=tune.n_chains)
        step_size = find_step_size(
            changed, frame, other[some], rng, wanted=tune.acceptance, settings=settings
        )
        turns = Turns(
            step_size,
            trajectory_length=tune.turn_length,
            jitter=tune.turn_jitter,
            coordinates=coordinates,
            frame=frame,
        )
        by_turns = replace(kernel, inner_steps=tune.turn_walk, turns=turns)
        draws = np.concatenate(trace(by_turns, draws[some], rng, tune.turn_moves)[tune.turn_moves // 2 :])
    assert turns is not None
    return turns, draws


def _n_gradients(kernel: SurrogateTransition) -> float:
    """Return about how many gradients of the surrogate a move costs."""
    own = float(np.ceil(kernel.trajectory_length / np.asarray(kernel.step_size)))
    if kernel.turns is None:
        return kernel.inner_steps * own
    share = kernel.turns.probability
    other = float(np.ceil(kernel.turns.trajectory_length / np.asarray(kernel.turns.step_size)))
    return kernel.inner_steps * (share * other + (1.0 - share) * own)


def _in_quartiles(
    draws: np.ndarray, frame: Whitening, modes: Jumps | None, settings: TuneSettings
) -> np.ndarray:
    """Return successive positions ``(steps, chains, dim)`` of many chains in the frame, each in its mode.

    They are in units of the quartiles and clipped, so that one chain far out does not dominate.
    """
    chain = np.stack([frame.vector_to_white(relative_to_mode(each, modes)) for each in draws])
    low, middle, high = np.quantile(chain, [0.25, 0.5, 0.75], axis=(0, 1))
    scaled = (chain - middle) / np.where(high > low, (high - low) / 1.35, 1.0)
    return np.clip(scaled, -settings.furthest, settings.furthest)


def _efficiencies(chain: np.ndarray, accept: float, settings: TuneSettings) -> np.ndarray:
    """Return effective draws per value with 1, 2, ... inner steps, of parameters and squares together.

    Inner steps are reversible, so autocorrelations at even lags are positive and fall, and one at an odd lag is no
    larger than the one before. Without these bounds the best of many estimates would mostly be a lucky one.
    """
    values, lags = [], np.arange(1, len(chain) - settings.more + 1)
    for power in (1, 2):
        each = np.stack([_correlations(chain**power, int(k)) for k in lags])
        each[1::2] = np.minimum.accumulate(np.maximum(each[1::2], 0.0))
        bound = each[1::2][: len(each[2::2])]
        each[2::2] = np.clip(each[2::2], -bound, bound)
        noise = lags / ((len(chain) - lags) * chain.shape[1])
        lag = 1.0 - accept + accept * _slow_correlation(each, noise)
        values.append((1.0 - lag) / (1.0 + lag))
    return np.asarray(2.0 / (1.0 / values[0] + 1.0 / values[1]))


def _efficiency_of_draws(chain: np.ndarray, accept: float, settings: TuneSettings) -> float:
    """Return effective draws per value from successive moves on the surrogate, of parameters and squares together.

    A chain that jumps may resemble its state two moves ago more than one ago, so one lag is not enough. With acceptance
    a, draws have made j of k moves with a binomial probability, and their correlation at lag k is the mean of those of
    moves at lag j. These are added up in pairs, whose sums are positive and fall for a reversible chain (Geyer 1992),
    and are taken to fall further as they did last.
    """
    values = []
    for power in (1, 2):
        lags = [1.0]
        for j in range(1, settings.max_lags + 1):
            noise = j / ((len(chain) - j) * chain.shape[1])
            lags.append(float(_slow_correlation(_correlations(chain**power, j), noise)))
        pairs = (_binomial(settings.max_lags, accept) @ lags).reshape(-1, 2).sum(axis=1)
        pairs = np.minimum.accumulate(np.maximum(pairs, 0.0))
        fall = min(pairs[-1] / max(pairs[-2], 1e-300), settings.most_left)
        time = 2.0 * (pairs.sum() + pairs[-1] * fall / (1.0 - fall)) - 1.0
        values.append(1.0 / max(time, settings.least_time))
    return 2.0 / (1.0 / values[0] + 1.0 / values[1])


def _binomial(most: int, share: float) -> np.ndarray:
    """Return how likely j of k are made, for j and k up to `most`, where each is made with probability `share`."""
    k, j = np.arange(most + 1)[:, None], np.arange(most + 1)
    return np.asarray(binom(k, j) * share**j * (1.0 - share) ** np.maximum(k - j, 0))


def _correlations(chain: np.ndarray, lag: int) -> np.ndarray:
    """Return the autocorrelation of each parameter of chains ``(steps, chains, dim)`` at a lag, ``(dim,)``."""
    before, after = (part.reshape(-1, chain.shape[2]) for part in (chain[:-lag], chain[lag:]))
    before, after = before - before.mean(axis=0), after - after.mean(axis=0)
    size = np.sqrt((before**2).sum(axis=0) * (after**2).sum(axis=0))
    with np.errstate(all="ignore"):
        return np.where(size > 0, (before * after).sum(axis=0) / size, 1.0)


def _slow_correlation(each: np.ndarray, noise: np.ndarray | float) -> np.ndarray:
    """Return the correlation of a slow parameter: the mean over parameters plus 1.5 of their standard deviations."""
    spread = np.sqrt(np.maximum(each.var(axis=-1) - noise, 0.0))
    return np.asarray(np.minimum(each.mean(axis=-1) + 1.5 * spread, 0.999))


def find_components(
    surrogate: Energy,
    frame: Whitening,
    draws: np.ndarray,
    rng: np.random.Generator,
    modes: Jumps | None,
    settings: TuneSettings = DEFAULT.tune,
) -> Jumps | None:
    """Return jumps between components of the modes of a surrogate's draws ``(n, dim)``; None if there are none.

    Parameters
    ----------
    surrogate : Energy
    frame : Whitening
        In which distances are measured.
    draws : ndarray of shape (n, dim)
    rng : Generator
    modes : Jumps or None
        Jumps between separate modes, if there are several.
    settings : TuneSettings
    """
    with np.errstate(all="ignore"):
        height = surrogate.potential(draws)
    finite = np.isfinite(draws).all(axis=1) & np.isfinite(height)
    draws, height = draws[finite], height[finite]
    best, chosen = 0.0, None
    for n in settings.n_components:
        for _ in range(settings.n_tries):
            jumps = _components_of_modes(frame, draws, n, rng, modes, settings)
            if jumps is None:
                continue
            found = _mean_squared_jump(surrogate, frame, jumps, draws, height, rng)
            if found > best:
                best, chosen = found, jumps
    return chosen


def _components_of_modes(
    frame: Whitening,
    draws: np.ndarray,
    n: int,
    rng: np.random.Generator,
    modes: Jumps | None,
    settings: TuneSettings,
) -> Jumps | None:
    """Return jumps between `n` components of each mode, or of those that have enough draws."""
    if modes is None:
        return fit_components(frame, draws, n, rng, settings)
    mode, split = modes.modes(draws), False
    centres, factors, mode_of = [], [], []
    for i in range(modes.n_modes):
        found = fit_components(frame, draws[mode == i], n, rng, settings)
        split |= found is not None
        centres.append(modes.centres[[i]] if found is None else found.centres)
        factors.append(modes.factors[[i]] if found is None else found.factors)
        mode_of += [i] * len(centres[-1])
    return Jumps(np.concatenate(centres), np.concatenate(factors), np.array(mode_of)) if split else None


def fit_components(
    frame: Whitening,
    draws: np.ndarray,
    n: int,
    rng: np.random.Generator,
    settings: TuneSettings = DEFAULT.tune,
) -> Jumps | None:
    """Return jumps between `n` components of one mode; None if one of them has too few draws."""
    fewest = settings.fewest + settings.fewest_each * draws.shape[1]
    if len(draws) < n * fewest:
        return None
    component, jumps = nearest_of_few(frame.to_white(draws), n, rng), None
    for _ in range(settings.max_iterations):
        if np.bincount(component, minlength=n).min() < fewest:
            return None
        each = [Whitening.from_positions(draws[component == i]) for i in range(n)]
        jumps = Jumps(
            np.stack([one.mean for one in each]),
            np.stack([one.factor for one in each]),
            np.zeros(n, dtype=int),
        )
        before, component = component, jumps.components(draws)
        if (component == before).all():
            break
    return jumps


def nearest_of_few(white: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return for each draw the nearest of `n` draws that are far apart (k-means++)."""
    apart = np.empty((n, len(white)))
    chosen = int(rng.integers(len(white)))
    for i in range(n):
        apart[i] = ((white - white[chosen]) ** 2).sum(axis=1)
        nearest = apart[: i + 1].min(axis=0)
        if nearest.any():
            chosen = int(rng.choice(len(white), p=nearest / nearest.sum()))
    return np.asarray(apart.argmin(axis=0))


def _mean_squared_jump(
    surrogate: Energy,
    frame: Whitening,
    jumps: Jumps,
    draws: np.ndarray,
    height: np.ndarray,
    rng: np.random.Generator,
) -> float:
    """Return the mean squared distance of accepted jumps."""
    end, stretch, counts = jumps.propose(draws, rng.random(len(draws)))
    with np.errstate(all="ignore"):
        accepted = np.exp(np.minimum(height - surrogate.potential(end) + stretch, 0.0))
    far = (frame.vector_to_white(end - draws) ** 2).sum(axis=1)
    return float(np.mean(np.where(counts & np.isfinite(accepted), accepted, 0.0) * far))
