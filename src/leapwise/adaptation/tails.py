r"""Coverage: far beyond the outermost draws of each parameter, along its profile, to see whether a tail goes on.

A surrogate may wall off one long tail of one parameter. The other parameters have to follow it there: a straight step
outwards leaves the ridge, and says nothing. So for each parameter and side the *profile* of the surrogate (its lowest
potential for a fixed value of this parameter) is followed to one of the outermost draws, and continued a little. With
an exact gradient there, one Newton step across leads down to the exact profile; without one it is the surrogate that
tells what is lowest. Through there it goes on to about twice as far, on the sides where the potential rises most
slowly.

**What is missing.** The marginal density is about :math:`e^{-V}` with :math:`V = U + \tfrac12 \log\det H` along the
profile, H the Hessian across, whose determinant is continued as a power of the distance. Beyond the k-th outermost of n
draws there is a share k/n of the surrogate, which gives the scale :math:`m = k / (n \int e^{-\tilde V(x)} dx)` of its
density at a distance x beyond, where :math:`\tilde V` has risen from 0. If at a probe, x = h, the exact V is lower by
:math:`\Delta`, it is taken to be the higher of :math:`\tilde V(x) - \Delta x / h` and :math:`V(h) x / h`, and no higher
than :math:`\tilde V`. What this adds to the variance of the parameter is what the surrogate hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from leapwise.adaptation.explore import Explorer
from leapwise.adaptation.initialise import typical_height
from leapwise.adaptation.record import middle
from leapwise.adaptation.walk import trace
from leapwise.kernels import SurrogateTransition
from leapwise.surrogates import Fitted, Whitening

#: Newton steps to the bottom of a valley, the longest of them, and the least curvature they reckon with.
N_NEWTON, LONGEST, LEAST_BEND = 4, 1.0, 0.2
#: Sides of parameters that are looked at: those with the longest tails on the surrogate; and how many of them further
#: out, and once more as far out but lower.
N_SIDES, N_AGAIN, N_LAST = 8, 6, 3
#: Chains on a frozen surrogate, and steps of them: to settle, and then.
N_CHAINS, N_SETTLE, N_STEPS = 64, 8, 32
#: A tail is measured from the draw that is the outermost but so many, or but for one of so many.
FEWEST, ONE_OF = 3, 200
#: How many times as far as the outermost draw, at least and at most: at first, and then.
TIMES = (1.2, 1.4), (1.7, 2.5)
#: Sides on which V rises so fast, as a share of how it would for a normal, are followed no further.
SLOW = 0.6
#: Where the profile is met on its way out, as a share of the way; and how far beyond its end the surrogate is followed.
INSIDE = 0.5
FURTHER = np.array([0.0, 0.03, 0.07, 0.12, 0.2, 0.3, 0.45, 0.65, 0.9, 1.2, 1.6, 2.1, 2.8, 4.0, 6.0])
#: Descents across, of a few steps each, to the bottom of the profile.
N_DESCENTS = 3
#: A share of the variance hidden in a tail that calls for more, if it is more than chance does to that of the draws.
HIDDEN = 0.05
#: A surrogate that is too high by no more than this hides nothing; the least rise of V that is told from none; and
#: how far below its end a surrogate may be beyond, which is not a tail but a pocket.
CLOSE, LEAST_RISE, DEEPEST = 1.0, 0.2, -1.0
#: How much lower a place must promise to be to be tried too.
LEAST_GAIN = 0.1
#: Curvatures across are told from rounding down to this, in units of the draws.
LEAST_CURVATURE = 0.01


def matters(n_draws: int) -> float:
    """Return the share of a variance that must be hidden to matter to so many draws: they tell it to (2 / n)^(1/2).

    Examples
    --------
    >>> matters(4000), matters(200)
    (0.05, 0.1)
    """
    return max(HIDDEN, float(np.sqrt(2.0 / max(n_draws, 1))))


def outer_rank(n_draws: int) -> int:
    """Return which of the outermost draws a tail is measured from: not the very last one, which may be anywhere."""
    return max(FEWEST, n_draws // ONE_OF)


def n_tail_probes() -> int:
    """Return how many exact values one look along all tails costs at most."""
    return N_SIDES + N_AGAIN + N_LAST


@dataclass(frozen=True, eq=False)
class Profile:
    """The surrogate's profile on several sides, in white coordinates; one row for each side.

    Its end is at one of the outermost draws (see `outer_rank`).

    Attributes
    ----------
    parameter : ndarray of int, shape (sides,)
        Whose tail it is.
    direction : ndarray of shape (sides, dim)
        Unit vectors outwards, normal to the planes in which a parameter has one value.
    end : ndarray of shape (sides, dim)
        Where the profile is at an outermost draw.
    slope : ndarray of shape (sides, dim)
        How it goes on, across the direction, for each unit along it.
    reach, sd : ndarray of shape (sides,)
        The distance of its end from the median of the draws, and their standard deviation.
    furthest, excess : ndarray of shape (sides,)
        In units of `reach`: the distance of the outermost draw, and how far draws beyond the end are so in the mean.
    potential : ndarray of shape (sides,)
        What is predicted at the end.
    spread : ndarray of shape (sides,)
        What half the log-determinant of the Hessian across grows by, for each unit of the logarithm of the distance.
    rise : ndarray of shape (sides, len(FURTHER))
        How much V is predicted to rise beyond the end, at `FURTHER` times `reach`; infinite where nothing is.
    """

    parameter: np.ndarray
    direction: np.ndarray
    end: np.ndarray
    slope: np.ndarray
    reach: np.ndarray
    sd: np.ndarray
    furthest: np.ndarray
    excess: np.ndarray
    potential: np.ndarray
    spread: np.ndarray
    rise: np.ndarray

    @classmethod
    def follow(cls, surrogate: Fitted, own: Whitening, white: np.ndarray, usual: float) -> Profile:
        """Follow a surrogate along the sides on which its draws `white` have the longest tails.

        Sides where it has no finite numbers are left out. The `usual` discrepancy is added to what it says.
        """
        direction = own.factor / np.linalg.norm(own.factor, axis=1, keepdims=True)
        direction = np.concatenate([direction, -direction])
        along = white @ direction.T
        low, median, high = np.quantile(along, [0.25, 0.5, 0.75], axis=0)
        rank = outer_rank(len(white))
        last = np.argsort(-along, axis=0, kind="stable")[rank - 1]
        place = along[last, np.arange(len(last))]
        reach, furthest = place - median, along.max(axis=0) - median
        excess = np.maximum(along - place, 0.0).sum(axis=0) / rank
        sides = np.argsort(-reach / np.maximum(high - low, 1e-300), kind="stable")[:N_SIDES]
        direction, reach, sd = direction[sides], reach[sides], along.std(axis=0)[sides]
        furthest, excess = np.array([furthest, excess])[:, sides] / np.maximum(reach, 1e-300)
        back = (1.0 - INSIDE) * reach[:, None]
        with np.errstate(all="ignore"):
            end = _bottom(surrogate, own, white[last[sides]], direction)
            inside = _bottom(surrogate, own, end - back * direction, direction)
            slope = (end - inside) / back - direction
            spread = _spread(surrogate, own, end, inside, direction)
            potential = _continued(surrogate, own, end, direction, reach[:, None] * FURTHER, slope)
            rise = potential - potential[:, :1] + spread[:, None] * np.log1p(FURTHER)
        rise = np.where(np.isfinite(rise), rise, np.inf)
        parameter, said = sides % own.mean.size, potential[:, 0] + usual
        found = cls(parameter, direction, end, slope, reach, sd, furthest, excess, said, spread, rise)
        known = (reach > 0) & (sd > 0) & np.isfinite(potential[:, 0]) & np.isfinite(end + slope).all(axis=1)
        return found.rows(np.flatnonzero(known))

    def rows(self, chosen: np.ndarray) -> Profile:
        """Return some of the sides."""
        return Profile(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def beyond(self, way: np.ndarray) -> np.ndarray:
        """Return where the profile would be so far beyond its end, in units of `reach`."""
        return np.asarray(self.end + (way * self.reach)[:, None] * (self.direction + self.slope))

    def way(self, times: float) -> np.ndarray:
        """Return how far beyond the end, in units of `reach`, so many times as far out as the outermost draw is."""
        return np.minimum(times * self.furthest - 1.0, FURTHER[-2])

    def through(self, white: np.ndarray, way: np.ndarray) -> Profile:
        """Return the profile that goes on through positions so far beyond its end, where they are finite."""
        slope = (white - self.end) / (way * self.reach)[:, None] - self.direction
        return replace(self, slope=np.where(np.isfinite(slope), slope, self.slope))

    def hidden(self, potential: np.ndarray, way: np.ndarray) -> np.ndarray:
        """Return what the surrogate hides of the variance, per variance of the draws and share of them beyond the end.

        Parameters
        ----------
        potential : ndarray of shape (sides,)
            Exact ones.
        way : ndarray of shape (sides,)
            So far beyond the end, in units of `reach`.
        """
        x, h, row = FURTHER, way[:, None], np.arange(len(way))
        k = np.searchsorted(x, way)
        with np.errstate(all="ignore"):
            before, after = self.rise[row, k - 1], self.rise[row, k]
            said = before + (way - x[k - 1]) / (x[k] - x[k - 1]) * (after - before)
            found = potential - self.potential + self.spread * np.log1p(way)
            lower = np.where(said - found > CLOSE, said - found, 0.0)[:, None]
            found = np.maximum(found, LEAST_RISE)[:, None]
            own = np.maximum(self.rise, DEEPEST)
            exact = np.maximum(np.where(x < h, own - lower * x / h, -np.inf), found * (x / h))
            exact = np.where(lower > 0.0, np.minimum(exact, own), own)
            density = np.exp(-own)
            more = np.trapezoid((np.exp(-np.maximum(exact, DEEPEST)) - density) * (1.0 + x) ** 2, x)
            # Draws that are further out than the profile has it are of the surrogate too.
            length = np.maximum(np.trapezoid(density, x), self.excess)
            return np.asarray((self.reach / self.sd) ** 2 * more / length)


@dataclass(frozen=True)
class HiddenTail:
    """A tail that a surrogate cuts.

    Attributes
    ----------
    parameter : int
    share : float
        What it would add to the variance of the parameter, as a share of that of the draws.
    """

    parameter: int
    share: float

    def told(self, names: Sequence[str] | str) -> str:
        """Return it in words, given the names of the parameters.

        Examples
        --------
        >>> HiddenTail(1, 0.163).told("x")
        'a tail of x[1] that would add about 16% to its variance'
        """
        name = f"{names}[{self.parameter}]" if isinstance(names, str) else names[self.parameter]
        adds = f"add about {self.share:.0%} to" if self.share < 1.0 else "more than double"
        return f"a tail of {name} that would {adds} its variance"


def look_along_tails(
    explorer: Explorer, draws: np.ndarray, enough: float = HIDDEN
) -> tuple[np.ndarray, np.ndarray]:
    """Look for tails that the surrogate hides; return places a little beyond it, for walkers, and potentials there.

    Parameters
    ----------
    explorer : Explorer
    draws : ndarray of shape (n, dim)
        Of the surrogate.
    enough : float
        The share of a variance that must be hidden.
    """
    return _worth_a_walker(explorer, *_probe(explorer, draws)[:3], enough)


def hidden_in_tails(
    explorer: Explorer, kernel: SurrogateTransition
) -> tuple[HiddenTail | None, np.ndarray, np.ndarray]:
    """Return the tail that draws of a frozen kernel would see least of, None if enough of all, and as the above.

    Its chains on the surrogate cost no exact value, so that there can be about as many as there will be draws.
    """
    position = explorer.walkers.position[explorer.walkers.cold]
    start = position[np.arange(N_CHAINS) % len(position)]
    found = trace(replace(kernel, inner_steps=1), start, explorer.rng, N_SETTLE + N_STEPS)
    draws = found[N_SETTLE:].reshape(-1, start.shape[1])
    place, potential, hidden, parameter = _probe(explorer, draws[np.isfinite(draws).all(axis=1)])
    tail = None
    if hidden.max(initial=0.0) > HIDDEN:
        worst = int(hidden.argmax())
        tail = HiddenTail(int(parameter[worst]), float(hidden[worst]))
    return tail, *_worth_a_walker(explorer, place, potential, hidden, HIDDEN)


def _worth_a_walker(
    explorer: Explorer, place: np.ndarray, potential: np.ndarray, hidden: np.ndarray, enough: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places, and potentials, beyond which much is hidden, of those low enough to be learnt from."""
    heavy = (hidden > enough) & (potential < explorer.record.lowest + typical_height(place.shape[1]))
    return place[heavy], potential[heavy]


