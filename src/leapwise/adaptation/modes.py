r"""Modes: find separate ones, keep the known ones, and jump between them.

**Search for other modes.** Parameters may be exchanged or mirrored, or a fast process may be mistaken for a slow one.
Several separate regions then fit the data, and chains that began in one of them never show the others. What is done
depends on the target:

- *Forward models* (`search_prior`). With emulated outputs a descent from anywhere in the prior is cheap: two or three
  runs of the model. So some descents are made before learning ends. Most arrive at known mass. Where others end and
  there is mass, cold chains are put, which explore it. The probability that none of n descents finds a mode is
  :math:`(1-p)^n`, where p is the share of the prior that descends to this mode. With n = 16 and p = 1/5 that is 0.03;
  with p = 1/50 it is 0.72, so such a mode is usually missed. If modes were found there may be more, so the search is
  repeated from where descents on the surrogate end.
- *Log-densities with a gradient* (`search_around`). There is no prior to draw from and there are no outputs to emulate.
  Descents begin all round the known mode, at 6 to 60 times its width, and the first step of each is Newton's with the
  curvature of that mode: where the posterior is about normal, one step arrives. A second mode of the same width is
  reached from all positions nearer to it, about half of them in any dimension; one half as wide hardly ever in many
  dimensions.
- *Log-densities without a gradient*. No search is made. Modes are found only if chains start near them.

If the user limits the evaluations (``tune=``, ``max_evaluations=``), no search is made for any target.

**Known modes.** A chain that leaves a mode while the surrogate is still poor may leave it empty, and nothing that the
others meet would show it. So chains on the surrogate must be able to reach each mode found; if none does, the chain
that began there is put back (`KnownModes`).

**Jumps.** Exploring chains may be in several modes with a barrier between them. Draws could then be right within each
mode and wrong about its share of the mass. But the surrogate knows all of the modes, so chains may jump on it from one
to another (`leapwise.kernels.jumps`), at no exact cost. To find the modes, start from *places*, positions that may each
lie in a mode of its own: where the cold chains are. An evaluation whose potential is as low as that of a draw also
counts as a place, if a barrier of the surrogate separates it from all other places. From each place a cloud of draws of
the surrogate is made. Clouds that exchange draws are one mode; two that hardly do are two modes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.coverage import surrogate_draws
from leapwise.adaptation.explore import Explorer, first_apart
from leapwise.adaptation.initialise import OutputDescent, TrustRegion, prior_draws, surrogate_minimum
from leapwise.adaptation.minimise import ExactGradient, minimise
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.settings import DEFAULT, AdaptationSettings, ModeSettings
from leapwise.adaptation.surrogate_chains import Energy, find_step_size, surrogate_kernel, trace
from leapwise.execution import Evaluation
from leapwise.kernels import Jumps, State
from leapwise.surrogates import TrainingSet, Whitening
from leapwise.surrogates.quality import median_discrepancy


def barriers(
    surrogate: Energy, one: np.ndarray, other: np.ndarray, settings: ModeSettings = DEFAULT.modes
) -> np.ndarray:
    """Return how far the surrogate rises above both ends on straight lines between positions ``(n, dim)``, or NaN."""
    n = settings.n_on_the_way
    share = np.linspace(0.0, 1.0, n)[:, None, None]
    way = one + share * (other - one)
    with np.errstate(all="ignore"):
        height = surrogate.potential(way.reshape(-1, one.shape[1])).reshape(n, -1)
        return np.asarray(height.max(axis=0) - np.maximum(height[0], height[-1]))


@dataclass
class KnownModes:
    """A position in the mode of each cold chain; chains on the surrogate must be able to reach it.

    Parameters
    ----------
    position : ndarray of shape (n, dim)
        One for each cold chain.
    potential : ndarray of shape (n,)
        Exact potentials there.
    """

    position: np.ndarray
    potential: np.ndarray

    @classmethod
    def of(cls, explorer: Explorer) -> KnownModes:
        """Return the modes that the cold chains are in."""
        chains = explorer.chains
        return cls(chains.position[chains.cold], chains.potential[chains.cold])

    def restore(self, explorer: Explorer) -> bool:
        """Put cold chains back into modes that no chain reaches; return whether there was any."""
        lost = unreachable(explorer, self.position, self.potential)
        if not lost.any() or not explorer.settings.stages.restore_modes:
            return False
        explorer.put(np.flatnonzero(explorer.chains.cold)[lost], self.position[lost], self.potential[lost])
        return True

    def add(self, explorer: Explorer, ends: list[OutputDescent]) -> bool:
        """Put chains where descents have ended, at the first of those that are far apart; return if there are any.

        Cold chains go that have another cold one in their mode, so that no mode is left. Then tempered ones go.
        """
        if not ends:
            return False
        position = np.stack([each.position for each in ends])
        potential = np.array([each.potential for each in ends])
        white, chains = explorer.frame.to_white(position), explorer.chains
        chosen = first_apart(white, np.arange(len(ends)), len(ends), np.sqrt(2.0 * white.shape[1]))
        cold, tempered = np.flatnonzero(chains.cold), np.flatnonzero(~chains.cold)
        spare = np.array(_spare(explorer)[: len(chosen)], dtype=int)
        first, rest = np.split(chosen, [len(spare)])
        self.position[spare], self.potential[spare] = position[first], potential[first]
        explorer.put(cold[spare], position[first], potential[first])
        rest = rest[: len(tempered)]
        explorer.put(tempered[: len(rest)], position[rest], potential[rest])
        return True


def _spare(explorer: Explorer) -> list[int]:
    """Return which cold chains are not needed where they are, the most crowded first."""
    settings = explorer.settings.modes
    position = explorer.chains.position[explorer.chains.cold]
    one, other = np.triu_indices(len(position), 1)
    apart = np.linalg.norm(explorer.frame.vector_to_white(position[one] - position[other]), axis=1)
    near = np.argsort(apart, kind="stable")
    rise = barriers(explorer.candidates.surrogate, position[one], position[other], settings)
    together = rise < settings.barrier
    spare: list[int] = []
    for i, j in zip(one[near][together[near]], other[near][together[near]], strict=True):
        if i not in spare and j not in spare:
            spare.append(int(j))
    return spare


def unreachable(explorer: Explorer, position: np.ndarray, potential: np.ndarray) -> np.ndarray:
    """Return which positions have mass and cannot be reached from draws of the surrogate."""
    surrogate, frame, settings = explorer.candidates.surrogate, explorer.frame, explorer.settings
    has_mass = potential < explorer.record.lowest + settings.heights.mass(position.shape[1])
    draws = np.concatenate(
        [surrogate_draws(explorer, cold=True), explorer.chains.position[explorer.chains.cold]]
    )
    apart = np.linalg.norm(frame.to_white(position)[:, None] - frame.to_white(draws)[None], axis=2)
    nearest = draws[apart.argmin(axis=1)]
    far = apart.min(axis=1) > np.sqrt(2.0 * position.shape[1])
    rise = barriers(surrogate, position, nearest, settings.modes)
    return np.asarray(has_mass & far & ~(rise < settings.modes.barrier))


class KnownMass:
    """The mass that was known before descents began, and what the surrogate predicts there."""

    def __init__(self, explorer: Explorer) -> None:
        record, self._candidates = explorer.record, explorer.candidates
        training = record.training()
        self._record, self._frame, self._settings = record, explorer.frame, explorer.settings
        self._low = training.position[self.are_low(training.potential)]
        self._usual = median_discrepancy(record.discrepancies(self._candidates.chosen))
        modes = explorer.settings.modes
        self._off = max(modes.off, modes.sds_off * self._candidates.sd)

    def are_low(self, potential: ArrayLike) -> np.ndarray:
        """Return which potentials are low enough to be mass worth learning."""
        height = self._settings.heights.mass(self._frame.mean.size)
        return np.asarray(potential) < self._record.lowest + height

    def has(self, position: np.ndarray, potential: float) -> bool:
        """Return whether a position is near known mass, without a barrier, and its potential is as predicted."""
        if not self.is_near(position):
            return False
        with np.errstate(all="ignore"):
            predicted = float(self._candidates.surrogate.potential(position[None])[0])
        return bool(abs(potential - predicted - self._usual) < self._off)

    def is_near(self, position: np.ndarray) -> bool:
        """Return whether known mass is near to a position, and the surrogate has no barrier between."""
        modes = self._settings.modes
        apart = np.linalg.norm(self._frame.vector_to_white(self._low - position), axis=1)
        near = np.argsort(apart, kind="stable")[: modes.n_nearest]
        near = near[apart[near] < np.sqrt(2.0 * len(position))]
        if not len(near):
            return False
        here = np.broadcast_to(position, (len(near), len(position)))
        rise = barriers(self._candidates.surrogate, here, self._low[near], modes)
        return bool((rise < modes.barrier).any())

    def new_modes(self, ends: list[OutputDescent]) -> list[OutputDescent]:
        """Return the ends of descents that have mass and are not known."""
        return [
            each
            for each in ends
            if self.are_low(each.potential) and not self.has(each.position, each.potential)
        ]


def search_prior(explorer: Explorer, modes: KnownModes, n_draws: int, *, again: bool = False) -> bool:
    """Descend from draws of the prior on emulated outputs, and put chains into new modes; return if there are any.

    Parameters
    ----------
    explorer : Explorer
        Of a target with outputs, whose surrogate has been trained.
    modes : KnownModes
        Changed for chains that are moved.
    n_draws : int
        Draws to be made, of which the descents may cost a share.
    again : bool
        Whether some modes were found before. There may be many, so descents on the surrogate, which cost nothing,
        choose where further ones begin.
    """
    record, rng, settings = explorer.record, explorer.rng, explorer.settings.modes
    target = record.evaluator.target
    known = KnownMass(explorer)
    prior = prior_draws(target, rng, explorer.settings.initialise.n_prior)
    region = TrustRegion(record, target, Whitening.from_positions(prior), rng)
    most = len(record) + max(int(settings.share * n_draws), settings.least)
    starts = prior[: settings.n_descents]
    if again:
        free = prior[settings.n_descents : settings.n_descents + settings.n_free]
        hints = _surrogate_minima(explorer, region, known, free)
        starts = np.concatenate([hints, starts])[: settings.n_descents]
    found = record.evaluate(starts)
    descents = [
        OutputDescent(position, float(potential), 1.0)
        for position, potential in zip(found.position, found.potential, strict=True)
        if np.isfinite(potential)
    ]
    going = [each for each in descents if not known.has(each.position, each.potential)]
    for _ in range(settings.max_steps):
        going = _step_all(region, going, most - len(record))
        going = [each for each in going if not known.has(each.position, each.potential)]
        if not going or len(record) >= most:
            break
    return modes.add(explorer, sorted(known.new_modes(descents), key=lambda each: each.potential))


def _surrogate_minima(
    explorer: Explorer, region: TrustRegion, known: KnownMass, start: np.ndarray
) -> np.ndarray:
    """Return minima of the surrogate far from all that is known, lowest first and apart, ``(k, dim)``."""
    settings, surrogate = explorer.settings.modes, explorer.candidates.surrogate
    bounds = [(-region.reach, region.reach)] * start.shape[1]
    ends = np.stack(
        [surrogate_minimum(surrogate, region.frame, each, bounds, settings.max_iterations) for each in start]
    )
    with np.errstate(all="ignore"):
        height = surrogate.potential(ends)
    order = [
        i
        for i in np.argsort(height, kind="stable")
        if known.are_low(height[i]) and not known.is_near(ends[i])
    ]
    white = region.frame.to_white(ends)
    return np.asarray(
        ends[first_apart(white, np.array(order, dtype=int), settings.n_descents, settings.apart)]
    )


def _step_all(region: TrustRegion, descents: list[OutputDescent], most: int) -> list[OutputDescent]:
    """Take one step of each descent, for one evaluation or none; return those that can go on."""
    steps = [(each, region.propose(each, _nearest_data(region, each))) for each in descents]
    paid = [(each, *proposed) for each, proposed in steps if proposed is not None][: max(most, 0)]
    if paid:
        found = region.record.evaluate(np.stack([end for _, end, _ in paid])).potential
        for (each, end, gain), potential in zip(paid, found, strict=True):
            region.accept(each, end, gain, float(potential))
    least = region.record.settings.modes.least_radius
    return [each for each in descents if not each.converged and each.radius > least]


def _nearest_data(region: TrustRegion, descent: OutputDescent) -> TrainingSet:
    """Return the nearest evaluations. No others are made; each step adds one where it ends."""
    settings, known = region.record.settings.modes, region.record.training()
    apart = np.linalg.norm(region.frame.vector_to_white(known.position - descent.position), axis=1)
    n = max(settings.times * (known.dim + 1), settings.fewest)
    return known.rows(np.isin(np.arange(len(apart)), np.argsort(apart, kind="stable")[:n]))


def search_around(explorer: Explorer, modes: KnownModes, n_draws: int) -> bool:
    """Descend from far around the known mode along exact gradients; otherwise as `search_prior`."""
    record, rng, frame = explorer.record, explorer.rng, explorer.frame
    settings, heights = explorer.settings.modes, explorer.settings.heights
    known, dim, first = KnownMass(explorer), frame.mean.size, len(record.evaluations)
    most = len(record) + max(int(settings.far_share * n_draws), settings.far_least)
    white = rng.standard_normal((settings.n_far, dim))
    radius = np.geomspace(settings.nearest, settings.furthest, settings.n_far)
    white *= radius[:, None] / np.sqrt(np.mean(white**2, axis=1, keepdims=True))
    far = record.evaluate(frame.from_white(white))
    begun = _newton_step(record, frame, far)
    ends, low = [], record.lowest + heights.draws(dim)  # where draws are, and so what is known
    for i in np.argsort(begun.potential, kind="stable"):
        position, potential = begun.position[i], float(begun.potential[i])
        if not np.isfinite(potential):
            continue
        if not known.has(position, potential):
            calls = min(settings.max_calls, most - len(record))
            if calls <= 0:
                break
            state = State(position[None], np.array([potential]), begun.gradient[[i]])  # type: ignore[index]
            found = minimise(ExactGradient(record), state, frame, calls, enough=low, scaled=True)
            position, potential = found.position, found.potential
        ends.append(OutputDescent(position, potential, 1.0))
    new = known.new_modes(ends) or _wide_mass(far, radius, record.lowest, settings)
    low = max([record.lowest + heights.draws(dim), *(each.potential for each in new)])
    record.leave_out(first, np.nextafter(low, np.inf))
    return modes.add(explorer, sorted(new, key=lambda each: each.potential))


def _wide_mass(
    start: Evaluation, radius: np.ndarray, lowest: float, settings: ModeSettings
) -> list[OutputDescent]:
    r"""Return positions far out that hold mass at a high potential: a narrow spike on top of a wide mode.

    A mode has mass of about its width to the power of the dimension d, and :math:`r^d e^{-U}` of that is r times as far
    out.
    """
    with np.errstate(invalid="ignore"):
        mass = lowest - start.potential + start.position.shape[1] * np.log(radius)
    return [
        OutputDescent(start.position[i], float(start.potential[i]), 1.0)
        for i in np.flatnonzero(mass > np.log(settings.much))
    ]


def _newton_step(record: EvaluationRecord, frame: Whitening, start: Evaluation) -> Evaluation:
    """Return where one Newton step in the frame leads from each position, or the position where that is higher."""
    assert start.gradient is not None
    with np.errstate(over="ignore"):  # far out a gradient may be as large as numbers can be
        step = frame.gradient_to_white(start.gradient)
        size = np.linalg.norm(step, axis=1)
    # No further than twice the way to the centre: far out a gradient may be that of an exponential.
    longest = 1.0 + 2.0 * np.linalg.norm(frame.to_white(start.position), axis=1)
    going = np.isfinite(start.potential) & (size > 0) & np.isfinite(size)
    step[going] *= np.minimum(1.0, longest[going] / size[going])[:, None]
    end = record.evaluate((start.position - step @ frame.factor.T)[going])
    assert end.gradient is not None
    position, potential, gradient = start.position.copy(), start.potential.copy(), start.gradient.copy()
    lower = end.potential < potential[going]
    rows = np.flatnonzero(going)[lower]
    position[rows], potential[rows] = end.position[lower], end.potential[lower]
    gradient[rows] = end.gradient[lower]
    return Evaluation(position, potential, gradient)


def separate_places(explorer: Explorer) -> np.ndarray:
    """Return places (see the module): where cold chains are, and mass behind a barrier, ``(k, dim)``."""
    settings, chains, known = explorer.settings, explorer.chains, explorer.record.training()
    low = known.select(settings.heights.draws(known.dim))
    lowest = low.position[np.argsort(low.potential, kind="stable")]
    some = np.linspace(0, len(lowest) - 1, min(len(lowest), settings.modes.max_known)).astype(int)
    surrogate = explorer.candidates.surrogate
    return add_separate(surrogate, chains.position[chains.cold], lowest[some], settings.modes)


def add_separate(
    surrogate: Energy, position: np.ndarray, known: np.ndarray, settings: ModeSettings = DEFAULT.modes
) -> np.ndarray:
    """Return positions and, of known ones with mass, lowest first, those that a barrier separates from all before."""

    def rise_to(place: np.ndarray) -> np.ndarray:
        found = barriers(surrogate, known, np.broadcast_to(place, known.shape), settings)
        return np.nan_to_num(found, nan=0.0)  # where the surrogate is not finite, no barrier is assumed

    found, rise = list(position), np.full(len(known), np.inf)
    for place in position:
        rise = np.minimum(rise, rise_to(place))
    while len(found) < settings.max_places and (rise > settings.barrier).any():
        found.append(known[int((rise > settings.barrier).argmax())])
        rise = np.minimum(rise, rise_to(found[-1]))
        rise[(known == found[-1]).all(axis=1)] = 0.0
    return np.stack(found)


def find_jumps(
    surrogate: Energy,
    frame: Whitening,
    position: np.ndarray,
    rng: np.random.Generator,
    settings: AdaptationSettings = DEFAULT,
) -> Jumps | None:
    """Return jumps between the modes that positions ``(n, dim)`` are in; None if it is one."""
    modes = settings.modes
    one, other = np.triu_indices(len(position), 1)
    if not (barriers(surrogate, position[one], position[other], modes) > modes.low_barrier).any():
        return None
    n, dim = position.shape
    start = np.repeat(position, modes.n_each, axis=0)
    step_size = find_step_size(surrogate, frame, start, rng, settings=settings)
    kernel = surrogate_kernel(surrogate, frame, step_size, 2.0, 1, settings=settings)
    draws = trace(kernel, start, rng, modes.n_steps)[-modes.n_kept :]
    if not np.isfinite(draws).all():
        return None
    each = draws.reshape(modes.n_kept, n, modes.n_each, dim)
    clouds = list(each.transpose(1, 0, 2, 3).reshape(n, -1, dim))
    while len(clouds) > 1:
        jumps = _between(clouds)
        pair = _same_mode(jumps, clouds, modes.shared)
        if pair is None:
            return jumps
        i, j = pair
        clouds[i] = np.concatenate([clouds[i], clouds.pop(j)])
    return None


def _between(clouds: list[np.ndarray]) -> Jumps:
    """Return jumps between clouds of draws."""
    frames = [Whitening.from_positions(cloud) for cloud in clouds]
    return Jumps(np.stack([each.mean for each in frames]), np.stack([each.factor for each in frames]))


def _same_mode(jumps: Jumps, clouds: list[np.ndarray], shared: float) -> tuple[int, int] | None:
    """Return the two clouds that exchange most draws, the first of them first, if that is more than `shared`."""
    shares = np.zeros((len(clouds), len(clouds)))
    for i, cloud in enumerate(clouds):
        shares[i] = np.bincount(jumps.modes(cloud), minlength=len(clouds)) / len(cloud)
    np.fill_diagonal(shares, 0.0)
    if not shares.max() > shared:
        return None
    i, j = sorted(divmod(int(shares.argmax()), len(clouds)))
    return i, j
