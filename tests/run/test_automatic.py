"""The default method: every evaluation is counted, none is paid twice, draws cost values, and nothing changes then."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from counting import Skewed, repeated

import leapwise as lw
from leapwise.adaptation import Trust
from leapwise.errors import SurrogateError
from leapwise.run import automatic
from leapwise.run.runner import Runner
from leapwise.surrogates.base import fingerprint

DRAWS, CHAINS = 60, 2
QUICK = lw.Auto(lw.QuadraticNetwork())  # one candidate is trained faster than several
WEIGHTS = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.5], [0.3, 0.0, 1.0], [0.2, 0.2, 0.2]])


def short(target, **settings):
    return lw.sample(target, **({"draws": DRAWS, "chains": CHAINS, "random_seed": 1} | settings))


class Forward:
    """A slightly curved model of four outputs, that remembers where it was run."""

    def __init__(self):
        self.positions = []
        self.target = lw.ForwardTarget(
            self.solve, lw.GaussianLikelihood([0.6, 0.2, 0.4, 0.1], sd=0.2), lw.NormalPrior(0.0, 1.0, dim=3)
        )

    @property
    def calls(self):
        return len(self.positions)

    n_gradients = 0

    def solve(self, x):
        self.positions.append(np.array(x))
        found = WEIGHTS @ x
        return found + 0.1 * found**2


MODELS = {
    "gradients": Skewed,
    "values": lambda: Skewed(gradient=False),
    "bounds": lambda: Skewed(bounds=(-4, 12)),
    "values in bounds": lambda: Skewed(gradient=False, bounds=(-4, None)),
    "outputs": Forward,
}
WITH_GRADIENTS = ("gradients", "bounds")


@pytest.fixture(scope="module", params=MODELS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def made(kind):
    """A model, and a run of it."""
    model = MODELS[kind]()
    return model, short(model.target)


class TestCost:
    def test_every_call_is_counted(self, made):
        model, run = made
        assert run.cost.n_exact == model.calls
        assert run.cost.n_gradients == model.n_gradients
        assert run.cost.n_failures == 0

    def test_the_phases_share_it_out(self, made):
        model, run = made
        assert 0 < run.posterior.cost.n_exact <= DRAWS * CHAINS
        assert run.posterior.cost.n_exact == run.posterior.stats["n_exact"].sum()
        assert run.warmup.cost.n_exact == model.calls - run.posterior.cost.n_exact
        for cost in (run.warmup.cost, run.posterior.cost):
            assert 0 < cost.model_seconds < cost.seconds

    def test_no_position_is_evaluated_twice(self, made):
        assert repeated(made[0].positions) == []

    def test_draws_take_no_gradient(self, made):
        run = made[1]
        assert run.surrogate.exact_share == 0.0, "or the test is of something else"
        assert run.posterior.cost.n_gradients == 0

    def test_without_a_gradient_none_is_taken(self, kind, made):
        assert (made[1].cost.n_gradients > 0) == (kind in WITH_GRADIENTS)

    def test_warmup_is_within_what_is_promised(self, kind, made):
        most = 150 + 10 * 3 + (90 if kind.startswith("values") else 0)
        assert made[1].warmup.cost.n_exact <= most

    def test_vectorised_targets_count_rows(self):
        rows = []

        def log_density(x):
            rows.append(len(x))
            return -(x + np.exp(-x)).sum(axis=1)

        run = short(lw.Target(log_density, lambda x: np.exp(-x) - 1.0, dim=3, vectorized=True), method=QUICK)
        assert run.cost.n_exact == sum(rows)

    @pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
    def test_one_start_for_all_chains_is_paid_once(self, gradient):
        model = Skewed(gradient=gradient)
        run = short(model.target, init=[2.0, 1.0, 0.5], chains=4)
        assert run.cost.n_exact == model.calls
        assert run.surrogate.exact_share == 0.0  # exact steps ask for gradients where values are known
        assert repeated(model.positions) == []


class TestRun:
    def test_it_is_complete_and_exact(self, kind, made):
        run = made[1]
        assert run.draws.shape == (CHAINS, DRAWS, 3)
        assert run.complete and run.exact and run.n_adaptive == 0
        assert all(values.shape == (CHAINS, DRAWS) for values in run.posterior.stats.values())
        assert run.warmup.draws.shape == (CHAINS, 0, 3)
        assert str(run.summary())
        of_outputs = {
            *("predictions", "posterior_predictive", "log_likelihood"),
            *("observed_data", "constant_data"),
        }
        groups = {"posterior", "sample_stats", "surrogate", "estimates"} | (
            of_outputs if kind == "outputs" else set()
        )
        assert set(run.to_datatree().children) == groups

    def test_draws_are_within_their_bounds(self, kind, made):
        if "bounds" not in kind:
            assert made[0].target.transform.is_identity
            return
        transform, draws = made[0].target.transform, made[1].draws
        assert (draws > transform.lower).all() and (draws < transform.upper).all()

    def test_log_densities_are_exact(self, kind, made):
        target, run = MODELS[kind]().target, made[1]
        position = target.transform.to_position(run.draws.reshape(-1, 3))
        again = lw.Evaluator(target).value(position).potential
        np.testing.assert_allclose(run.posterior.stats["lp"].ravel(), -again, rtol=1e-9, atol=1e-9)

    def test_draws_are_of_positions_that_were_evaluated(self, made):
        model, run = made
        paid = np.array(model.positions)
        for draw in run.draws.reshape(-1, 3)[::7]:
            assert np.abs(paid - draw).max(axis=1).min() < 1e-9

    def test_what_was_learned_from_is_the_warmup(self, made):
        model, run = made
        paid = np.array(model.positions[: run.warmup.cost.n_exact])
        learned = model.target.transform.to_parameters(run.training.position)
        apart = np.abs(paid[:, None] - learned).max(axis=2).min(axis=1)
        # Except a few far out along tails, which are not trained on.
        assert (apart < 1e-9 * (1.0 + np.abs(paid).max(axis=1))).mean() > 0.95
        assert len(run.training) <= len(paid), "each is finite here, and different"

    @pytest.mark.parametrize("chains", [1, 10])
    @pytest.mark.parametrize("gradient", [True, False], ids=["gradients", "values"])
    def test_few_and_many_chains(self, chains, gradient):
        model = Skewed(gradient=gradient)
        run = short(model.target, chains=chains, draws=30, method=QUICK)
        assert run.draws.shape == (chains, 30, 3)
        assert run.cost.n_exact == model.calls
        if run.surrogate.exact_share == 0:  # else gradients are paid for where values were known
            assert repeated(model.positions) == []
        assert len(np.unique(run.draws[:, -1, 0])) == chains


class TestSeeds:
    def test_the_same_seed_gives_the_same_draws(self, kind, made):
        run, again = made[1], short(MODELS[kind]().target)
        np.testing.assert_array_equal(run.draws, again.draws)
        for name, values in run.posterior.stats.items():
            np.testing.assert_array_equal(values, again.posterior.stats[name], err_msg=name)
        assert again.surrogate.fingerprint == run.surrogate.fingerprint
        np.testing.assert_array_equal(again.surrogate.history, run.surrogate.history)
        np.testing.assert_array_equal(again.training.position, run.training.position)

    def test_another_seed_gives_others(self):
        first, second = (short(Skewed().target, draws=10, random_seed=seed, method=QUICK) for seed in (1, 2))
        assert not (first.draws == second.draws).any()

    def test_global_random_numbers_are_left_alone(self):
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        short(Skewed().target, draws=5, method=QUICK)
        np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002

    def test_progress_changes_nothing(self, capfd):
        shown, hidden = (
            short(Skewed().target, draws=10, progressbar=flag, method=QUICK) for flag in (True, False)
        )
        np.testing.assert_array_equal(shown.draws, hidden.draws)
        assert "sd(D)" in capfd.readouterr().err


class TestFrozen:
    """Kept draws come from one kernel, whose surrogate does not change."""

    def test_the_fingerprint_is_that_of_the_kernel(self, made):
        run = made[1]
        assert isinstance(run.kernel, lw.SurrogateTransition)
        assert len(run.surrogate.fingerprint) == 16
        assert run.surrogate.fingerprint == fingerprint(run.kernel.surrogate)

    def test_all_kept_draws_come_from_one_object(self, monkeypatch):
        kernels, step = [], lw.SurrogateTransition.step

        def spy(self, streams, state, evaluator):
            kernels.append(self)
            return step(self, streams, state, evaluator)

        monkeypatch.setattr(lw.SurrogateTransition, "step", spy)
        run = short(Skewed().target, draws=12)
        assert len(kernels) == 12, "the adaptation makes no such step"
        assert {id(kernel) for kernel in kernels} == {id(run.kernel)}

    @pytest.mark.parametrize("limit", [None, 200], ids=["all draws", "budget spent"])
    @pytest.mark.parametrize(
        ("recipe", "weights"),
        [
            (lw.QuadraticNetwork(50), lambda fitted: fitted.solution),
            (lw.GaussianProcess(), lambda fitted: fitted.posterior.white_target),
        ],
        ids=["network", "process"],
    )
    def test_tampering_is_found(self, recipe, weights, limit, monkeypatch):
        tamper(monkeypatch, weights)
        draws = 20 if limit is None else 400
        with pytest.raises(SurrogateError, match="frozen surrogate changed") as caught:
            short(Skewed().target, method=lw.Auto(recipe), draws=draws, max_evaluations=limit)
        assert caught.value.run.draws.shape[1] >= 20

    def test_a_mixtures_surrogate_is_watched_too(self, monkeypatch):
        monkeypatch.setattr(automatic, "judge", lambda outcome: Trust(0.3, "told so"))
        tamper(monkeypatch, lambda fitted: fitted.solution)
        with pytest.raises(SurrogateError, match="frozen surrogate changed"):
            short(Skewed().target, method=QUICK, draws=20)


def tamper(monkeypatch, weights):
    """Change one weight of the surrogate, by very little, at the fifth step that it makes."""
    step, steps = lw.SurrogateTransition.step, []

    def tampering(self, streams, state, evaluator):
        steps.append(self)
        if len(steps) == 5:
            found = weights(self.surrogate)
            found.flags.writeable = True
            found[0] += 1e-9
        return step(self, streams, state, evaluator)

    monkeypatch.setattr(lw.SurrogateTransition, "step", tampering)


@cache
def doubted(share):
    """A model and a run of it, with a share of exact steps."""
    model = Skewed()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(automatic, "judge", lambda outcome: Trust(share, "told so"))
        return model, short(model.target, draws=40)


@pytest.mark.parametrize("share", [0.3, 1.0], ids=["some", "all"])
class TestDistrust:
    """Where the surrogate has not earned trust, steps with exact gradients are mixed in, up to all of them."""

    def test_every_call_is_counted(self, share):
        model, run = doubted(share)
        assert run.cost.n_exact == model.calls
        assert run.cost.n_gradients == model.n_gradients
        assert run.posterior.cost.n_exact == run.posterior.stats["n_exact"].sum()

    def test_nothing_that_is_known_is_paid_for(self, share):
        """A gradient where only a value was known is not known."""
        model, _ = doubted(share)
        for earlier, later in repeated(model.positions):
            assert model.for_gradient[later] and not model.for_gradient[earlier]

    def test_the_run_says_so(self, share):
        _, run = doubted(share)
        assert run.exact and run.complete
        assert run.surrogate.exact_share == share
        assert run.surrogate.reason == "told so"
        assert isinstance(run.kernel, lw.Mixture if share < 1.0 else lw.HMC)
        if share < 1.0:
            assert 0 < run.posterior.stats["part"].mean() < 1
            assert run.surrogate.fingerprint == fingerprint(run.kernel.kernels[0].surrogate)
        else:
            assert run.surrogate.fingerprint == "", "it was not used"

    def test_a_fall_back_is_announced_before_it_is_paid_for(self, share, caplog, monkeypatch):
        """Otherwise a user would find out days later, from the summary."""
        monkeypatch.setattr(automatic, "judge", lambda outcome: Trust(share, "told so"))
        calls = []

        class Stopped(Exception):
            pass

        def tune(self, progress):
            calls.append(caplog.messages)
            raise Stopped

        monkeypatch.setattr(Runner, "_tune", tune)
        if share < 1.0:
            assert short(Skewed().target, draws=2).exact
            (said,) = caplog.messages  # once, when the draws are there
            assert "made with exact gradients" in said and "told so" in said
            return
        with pytest.raises(Stopped):
            short(Skewed().target, draws=2)
        (said,) = calls[0]
        assert "not trusted (told so), so HMC with exact gradients takes over" in said and "Ctrl-C" in said


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_many_chains_have_time_to_find_the_posterior(seed):
    """Each has its own way to it, and the slowest decides."""
    t = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])
    y = np.array([2.07, 1.62, 1.16, 0.87, 0.68, 0.44, 0.20, 0.10])
    target = lw.ForwardTarget(
        lambda x: x[0] * np.exp(-x[1] * t),
        lw.GaussianLikelihood(y, sd=0.05),
        lw.UniformPrior([0.1, 0.01], [10.0, 5.0]),
    )
    assert lw.sample(target, draws=5, chains=32, random_seed=seed).draws.shape == (32, 5, 2)


class Bare:
    """A trained surrogate of a user's own, with a potential and a gradient and nothing else."""

    def __init__(self, inner):
        self.potential, self.potential_and_gradient = inner.potential, inner.potential_and_gradient


