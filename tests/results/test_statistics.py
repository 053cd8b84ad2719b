import numpy as np
import pytest

from leapwise.results.statistics import statistics


def ar1(rho: float, shape: tuple[int, int, int]) -> np.ndarray:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=shape)
    draws = np.empty(shape)
    draws[:, 0] = noise[:, 0]
    for t in range(1, shape[1]):
        draws[:, t] = rho * draws[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
    return draws


def test_moments_and_quantiles_are_those_of_all_chains_together():
    draws = np.random.default_rng(1).gamma(2.0, size=(4, 300, 2))
    found, pooled = statistics(draws), draws.reshape(-1, 2)
    np.testing.assert_allclose(found.mean, pooled.mean(axis=0))
    np.testing.assert_allclose(found.sd, pooled.std(axis=0, ddof=1))
    np.testing.assert_allclose(
        [found.q5, found.q50, found.q95], np.quantile(pooled, [0.05, 0.5, 0.95], axis=0)
    )


def test_correlated_draws_are_worth_less():
    """An AR(1) chain has n (1 - rho) / (1 + rho) effective draws."""
    found = statistics(ar1(0.8, (4, 5000, 1)))
    assert found.ess_bulk[0] == pytest.approx(20_000 / 9, rel=0.15)
    assert found.mcse[0] == pytest.approx(found.sd[0] / np.sqrt(found.ess_bulk[0]), rel=0.1)


@pytest.mark.parametrize("rho", [0.8, -0.8])
def test_squares_have_effective_draws_of_their_own(rho):
    """Squares of an AR(1) chain have autocorrelations rho^2k whatever the sign of rho, their ranks somewhat less."""
    found = statistics(5.0 + ar1(rho, (4, 5000, 1)))
    law = 20_000 * (1 - rho**2) / (1 + rho**2)
    assert 0.9 * law < found.ess_squares[0] < 1.5 * law
    assert (found.ess_bulk[0] > 2 * found.ess_squares[0]) == (
        rho < 0
    )  # means of swinging chains are known sooner


def test_chains_that_disagree_have_a_large_rhat():
    draws = np.random.default_rng(1).normal(size=(4, 200, 2))
    draws[0, :, 1] += 3.0
    rhat = statistics(draws).rhat
    assert rhat[0] < 1.05 < 1.2 < rhat[1]


def test_a_constant_is_known_to_be_constant_and_nothing_more():
    draws = np.random.default_rng(1).normal(size=(4, 200, 2))
    draws[:, :, 0] = 0.1  # not a sum of powers of two: its mean is rounded
    found = statistics(draws)
    assert found.sd[0] == 0.0
    assert np.isnan([each[0] for each in (found.ess, found.ess_squares, found.rhat, found.mcse)]).all()
    assert np.isfinite([found.ess_bulk[1], found.rhat[1]]).all()


def test_chains_that_never_moved_have_an_infinite_rhat():
    draws = np.repeat(np.arange(4.0)[:, None, None], 50, axis=1)
    assert statistics(draws).rhat[0] == np.inf


def test_one_chain_has_no_rhat_but_has_effective_draws():
    found = statistics(np.random.default_rng(1).normal(size=(1, 200, 2)))
    assert np.isnan(found.rhat).all()
    assert (found.ess_bulk > 50).all()


@pytest.mark.parametrize(("chains", "draws"), [(4, 0), (1, 1), (4, 3)])
def test_what_too_few_draws_cannot_tell_is_nan(chains, draws):
    found = statistics(np.random.default_rng(1).normal(size=(chains, draws, 2)))
    assert np.isnan(found.ess).all()
    assert np.isnan(found.rhat).all()
    assert np.isfinite(found.mean).all() == (draws > 0)
    assert np.isfinite(found.sd).all() == (chains * draws > 1)


def test_worst_first_puts_unknown_before_few():
    draws = ar1(0.0, (4, 400, 3))
    draws[:, :, 1] = ar1(0.9, (4, 400, 1))[:, :, 0]
    draws[:, :, 2] = 1.0
    assert statistics(draws).worst_first().tolist() == [2, 1, 0]
