"""`sample(precision=)`: draws until errors are small enough, from a chain that does not know when it will stop."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import InputError
from leapwise.results.estimating import PrecisionCheck
from leapwise.run.request import Request

#: Like a normal distribution, but not quite: a quadratic surrogate is trained fast and is nearly right.
TARGET = lw.Target(
    lambda x: -(0.5 * x**2 + 0.05 * x**4).sum(axis=1),
    dim=2,
    vectorized=True,
    value_and_gradient=lambda x: (-(0.5 * x**2 + 0.05 * x**4).sum(axis=1), -(x + 0.2 * x**3)),
)
QUICK = lw.Auto(lw.QuadraticNetwork(5))


def short(**settings) -> lw.Run:
    return lw.sample(
        TARGET, **({"draws": 400, "random_seed": 1, "progressbar": False, "method": QUICK} | settings)
    )


def _by_values(x: np.ndarray) -> float:
    return float(TARGET.evaluate(x[None], gradient=False).log_density[0])


@pytest.fixture(scope="module")
def run() -> lw.Run:
    return short(precision=0.03)


def test_it_stops_when_errors_are_small_enough(run):
    assert run.precision.is_reached and run.precision.asked == 0.03
    assert run.complete and run.draws.shape[1] < 400
    found = run.estimate()["x"]
    worst = max((found.mcse_mean / found.sd).max(), (found.mcse_sd / found.sd).max())
    assert worst == pytest.approx(run.precision.reached, rel=0.15)  # which is relative to the plain sd
    assert run.settings["precision"] == 0.03
    text = str(run.summary())
    assert "precision 0.03 was asked for" in text and "Draw more" not in text


def test_stopping_does_not_change_the_chains(run, monkeypatch):
    """The draws are the first of those that are made if no check ever says stop."""
    monkeypatch.setattr(PrecisionCheck, "is_reached", property(lambda check: False))
    whole = short(precision=0.03)
    assert whole.draws.shape[1] == 400
    np.testing.assert_array_equal(run.draws, whole.draws[:, : run.draws.shape[1]])


def test_a_harder_one_takes_more(run):
    assert short(precision=0.012, draws=2000).draws.shape[1] > run.draws.shape[1]


def test_warm_up_plans_for_as_many_independent_draws_as_are_needed():
    assert Request(TARGET, lw.Auto(), 4, 5000, None, 1, None, None, precision=0.05).planned_draws == 100
    assert Request(TARGET, lw.Auto(), 4, 50, None, 1, None, None, precision=0.05).planned_draws == 50


def test_one_that_is_not_reached_warns():
    run = short(precision=1e-6, draws=30)
    assert not run.precision.is_reached and run.draws.shape[1] == 30
    assert any("precision 1e-06 was not reached" in each for each in run.summary().warnings)


def test_without_a_surrogate():
    run = short(method=lw.HMC(0.4, 6), tune=50, precision=0.15)
    assert run.precision.is_reached and run.draws.shape[1] < 400
    plain = run.estimate(plain=True)["x"]
    assert max((plain.mcse_mean / plain.sd).max(), (plain.mcse_sd / plain.sd).max()) <= 0.15


def test_with_a_limit_of_evaluations():
    run = short(precision=1e-6, max_evaluations=300, draws=2000)
    assert run.cost.n_exact <= 300 and not run.precision.is_reached


def test_on_several_cores():
    target = lw.Target(_by_values, dim=2)
    one, two = (
        lw.sample(target, 300, method=QUICK, precision=0.05, random_seed=1, progressbar=False, **settings)
        for settings in ({}, {"cores": 2})
    )
    np.testing.assert_allclose(one.draws, two.draws, rtol=1e-6)


@pytest.mark.parametrize("given", [0.0, -0.1, 1.0, np.nan, np.inf, "fine", [0.1, 0.2], True])
def test_what_is_no_precision(given):
    def never(x):
        raise AssertionError("evaluated")

    with pytest.raises(InputError, match="precision"):
        lw.sample(lw.Target(never, dim=1), precision=given)


class TestLedger:
    def test_a_resumed_run_stops_where_an_uninterrupted_one_does(self, run, tmp_path):
        """The first call is interrupted in the middle of its draws."""
        path, calls = tmp_path / "a.ledger", []

        def interrupted(x, gradient=True):
            calls.append(len(x))
            if sum(calls) > 200:
                raise KeyboardInterrupt
            return TARGET.evaluate(x, gradient=gradient)

        target = lw.Target(
            lambda x: interrupted(x, False).log_density,
            dim=2,
            vectorized=True,
            value_and_gradient=lambda x: (interrupted(x).log_density, interrupted(x).gradient),
        )
        settings = {"draws": 400, "random_seed": 1, "progressbar": False, "precision": 0.03, "method": QUICK}
        whole = lw.sample(TARGET, **settings)
        part = lw.sample(target, ledger=path, version="1", **settings)
        assert not part.complete
        again = lw.resume(path, TARGET, version="1", progressbar=False)
        np.testing.assert_array_equal(again.draws, whole.draws)
        assert again.precision == whole.precision

    def test_the_precision_of_the_last_call_is_taken(self, tmp_path):
        path = tmp_path / "a.ledger"
        first = short(precision=0.03, ledger=path)
        again = lw.resume(path, TARGET, progressbar=False)
        np.testing.assert_array_equal(again.draws, first.draws)
        assert again.precision == first.precision
        assert again.cost.n_exact == first.cost.n_exact
        assert lw.inspect_ledger(path).phase == "complete"
        more = lw.resume(path, TARGET, precision=0.015, progressbar=False)
        assert more.draws.shape[1] > first.draws.shape[1]
        np.testing.assert_array_equal(more.draws[:, : first.draws.shape[1]], first.draws)

    def test_saved_and_loaded(self, run, tmp_path):
        run.save(tmp_path / "run.nc")
        again = lw.load(tmp_path / "run.nc")
        assert again.precision == run.precision
        assert str(again.summary()) == str(run.summary())


class TestCheck:
    def test_numbers_of_draws(self):
        check = PrecisionCheck(0.03)
        assert check.first(4, 1000) == 25 and check.first(1, 1000) == 100 and check.first(50, 1000) == 20
        assert check.first(4, 10) == 10
        # Nothing is known yet: twice as many. Close to the precision: at least a fifth more.
        assert check.following(100) == 200
        check.result = check.result._replace(reached=0.031)
        assert check.following(100) == 120
        check.result = check.result._replace(reached=0.045)
        assert check.following(100) == 150
