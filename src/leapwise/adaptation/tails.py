r"""A surrogate may cut a long tail of one parameter; estimate how much variance that hides.

**Where to look.** Along a tail of one parameter the others change too. A straight step outwards would leave the region
of mass, and say nothing. So the *profile* of the surrogate is followed: its lowest potential for each fixed value of
this parameter. That is done on both sides of each parameter, or on those with the longest tails. The profile *ends* at
one of the outermost draws. It is continued a little beyond its end, and one exact evaluation is made there. With an
exact gradient, one Newton step across the profile leads down to about the exact profile; without one the surrogate says
what is lowest. On the sides where the potential rises most slowly the profile is continued through that position, to
about twice as far as the outermost draw, and evaluated again.

**What is missing.** Let x be the distance beyond the end of the profile, in units of its *reach* r, the distance of the
end from the median of the draws. Compare the marginal density of the parameter at x with that of the surrogate:

1. Along the profile a marginal density is about :math:`e^{-V}` with :math:`V = U + \tfrac12 \log\det H`. Here H is the
   Hessian across the profile. Its determinant is taken to change like a power of the distance from the median.
   :math:`\tilde V(x)` is that of the surrogate. Both are measured from the surrogate's value at the end.
2. k of the n draws of the surrogate are beyond the end. So the density of the surrogate there is
   :math:`m e^{-\tilde V(x)}`, with the scale :math:`m = k / (n \int_0^\infty e^{-\tilde V(x)} dx)`.
3. The exact V is known at one distance, x = h. If it is lower than predicted, by :math:`\Delta = \tilde V(h) - V(h)`,
   then up to h it is taken to be the higher of :math:`\tilde V(x) - \Delta x / h` and :math:`V(h) x / h`, beyond h
   :math:`V(h) x / h`, and nowhere higher than :math:`\tilde V`. If it is not clearly lower (`TailSettings.close`),
   nothing is missing.
4. With :math:`\sigma^2` the variance of the draws, the surrogate hides the share

   .. math:: m\, (r / \sigma)^2 \int_0^\infty (1 + x)^2 \left(e^{-V(x)} - e^{-\tilde V(x)}\right) dx

   of it: what the missing density would add to the variance, since its distance from the median is :math:`(1 + x) r`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from leapwise.adaptation.explore import Explorer
from leapwise.adaptation.settings import DEFAULT, AdaptationSettings, CoverageSettings, TailSettings
from leapwise.adaptation.surrogate_chains import trace
from leapwise.kernels import SurrogateTransition
from leapwise.surrogates import Fitted, Whitening
from leapwise.surrogates.base import hessians
from leapwise.surrogates.quality import median_discrepancy


def relevant_share(n_draws: int, settings: TailSettings = DEFAULT.tails) -> float:
    """Return the share of a variance that must be hidden to matter: the draws themselves know it to (2 / n)^(1/2).

    Examples
    --------
    >>> relevant_share(4000), relevant_share(200)
    (0.05, 0.1)
    """
    return max(settings.hidden, float(np.sqrt(2.0 / max(n_draws, 1))))


def outer_rank(n_draws: int, settings: TailSettings = DEFAULT.tails) -> int:
    """Return which of the outermost draws a tail is measured from: not the very last one, which may be anywhere."""
    return max(settings.fewest, n_draws // settings.one_of)


def n_tail_probes(settings: TailSettings = DEFAULT.tails) -> int:
    """Return how many exact values one look along all tails costs at most."""
    return settings.n_sides + settings.n_again + settings.n_last


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

    def described(self, names: Sequence[str] | str) -> str:
        """Return it in words, given the names of the parameters.

        Examples
        --------
        >>> HiddenTail(1, 0.163).described("x")
        'a tail of x[1] that would add about 16% to its variance'
        """
        name = f"{names}[{self.parameter}]" if isinstance(names, str) else names[self.parameter]
        adds = f"add about {self.share:.0%} to" if self.share < 1.0 else "more than double"
        return f"a tail of {name} that would {adds} its variance"


@dataclass(frozen=True, eq=False)
class TailProfile:
    """The surrogate's profile on several sides, in coordinates of a frame of the draws; one row for each side.

    It ends at one of the outermost draws (see `outer_rank`).

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
        In units of `reach`: the distance of the outermost draw, and the mean distance of draws beyond the end from it.
    potential : ndarray of shape (sides,)
        Predicted at the end.
    spread : ndarray of shape (sides,)
        What half the log-determinant of the Hessian across grows by, for each unit of the logarithm of the distance.
    rise : ndarray of shape (sides, len(grid))
        The predicted rise of V beyond the end, at the grid times `reach`; infinite where it is not finite.
    settings : AdaptationSettings
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
    settings: AdaptationSettings = DEFAULT

    @classmethod
    def follow(
        cls,
        surrogate: Fitted,
        own: Whitening,
        white: np.ndarray,
        usual: float,
        settings: AdaptationSettings = DEFAULT,
    ) -> TailProfile:
        """Follow a surrogate along the sides on which its draws `white` have the longest tails.

        Sides where it is not finite are left out. The `usual` discrepancy is added to predictions.
        """
        tails = settings.tails
        grid = np.array(tails.grid)
        direction = own.factor / np.linalg.norm(own.factor, axis=1, keepdims=True)
        direction = np.concatenate([direction, -direction])
        along = white @ direction.T
        low, median, high = np.quantile(along, [0.25, 0.5, 0.75], axis=0)
        rank = outer_rank(len(white), tails)
        last = np.argsort(-along, axis=0, kind="stable")[rank - 1]
        place = along[last, np.arange(len(last))]
        reach, furthest = place - median, along.max(axis=0) - median
        excess = np.maximum(along - place, 0.0).sum(axis=0) / rank
        sides = np.argsort(-reach / np.maximum(high - low, 1e-300), kind="stable")[: tails.n_sides]
        direction, reach, sd = direction[sides], reach[sides], along.std(axis=0)[sides]
        furthest, excess = np.array([furthest, excess])[:, sides] / np.maximum(reach, 1e-300)
        back = (1.0 - tails.inside) * reach[:, None]
        with np.errstate(all="ignore"):
            end = _bottom(surrogate, own, white[last[sides]], direction, settings)
            inside = _bottom(surrogate, own, end - back * direction, direction, settings)
            slope = (end - inside) / back - direction
            spread = _spread_across(surrogate, own, end, inside, direction, tails)
            way = reach[:, None] * grid
            potential = _continued(surrogate, own, end, direction, way, slope, settings.coverage)
            rise = potential - potential[:, :1] + spread[:, None] * np.log1p(grid)
        rise = np.where(np.isfinite(rise), rise, np.inf)
        parameter, said = sides % own.mean.size, potential[:, 0] + usual
        found = cls(
            parameter, direction, end, slope, reach, sd, furthest, excess, said, spread, rise, settings
        )
        known = (reach > 0) & (sd > 0) & np.isfinite(potential[:, 0]) & np.isfinite(end + slope).all(axis=1)
        return found.rows(np.flatnonzero(known))

    def rows(self, chosen: np.ndarray) -> TailProfile:
        """Return some of the sides."""
        arrays = {each.name: getattr(self, each.name)[chosen] for each in fields(self)[:-1]}
        return replace(self, **arrays)

    def beyond(self, way: np.ndarray) -> np.ndarray:
        """Return where the profile would be so far beyond its end, in units of `reach`."""
        return np.asarray(self.end + (way * self.reach)[:, None] * (self.direction + self.slope))

    def way(self, times: float) -> np.ndarray:
        """Return how far beyond the end, in units of `reach`, so many times as far out as the outermost draw is."""
        return np.minimum(times * self.furthest - 1.0, self.settings.tails.grid[-2])

    def through(self, white: np.ndarray, way: np.ndarray) -> TailProfile:
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
        tails = self.settings.tails
        x, h, row = np.array(tails.grid), way[:, None], np.arange(len(way))
        k = np.searchsorted(x, way)
        with np.errstate(all="ignore"):
            before, after = self.rise[row, k - 1], self.rise[row, k]
            said = before + (way - x[k - 1]) / (x[k] - x[k - 1]) * (after - before)
            found = potential - self.potential + self.spread * np.log1p(way)
            lower = np.where(said - found > tails.close, said - found, 0.0)[:, None]
            found = np.maximum(found, tails.least_rise)[:, None]
            own = np.maximum(self.rise, tails.deepest)
            exact = np.maximum(np.where(x < h, own - lower * x / h, -np.inf), found * (x / h))
            exact = np.where(lower > 0.0, np.minimum(exact, own), own)
            density = np.exp(-own)
            more = np.trapezoid((np.exp(-np.maximum(exact, tails.deepest)) - density) * (1.0 + x) ** 2, x)
            # Draws that are further out than the profile has it are of the surrogate too.
            length = np.maximum(np.trapezoid(density, x), self.excess)
            return np.asarray((self.reach / self.sd) ** 2 * more / length)