def _probe(explorer: Explorer, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return places a little beyond the draws, one for each side, potentials there, what is hidden, and of whom.

    Those further out are not learnt from: a surrogate that is given a place far from all others is wrong between them.
    """
    candidates, record, dim = explorer.candidates, explorer.record, explorer.frame.mean.size
    nowhere = np.empty((0, dim)), np.empty(0), np.empty(0), np.empty(0, dtype=int)
    if len(draws) <= 2 * dim:
        return nowhere
    own, surrogate = Whitening.from_positions(draws), candidates.surrogate
    usual = middle(record.discrepancies(candidates.playing))
    profile = Profile.follow(surrogate, own, own.to_white(draws), usual)
    if not len(profile.reach):
        return nowhere
    times, share = explorer.rng.uniform(*np.transpose(TIMES)), outer_rank(len(draws)) / len(draws)
    way = profile.way(times[0])
    first = record.evaluate(own.from_white(profile.beyond(way)))
    place, near = first.position, own.to_white(first.position)  # as on record, where it is
    hidden = profile.hidden(first.potential, way)
    lower, gain = _lower(surrogate, own, profile, near, first.gradient)
    with np.errstate(invalid="ignore"):
        rise = first.potential - gain - profile.potential + profile.spread * np.log1p(way)
    slowness = rise / (0.5 * ((1.0 + way) ** 2 - 1.0) * (profile.reach / profile.sd) ** 2)  # 1 for a normal
    chosen = np.argsort(slowness, kind="stable")[:N_AGAIN]
    chosen = chosen[slowness[chosen] < SLOW]
    if not len(chosen):
        return place, first.potential, hidden * share, profile.parameter
    further = profile.through(lower, way).rows(chosen)
    way = further.way(times[1])
    far = further.beyond(way)
    for _ in range(2):
        with record.evaluator.observed_by(None):
            second = record.evaluate(own.from_white(far))
        far = own.to_white(second.position)
        hidden[chosen] = np.maximum(hidden[chosen], further.hidden(second.potential, way))
        lower, gain = _lower(surrogate, own, further, far, second.gradient)
        promise = np.where(np.isfinite(lower).all(axis=1), further.hidden(second.potential - gain, way), 0.0)
        best = np.argsort(-promise, kind="stable")[:N_LAST]
        best = best[(promise[best] * share > HIDDEN) & (gain[best] > LEAST_GAIN)]
        if not len(best):
            break
        chosen, further, far, way = chosen[best], further.rows(best), lower[best], way[best]
    return place, first.potential, hidden * share, profile.parameter


def _bottom(surrogate: Fitted, own: Whitening, white: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return the lowest positions in the planes across directions; a tail must not look flat for lack of steps."""
    for _ in range(N_DESCENTS):
        white = descend_across(surrogate, own, white, direction)
    return white


def _continued(
    surrogate: Fitted,
    own: Whitening,
    end: np.ndarray,
    direction: np.ndarray,
    way: np.ndarray,
    slope: np.ndarray,
) -> np.ndarray:
    """Return the lowest potentials of the surrogate so far beyond the ends of profiles, ``(sides, k)``."""
    place = (end[:, None] + way[:, :, None] * (direction + slope)[:, None]).reshape(-1, end.shape[1])
    lower = descend_across(surrogate, own, place, np.repeat(direction, way.shape[1], axis=0))
    before, after = (surrogate.potential(own.from_white(each)) for each in (place, lower))
    return np.asarray(np.fmin(before, after).reshape(way.shape))


def _spread(
    surrogate: Fitted, own: Whitening, end: np.ndarray, inside: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return what half the log-determinant across grows by, for each unit of the logarithm of the distance.

    From the two halves of the way from inside to the end: the smaller of both, and 0 if they disagree on the sign. A
    tail that gets wider or narrower in proportion to its distance is the most that is believed.
    """
    places = np.concatenate([inside, 0.5 * (inside + end), end])
    values = np.linalg.eigvalsh(across_hessian(surrogate, own, places, np.tile(direction, (3, 1))))
    # The direction itself has the eigenvalue 0, and counts as much at each of its places.
    found = 0.5 * np.log(np.maximum(values, LEAST_CURVATURE)).sum(axis=1).reshape(3, -1)
    first, second = np.diff(found, axis=0) / np.diff(np.log([INSIDE, 0.5 * (1.0 + INSIDE), 1.0]))[:, None]
    smaller = np.where(np.abs(first) < np.abs(second), first, second)
    most = own.mean.size - 1.0
    return np.where(first * second > 0.0, np.clip(smaller, -most, most), 0.0)


def _lower(
    surrogate: Fitted, own: Whitening, profile: Profile, white: np.ndarray, gradient: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return places as far out that may be lower, and by how much: by exact gradients, or as the surrogate has it."""
    with np.errstate(all="ignore"):
        if gradient is None:
            place = descend_across(surrogate, own, white, profile.direction)
            before, after = (surrogate.potential(own.from_white(each)) for each in (white, place))
            return place, np.nan_to_num(np.maximum(before - after, 0.0))
        slope = own.gradient_to_white(gradient)
        slope = slope - (slope * profile.direction).sum(axis=1, keepdims=True) * profile.direction
        values, vectors = np.linalg.eigh(across_hessian(surrogate, own, profile.end, profile.direction))
        bend = np.maximum(np.abs(values), LEAST_CURVATURE)
        parts = np.matmul(slope[:, None], vectors)[:, 0]
        step = parts / bend
        step = step / np.maximum(1.0, np.linalg.norm(step, axis=1) / profile.reach)[:, None]
        gain = np.nan_to_num((step * (parts - 0.5 * bend * step)).sum(axis=1))
        return white - np.matmul(vectors, step[:, :, None])[:, :, 0], gain


#: Differences of curvature that do not count.
ALIKE = 0.1


#: Length of steps back, as a share of the step ahead: short enough not to come round the bend.
BACK = 0.25


#: Share of the bend that is continued: parabolas get straighter outwards, circles do not.
DAMPED = 0.5


#: A continuation so many times as far from the straight line as the step is long has gone astray.
ASTRAY = 2.0


def along_ridge(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, length: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bottom of the valley at positions, and where it would go on from there, away from the middle.

    Parameters
    ----------
    surrogate : Fitted
    frame : Whitening
        Whose coordinates all positions are in.
    white : ndarray of shape (n, dim)
    length : ndarray of shape (n, 1)
        How far to go on.

    Returns
    -------
    tuple of ndarray
        Each of shape ``(n, dim)``; not finite where the surrogate is not.
    """
    with np.errstate(all="ignore"):
        bottom = descend_across(surrogate, frame, white, softest(surrogate, frame, white))
        direction = softest(surrogate, frame, bottom)
        back = BACK * length
        # How far the valley is from the straight line, one and two steps back: a s + b s^2.
        once = descend_across(surrogate, frame, bottom - back * direction, direction)
        once = once - bottom + back * direction
        twice = descend_across(surrogate, frame, bottom - 2.0 * back * direction, direction)
        twice = twice - bottom + 2.0 * back * direction
        a, b = (twice - 4.0 * once) / (2.0 * back), (twice - 2.0 * once) / (2.0 * back**2)
        bend = DAMPED * (length * a + length**2 * b)
        straight = ~(np.linalg.norm(bend, axis=1, keepdims=True) < ASTRAY * length)
        return bottom, bottom + length * direction + np.where(straight, 0.0, bend)


def softest(surrogate: Fitted, frame: Whitening, white: np.ndarray) -> np.ndarray:
    """Return unit vectors of the frame along which the surrogate bends least, away from the middle.

    Where it bends alike in all directions it is rounding that would tell: there it is straight away from the middle.
    """
    outwards = white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-300)
    bent = _hessian(surrogate, frame, white) - ALIKE * outwards[:, :, None] * outwards[:, None, :]
    direction = np.linalg.eigh(bent)[1][:, :, 0]
    inwards = (direction * white).sum(axis=1) < 0
    return np.where(inwards[:, None], -direction, direction)


def _hessian(surrogate: Fitted, frame: Whitening, white: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        hessian = frame.factor.T @ surrogate.hessian(frame.from_white(white)) @ frame.factor
    return np.where(np.isfinite(hessian).all(axis=(1, 2))[:, None, None], hessian, 0.0)


def across_hessian(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return Hessians of the surrogate in the planes across a direction, ``(n, dim, dim)``; 0 along it."""
    across = np.eye(white.shape[1]) - direction[:, :, None] * direction[:, None, :]
    return np.asarray(across @ _hessian(surrogate, frame, white) @ across)


def descend_across(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return the lowest positions in the planes across a direction, by a few Newton steps of moderate length."""
    across = np.eye(white.shape[1]) - direction[:, :, None] * direction[:, None, :]
    for _ in range(N_NEWTON):
        gradient = frame.gradient_to_white(surrogate.potential_and_gradient(frame.from_white(white))[1])
        values, vectors = np.linalg.eigh(across_hessian(surrogate, frame, white, direction))
        slope = ((across @ gradient[:, :, None]).transpose(0, 2, 1) @ vectors)[:, 0]
        step = (vectors @ (slope / np.maximum(np.abs(values), LEAST_BEND))[:, :, None])[:, :, 0]
        size = np.linalg.norm(step, axis=1, keepdims=True)
        white = white - step * np.minimum(1.0, LONGEST / np.maximum(size, 1e-300))
    return white
