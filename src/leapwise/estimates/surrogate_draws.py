r"""Expectations under the surrogate: weighted points that cost no exact evaluation.

Points from a proposal q (`leapwise.estimates.proposal`) have the weights :math:`w = e^{-\tilde U} / q`. Several
scrambled Sobol sequences give several independent sets of points; how much their results differ is the standard error.
The mean weight is the surrogate's normalising constant, :math:`Z_s = \int e^{-\tilde U}`.

Where no mixture covers the surrogate well (funnels, many parameters, tails heavier than those of the t), the points are
those of many chains on the surrogate, of equal weight, which start from the draws. The normalising constant then comes
from bridge sampling between chains and proposal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from leapwise.adaptation.surrogate_chains import trace
from leapwise.estimates.proposal import Proposal, fit_proposal
from leapwise.kernels import SurrogateTransition
from leapwise.surrogates import Fitted
from leapwise.surrogates.compiled import compile_surrogate
from leapwise.surrogates.compiled_radial import BatchFunction

#: Independent sets of points. A guess: their spread is known to a quarter.
N_SETS = 8
#: The mean of so few sets has a t distribution with seven degrees of freedom. This is its variance, with which normal
#: intervals are wide enough.
_SPREAD_OF_FEW = (N_SETS - 1) / (N_SETS - 3)
#: Numbers of normals that are tried, and points of the trial. Guesses; a power of two.
_NUMBERS_OF_NORMALS, _TRIAL = (1, 2, 4, 8), 4096
#: A mixture is good enough if so much of its points is effective, and more normals are tried as long as they raise that
#: share by this factor. Guesses: they cost more than further points.
_GOOD, _LEAST_RISE = 0.5, 1.2
#: It is refused below this effective share, or if the Pareto k of the weights is above its limit (Vehtari et al. 2024).
LEAST_EFFECTIVE, _MAX_PARETO_K = 0.02, 0.7
#: Points at first and at most, of all sets together. The last one also bounds memory, in numbers. Guesses.
_FIRST_POINTS, _MAX_POINTS, _MAX_NUMBERS = 1 << 14, 1 << 17, 1 << 23
#: Chains of each set where points come from chains, their moves at first and at most, and discarded moves. Guesses.
_N_CHAINS, _FIRST_MOVES, _MAX_MOVES, _DISCARDED = 64, 32, 512, 16
#: Chains from which draws to fit a proposal come.
_FIT_CHAINS, _FIT_MOVES = 256, 36


@dataclass(frozen=True, eq=False)
class SurrogateDraws:
    """Weighted points of the surrogate's posterior, in independent sets.

    Parameters
    ----------
    position : ndarray of shape (sets, n, dim)
    log_weight : ndarray of shape (sets, n)
        Surrogate over proposal; zeros for points of chains.
    potential : ndarray of shape (sets, n)
        Of the surrogate.
    log_constants : ndarray of shape (sets,)
        Estimates of log Z_s of the surrogate's density, one of each set; NaN if they are not known.
    from_chains : bool
        Whether the points are those of chains; otherwise they are weighted points of a proposal.
    """

    position: np.ndarray
    log_weight: np.ndarray
    potential: np.ndarray
    log_constants: np.ndarray
    from_chains: bool = False

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights ``(sets, n)``, whose sum is 1."""
        found = np.exp(self.log_weight - self.log_weight.max())
        return np.asarray(found / found.sum())

    def expectation(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means ``(k,)`` of values at the points ``(sets, n, k)``, and their variances.

        Examples
        --------
        >>> rng = np.random.default_rng(1)
        >>> x = rng.normal(size=(8, 1000, 1))
        >>> points = SurrogateDraws(x, np.zeros((8, 1000)), 0.5 * x[..., 0]**2, np.zeros(8))
        >>> mean, variance = points.expectation(x**2)
        >>> bool(abs(mean[0] - 1.0) < 0.1), bool(1e-5 < variance[0] < 1e-3)
        (True, True)
        """
        mean, away = self.deviations(values)
        return mean, variance_of_sets(away)

    def deviations(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means ``(k,)`` of values at the points, and those of each set less these ``(sets, k)``."""
        share = self.weights.sum(axis=1)
        sums = np.matmul(self.weights[:, None, :], values)[:, 0]
        mean = sums.sum(axis=0)
        return mean, (sums - share[:, None] * mean) * len(share)  # a ratio of sums, to first order

    def log_normaliser(self) -> tuple[float, float]:
        """Return log Z_s and its standard error."""
        value, away = self.constant_deviations()
        return value, float(np.sqrt(variance_of_sets(away)))

    def constant_deviations(self) -> tuple[float, np.ndarray]:
        """Return log Z_s, and the relative deviations of each set from it ``(sets,)``."""
        value = float(logsumexp(self.log_constants) - np.log(len(self.log_constants)))
        return value, np.exp(self.log_constants - value) - 1.0

    @property
    def effective_share(self) -> float:
        """Share of the points that are effective, by their weights."""
        return float(1.0 / np.square(self.weights).sum() / self.weights.size)

    def first(self, n: int) -> SurrogateDraws:
        """Return at most n points, at least one of each set; the constants are still those of all."""
        each = max(1, n // len(self.position))
        return SurrogateDraws(
            self.position[:, :each],
            self.log_weight[:, :each],
            self.potential[:, :each],
            self.log_constants,
            self.from_chains,
        )

    def reweighted(self, surrogate: Fitted) -> SurrogateDraws:
        """Return the same points with the weights of another surrogate, which is like the first."""
        found = _potential_of(surrogate)(self.position.reshape(-1, self.position.shape[2]))
        potential = found.reshape(self.potential.shape)
        with np.errstate(invalid="ignore"):
            change = self.potential - potential
        log_weight = self.log_weight + np.where(np.isnan(change), -np.inf, change)
        own = logsumexp(log_weight, axis=1) - logsumexp(self.log_weight, axis=1)
        constants = self.log_constants + own
        return SurrogateDraws(self.position, log_weight, potential, constants, self.from_chains)

    def joined(self, more: SurrogateDraws) -> SurrogateDraws:
        """Return these points and as many more of the same sets."""
        constants = np.logaddexp(self.log_constants, more.log_constants) - np.log(2.0)
        return SurrogateDraws(
            np.concatenate([self.position, more.position], axis=1),
            np.concatenate([self.log_weight, more.log_weight], axis=1),
            np.concatenate([self.potential, more.potential], axis=1),
            constants,
            self.from_chains,
        )


def variance_of_sets(away: np.ndarray) -> np.ndarray:
    """Return the variance of the mean over independent sets, of which each deviates by `away` ``(sets, ...)``."""
    return np.asarray(_SPREAD_OF_FEW * np.square(away).sum(axis=0) / (len(away) * (len(away) - 1)))


def draw_from_surrogate(
    surrogate: Fitted,
    kernel: object,
    position: np.ndarray,
    seed: int,
    are_enough: Callable[[SurrogateDraws], bool],
) -> SurrogateDraws | None:
    """Return points of a surrogate's posterior; None if neither a proposal nor chains can give them.

    Parameters
    ----------
    surrogate : Fitted
    kernel : object
        That of the draws; chains use it if it is a `SurrogateTransition`.
    position : ndarray of shape (n, dim)
        Draws of the posterior, which is like the surrogate's.
    seed : int
    are_enough : callable
        Asked whether results are precise enough; if not, the number of points is doubled, up to a limit.
    """
    rng = np.random.default_rng([seed, 0])
    potential = _potential_of(surrogate)
    walks = isinstance(kernel, SurrogateTransition)
    if walks:
        start = position[rng.integers(len(position), size=_FIT_CHAINS)]
        draws = trace(kernel, start, rng, _FIT_MOVES)[4:].reshape(-1, position.shape[1])  # type: ignore[arg-type]
        draws = draws[np.isfinite(draws).all(axis=1)]
    else:
        draws = position
    proposal, is_good = _best_proposal(potential, draws, rng)
    seeds = [int(each) for each in rng.integers(2**63, size=N_SETS)]
    if proposal is not None and is_good:
        return _by_importance(potential, proposal, seeds, are_enough)
    if walks:
        return _by_chains(potential, kernel, proposal, position, rng, are_enough)  # type: ignore[arg-type]
    return None


def _potential_of(surrogate: Fitted) -> BatchFunction:
    """Return the potential of a surrogate by positions ``(n, dim)``; infinite where it is not a number."""
    compiled = compile_surrogate(surrogate).potential

    def potential(position: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            found = np.asarray(compiled(position))
        return np.where(np.isfinite(found), found, np.inf)

    return potential


def _best_proposal(
    potential: BatchFunction, draws: np.ndarray, rng: np.random.Generator
) -> tuple[Proposal | None, bool]:
    """Return the proposal with most effective points, and whether it is good enough to be used alone."""
    from arviz_stats.base import array_stats  # takes a second to import, and only results need it

    best, chosen, is_good = 0.0, None, False
    for n_normals in _NUMBERS_OF_NORMALS:
        proposal = fit_proposal(draws, n_normals, rng)
        if proposal is None:
            break
        points = proposal.points(_TRIAL, int(rng.integers(2**63)))
        logs = -potential(points) - proposal.log_density(points)
        if not np.isfinite(logs).any():
            continue
        weights = np.exp(logs - logs.max())
        effective, before = float(weights.sum() ** 2 / np.square(weights).sum() / _TRIAL), best
        k = float(array_stats.pareto_khat(weights[None], chain_axis=0, draw_axis=1, r_eff=1.0, tail="right"))
        covers = effective > LEAST_EFFECTIVE and k < _MAX_PARETO_K
        if (covers, effective) > (is_good, best):
            best, chosen, is_good = effective, proposal, covers
        if is_good and (best > _GOOD or effective < _LEAST_RISE * before):
            break
    return chosen, is_good


def _by_importance(
    potential: BatchFunction,
    proposal: Proposal,
    seeds: list[int],
    are_enough: Callable[[SurrogateDraws], bool],
) -> SurrogateDraws:
    """Return points of the proposal, as many as are needed."""

    def block(first: int, n: int) -> SurrogateDraws:
        position = np.stack([proposal.points(n, seed, first) for seed in seeds])
        energy = np.stack([potential(each) for each in position])
        logs = -energy - np.stack([proposal.log_density(each) for each in position])
        return SurrogateDraws(position, logs, energy, np.asarray(logsumexp(logs, axis=1) - np.log(n)))

    dim = proposal.means.shape[1]
    most = min(_MAX_POINTS, _MAX_NUMBERS // dim) // N_SETS
    n = _FIRST_POINTS // N_SETS
    found = block(0, n)
    while 2 * n <= most and not are_enough(found):
        found, n = found.joined(block(n, n)), 2 * n
    return found


def _by_chains(
    potential: BatchFunction,
    kernel: SurrogateTransition,
    proposal: Proposal | None,
    position: np.ndarray,
    rng: np.random.Generator,
    are_enough: Callable[[SurrogateDraws], bool],
) -> SurrogateDraws:
    """Return points of chains on the surrogate, as many as are needed."""
    dim = position.shape[1]
    start = position[rng.integers(len(position), size=N_SETS * _N_CHAINS)]
    last, n = trace(kernel, start, rng, _DISCARDED)[-1], _FIRST_MOVES
    most = min(_MAX_MOVES, _MAX_NUMBERS // (dim * N_SETS * _N_CHAINS))
    while (
        True
    ):  # twice as many moves each time; those before are discarded, since all start from the same draws
        moves = trace(kernel, last, rng, n)[1:]
        last = moves[-1]
        sets = moves.reshape(n, N_SETS, _N_CHAINS, dim).swapaxes(0, 1).reshape(N_SETS, -1, dim)
        energy = np.stack([potential(each) for each in sets])
        found = SurrogateDraws(
            sets, np.zeros(energy.shape), energy, np.full(N_SETS, np.nan), from_chains=True
        )
        if 2 * n > most or are_enough(found):
            break
        n *= 2
    if proposal is None:
        return found
    pairs = zip(found.position, found.potential, strict=True)
    constants = [_bridge(potential, proposal, each, energy, rng) for each, energy in pairs]
    return replace(found, log_constants=np.array(constants))


def _bridge(
    potential: BatchFunction,
    proposal: Proposal,
    position: np.ndarray,
    energy: np.ndarray,
    rng: np.random.Generator,
) -> float:
    """Return log Z_s by bridge sampling from a proposal to positions of chains (Meng and Wong 1996)."""
    n = 1 << int(np.log2(len(position)))
    others = proposal.points(n, int(rng.integers(2**63)))
    chains = -energy - proposal.log_density(position)
    points = -potential(others) - proposal.log_density(others)
    share = len(position) / (len(position) + n)
    value = float(np.median(chains))
    for _ in range(100):
        # E_q[s h] / E_s[q h] with h = 1 / (share s / Z + (1 - share) q), in logarithms relative to q.
        top = points - np.logaddexp(np.log(share) + points - value, np.log1p(-share))
        bottom = -np.logaddexp(np.log(share) + chains - value, np.log1p(-share))
        new = float(logsumexp(top) - np.log(n) - logsumexp(bottom) + np.log(len(bottom)))
        if abs(new - value) < 1e-10:
            break
        value = new
    return new