def look_along_tails(
    explorer: Explorer, draws: np.ndarray, enough: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Look for tails that the surrogate hides; return positions a little beyond it, for chains, and their potentials.

    Parameters
    ----------
    explorer : Explorer
    draws : ndarray of shape (n, dim)
        Of the surrogate.
    enough : float, optional
        The share of a variance that must be hidden.
    """
    enough = explorer.settings.tails.hidden if enough is None else enough
    return _worth_a_chain(explorer, *_probe(explorer, draws)[:3], enough)


def hidden_in_tails(
    explorer: Explorer, kernel: SurrogateTransition
) -> tuple[HiddenTail | None, np.ndarray, np.ndarray]:
    """Return the tail that draws of the final kernel would see least of, None if enough of all; and as the above.

    Chains on the surrogate cost no exact value, so there can be about as many draws as there will be.
    """
    tails = explorer.settings.tails
    position = explorer.chains.position[explorer.chains.cold]
    start = position[np.arange(tails.n_chains) % len(position)]
    found = trace(replace(kernel, inner_steps=1), start, explorer.rng, tails.n_discarded + tails.n_steps)
    draws = found[tails.n_discarded :].reshape(-1, start.shape[1])
    place, potential, hidden, parameter = _probe(explorer, draws[np.isfinite(draws).all(axis=1)])
    tail = None
    if hidden.max(initial=0.0) > tails.hidden:
        worst = int(hidden.argmax())
        tail = HiddenTail(int(parameter[worst]), float(hidden[worst]))
    return tail, *_worth_a_chain(explorer, place, potential, hidden, tails.hidden)


def _worth_a_chain(
    explorer: Explorer, place: np.ndarray, potential: np.ndarray, hidden: np.ndarray, enough: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions, and potentials, beyond which much is hidden, of those low enough to be trained on."""
    low = potential < explorer.record.lowest + explorer.settings.heights.training(place.shape[1])
    heavy = (hidden > enough) & low
    return place[heavy], potential[heavy]


def _probe(explorer: Explorer, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return positions a little beyond the draws, one for each side, potentials there, hidden shares, and parameters.

    Those further out are not trained on: a surrogate with one position far from all others is wrong between them.
    """
    candidates, record, dim = explorer.candidates, explorer.record, explorer.frame.mean.size
    settings, tails = explorer.settings, explorer.settings.tails
    nothing = np.empty((0, dim)), np.empty(0), np.empty(0), np.empty(0, dtype=int)
    if len(draws) <= 2 * dim:
        return nothing
    own, surrogate = Whitening.from_positions(draws), candidates.surrogate
    usual = median_discrepancy(record.discrepancies(candidates.chosen))
    profile = TailProfile.follow(surrogate, own, own.to_white(draws), usual, settings)
    if not len(profile.reach):
        return nothing
    times = explorer.rng.uniform(*np.transpose(tails.times))
    share = outer_rank(len(draws), tails) / len(draws)
    way = profile.way(times[0])
    first = record.evaluate(own.from_white(profile.beyond(way)))
    place, near = first.position, own.to_white(first.position)  # as recorded, where it is
    hidden = profile.hidden(first.potential, way)
    lower, gain = _lower(surrogate, own, profile, near, first.gradient)
    with np.errstate(invalid="ignore"):
        rise = first.potential - gain - profile.potential + profile.spread * np.log1p(way)
    slowness = rise / (0.5 * ((1.0 + way) ** 2 - 1.0) * (profile.reach / profile.sd) ** 2)  # 1 for a normal
    chosen = np.argsort(slowness, kind="stable")[: tails.n_again]
    chosen = chosen[slowness[chosen] < tails.slow]
    if len(chosen):
        further = profile.through(lower, way).rows(chosen)
        _probe_further(explorer, own, further, further.way(times[1]), chosen, hidden, share)
    return place, first.potential, hidden * share, profile.parameter


def _probe_further(
    explorer: Explorer,
    own: Whitening,
    further: TailProfile,
    way: np.ndarray,
    chosen: np.ndarray,
    hidden: np.ndarray,
    share: float,
) -> None:
    """Evaluate profiles so far out, and once more where a lower position is promised; raise `hidden` of the sides."""
    record, surrogate = explorer.record, explorer.candidates.surrogate
    tails, far = explorer.settings.tails, further.beyond(way)
    for _ in range(2):
        with record.evaluator.observed_by(None):
            second = record.evaluate(own.from_white(far))
        far = own.to_white(second.position)
        hidden[chosen] = np.maximum(hidden[chosen], further.hidden(second.potential, way))
        lower, gain = _lower(surrogate, own, further, far, second.gradient)
        promise = np.where(np.isfinite(lower).all(axis=1), further.hidden(second.potential - gain, way), 0.0)
        best = np.argsort(-promise, kind="stable")[: tails.n_last]
        best = best[(promise[best] * share > tails.hidden) & (gain[best] > tails.least_gain)]
        if not len(best):
            break
        chosen, further, far, way = chosen[best], further.rows(best), lower[best], way[best]


def _bottom(
    surrogate: Fitted,
    own: Whitening,
    white: np.ndarray,
    direction: np.ndarray,
    settings: AdaptationSettings,
) -> np.ndarray:
    """Return the lowest positions in the planes across directions; too few steps would make a tail look flat."""
    for _ in range(settings.tails.n_descents):
        white = descend_across(surrogate, own, white, direction, settings.coverage)
    return white


def _continued(
    surrogate: Fitted,
    own: Whitening,
    end: np.ndarray,
    direction: np.ndarray,
    way: np.ndarray,
    slope: np.ndarray,
    settings: CoverageSettings,
) -> np.ndarray:
    """Return the lowest potentials of the surrogate so far beyond the ends of profiles, ``(sides, k)``."""
    place = (end[:, None] + way[:, :, None] * (direction + slope)[:, None]).reshape(-1, end.shape[1])
    lower = descend_across(surrogate, own, place, np.repeat(direction, way.shape[1], axis=0), settings)
    before, after = (surrogate.potential(own.from_white(each)) for each in (place, lower))
    return np.asarray(np.fmin(before, after).reshape(way.shape))


def _spread_across(
    surrogate: Fitted,
    own: Whitening,
    end: np.ndarray,
    inside: np.ndarray,
    direction: np.ndarray,
    settings: TailSettings,
) -> np.ndarray:
    """Return what half the log-determinant across grows by, for each unit of the logarithm of the distance.

    It is measured on the two halves of the way from inside to the end: the smaller of both counts, and 0 if they
    disagree on the sign. A tail that widens or narrows in proportion to its distance is the most that is believed.
    """
    places = np.concatenate([inside, 0.5 * (inside + end), end])
    values = np.linalg.eigvalsh(across_hessian(surrogate, own, places, np.tile(direction, (3, 1))))
    # The direction itself has the eigenvalue 0, and counts alike at each position.
    found = 0.5 * np.log(np.maximum(values, settings.least_curvature)).sum(axis=1).reshape(3, -1)
    distance = np.log([settings.inside, 0.5 * (1.0 + settings.inside), 1.0])
    first, second = np.diff(found, axis=0) / np.diff(distance)[:, None]
    smaller = np.where(np.abs(first) < np.abs(second), first, second)
    most = own.mean.size - 1.0
    return np.where(first * second > 0.0, np.clip(smaller, -most, most), 0.0)


def _lower(
    surrogate: Fitted,
    own: Whitening,
    profile: TailProfile,
    white: np.ndarray,
    gradient: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions as far out that may be lower, and by how much: by exact gradients, or by the surrogate."""
    with np.errstate(all="ignore"):
        if gradient is None:
            place = descend_across(surrogate, own, white, profile.direction, profile.settings.coverage)
            before, after = (surrogate.potential(own.from_white(each)) for each in (white, place))
            return place, np.nan_to_num(np.maximum(before - after, 0.0))
        slope = own.gradient_to_white(gradient)
        slope = slope - (slope * profile.direction).sum(axis=1, keepdims=True) * profile.direction
        values, vectors = np.linalg.eigh(across_hessian(surrogate, own, profile.end, profile.direction))
        bend = np.maximum(np.abs(values), profile.settings.tails.least_curvature)
        parts = np.matmul(slope[:, None], vectors)[:, 0]
        step = parts / bend
        step = step / np.maximum(1.0, np.linalg.norm(step, axis=1) / profile.reach)[:, None]
        gain = np.nan_to_num((step * (parts - 0.5 * bend * step)).sum(axis=1))
        return white - np.matmul(vectors, step[:, :, None])[:, :, 0], gain


def white_hessian(surrogate: Fitted, frame: Whitening, white: np.ndarray) -> np.ndarray:
    """Return Hessians of the surrogate in the frame, ``(n, dim, dim)``; 0 where they are not finite."""
    with np.errstate(all="ignore"):
        found = hessians(surrogate, frame.from_white(white), frame.factor)
        hessian = frame.factor.T @ found @ frame.factor
    return np.where(np.isfinite(hessian).all(axis=(1, 2))[:, None, None], hessian, 0.0)


def across_hessian(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return Hessians of the surrogate in the planes across a direction, ``(n, dim, dim)``; 0 along it."""
    across = np.eye(white.shape[1]) - direction[:, :, None] * direction[:, None, :]
    return np.asarray(across @ white_hessian(surrogate, frame, white) @ across)


def descend_across(
    surrogate: Fitted,
    frame: Whitening,
    white: np.ndarray,
    direction: np.ndarray,
    settings: CoverageSettings = DEFAULT.coverage,
) -> np.ndarray:
    """Return the lowest positions in the planes across a direction, by a few Newton steps of moderate length."""
    across = np.eye(white.shape[1]) - direction[:, :, None] * direction[:, None, :]
    for _ in range(settings.n_newton):
        gradient = frame.gradient_to_white(surrogate.potential_and_gradient(frame.from_white(white))[1])
        values, vectors = np.linalg.eigh(across_hessian(surrogate, frame, white, direction))
        slope = ((across @ gradient[:, :, None]).transpose(0, 2, 1) @ vectors)[:, 0]
        step = (vectors @ (slope / np.maximum(np.abs(values), settings.least_bend))[:, :, None])[:, :, 0]
        size = np.linalg.norm(step, axis=1, keepdims=True)
        white = white - step * np.minimum(1.0, settings.longest / np.maximum(size, 1e-300))
    return white
