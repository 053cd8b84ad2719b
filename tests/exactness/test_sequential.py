"""The sequential test: its false-alarm rate, its power, and every public kernel.

A correct kernel fails one of these tests with probability 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
from public_kernels import LISTED
from scipy.stats import norm
from wrong_kernels import Lost, TooWide

from leapwise import HMC, UnitMetric
from leapwise.errors import InputError
from leapwise.testing import gumbel
from leapwise.testing.sequential import check_two_samples, sequential_test

FALSE_ALARM = 1e-6
KERNEL = HMC(0.9, 3, metric=UnitMetric())


class TestSequentialTest:
    @pytest.mark.parametrize("max_stages", [1, 2, 7])
    @pytest.mark.parametrize("level", [0.05, 0.3])
    def test_false_alarms_are_as_rare_as_stated(self, level, max_stages):
        """With uniform p-values, the rate is known: the bound is met with equality, or all but."""
        n = 4000
        alarms = sum(
            not sequential_test(
                lambda n, rng: {"u": rng.random()}, 1, random_seed=i, false_alarm=level, max_stages=max_stages
            ).passed
            for i in range(n)
        )
        assert alarms <= n * level + 5 * np.sqrt(n * level)
        assert alarms >= 0.5 * n * level

    def test_several_p_values_do_not_add_up_to_false_alarms(self):
        def p_values(n, rng):
            return dict(enumerate(rng.random(10)))

        alarms = sum(
            not sequential_test(p_values, 1, random_seed=i, false_alarm=0.1).passed for i in range(2000)
        )
        assert alarms <= 200 + 5 * np.sqrt(200)

    @staticmethod
    def off_by(shift):
        def p_values(n, rng):
            return {"mean": 2 * norm.sf(abs(np.sqrt(n) * shift + rng.standard_normal()))}

        return p_values

    def test_power_is_more_than_that_of_a_single_look(self):
        """At a shift that one look sees hardly ever: 2.5 standard errors at first."""
        shift, n = 2.5 / np.sqrt(100), 300
        once = np.mean(
            [
                not sequential_test(self.off_by(shift), 100, random_seed=i, max_stages=1).passed
                for i in range(n)
            ]
        )
        often = np.mean(
            [not sequential_test(self.off_by(shift), 100, random_seed=i).passed for i in range(n)]
        )
        assert once < 0.1 and often > 0.8

    def test_a_sound_subject_is_rarely_looked_at_twice(self):
        looks = [len(sequential_test(self.off_by(0.0), 100, random_seed=i).stages) for i in range(1000)]
        assert np.mean(looks) < 1.3 and max(looks) <= 7

    def test_each_stage_has_more_draws_and_milder_limits(self):
        """With p-values always in doubt, all stages are run."""
        found = sequential_test(lambda n, rng: {"p": 0.1, "q": 0.05}, 100, max_stages=7)
        assert [stage.n for stage in found.stages] == [100, 200, 400, 800, 1600, 3200, 6400]
        assert all(stage.adjusted == 0.1 and stage.worst == "q" for stage in found.stages)
        limits = [stage.fails_below for stage in found.stages]
        np.testing.assert_allclose(limits[0], 1e-5 / 7)
        np.testing.assert_allclose(np.diff(np.log(limits)), -np.log(limits[0]) / 7)
        assert not found.passed and "FAILED" in repr(found) and str(found).count("stage") == 7

    @pytest.mark.parametrize(("p", "passed"), [(0.0, False), (1.0, True), (1e-7, False)])
    def test_a_clear_answer_needs_one_stage(self, p, passed):
        found = sequential_test(lambda n, rng: {"p": p}, 10)
        assert found.passed is passed and len(found.stages) == 1

    @pytest.mark.parametrize(
        "bad",
        [
            {"false_alarm": 0.0},
            {"false_alarm": 1.0},
            {"max_stages": 0},
            {"growth": 0.5},
            {"growth": np.nan},
            {"n": 0},
            {"p_values": 0.3},
            {"p_values": lambda n, rng: {}},
            {"p_values": lambda n, rng: {"p": np.nan}},
        ],
    )
    def test_bad_settings_are_refused_with_a_sentence(self, bad):
        with pytest.raises(InputError, match=next(iter(bad))):
            sequential_test(**{"p_values": lambda n, rng: {"p": 0.5}, "n": 10, **bad})


class TestTwoSamples:
    @pytest.mark.parametrize("name", LISTED)
    def test_every_kernel_passes(self, name, record_property):
        record_property("false_alarm", FALSE_ALARM)
        kernel, n_chains = LISTED[name].make(gumbel()), LISTED[name].n_chains // 20
        verdict = check_two_samples(kernel, gumbel(), steps=2, n_chains=n_chains, false_alarm=FALSE_ALARM)
        assert verdict.passed, str(verdict)

    @pytest.mark.parametrize("name", ["HMC", "RNS-HMC", "surrogate transition"])
    def test_the_same_a_tenth_too_wide_is_caught(self, name):
        """In a few steps, since one does not go all the way to the wrong distribution."""
        kernel = TooWide(LISTED[name].make(gumbel()))
        verdict = check_two_samples(kernel, gumbel(), steps=4, false_alarm=FALSE_ALARM)
        assert not verdict.passed, str(verdict)

    def test_chains_that_are_lost_are_no_pass(self):
        assert not check_two_samples(Lost(), gumbel(), n_chains=500).passed

    def test_statistics_can_be_given(self, record_property):
        record_property("false_alarm", FALSE_ALARM)
        verdict = check_two_samples(
            KERNEL,
            gumbel(),
            statistics=lambda q, u: {"sum": q.sum(axis=1)},
            n_chains=500,
            false_alarm=FALSE_ALARM,
        )
        assert verdict.passed and list(verdict.stages[0].p_values) == ["sum"]

    @pytest.mark.parametrize("bad", [{"steps": 0}, {"n_chains": 20}, {"draw": lambda rng, n: None}])
    def test_bad_settings_are_refused_with_a_sentence(self, bad):
        with pytest.raises(InputError, match=next(iter(bad))):
            check_two_samples(KERNEL, gumbel(), **bad)