class BareRecipe:
    def fit(self, training, rng):
        return Bare(lw.QuadraticNetwork().fit(training, rng))


@pytest.mark.parametrize("kind", ["gradient", "values"])
def test_a_surrogate_needs_no_hessian(kind):
    """The adaptation takes differences of its gradients instead, and finds the same."""
    gradient = (lambda x: -np.array([1.0, 100.0]) * x) if kind == "gradient" else None
    target = lw.Target(lambda x: -0.5 * (x[0] ** 2 + 100.0 * x[1] ** 2), gradient, dim=2)
    bare, whole = (short(target, method=lw.Auto(recipe)) for recipe in (BareRecipe(), lw.QuadraticNetwork()))
    assert bare.complete and bare.cost.n_exact == whole.cost.n_exact
    np.testing.assert_allclose(bare.draws, whole.draws, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("given", [True, False], ids=["gradient", "values"])
def test_kept_potentials_are_those_of_the_draws_on_raw_numbers(given):
    """A chain once began with the potential of another position, many standard deviations away in one parameter."""
    rng = np.random.default_rng(1)
    scale = np.array([1.0, 1e-3, 1e2, 1e6])
    table = np.column_stack([np.ones(200), (rng.normal(size=(200, 3)) + 3.0) * scale[1:]])
    data = table @ (rng.normal(size=4) / scale) + rng.normal(size=200)

    def log_density(x):
        rest = (data - table @ x[:-1]) * np.exp(-x[-1])
        return -0.5 * rest @ rest - 200 * x[-1]

    def gradient(x):
        rest = (data - table @ x[:-1]) * np.exp(-x[-1])
        return np.append(table.T @ rest * np.exp(-x[-1]), rest @ rest - 200)

    target = lw.Target(log_density, gradient if given else None, dim=5)
    for seed in range(3):
        run = lw.sample(target, draws=50, random_seed=seed, progressbar=False)
        kept = run.to_datatree()["sample_stats"]["lp"].to_numpy()
        np.testing.assert_allclose(kept, [[log_density(x) for x in chain] for chain in run.draws], atol=1e-6)
