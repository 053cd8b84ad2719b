"""Starts of chains: given by the user, from the prior, or random; always of finite log-density."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import (
    Evaluator,
    ForwardTarget,
    GaussianLikelihood,
    NormalPrior,
    Streams,
    Target,
    UniformPrior,
)
from leapwise.errors import EvaluationError, InputError, StartError
from leapwise.warmup import find_start
from leapwise.warmup.start import ATTEMPTS, read_init

CHAINS = 4


def make_target(supported=lambda x: True, bounds=None, dim=2):
    """A standard normal where it is supported; `rows` remembers what was asked."""
    rows = []

    def log_density(x):
        rows.append(x.copy())
        return -0.5 * x @ x if supported(x) else -np.inf

    target = Target(log_density, lambda x: -x, dim=dim, bounds=bounds)
    target.rows = rows
    return target


def start(target, init=None, chains=CHAINS, seed=1, **settings):
    return find_start(Evaluator(target, **settings), Streams(seed, chains), init)


class TestInit:
    @pytest.mark.parametrize(
        "init", [[0.5, 1.0], (0.5, 1.0), np.array([0.5, 1.0]), np.array([0.5, 1.0], dtype=np.float32)]
    )
    def test_one_point_is_for_all_chains(self, init):
        state = start(make_target(), init)
        np.testing.assert_array_equal(state.position, np.tile([0.5, 1.0], (CHAINS, 1)))
        np.testing.assert_allclose(state.potential, 0.625)
        np.testing.assert_allclose(state.gradient, state.position)

    def test_integers_will_do(self):
        assert start(make_target(), [1, 2]).position.dtype == np.float64

    def test_one_point_for_each_chain(self, rng):
        init = rng.normal(size=(CHAINS, 2))
        np.testing.assert_array_equal(start(make_target(), init).position, init)

    def test_it_costs_one_gradient_for_each_position(self):
        for init, n in (([0.0, 0.0], 1), (np.arange(2.0 * CHAINS).reshape(CHAINS, 2), CHAINS)):
            evaluator = Evaluator(make_target())
            state = find_start(evaluator, Streams(1, CHAINS), init)
            assert (evaluator.counts.n_gradients, evaluator.counts.n_values) == (n, 0)
            again = Evaluator(make_target()).value_and_gradient(state.position)
            np.testing.assert_array_equal(state.potential, again.potential)
            np.testing.assert_array_equal(state.gradient, again.gradient)

    def test_it_is_in_the_users_coordinates(self):
        target = make_target(bounds=[(0, None), (-1, 1)])
        start(target, [3.0, 0.5])
        np.testing.assert_allclose(target.rows, [[3.0, 0.5]])

    def test_it_is_not_written_to(self):
        init = np.array([0.5, 1.0])
        start(make_target(), init).position[:] = 99.0
        np.testing.assert_array_equal(init, [0.5, 1.0])

    @pytest.mark.parametrize(
        ("init", "error", "words"),
        [
            (["a", "b"], InputError, r"real numbers, got \['a', 'b'\]"),
            ([1j, 0.0], InputError, "complex128"),
            ([True, False], InputError, "bool"),
            ([[1.0], [1.0, 2.0]], InputError, "real numbers"),
            (0.5, InputError, r"shape \(2,\), or \(4, 2\) for 4 chains, got \(\)"),
            ([1.0, 2.0, 3.0], InputError, r"got \(3,\)"),
            (np.zeros((3, 2)), InputError, r"got \(3, 2\)"),
            (np.zeros((4, 2, 1)), InputError, r"got \(4, 2, 1\)"),
            ([0.0, np.nan], StartError, "got nan for parameter 1 of chain 0"),
            ([[0, 0], [0, 0], [np.inf, 0], [0, 0]], StartError, "got inf for parameter 0 of chain 2"),
        ],
    )
    def test_bad_points_are_refused_before_anything_is_evaluated(self, init, error, words):
        target = make_target()
        with pytest.raises(error, match=words):
            read_init(init, target, CHAINS)
        with pytest.raises(error, match=words):
            start(target, init)
        assert not target.rows

    @pytest.mark.parametrize("value", [-1.0, 0.0, 5.0, 6.0])
    def test_points_outside_the_bounds_are_refused(self, value):
        target = make_target(bounds=[(None, None), (0, 5)])
        words = rf"got {value:g} for parameter 1 of chain 0, whose bounds are \(0, 5\)"
        with pytest.raises(StartError, match=words):
            start(target, [0.0, value])
        assert not target.rows

    def test_minus_infinity_names_chain_value_place_and_remedy(self):
        target = make_target(lambda x: x[0] < 2.0)
        init = np.zeros((CHAINS, 2))
        init[2] = [2.5, 0.25]
        with pytest.raises(StartError) as caught:
            start(target, init)
        message = str(caught.value)
        for words in ("chain 2", "-inf", "[2.5 , 0.25]", "start where the log-density is finite"):
            assert words in message
        assert "\n" not in message
        assert len(target.rows) == 2, "what the user gave is not tried again"

    def test_nan_is_a_failure_that_names_the_place(self):
        target = Target(lambda x: np.nan, lambda x: x, dim=2)
        with pytest.raises(EvaluationError, match=r"log-density of nan at parameters \[2.5 , 0.25\]"):
            start(target, [2.5, 0.25])

    def test_nan_declared_as_a_rejection_is_still_told(self):
        target = Target(lambda x: np.nan, lambda x: x, dim=2)
        with pytest.raises(StartError, match=r"chain 0 is -inf at init.*last failure.*log-density of nan"):
            start(target, [2.5, 0.25], on_failure="reject")


class TestRandomStarts:
    def test_they_are_spread_in_unconstrained_space(self):
        position = start(make_target(dim=50), chains=20).position
        assert np.abs(position).max() < 2.0
        assert position.min() < -1.9 < 1.9 < position.max()
        assert len(np.unique(position)) == position.size

    def test_bounded_parameters_start_inside(self):
        target = make_target(bounds=[(0, 1e-9), (100, None)])
        start(target, chains=10)
        rows = np.array(target.rows)
        assert ((rows[:, 0] > 0) & (rows[:, 0] < 1e-9) & (rows[:, 1] > 100)).all()

    @pytest.mark.parametrize("width", [1e-2, 1e-6])
    def test_a_support_that_is_narrow_about_zero_is_found(self, width):
        """Parameters of small scales: the log-density overflows almost everywhere in the wide box."""
        state = start(make_target(lambda x: np.abs(x).max() < width), chains=3)
        assert (np.abs(state.position) < width).all()

    def test_a_support_away_from_zero_is_still_looked_for_in_the_wide_box(self):
        state = start(make_target(lambda x: x.min() > 1.0), chains=3)
        assert (state.position > 1.0).all()

    def test_a_support_farther_from_zero_than_the_box_is_found(self):
        state = start(make_target(lambda x: x.min() > 6.0), chains=3)
        assert (state.position > 6.0).all()

    def test_a_potential_that_swallows_all_differences_is_drawn_again(self):
        def log_density(x):
            return -0.5 * float(x @ x) * (1e20 if x[0] > 0 else 1.0)

        def gradient(x):
            return -x * (1e20 if x[0] > 0 else 1.0)

        state = start(Target(log_density, gradient, dim=2), chains=8)
        assert (state.position[:, 0] < 0).all()

    def test_a_gradient_of_zero_is_drawn_again_where_others_are_not(self):
        """Models that overflow replace a gradient that is not finite by zeros."""

        def gradient(x):
            return -x if x[0] > 0 else np.zeros(2)

        state = start(Target(lambda x: -0.5 * float(x @ x), gradient, dim=2), chains=8)
        assert (state.position[:, 0] > 0).all()

    def test_a_density_that_is_flat_everywhere_costs_no_further_starts(self):
        seen = []

        def log_density(x):
            seen.append(x)
            return 0.0

        start(Target(log_density, np.zeros_like, dim=2), chains=8)
        assert len(seen) == 8

    def test_where_no_start_is_better_the_lowest_is_taken(self):
        state = start(Target(lambda x: -1e20 * float(x @ x), lambda x: -2e20 * x, dim=2), chains=3)
        assert (np.abs(state.position) < 0.1).all()

    def test_they_depend_on_the_seed_and_the_chain_alone(self):
        few, many = start(make_target(), chains=2), start(make_target(), chains=7)
        np.testing.assert_array_equal(few.position, many.position[:2])
        assert not np.array_equal(few.position, start(make_target(), chains=2, seed=2).position)

    def test_minus_infinity_is_drawn_again_from_the_chains_own_stream(self):
        """A chain starts at its own first draw of finite log-density, whatever happens to the others."""
        target = make_target(lambda x: x[0] > 1.0)
        state = start(target, chains=8)
        assert (state.position[:, 0] > 1.0).all()
        np.testing.assert_allclose(state.potential, 0.5 * (state.position**2).sum(axis=1))
        np.testing.assert_allclose(state.gradient, state.position)
        for chain, generator in enumerate(Streams(1, 8).generators):
            draw = generator.uniform(-2.0, 2.0, 2)
            while draw[0] <= 1.0:
                draw = generator.uniform(-2.0, 2.0, 2)
            np.testing.assert_array_equal(state.position[chain], draw)

    def test_only_what_is_lost_is_paid_again(self):
        target = make_target(lambda x: x[0] > 1.0)
        state = start(target, chains=8)
        rows = [tuple(row) for row in target.rows]
        assert len(set(rows)) == len(rows)
        assert sum(row[0] > 1.0 for row in rows) == len(state.position)

    def test_no_mass_anywhere_gives_up_with_a_clear_error(self):
        target = make_target(lambda x: abs(x[0]) > 1e4)
        with pytest.raises(StartError) as caught:
            start(target)
        message = str(caught.value)
        for words in ("chain 0", "-inf", f"the last of {ATTEMPTS} random starts", "init=", "bounds="):
            assert words in message
        assert np.array2string(target.rows[-CHAINS], precision=6, separator=", ") in message
        assert len(target.rows) == ATTEMPTS * CHAINS

    def test_a_limit_that_ends_the_search_is_not_what_is_told(self):
        target = make_target(lambda x: False)
        evaluator = Evaluator(target, limit=5 * CHAINS + 1)
        with pytest.raises(StartError, match=r"the last of 5 random starts.*bounds="):
            find_start(evaluator, Streams(1, CHAINS), None)
        assert len(target.rows) == 5 * CHAINS

    def test_one_lost_chain_is_named(self):
        target = make_target()
        seen = []

        def log_density(x):
            seen.append(x)
            return -np.inf if len(seen) == 3 or len(seen) > CHAINS else 0.0

        target = Target(log_density, lambda x: -x, dim=2)
        with pytest.raises(StartError, match="chain 2 is -inf"):
            start(target)
        assert len(seen) == CHAINS + ATTEMPTS - 1

    def test_a_failing_model_stops_at_once(self):
        calls = []

        def failing(x):
            calls.append(x)
            raise OSError("no licence")

        with pytest.raises(EvaluationError, match="OSError: no licence"):
            start(Target(failing, lambda x: x, dim=2))
        assert len(calls) == 2 * CHAINS, "one call and one retry of each chain's start, and no further starts"

    def test_long_positions_stay_on_one_line(self):
        with pytest.raises(StartError) as caught:
            start(make_target(lambda x: False, dim=100), np.linspace(1e-9, 1e9, 100))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


class TestPriorStarts:
    @staticmethod
    def make(prior, **settings):
        return ForwardTarget(
            lambda x: x,
            GaussianLikelihood([0.0, 0.0], sd=1.0),
            prior,
            jacobian=lambda x: (x, np.eye(2)),
            **settings,
        )

    def test_they_are_draws_of_the_prior_from_the_chains_own_stream(self):
        prior = NormalPrior([1e3, -1e3], [1.0, 2.0])
        state = start(self.make(prior))
        expected = [prior.sample(generator) for generator in Streams(1, CHAINS).generators]
        np.testing.assert_array_equal(state.position, expected)

    def test_a_uniform_prior_is_mapped_to_positions(self):
        target = self.make(UniformPrior(10.0, 11.0, dim=2))
        parameters = target.transform.to_parameters(start(target).position)
        assert ((parameters > 10.0) & (parameters < 11.0)).all()

    def test_a_prior_wider_than_the_bounds_is_cut(self):
        target = self.make(NormalPrior(0.0, 1.0, dim=2), bounds=(0, 0.5))
        parameters = target.transform.to_parameters(start(target, chains=20).position)
        assert ((parameters > 0.0) & (parameters < 0.5)).all()

    def test_init_comes_first(self):
        target = self.make(NormalPrior(1e3, 1.0, dim=2))
        np.testing.assert_array_equal(start(target, [0.5, 0.5]).position, np.full((CHAINS, 2), 0.5))
