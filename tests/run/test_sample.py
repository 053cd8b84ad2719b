"""`sample`: the same seed gives the same draws, every evaluation is counted, and nothing adapts once draws are kept.

Here warm-up is made of steps; of the default method see `test_automatic`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from counting import Counted

import leapwise as lw
from leapwise.problems.shapes import gumbel

FIXED, TUNED = lw.HMC(0.7, 3), lw.HMC()
TUNE = 22


class Riemannian:
    """A metric that grows away from the origin, G(q) = (1 + q.q) I."""

    def at(self, position):
        return Local(position)


class Local:
    def __init__(self, position):
        dim = position.shape[1]
        self.position = position
        self.size = 1.0 + (position**2).sum(axis=1)[:, None]
        self.matrix = self.size[:, :, None] * np.eye(dim)
        self.cholesky = np.sqrt(self.matrix)

    def quadratic_contraction(self, velocity):
        return 2.0 * self.position * (velocity**2).sum(axis=1)[:, None]

    def trace_contraction(self):
        return 2.0 * self.position * self.position.shape[1] / self.size


METHODS = {
    "tuned": lambda: lw.HMC(),
    "set": lambda: FIXED,
    "diagonal": lambda: lw.HMC(metric="diagonal"),
    "riemannian": lambda: lw.RMHMC(0.3, 2, metric=Riemannian()),
}


@pytest.fixture(params=METHODS)
def method(request):
    return METHODS[request.param]()


def short(target, method=TUNED, **settings):
    defaults = {"draws": 12, "tune": TUNE, "chains": 3, "random_seed": 1}
    return lw.sample(target, method=method, **(defaults | settings))


def assert_same(run, other):
    for record, twin in ((run.posterior, other.posterior), (run.warmup, other.warmup)):
        np.testing.assert_array_equal(record.draws, twin.draws)
        assert record.stats.keys() == twin.stats.keys()
        for name, values in record.stats.items():
            np.testing.assert_array_equal(values, twin.stats[name], err_msg=name)


class TestSeeds:
    def test_the_same_seed_gives_the_same_draws(self, method):
        assert_same(*(short(Counted().target, method) for _ in range(2)))

    def test_another_seed_gives_others(self, method):
        first, second = (short(Counted().target, method, random_seed=seed) for seed in (1, 2))
        assert not (first.draws == second.draws).any()

    def test_chains_are_different(self, method):
        draws = short(Counted().target, method).draws
        assert len(np.unique(draws[:, -1, 0])) == 3

    def test_no_seed_is_a_fresh_seed_that_gives_the_draws_again(self):
        first, second = (short(Counted().target, FIXED, random_seed=None) for _ in range(2))
        assert first.seed != second.seed
        assert_same(first, short(Counted().target, FIXED, random_seed=first.seed))

    def test_global_random_numbers_are_left_alone(self):
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        short(Counted().target)
        np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002

    def test_with_given_settings_a_chain_does_not_depend_on_those_beside_it(self):
        few, many = (short(Counted().target, FIXED, chains=chains) for chains in (4, 8))
        np.testing.assert_array_equal(few.draws, many.draws[:4])
        np.testing.assert_array_equal(few.posterior.stats["lp"], many.posterior.stats["lp"][:4])

    def test_more_draws_continue_the_same_chains(self):
        few, many = (short(Counted().target, draws=draws) for draws in (5, 15))
        np.testing.assert_array_equal(few.draws, many.draws[:, :5])


class TestCost:
    def test_every_call_is_counted(self, method):
        counted = Counted()
        run = short(counted.target, method)
        assert run.cost.n_gradients == counted.calls
        assert (run.cost.n_values, run.cost.n_failures) == (0, 0)

    def test_the_phases_share_it_out(self, method):
        run = short(Counted().target, method)
        assert run.posterior.cost.n_gradients == run.posterior.stats["n_exact"].sum()
        # Warm-up also pays for the start, and for the first step size if it is to be found.
        extra = run.warmup.cost.n_gradients - run.warmup.stats["n_exact"].sum()
        assert extra >= 3
        if method is FIXED:
            assert extra == 3, "one gradient a chain for the start, and nothing else"

    def test_vectorised_targets_count_rows(self, method):
        rows = []

        def log_density(x):
            rows.append(len(x))
            return -0.5 * (x**2).sum(axis=1)

        run = short(lw.Target(log_density, lambda x: -x, dim=2, vectorized=True), method)
        assert run.cost.n_gradients == sum(rows)

    def test_times_are_of_their_phase(self):
        run = short(Counted().target)
        for cost in (run.warmup.cost, run.posterior.cost):
            assert 0 < cost.gradient_seconds < cost.seconds

    def test_without_warmup_the_start_is_still_paid(self):
        counted = Counted()
        run = short(counted.target, FIXED, tune=0)
        assert run.warmup.draws.shape == (3, 0, 2)
        assert run.warmup.cost.n_gradients == 3
        assert run.cost.n_gradients == counted.calls

    def test_metric_evaluations_are_counted(self):
        calls = []

        class Counting(Riemannian):
            def at(self, position):
                calls.append(len(position))
                return super().at(position)

        target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
        run = short(target, lw.RMHMC(0.3, 2, metric=Counting()), tune=0)
        assert run.cost.n_metrics == sum(calls)
        assert run.posterior.cost.n_metrics == run.posterior.stats["n_metrics"].sum() == sum(calls) - 3


class TestFrozen:
    """Nothing adapts while draws are kept."""

    @pytest.mark.parametrize("kind", [lw.HMC, lw.NUTS, lw.RMHMC])
    def test_all_kept_draws_come_from_one_object(self, kind, monkeypatch):
        kernels = []

        def spied(step):
            def spy(self, streams, state, evaluator):
                kernels.append(self)
                return step(self, streams, state, evaluator)

            return spy

        for each in (lw.HMC, lw.NUTS, lw.RMHMC):
            monkeypatch.setattr(each, "step", spied(each.step))
        run = short(
            Counted().target, lw.RMHMC(n_steps=1, metric=Riemannian()) if kind is lw.RMHMC else kind()
        )
        assert len(kernels) == TUNE + 12
        assert len({id(kernel) for kernel in kernels[TUNE:]}) == 1
        assert len({kernel.step_size for kernel in kernels[:TUNE] if np.ndim(kernel.step_size) == 0}) > 3
        frozen = kernels[-1]
        assert run.settings["step_size"] == frozen.step_size
        assert run.settings["kernel"] == type(frozen).__name__
        if not isinstance(frozen, lw.NUTS):
            assert run.settings["trajectory_length"] == frozen.trajectory_length

    def test_the_statistics_say_so_too(self):
        run = lw.sample(gumbel().target, draws=200, tune=60, method=lw.HMC(), random_seed=1)
        length, jitter = run.settings["trajectory_length"], lw.HMC().jitter
        assert run.settings["jitter"] == jitter
        stats = run.posterior.stats
        time = stats["step_size"] * stats["n_steps"]
        assert (stats["step_size"] <= run.settings["step_size"] * (1 + 1e-12)).all()
        assert (
            (time >= length * (1 - jitter) * (1 - 1e-12)) & (time <= length * (1 + jitter) * (1 + 1e-12))
        ).all()

    def test_a_kernel_is_frozen(self):
        with pytest.raises(AttributeError):
            lw.HMC(0.1, 5).step_size = 0.2


class TestShapes:
    @pytest.mark.parametrize("chains", [1, 2])
    @pytest.mark.parametrize("draws", [1, 3])
    def test_the_smallest_runs_work(self, chains, draws, method):
        run = short(Counted(dim=1).target, method, chains=chains, draws=draws)
        assert run.draws.shape == (chains, draws, 1)
        assert all(values.shape == (chains, draws) for values in run.posterior.stats.values())
        assert all(values.shape == (chains, TUNE) for values in run.warmup.stats.values())
        assert run.complete and run.exact
        assert str(run.summary())

    def test_numpy_integers_will_do(self):
        run = short(
            Counted().target,
            draws=np.int64(3),
            tune=np.int32(20),
            chains=np.uint8(2),
            random_seed=np.int64(1),
        )
        assert run.draws.shape == (2, 3, 2)
        assert_same(run, short(Counted().target, draws=3, tune=20, chains=2))

    def test_statistics_agree_with_each_other(self):
        run = short(Counted().target, draws=100)
        stats = run.posterior.stats
        np.testing.assert_allclose(stats["lp"], -0.5 * (run.draws**2).sum(axis=2))
        assert (stats["energy"] >= -stats["lp"]).all(), "the kinetic energy is not negative"
        assert ((stats["acceptance_rate"] >= 0) & (stats["acceptance_rate"] <= 1)).all()
        np.testing.assert_allclose(
            stats["acceptance_rate"], np.exp(np.minimum(0, -stats["energy_error"])), rtol=1e-12
        )
        moved = (np.diff(run.draws, axis=1) != 0).any(axis=2)
        np.testing.assert_array_equal(moved, stats["accepted"][:, 1:])

    def test_init_is_where_chains_begin(self):
        run = short(Counted().target, lw.HMC(1e-9, 1), tune=0, draws=1, init=[3.0, -4.0])
        np.testing.assert_allclose(run.draws[:, 0], np.tile([3.0, -4.0], (3, 1)), atol=1e-6)


class TestProgressBar:
    @pytest.mark.parametrize("progressbar", [False, None])
    def test_silence_is_silent(self, progressbar, capfd):
        short(Counted().target, progressbar=progressbar)
        assert capfd.readouterr() == ("", "")

    def test_it_changes_nothing_in_the_draws(self, capfd):
        shown, hidden = (short(Counted().target, progressbar=flag) for flag in (True, False))
        assert_same(shown, hidden)
        assert "draws" in capfd.readouterr().err


def test_time_in_the_sampler_is_unknown_on_an_executor(tmp_path):
    """Also when the run is resumed without one: the time of its evaluations is still a sum over workers."""
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    settings = {"chains": 2, "random_seed": 1, "progressbar": False, "ledger": tmp_path / "run.db"}
    with ThreadPoolExecutor(2) as executor:
        run = lw.sample(target, 20, executor=executor, **settings)
    for each in (run, lw.sample(target, 30, **settings)):
        assert np.isnan([each.warmup.cost.sampler_seconds, each.posterior.cost.sampler_seconds]).all()
    assert lw.sample(target, 20, **settings | {"ledger": None}).cost.sampler_seconds > 0
