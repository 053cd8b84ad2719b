"""What estimates are made of: points of the surrogate, and which surrogate serves which chains."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.estimates import ExactDraws, find_parts
from leapwise.estimates.parts import retrained
from leapwise.estimates.proposal import Proposal, fit_proposal
from leapwise.estimates.surrogate_draws import draw_from_surrogate
from leapwise.kernels import SurrogateTransition
from leapwise.testing import banana, gumbel, student_t


class Analytic:
    """The exact potential of a target as a surrogate, plus a constant."""

    kind = "analytic"

    def __init__(self, exact, constant: float = 0.0) -> None:
        self.exact, self.constant = exact, constant

    def potential_and_gradient(self, position):
        found = self.exact.target.evaluate(np.atleast_2d(position), gradient=True)
        return -found.log_density + self.constant, -found.gradient

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def gradient(self, position):
        return self.potential_and_gradient(position)[1]


def points_of(exact, rng, *, walks=True, enough=lambda points: True):
    surrogate = Analytic(exact)
    kernel = SurrogateTransition(0.4, 4, surrogate=surrogate) if walks else lw.HMC(0.4, 4)
    return draw_from_surrogate(surrogate, kernel, exact.draw(rng, 2000), 1, enough)


class TestProposal:
    @pytest.mark.parametrize("n_normals", [1, 2, 4])
    def test_its_density_integrates_to_one_and_its_points_follow_it(self, rng, n_normals):
        """The integral of a normal density is the mean of its ratio to the proposal's over the proposal's points."""
        draws = banana(2).draw(rng, 4000)
        proposal = fit_proposal(draws, n_normals, rng)
        assert proposal.n_normals == n_normals
        points = proposal.points(1 << 14, seed=2)
        narrow = -0.5 * np.square(points - draws.mean(axis=0)).sum(axis=1) - np.log(2.0 * np.pi)
        assert np.exp(narrow - proposal.log_density(points)).mean() == pytest.approx(1.0, abs=0.02)

    def test_blocks_of_points_are_one_sequence(self, rng):
        proposal = fit_proposal(rng.normal(size=(500, 3)), 1, rng)
        whole = proposal.points(256, seed=5)
        parts = [proposal.points(128, seed=5), proposal.points(128, seed=5, first=128)]
        np.testing.assert_array_equal(whole, np.concatenate(parts))

    def test_too_few_draws_for_so_many_normals(self, rng):
        assert fit_proposal(rng.normal(size=(20, 5)), 2, rng) is None

    def test_a_parameter_that_hardly_varies(self, rng):
        draws = rng.normal(size=(500, 2)) * [1.0, 1e-9] + [0.0, 1e3]
        found = fit_proposal(draws, 2, rng)
        assert isinstance(found, Proposal) and np.isfinite(found.log_density(draws)).all()


class TestPoints:
    @pytest.mark.parametrize("exact", [gumbel(3), banana(2)], ids=["gumbel", "banana"])
    def test_expectations_are_right(self, exact, rng):
        found = points_of(exact, rng)
        assert not found.from_chains
        x = found.position
        for key, values in (("q0", x[..., :1]), ("q1^2", x[..., 1:2] ** 2)):
            mean, variance = found.expectation(values)
            assert abs(mean[0] - exact.expected[key]) < 5 * np.sqrt(variance[0]) < 1.5

    def test_the_constant_of_the_density(self, rng):
        """The Gumbel density is normalised."""
        value, error = points_of(gumbel(3), rng).log_normaliser()
        assert abs(value) < 5 * error < 0.05

    def test_points_double_until_they_are_enough(self, rng):
        sizes = []
        found = points_of(
            gumbel(2), rng, enough=lambda points: sizes.append(points.log_weight.size) or len(sizes) > 2
        )
        assert sizes == [1 << 14, 1 << 15, 1 << 16] and found.log_weight.size == 1 << 16

    def test_chains_where_no_mixture_will_do(self, rng):
        """Heavy tails in many parameters."""
        exact = student_t(80)
        found = points_of(exact, rng)
        assert found.from_chains
        mean, variance = found.expectation(found.position[..., :1])
        assert abs(mean[0]) < 5 * np.sqrt(variance[0]) < 0.5
        assert points_of(exact, rng, walks=False) is None  # and a kernel that does not move on the surrogate

    def test_same_seed_same_points(self):
        one, two = (points_of(gumbel(2), np.random.default_rng(3)) for _ in range(2))
        np.testing.assert_array_equal(one.position, two.position)
        np.testing.assert_array_equal(one.log_weight, two.log_weight)

    def test_points_of_another_surrogate(self, rng):
        found, other = points_of(gumbel(2), rng), Analytic(gumbel(2), constant=2.0)
        again = found.reweighted(other)
        np.testing.assert_allclose(again.weights, found.weights)
        np.testing.assert_allclose(again.log_constants, found.log_constants - 2.0)


class TestSharpening:
    def exact_draws(self, rng, **changes):
        x = gumbel(2).draw(rng, 800).reshape(4, 200, 2)
        potential = Analytic(gumbel(2)).potential(x.reshape(-1, 2)).reshape(4, 200)
        return ExactDraws(x, potential, lambda position: position, **changes)

    def kernel(self, surrogate):
        return SurrogateTransition(0.4, 4, surrogate=surrogate)

    def test_cross_fitted_surrogates_do_not_learn_the_draws_that_they_serve(self, rng, monkeypatch):
        """They are exact because they are independent of these draws."""
        seen, exact = [], self.exact_draws(rng)

        class Wavy(Analytic):
            def potential_and_gradient(self, position):
                value, slope = super().potential_and_gradient(position)
                waves = 0.2 * np.sin(2.0 * position).sum(axis=1)
                return value + waves, slope + 0.4 * np.cos(2.0 * position)

        first, training = Wavy(gumbel(2)), exact.training(np.array([0])).rows(np.arange(10))

        def better(surrogate, training, more, rng):
            seen.append(more.position)
            return Analytic(gumbel(2))

        monkeypatch.setattr("leapwise.estimates.parts.retrained", better)
        found = find_parts(self.kernel(first), first, exact, 1, training)
        assert found.cross_fitted
        assert [list(part.chains) for part in found.parts] == [[0, 1], [2, 3]]
        for part, learned in zip(found.parts, seen, strict=True):
            served = {tuple(row) for row in exact.position[part.chains].reshape(-1, 2)}
            assert not served & {tuple(row) for row in learned}

    def test_surrogates_are_trained_again(self, rng):
        exact = self.exact_draws(rng)
        for recipe in (lw.QuadraticNetwork(), lw.GaussianProcess("rational_quadratic")):
            few = exact.training(np.array([0])).rows(np.arange(30))
            first = recipe.fit(few, rng)
            again = retrained(first, few, exact.training(np.array([1, 2])), rng)
            errors = [
                np.std(exact.discrepancy(each, np.array([3]))) for each in (first, again) if each is not None
            ]
            assert len(errors) == 2 and errors[1] < errors[0]

    def test_mass_of_the_surrogate_that_no_draw_shows(self, rng):
        proposed = np.zeros((4, 200))
        proposed[0, :50] = 20.0  # predicted e^20 times too probable
        surrogate = Analytic(gumbel(2))
        found = find_parts(self.kernel(surrogate), surrogate, self.exact_draws(rng, proposed=proposed), 1)
        assert not found.parts and "50 of 800 proposals" in found.reason

    def test_mass_of_the_surrogate_far_from_all_draws(self, rng):
        """A second mode that no chain can reach: no draw and no proposal shows it, but the points do."""

        class Two(Analytic):
            def potential_and_gradient(self, position):
                value, slope = super().potential_and_gradient(position)
                other, other_slope = super().potential_and_gradient(position - 40.0)
                there = other < value
                return np.where(there, other, value), np.where(there[:, None], other_slope, slope)

        surrogate, exact = Two(gumbel(2)), self.exact_draws(rng)
        points = draw_from_surrogate(
            surrogate,
            self.kernel(surrogate),
            np.concatenate([exact.position.reshape(-1, 2), gumbel(2).draw(rng, 800) + 40.0]),
            1,
            lambda points: True,
        )
        found = find_parts(self.kernel(surrogate), surrogate, exact, 1, points=points)
        assert not found.parts and "of its mass beyond all draws" in found.reason

    def test_weights_with_a_heavy_tail(self, rng):
        class Flat(Analytic):
            def potential_and_gradient(self, position):
                value, slope = super().potential_and_gradient(position)
                return 0.1 * value, 0.1 * slope

        surrogate = Flat(gumbel(2))
        found = find_parts(self.kernel(surrogate), surrogate, self.exact_draws(rng), 1)
        assert not found.parts and "Pareto" in found.reason

    def test_a_surrogate_that_is_not_finite_at_a_draw(self, rng):
        exact = self.exact_draws(rng)
        edge = exact.position[0, 0, 0]

        class Torn(Analytic):
            def potential_and_gradient(self, position):
                value, slope = super().potential_and_gradient(position)
                return np.where(position[:, 0] == edge, np.nan, value), slope

        surrogate = Torn(gumbel(2))
        found = find_parts(self.kernel(surrogate), surrogate, exact, 1)
        assert not found.parts and "not finite" in found.reason
