"""The paper's effective sample size, on chains whose effective sample size is known."""

import numpy as np
import pytest

from leapwise.paper.experiments import autocorrelations, monotone_ess


def autoregressive(correlation, shape, seed=1):
    """Chains x_t = a x_{t-1} + noise, stationary with variance 1, ``(chains, draws, dim)``."""
    noise = np.random.default_rng(seed).normal(size=shape)
    x = np.empty(shape)
    x[:, 0] = noise[:, 0]
    for t in range(1, shape[1]):
        x[:, t] = correlation * x[:, t - 1] + np.sqrt(1 - correlation**2) * noise[:, t]
    return x


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.9])
def test_an_autoregressive_chain_has_its_known_size(correlation):
    n, dim = 20_000, 8
    found = monotone_ess(autoregressive(correlation, (4, n, dim)))
    known = 4 * n * (1 - correlation) / (1 + correlation)
    # The estimator's own error at these lengths is 5 % (a fixed seed; the mean over 8 parameters is much closer).
    assert found.mean() == pytest.approx(known, rel=0.03)


def test_alternating_draws_count_no_more_than_once():
    assert (monotone_ess(autoregressive(-0.7, (2, 500, 3))) == 1000).all()


def test_chains_are_summed():
    one, two = autoregressive(0.5, (1, 1000, 2), 1), autoregressive(0.5, (1, 1000, 2), 2)
    both = monotone_ess(np.concatenate([one, two]))
    np.testing.assert_allclose(both, monotone_ess(one) + monotone_ess(two))


def test_a_chain_that_never_moved_is_one_draw():
    draws = autoregressive(0.5, (2, 400, 2))
    draws[0, :, 1] = 0.1
    found = monotone_ess(draws)
    assert found[1] == pytest.approx(1 + monotone_ess(draws[1:])[1])


def test_scale_and_shift_do_not_matter():
    draws = autoregressive(0.8, (2, 501, 3))
    np.testing.assert_allclose(monotone_ess(1e6 + 1e-3 * draws), monotone_ess(draws), rtol=1e-6)


def test_autocorrelations_are_those_of_the_definition():
    draws = autoregressive(0.8, (1, 51, 1))
    x = draws[0, :, 0] - draws[0, :, 0].mean()
    known = [x[: len(x) - k] @ x[k:] / (x @ x) for k in range(51)]
    np.testing.assert_allclose(autocorrelations(draws)[0, :, 0], known, atol=1e-12)


def test_the_sum_is_geyers():
    draws = autoregressive(0.7, (1, 60, 1), seed=3)
    gamma = autocorrelations(draws)[0, :, 0]
    total, previous = 0.0, np.inf
    for j in range(30):
        pair = gamma[2 * j] + gamma[2 * j + 1]
        if pair <= 0:
            break
        previous = min(previous, pair)
        total += previous
    assert monotone_ess(draws)[0] == pytest.approx(60 / max(1.0, 2 * total - 1))


@pytest.mark.parametrize("n", [2, 3, 10, 11])
def test_short_chains(n):
    found = monotone_ess(autoregressive(0.5, (3, n, 2)))
    assert ((found >= 3) & (found <= 3 * n)).all()
