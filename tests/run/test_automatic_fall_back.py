"""`sample` starts wherever there is a gradient: other modes are found, and exact HMC takes over if all else fails."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import BudgetError, SurrogateError
from leapwise.results.statistics import statistics
from leapwise.run import automatic


def two_modes(dim, weights, apart=8.0):
    """Unit normals on both sides of the origin, with a gradient; their centres, and the direction between them."""
    direction = np.ones(dim) / np.sqrt(dim)
    centres = np.stack([-0.5 * apart * direction, 0.5 * apart * direction])

    def both(x):
        away = x[:, None] - centres
        each = np.log(weights) - 0.5 * (away**2).sum(axis=2)
        top = each.max(axis=1, keepdims=True)
        share = np.exp(each - top)
        total = share.sum(axis=1, keepdims=True)
        return (top + np.log(total))[:, 0], -np.einsum("ij,ijk->ik", share / total, away)

    target = lw.Target(lambda x: both(x)[0], value_and_gradient=both, dim=dim, vectorized=True)
    return target, centres, direction


def fail(error):
    def run_adaptation(record, streams, init, plan, *_):
        record.evaluate(np.random.default_rng(0).normal(size=(8, record.evaluator.target.dim)))
        raise error

    return run_adaptation


NORMAL = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=3)


class TestModes:
    @pytest.mark.parametrize("dim", [2, pytest.param(6, marks=pytest.mark.slow)])
    def test_one_that_no_chain_starts_near_is_found_and_weighed(self, dim):
        target, centres, direction = two_modes(dim, [0.8, 0.2])
        init = centres[0] + np.random.default_rng(0).normal(size=(4, dim))
        run = lw.sample(target, draws=500, init=init, random_seed=1)
        inside = (run.draws @ direction > 0.0)[..., None].astype(float)
        found = statistics(inside)
        assert abs(found.mean[0] - 0.2) < 4.0 * found.sd[0] / np.sqrt(found.ess[0])

    def test_one_that_holds_all_the_mass_is_moved_to(self):
        """The other has a share of e^-40, and all chains start there."""
        target, centres, direction = two_modes(3, [1.0, np.exp(40.0)], apart=12.0)
        run = lw.sample(target, draws=200, init=centres[0], random_seed=1)
        assert (run.draws @ direction > 0.0).all() and run.surrogate.exact_share == 0.0

    @pytest.mark.slow
    @pytest.mark.parametrize(("dim", "least"), [(2, 10), (5, 7), (10, 7)])
    def test_they_are_found_and_weighed_with_most_seeds(self, dim, least):
        """All chains start near the larger one, as they do if the other is far from 0."""
        target, centres, direction = two_modes(dim, [0.8, 0.2])
        n_right = 0
        for seed in range(10):
            init = centres[0] + np.random.default_rng(seed).uniform(-2.0, 2.0, size=(4, dim))
            run = lw.sample(target, init=init, random_seed=seed)
            found = statistics((run.draws @ direction > 0.0)[..., None].astype(float))
            n_right += abs(found.mean[0] - 0.2) < 4.0 * found.sd[0] / np.sqrt(found.ess[0])
        assert n_right >= least

    def test_to_look_for_others_costs_little_where_there_are_none(self):
        """Two gradients for each descent from far out: where the posterior is normal, one step arrives."""
        asked = []

        def gradient(x):
            asked.append(np.array(x))
            return -x

        lw.sample(lw.Target(lambda x: -0.5 * x @ x, gradient, dim=4), draws=1000, random_seed=1)
        far = np.linalg.norm(asked, axis=1) > 11.0  # six widths, sqrt(dim) each
        assert 8 <= far.sum() <= 12


@pytest.mark.parametrize(
    "error",
    [BudgetError("nothing was found"), np.linalg.LinAlgError("not positive definite")],
    ids=["budget", "numbers"],
)
class TestFallBack:
    def test_exact_hmc_takes_over_and_what_it_sees_is_learned_from(self, error, monkeypatch):
        monkeypatch.setattr(automatic, "run_adaptation", fail(error))
        run = lw.sample(NORMAL, draws=100, random_seed=1)
        assert run.complete and run.surrogate.exact_share == 0.0, (
            "a normal posterior is learned from a few steps"
        )
        assert run.posterior.cost.n_gradients == 0 and run.posterior.cost.n_values <= 400
        assert run.warmup.draws.shape[1] < 500, "HMC did not go on to the end of its warm-up"

    def test_where_nothing_can_be_learned_it_draws(self, error, monkeypatch):
        monkeypatch.setattr(automatic, "run_adaptation", fail(error))
        monkeypatch.setattr(automatic, "learn_from", lambda *_: (_ for _ in ()).throw(error))
        run = lw.sample(NORMAL, draws=100, random_seed=1)
        assert run.complete and run.surrogate.exact_share == 1.0 and isinstance(run.kernel, lw.HMC | lw.NUTS)
        assert any("fell back on HMC" in warning for warning in run.summary().warnings)

    def test_without_a_gradient_it_is_an_error_that_says_what_to_do(self, error, monkeypatch):
        monkeypatch.setattr(automatic, "run_adaptation", fail(error))
        with pytest.raises((BudgetError, SurrogateError), match=r"give a gradient"):
            lw.sample(lw.Target(lambda x: -0.5 * x @ x, dim=3), draws=100, random_seed=1)

    def test_a_limit_is_not_spent_on_it(self, error, monkeypatch):
        monkeypatch.setattr(automatic, "run_adaptation", fail(error))
        with pytest.raises((BudgetError, SurrogateError)):
            lw.sample(NORMAL, draws=100, max_evaluations=300, random_seed=1)


def test_without_trust_the_draws_are_those_of_hmc(monkeypatch):
    """HMC begins where the chains were to start: the adaptation may have ended in the neck of a funnel."""
    monkeypatch.setattr(automatic, "judge", lambda _: automatic.Trust(1.0, "it is wrong"))
    run = lw.sample(NORMAL, draws=50, random_seed=1)
    assert run.surrogate.exact_share == 1.0
    np.testing.assert_array_equal(
        run.draws, lw.sample(NORMAL, draws=50, method=lw.HMC(), random_seed=1).draws
    )


def test_the_cost_of_many_gradients_is_told_before_the_draws(caplog):
    automatic.warn_of_cost(12.0, 4000)
    assert not caplog.messages
    automatic.warn_of_cost(200.0, 4000)
    assert "about 200 gradients" in caplog.text and "800,000" in caplog.text


def test_mass_farther_from_zero_than_any_usual_start_is_found_and_learned():
    """As many evaluations are left for descents as if the first starts had been finite."""
    centre = np.array([6.0, 0.0, 0.0])

    def log_density(x):
        return -50.0 * float(((x - centre) ** 2).sum()) if x[0] > 3.0 else -np.inf

    run = lw.sample(lw.Target(log_density, lambda x: -100.0 * (x - centre), dim=3), draws=100, random_seed=1)
    assert run.surrogate.exact_share == 0.0
    # 6 standard errors of at least 100 effective draws, each with a standard deviation of 0.1.
    np.testing.assert_allclose(run.draws.mean(axis=(0, 1)), centre, atol=0.06)


def test_a_model_that_cannot_fit_its_data_is_the_reason_given():
    """A narrower prior would not help there."""
    rng = np.random.default_rng(0)
    waves = rng.normal(size=(30, 4)) * 3.0
    likelihood = lw.GaussianLikelihood(rng.normal(size=30) * 50.0, sd=0.01)
    target = lw.ForwardTarget(
        lambda x: np.sin(waves @ x) + abs(np.sin(7.0 * x[0] * x[1])),
        likelihood,
        lw.NormalPrior(0.0, 1.0, dim=4),
    )
    with pytest.raises(
        SurrogateError, match=r"does not fit the data within its errors \(chi\^2 of [\d,]+ for 30"
    ) as caught:
        lw.sample(target, 10, chains=2, random_seed=1, progressbar=False)
    assert "GaussianLikelihood" in str(caught.value) and "narrower prior" not in str(caught.value)
