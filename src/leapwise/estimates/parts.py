"""From exact draws and their surrogate to the parts that sharpened estimates are made of, or the reason why not.

The surrogate of the draws was trained before them, so all chains make one part. With *cross-fitting* there are two: a
surrogate that also learns from the draws of one half of the chains serves the other half, which it has not seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from leapwise.adaptation.selection import is_numerical
from leapwise.estimates.figure import means
from leapwise.estimates.series import Columns, Part, corrected, monte_carlo_errors
from leapwise.estimates.surrogate_draws import (
    LEAST_EFFECTIVE,
    SurrogateDraws,
    draw_from_surrogate,
    variance_of_sets,
)
from leapwise.estimates.unseen import mass_beyond, unusual
from leapwise.surrogates import Fitted, QuadraticNetwork, TrainingSet
from leapwise.surrogates.compiled import compile_surrogate
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.quadratic import FittedQuadratic

#: Largest Pareto k of the weights at the draws: with a larger one their variance is infinite, and errors say nothing.
MAX_PARETO_K = 0.5
#: Weights that vary less than this need no check of their tail. A guess: their mean is then known well even if the tail
#: is heavy, and errors have terms of their own for what no draw shows. Larger by this is clearly larger.
_ALIKE = 0.1
#: Estimates are plain if the weight is larger at more proposals than at all draws: than the first number, plus the
#: second for each unit of the largest weight. About one is expected for each unit: the last 1 / n of the posterior's
#: mass, times the weight there. The rest is a margin; a false refusal only costs precision.
_BEYOND, _BEYOND_PER_WEIGHT = 4, 3
#: There are enough points of the surrogate when their part of the variance is below this share of the rest, or so
#: small beside the variance of the plain estimate. Guesses: more points would hardly change the error.
_SHARE, _SHARE_OF_PLAIN = 0.1, 0.01
#: Cross-fitting is tried if the median gain is below this: otherwise figures are precise enough. A guess.
_GAIN_ENOUGH = 100.0
#: A surrogate is trained again on at most so many further evaluations; a quadratic, which is cheaper, on as many as
#: keep rows times squared features below a limit, and not if it has very many features. Guesses, for about a second.
_MAX_MORE, _MAX_WORK, _MAX_FEATURES = 4000, 1e10, 2500
#: Hidden units of a quadratic that is trained again with the draws. A guess, as in `leapwise.adaptation.settings`.
_N_HIDDEN = 100


@dataclass(frozen=True, eq=False)
class ExactDraws:
    """Draws of the posterior, and what is known of them.

    Parameters
    ----------
    position : ndarray of shape (chains, draws, dim)
        Unconstrained.
    potential : ndarray of shape (chains, draws)
        Exact.
    to_parameters : callable
        From positions ``(n, dim)`` to parameters.
    outputs : ndarray of shape (chains, draws, m), optional
        Of a forward model.
    proposed : ndarray, optional
        D of the surrogate that made the draws, at its proposals, also at those that were rejected.
    """

    position: np.ndarray
    potential: np.ndarray
    to_parameters: Callable[[np.ndarray], np.ndarray]
    outputs: np.ndarray | None = None
    proposed: np.ndarray | None = None

    def discrepancy(self, surrogate: Fitted, chains: np.ndarray) -> np.ndarray:
        """Return D of a surrogate at the draws of some chains."""
        position = self.position[chains]
        with np.errstate(all="ignore"):
            predicted = compile_surrogate(surrogate).potential(position.reshape(-1, position.shape[2]))
        return np.asarray(self.potential[chains] - predicted.reshape(position.shape[:2]))

    def parameters(self, position: np.ndarray) -> np.ndarray:
        """Return the parameters of positions ``(a, b, dim)``."""
        return self.to_parameters(position.reshape(-1, position.shape[2])).reshape(position.shape)

    def training(self, chains: np.ndarray) -> TrainingSet:
        """Return the different draws of some chains as evaluations to train on."""
        position = self.position[chains].reshape(-1, self.position.shape[2])
        first = np.sort(np.unique(position, axis=0, return_index=True)[1])
        outputs = None if self.outputs is None else self.outputs[chains].reshape(len(position), -1)[first]
        return TrainingSet(position[first], self.potential[chains].ravel()[first], outputs=outputs)


@dataclass(frozen=True, eq=False)
class Sharpening:
    """What sharpened estimates are made of.

    Attributes
    ----------
    parts : list of Part
        Empty if estimates are plain.
    reason : str
        Why they are plain.
    cross_fitted : bool
    seconds : float
        Time to find the parts.
    """

    parts: list[Part] = field(default_factory=list)
    reason: str = ""
    cross_fitted: bool = False
    seconds: float = 0.0


def find_parts(
    kernel: object,
    surrogate: Fitted,
    exact: ExactDraws,
    seed: int,
    training: TrainingSet | None = None,
    points: SurrogateDraws | None = None,
    least_variance: float = 0.0,
) -> Sharpening:
    """Return the parts of sharpened estimates, or why they are plain.

    Parameters
    ----------
    kernel : object
        That of the draws.
    surrogate : Fitted
        The frozen surrogate that it used.
    exact : ExactDraws
    seed : int
        Of the points of the surrogate.
    training : TrainingSet, optional
        What the surrogate was trained on; without it there is no cross-fitting.
    points : SurrogateDraws, optional
        Points of this surrogate, if they have been made already.
    least_variance : float
        Points are enough in any case if their part of the variance is below this, in squared standard deviations.
    """
    started, n_chains = time.perf_counter(), len(exact.position)
    every = np.arange(n_chains)

    def done(reason: str = "", parts: list[Part] | None = None, cross_fitted: bool = False) -> Sharpening:
        return Sharpening(parts or [], reason, cross_fitted, time.perf_counter() - started)

    discrepancy = exact.discrepancy(surrogate, every)
    if not np.isfinite(discrepancy).all():
        return done("the surrogate is not finite at some draws")
    unseen, reason = _unseen(discrepancy, exact.proposed)
    if reason:
        return done(reason)
    if points is None:
        position = exact.position.reshape(-1, exact.position.shape[2])
        are_enough = _enough(exact, discrepancy, least_variance)
        points = draw_from_surrogate(surrogate, kernel, position, seed, are_enough)
    if points is None:
        return done("no mixture of normals covers the surrogate's posterior well enough")
    part = Part(every, discrepancy, exact.potential - discrepancy, points, surrogate, unseen)
    part, reason = _mass_elsewhere(exact, part)
    reason = _heavy_tail(discrepancy) or reason
    parts, gain = ([], np.ones(1)) if reason else ([part], _gain(exact, [part]))
    if training is not None and n_chains > 1 and not np.median(gain) > _GAIN_ENOUGH:
        halves = _halves(part, exact, training, seed)
        if halves and np.log(_gain(exact, halves)).mean() > np.log(gain).mean():
            return done(parts=halves, cross_fitted=True)
    return done(reason, parts)


def _halves(part: Part, exact: ExactDraws, training: TrainingSet, seed: int) -> list[Part]:
    """Return two parts, half of the chains each, whose surrogates also learned from the other half."""
    assert part.surrogate is not None
    n_chains = len(part.chains)
    found, halves = [], (part.chains[: n_chains // 2], part.chains[n_chains // 2 :])
    for own, other in (halves, halves[::-1]):
        rng = np.random.default_rng([seed, 1 + int(own[0])])
        again = retrained(part.surrogate, training, exact.training(other), rng)
        if again is None:
            return []
        discrepancy = exact.discrepancy(again, own)
        if not np.isfinite(discrepancy).all():
            return []
        predicted, points = exact.potential[own] - discrepancy, part.points.reweighted(again)
        half, reason = _mass_elsewhere(exact, Part(own, discrepancy, predicted, points, again, part.unseen))
        if reason or _heavy_tail(discrepancy) or points.effective_share < LEAST_EFFECTIVE:
            return []
        found.append(half)
    return found


def _unseen(discrepancy: np.ndarray, proposed: np.ndarray | None) -> tuple[float, str]:
    """Return the share of proposals with a weight that no draw has, and why there are too many of them, if so.

    Where the surrogate has mass that the posterior has not, proposals are rejected and no draw shows the weight.
    """
    seen = np.empty(0) if proposed is None else proposed[~np.isnan(proposed)]
    if not seen.size:
        return 0.0, ""
    beyond = int(np.count_nonzero(seen > discrepancy.max() + _ALIKE))
    largest = float(1.0 / np.mean(np.exp(discrepancy - discrepancy.max())))
    reason = f"the surrogate has mass where the posterior has little: {beyond} of {seen.size} proposals"
    return beyond / seen.size, reason if beyond > _BEYOND + _BEYOND_PER_WEIGHT * largest else ""


def _heavy_tail(discrepancy: np.ndarray) -> str:
    """Return why weights have too heavy a tail for their mean to be known, if they have."""
    from arviz_stats.base import array_stats  # takes a second to import, and only results need it

    weights = np.exp(discrepancy - discrepancy.max())
    if weights.std() <= _ALIKE * weights.mean():
        return ""
    k = float(array_stats.pareto_khat(weights, chain_axis=0, draw_axis=1, r_eff=1.0, tail="right"))
    return (
        ""
        if k < MAX_PARETO_K
        else f"the weights of the draws have a heavy tail (Pareto k {k:.2f}, above {MAX_PARETO_K})"
    )


def _mass_elsewhere(exact: ExactDraws, part: Part) -> tuple[Part, str]:
    """Return the part with the mass of its surrogate that no draw shows, and why that is too much, if it is."""
    draws = exact.parameters(exact.position)
    share = mass_beyond(part, draws, exact.parameters(part.points.position))
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.nanmin(draws.var(axis=(0, 1)) / np.square(monte_carlo_errors(draws)))
    n = draws.shape[0] * draws.shape[1]
    more, is_wrong = unusual(share, min(float(effective), n) if effective > 0.0 else 1.0, draws.shape[2])
    reason = f"the surrogate has {100 * share:.3g}% of its mass beyond all draws" if is_wrong else ""
    return replace(part, unseen=max(part.unseen, more)), reason


def _enough(
    exact: ExactDraws, discrepancy: np.ndarray, least_variance: float
) -> Callable[[SurrogateDraws], bool]:
    """Return whether points of the surrogate add little to the variances of means and squares."""
    values = exact.parameters(exact.position)
    middle, squared_sd = values.mean(axis=(0, 1)), values.var(axis=(0, 1))
    squares = np.square(values - middle)
    limits = least_variance * squared_sd, least_variance * squares.var(axis=(0, 1))
    plain = [np.square(monte_carlo_errors(each)) for each in (values, squares)]

    def are_enough(points: SurrogateDraws) -> bool:
        here = exact.parameters(points.position)
        part = Part(np.arange(len(values)), discrepancy, exact.potential - discrepancy, points)
        for draws, others, usual, limit in zip(
            (values, squares), (here, np.square(here - middle)), plain, limits, strict=True
        ):
            series, variance, _ = corrected(Columns(draws, [others]), [part])
            own = np.square(monte_carlo_errors(series, cautious=True))
            few = np.maximum(np.maximum(_SHARE * own, _SHARE_OF_PLAIN * usual), limit)
            if not (variance <= few).all():
                return False
        return True

    return are_enough


def _gain(exact: ExactDraws, parts: list[Part]) -> np.ndarray:
    """Return by how much the variances of the means of parameters are divided."""
    draws = exact.parameters(exact.position)
    found = means(Columns(draws, [exact.parameters(part.points.position) for part in parts]), parts)
    return np.where(np.isfinite(found.gain), found.gain, 1.0)


def retrained(
    surrogate: Fitted, training: TrainingSet, more: TrainingSet, rng: np.random.Generator
) -> Fitted | None:
    """Return a surrogate that is trained on further evaluations as well; None if that is not possible.

    A quadratic is given hidden units: with many evaluations they pay.
    """
    if (training.outputs is None) != (more.outputs is None):
        return None  # the outputs of draws were not kept
    try:
        if isinstance(surrogate, FittedQuadratic):
            n_features = (training.dim + 1) * (training.dim + 2) // 2 + _N_HIDDEN
            if len(training) + len(more) < 2 * n_features or n_features > _MAX_FEATURES:
                return None
            rows = int(_MAX_WORK / n_features**2)
            recipe = QuadraticNetwork(n_hidden=_N_HIDDEN, radial=True, whitening=surrogate.whitening)
            return recipe.fit(training.join(_some(more, rows)), rng)
        more = _some(more, _MAX_MORE)
        if isinstance(surrogate, FittedOutputs):  # all rows at once are quicker than `update`
            everything = surrogate.training.join(more)
            return replace(surrogate, training=everything, solution=None, updater=None)
        found: Fitted = surrogate.update(more)
    except (AttributeError, ArithmeticError, ValueError) as error:
        if isinstance(error, AttributeError) or is_numerical(error):
            return None
        raise
    return None if found is surrogate else found


def _some(training: TrainingSet, most: int) -> TrainingSet:
    """Return at most so many of the evaluations, evenly chosen."""
    step = -(-len(training) // max(most, 1))
    return training.rows(np.arange(0, len(training), step)) if step > 1 else training


def log_evidence(parts: list[Part]) -> tuple[float, float]:
    r"""Return :math:`\log Z_\pi`, where Z is the integral of the density, and its standard error.

    :math:`\mathrm{E}_\pi[e^D] = \int e^{-U} e^{U - \tilde U} / Z_\pi = Z_s / Z_\pi`, and :math:`Z_s` is known from the
    points of the surrogate. With two parts, half of the chains each, the two results are averaged.

    Parameters
    ----------
    parts : list of Part
    """
    n_chains = sum(len(part.chains) for part in parts)
    value, variance, deviations = 0.0, 0.0, []
    for part in parts:
        share, highest = len(part.chains) / n_chains, part.discrepancy.max()
        weights = np.exp(part.discrepancy - highest)
        log_constant, away = part.points.constant_deviations()
        deviations.append(share * away)
        value += share * (log_constant - highest - np.log(weights.mean()))
        relative = monte_carlo_errors(weights[:, :, None], cautious=True)[0] / weights.mean()
        variance += share**2 * relative**2
    # Mass of the surrogate, or of the posterior, that no draw shows.
    unseen = max([1.0 / sum(part.discrepancy.size for part in parts), *(part.unseen for part in parts)])
    return float(value), float(np.sqrt(variance + variance_of_sets(np.sum(deviations, axis=0)) + unseen**2))
