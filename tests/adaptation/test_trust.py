"""How many exact steps the draws need beside a surrogate."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.trust import Trust, judge, refuse_heavy_tails, require_use
from leapwise.errors import ImproperError, SurrogateError
from leapwise.execution import Evaluator


def result(sd, surprises, missed_mass=False):
    return SimpleNamespace(
        sd=sd,
        surprises=surprises,
        training=[0] * 50,
        missed_mass=missed_mass,
        settings=DEFAULT,
        is_useful=sd < DEFAULT.stopping.useless,
    )


class TestTrust:
    def test_a_good_surrogate_needs_no_exact_steps(self):
        assert judge(result(0.3, 0.0)) == Trust(0.0)

    @pytest.mark.parametrize(("sd", "surprises"), [(2.0, 0.0), (np.inf, 0.0), (0.1, 0.5), (np.nan, 0.0)])
    def test_a_useless_one_is_not_used(self, sd, surprises):
        found = judge(result(sd, surprises))
        assert found.exact_share == 1.0 and "after 50 evaluations" in found.reason
        if surprises == 0.0:
            with pytest.raises(SurrogateError, match="no gradient to fall back on"):
                require_use(result(sd, surprises), found)

    def test_without_a_gradient_a_poor_one_is_still_used(self):
        """There are no exact steps that would cost less."""
        sd = 0.5 * (DEFAULT.stopping.useless + DEFAULT.stopping.useless_values)
        require_use(result(sd, 0.0), judge(result(sd, 0.0)))
        with pytest.raises(SurrogateError, match="no gradient to fall back on"):
            require_use(result(1.01 * DEFAULT.stopping.useless_values, 0.0), judge(result(sd, 0.0)))

    def test_a_fair_one_is_helped(self):
        found = judge(result(0.7, 0.0))
        assert 0.0 < found.exact_share < 0.5
        require_use(result(0.7, 0.0), found)

    def test_one_with_mass_beyond_its_draws_is_helped_and_says_so(self):
        found = judge(result(0.1, 0.0, missed_mass=True))
        assert 0.0 < found.exact_share < 0.5 and "there is mass" in found.reason
        assert "there is mass" not in judge(result(0.9, 0.0)).reason


def looked_at(log_density, dim):
    """Return a record of a log-density, after it was evaluated at some positions."""
    record = EvaluationRecord.of(Evaluator(lw.Target(log_density, dim=dim, vectorized=True)))
    record.evaluate(np.random.default_rng(1).standard_normal((40, dim)))
    return record


def t_distribution(degrees):
    return lambda x: -0.5 * (degrees + x.shape[1]) * np.log1p((x**2).sum(axis=1) / degrees)


class TestHeavyTails:
    @pytest.mark.parametrize("dim", [1, 2, 5])
    def test_an_infinite_integral_is_refused(self, dim):
        record = looked_at(lambda x: -dim * np.log(np.linalg.norm(x, axis=1)), dim)
        with pytest.raises(ImproperError, match="falls off too slowly along"):
            refuse_heavy_tails(record, np.random.default_rng(2))

    @pytest.mark.parametrize("dim", [1, 2, 5])
    @pytest.mark.parametrize("degrees", [0.5, 1.0, 2.0, 30.0])
    def test_heavy_tails_that_are_proper_pass(self, dim, degrees):
        refuse_heavy_tails(looked_at(t_distribution(degrees), dim), np.random.default_rng(2))

    def test_one_heavy_parameter_among_many_passes(self):
        def log_density(x):
            return -np.log1p(x[:, 0] ** 2) - 0.5 * (x[:, 1:] ** 2).sum(axis=1)

        refuse_heavy_tails(looked_at(log_density, 10), np.random.default_rng(2))

    def test_a_model_that_fails_so_far_out_is_not_refused(self):
        def log_density(x):
            if np.abs(x).max() > 10.0:
                raise ArithmeticError("the solver diverged")
            return -np.log(np.abs(x[:, 0]))

        refuse_heavy_tails(looked_at(log_density, 1), np.random.default_rng(2))
