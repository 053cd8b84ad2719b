"""The arithmetic of sharpened estimates: right errors for wrong surrogates, and what breaks the identity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from leapwise.estimates import Columns, Part, corrected, figures, log_evidence, means, monte_carlo_errors
from leapwise.estimates.surrogate_draws import SurrogateDraws

#: Replications of a test of coverage: intervals of 90 % cover less than 80 % of the time by chance once in 10^5.
REPLICATIONS, LEAST_COVERAGE = 200, 0.80
NINETY = norm.ppf(0.95)


def normal_part(x: np.ndarray, rng: np.random.Generator, shift=0.0, scale=1.0, n=1000) -> Part:
    """Return a part for draws x ``(chains, draws, 1)`` of a standard normal: the surrogate is another normal."""
    y = shift + scale * rng.standard_normal((8, n, 1))
    constant = np.full(8, np.log(scale) + 0.5 * np.log(2.0 * np.pi))
    points = SurrogateDraws(
        y, np.zeros((8, n)), 0.5 * np.square((y[..., 0] - shift) / scale), constant, from_chains=True
    )
    predicted = 0.5 * np.square((x[..., 0] - shift) / scale)
    return Part(np.arange(len(x)), 0.5 * np.square(x[..., 0]) - predicted, predicted, points)


def correlated(rng: np.random.Generator, shape: tuple[int, ...], memory: float) -> np.ndarray:
    """Return stationary series of standard normals, each `memory` times the one before plus noise."""
    x = rng.standard_normal(shape)
    for i in range(1, shape[1]):
        x[:, i] = memory * x[:, i - 1] + np.sqrt(1.0 - memory**2) * x[:, i]
    return x


@pytest.mark.parametrize(
    ("shift", "scale", "memory"),
    [(0.0, 1.0, 0.5), (0.1, 1.0, 0.0), (0.5, 1.0, 0.5), (0.0, 1.2, 0.0), (0.0, 0.85, 0.0), (0.3, 0.9, 0.5)],
)
def test_errors_are_right_for_any_surrogate(rng, shift, scale, memory):
    covered, gain = [], []
    true = np.array([0.0, 1.0, norm.ppf(0.05), norm.ppf(0.95)])
    for _ in range(REPLICATIONS):
        x = correlated(rng, (4, 150, 1), memory)
        part = normal_part(x, rng, shift, scale)
        found = figures(Columns(x, [part.points.position]), [part], (0.05, 0.95))
        each = [found.mean, found.sd, *found.quantiles]
        value, error = (np.array([getattr(one, key)[0] for one in each]) for key in ("value", "error"))
        covered.append(np.abs(value - true) <= NINETY * error)
        gain.append(found.mean.gain[0])
    assert (np.mean(covered, axis=0) > LEAST_COVERAGE).all(), np.mean(covered, axis=0)
    assert min(gain) >= 1.0  # never less precise than the draws alone
    if abs(shift) <= 0.1 and scale == 1.0:
        assert np.median(gain) > 5.0


@pytest.mark.parametrize("steepness", [0.9, 0.7, 0.5, 1.2])
def test_a_surrogate_that_is_too_flat_or_steep_far_out(rng, steepness):
    """The density of a Gumbel variable to a power: w rises in the tail, where few draws are."""
    covered, plain_covered = [], []
    true = np.array([np.euler_gamma, np.pi**2 / 6.0])
    for _ in range(REPLICATIONS):
        x = -np.log(rng.standard_exponential((4, 150, 1)))
        y = -np.log(rng.gamma(steepness, size=(8, 1000, 1)) / steepness)
        exact, far = ((each + np.exp(-each))[..., 0] for each in (x, y))
        points = SurrogateDraws(y, np.zeros((8, 1000)), steepness * far, np.zeros(8))
        part = Part(np.arange(4), (1.0 - steepness) * exact, steepness * exact, points)
        found = figures(Columns(x, [y]), [part], ())
        value, error = (
            np.array([found.mean.value, found.sd.value**2])[:, 0],
            np.array([found.mean.error[0], 2.0 * found.sd.value[0] * found.sd.error[0]]),
        )
        covered.append(np.abs(value - true) <= NINETY * error)
        plain = np.array([found.mean.plain[0], found.sd.plain[0] ** 2])
        plain_error = np.array([found.mean.plain_error[0], 2.0 * found.sd.plain[0] * found.sd.plain_error[0]])
        plain_covered.append(np.abs(plain - true) <= NINETY * plain_error)
    # Squares of skewed draws have too small errors without a surrogate too.
    least = np.minimum(np.mean(plain_covered, axis=0) - 0.05, LEAST_COVERAGE)
    assert (np.mean(covered, axis=0) > least).all(), (
        np.mean(covered, axis=0),
        np.mean(plain_covered, axis=0),
    )


def test_a_function_and_another_control(rng):
    """The control may be another function than the one whose mean is wanted, as an emulated output for an exact one."""
    x = rng.standard_normal((4, 500, 1))
    part = normal_part(x, rng, shift=0.1, n=20_000)
    exact, emulated = np.cos, lambda y: np.cos(y + 0.01)
    columns = Columns(exact(x), [emulated(part.points.position)], emulated(x))
    found = means(columns, [part])
    assert abs(found.value[0] - np.exp(-0.5)) < 4 * found.error[0]
    assert found.gain[0] > 10.0


def test_two_parts_are_as_good_as_one(rng):
    x = rng.standard_normal((4, 300, 1))
    whole = normal_part(x, rng, shift=0.1)
    halves = []
    for half, shift in ((np.array([0, 1]), 0.1), (np.array([2, 3]), -0.1)):
        part = normal_part(x[half], rng, shift)
        halves.append(Part(half, part.discrepancy, part.predicted, part.points))
    one = means(Columns(x, [whole.points.position]), [whole])
    two = means(Columns(x, [part.points.position for part in halves]), halves)
    assert two.error[0] == pytest.approx(one.error[0], rel=0.5)
    assert abs(two.value[0]) < 4 * two.error[0]


def test_a_surrogate_with_mass_outside_the_support_breaks_the_identity(rng):
    """A half-normal posterior and a normal surrogate: the estimate tends to 0, not to 0.798. `Run.estimate` refuses."""
    x = np.abs(rng.standard_normal((4, 1000, 1)))
    y = rng.standard_normal((8, 5000, 1))
    points = SurrogateDraws(y, np.zeros((8, 5000)), 0.5 * np.square(y[..., 0]), np.zeros(8))
    part = Part(np.arange(4), np.zeros((4, 1000)), 0.5 * np.square(x[..., 0]), points)
    series, variance, _ = corrected(Columns(x, [y]), [part])
    error = np.sqrt(monte_carlo_errors(series)[0] ** 2 + variance[0])
    assert abs(series.mean() - np.sqrt(2.0 / np.pi)) > 20 * error
    # That no draw is where half of the surrogate's mass is counts as error.
    found = means(Columns(x, [y]), [part])
    assert abs(found.value[0] - np.sqrt(2.0 / np.pi)) < 4 * found.error[0]


def test_a_surrogate_that_knows_the_draws_breaks_the_identity(rng):
    """One that is right at the draws and wrong between them has D = 0: its own mean would be believed."""
    x = rng.standard_normal((4, 250, 1))
    y = 0.2 + rng.standard_normal((8, 5000, 1))
    points = SurrogateDraws(y, np.zeros((8, 5000)), 0.5 * np.square(y[..., 0] - 0.2), np.zeros(8))
    found = means(
        Columns(x, [y]), [Part(np.arange(4), np.zeros((4, 250)), 0.5 * np.square(x[..., 0]), points)]
    )
    assert abs(found.value[0]) > 20 * found.error[0]


def test_what_no_draw_shows_is_in_the_error(rng):
    x = rng.standard_normal((4, 100, 1))
    part = normal_part(x, rng, n=20_000)
    exact = means(Columns(x, [part.points.position]), [part])
    assert exact.error[0] >= x.std() / 400
    shy = Part(part.chains, part.discrepancy, part.predicted, part.points, unseen=0.02)
    assert means(Columns(x, [shy.points.position]), [shy]).error[0] >= 0.02 * x.std()


def test_without_parts_figures_are_those_of_the_draws(rng):
    x = rng.gamma(2.0, size=(4, 200, 3))
    found = figures(Columns(x, []), [], (0.1, 0.5))
    np.testing.assert_allclose(found.mean.value, x.mean(axis=(0, 1)))
    np.testing.assert_allclose(found.sd.value, x.std(axis=(0, 1), ddof=1))
    for probability, each in zip((0.1, 0.5), found.quantiles, strict=True):
        np.testing.assert_allclose(each.value, np.quantile(x, probability, axis=(0, 1)))
    assert (found.mean.gain == 1.0).all()
    series, variance, beta = corrected(Columns(x, []), [])
    assert series is x and not variance.any() and not beta.any()


def test_wide_columns_are_treated_in_parts(rng, monkeypatch):
    x = rng.standard_normal((4, 100, 5))
    points = SurrogateDraws(
        rng.standard_normal((8, 200, 5)), np.zeros((8, 200)), np.zeros((8, 200)), np.zeros(8)
    )
    part = Part(np.arange(4), 0.05 * rng.standard_normal((4, 100)), np.zeros((4, 100)), points)
    columns = Columns(x, [points.position])
    whole = figures(columns, [part], (0.5,))
    monkeypatch.setattr("leapwise.estimates.figure._MAX_NUMBERS", 3200)
    by_parts = figures(columns, [part], (0.5,))
    for one, other in zip(whole.mean + whole.sd, by_parts.mean + by_parts.sd, strict=True):
        np.testing.assert_allclose(one, other)


def test_constant_columns_are_exact_and_have_no_precision(rng):
    x = np.concatenate([rng.standard_normal((4, 100, 1)), np.full((4, 100, 1), 3.0)], axis=2)
    part = normal_part(x[..., :1], rng, shift=0.1)
    points = np.concatenate([part.points.position, np.full(part.points.position.shape, 3.0)], axis=2)
    found = figures(Columns(x, [points]), [part], (0.5,))
    assert found.mean.value[1] == pytest.approx(3.0) and found.mean.error[1] == pytest.approx(0.0, abs=1e-12)
    assert found.sd.value[1] == 0.0 and found.quantiles[0].value[1] == 3.0
    assert found.largest_error() == np.inf  # a parameter that never moved


def test_few_draws_have_no_error(rng):
    found = figures(Columns(rng.standard_normal((2, 2, 1)), []), [], (0.5,))
    assert np.isnan(found.mean.error[0]) and found.largest_error() == np.inf


def test_cautious_errors_are_at_least_those_of_independent_draws(rng):
    alternating = correlated(rng, (4, 400, 1), -0.8)
    usual, cautious = (monte_carlo_errors(alternating, cautious=each)[0] for each in (False, True))
    assert usual < 0.6 * cautious
    assert cautious == pytest.approx(alternating.std() / 40.0, rel=0.01)


class TestEvidence:
    @pytest.mark.parametrize(("shift", "scale"), [(0.1, 1.0), (0.5, 1.0), (0.0, 1.2), (0.3, 0.9)])
    def test_errors_are_right(self, rng, shift, scale):
        true, covered = 0.5 * np.log(2.0 * np.pi), []
        for _ in range(REPLICATIONS):
            x = correlated(rng, (4, 150, 1), 0.3)
            value, error = log_evidence([normal_part(x, rng, shift, scale)])
            covered.append(abs(value - true) <= NINETY * error)
        assert np.mean(covered) > LEAST_COVERAGE

    def test_of_two_parts(self, rng):
        x = rng.standard_normal((4, 500, 1))
        parts = []
        for half in (np.array([0, 1]), np.array([2, 3])):
            part = normal_part(x[half], rng, shift=0.2 if half[0] else -0.2)
            parts.append(Part(half, part.discrepancy, part.predicted, part.points))
        value, error = log_evidence(parts)
        assert abs(value - 0.5 * np.log(2.0 * np.pi)) < 4 * error < 0.1


class TestPoints:
    def test_weighted_points_know_expectations_and_constant(self, rng):
        """Points of a wide normal for a narrow one."""
        covered = []
        for _ in range(REPLICATIONS):
            y = 1.5 * rng.standard_normal((8, 500, 1))
            log_q = norm.logpdf(y[..., 0], scale=1.5)
            energy = 0.5 * np.square(y[..., 0])
            logs = -energy - log_q
            points = SurrogateDraws(y, logs, energy, logsumexp(logs, axis=1) - np.log(500))
            mean, variance = points.expectation(np.square(y))
            constant, error = points.log_normaliser()
            off = [(mean[0] - 1.0) / np.sqrt(variance[0]), (constant - 0.5 * np.log(2.0 * np.pi)) / error]
            covered.append(np.abs(off) <= 1.895)  # quantile of a t with seven degrees of freedom
        assert (np.mean(covered, axis=0) > LEAST_COVERAGE).all()

    def test_joined_points_and_their_first(self, rng):
        def block(n):
            y = rng.standard_normal((8, n, 1))
            return SurrogateDraws(y, np.zeros((8, n)), 0.5 * y[..., 0] ** 2, rng.normal(size=8))

        one, two = block(100), block(100)
        both = one.joined(two)
        assert both.log_weight.size == 1600 and both.position.shape == (8, 200, 1)
        np.testing.assert_allclose(
            np.exp(both.log_constants), 0.5 * (np.exp(one.log_constants) + np.exp(two.log_constants))
        )
        assert both.first(80).position.shape == (8, 10, 1)
        np.testing.assert_array_equal(both.first(80).position, one.position[:, :10])
