"""The paper's samplers, from exploration to draws: what they train on, what they cost, and what they say."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import InputError, OutputError, SurrogateError
from leapwise.warmup.methods import vanishing

DIM = 3
MEAN = np.array([1.0, -0.5, 0.2])


def solve(x):
    """Four outputs of a model that bends a little."""
    return np.stack([x[0] + 0.1 * x[1] ** 2, x[1], x[2] - x[0], x[0] * x[2]])


def jacobian(x):
    return solve(x), np.array([[1.0, 0.2 * x[1], 0], [0, 1, 0], [-1, 0, 1], [x[2], 0, x[0]]])


@pytest.fixture(scope="module")
def target():
    return lw.ForwardTarget(
        solve,
        lw.GaussianLikelihood(solve(MEAN), sd=0.5),
        lw.NormalPrior(0, 1.0, dim=DIM),
        jacobian=jacobian,
    )


SURROGATES = {
    "softplus": lambda target: lw.SoftplusNetwork(60),
    "RBF": lambda target: lw.RBFNetwork(60),
    "GP": lambda target: lw.GaussianProcess(),
    "GP with trend": lambda target: lw.GaussianProcess("rational_quadratic", trend="quadratic"),
    "FITC": lambda target: lw.FITC(30),
    "quadratic": lambda target: lw.QuadraticNetwork(30),
    "outputs": lambda target: lw.OutputSurrogate.of(target),
}
METHODS = {
    "RNSHMC": lambda surrogate, **more: lw.RNSHMC(surrogate, step_size=0.25, n_steps=5, **more),
    "ARNSHMC": lambda surrogate, **more: lw.ARNSHMC(
        surrogate, step_size=0.25, n_steps=5, **{"freeze_after": 20, **more}
    ),
    "RNSRMHMC": lambda surrogate, **more: lw.RNSRMHMC(
        surrogate, step_size=0.5, n_steps=3, form="softabs", explore=lw.HMC(0.25, 5), **more
    ),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=list(METHODS))


def run(target, method, draws=50, tune=40, **options):
    options = {"chains": 4, "random_seed": 1, "init": MEAN, **options}
    return lw.sample(target, draws, tune=tune, method=method, **options)


def combinations():
    """Every surrogate with every method and rule; each once is quick, the others are slow."""
    for method in METHODS:
        for name in SURROGATES:
            for collect in ("all", "accepted"):
                is_quick = (method, collect) == ("RNSHMC", "all") or (name, collect) == (
                    "quadratic",
                    "accepted",
                )
                yield pytest.param(method, name, collect, marks=[] if is_quick else [pytest.mark.slow])


@pytest.mark.parametrize(("method", "name", "collect"), list(combinations()))
def test_any_surrogate_serves_any_method(target, method, name, collect):
    found = run(target, METHODS[method](SURROGATES[name](target), collect=collect, max_training=80))
    stats, cost = found.posterior.stats, found.posterior.cost
    assert stats["acceptance_rate"].mean() > (0.3 if name == "FITC" else 0.5)
    assert cost.n_gradients == 0 and cost.n_values == stats["n_exact"].sum() <= 4 * 50
    assert np.isfinite(stats["discrepancy"][stats["n_exact"] > 0]).all()
    assert np.isfinite(found.draws).all()


@pytest.mark.parametrize("name", ["RNSHMC", pytest.param("RNSRMHMC", marks=pytest.mark.slow), "ARNSHMC"])
def test_moments_are_those_of_exact_hmc(target, name):
    """Means and standard deviations within 5 standard errors: false alarm below 1e-5 for all twelve."""
    exact = lw.sample(target, 1500, chains=4, random_seed=1, method=lw.HMC()).draws
    draws = 250 if name == "RNSRMHMC" else 1500
    found = run(target, METHODS[name](lw.QuadraticNetwork(30)), draws=draws).exact_draws
    for statistic in (lambda x: x, lambda x: (x - exact.mean(axis=(0, 1))) ** 2):
        a, b = statistic(exact), statistic(found)
        error = np.sqrt(standard_error(a) ** 2 + standard_error(b) ** 2)
        assert (np.abs(a.mean(axis=(0, 1)) - b.mean(axis=(0, 1))) < 5 * error).all()


def standard_error(values):
    from leapwise.results.statistics import statistics

    return statistics(values).mcse


def counting(recipe_calls):
    """Return a recipe that keeps what it was trained on."""

    class Watched(lw.QuadraticNetwork):
        def fit(self, training, rng):
            recipe_calls.append(training)
            return super().fit(training, rng)

    return Watched()


@every_method
def test_all_exact_evaluations_after_the_first_fifth_are_trained_on(target, make):
    seen = []
    found = run(target, make(counting(seen), max_training=10**6))
    (training,) = seen
    spent = found.warmup.stats["n_exact"][:, 8:].sum()
    assert len(training) == spent and not np.isnan(training.gradient).any()
    assert training.outputs.shape == (spent, 4)


@every_method
def test_the_papers_rule_takes_the_values_of_accepted_proposals(target, make):
    seen = []
    found = run(target, make(counting(seen), collect="accepted", skip=5))
    (training,) = seen
    accepted = found.warmup.stats["accepted"][:, 5:]
    assert training.gradient is None and len(training) == accepted.sum()
    states = {tuple(row) for row in found.warmup.draws[:, 5:][accepted]}
    assert {tuple(row) for row in training.position} == states


@every_method
def test_training_sets_are_thinned(target, make):
    seen = []
    run(target, make(counting(seen), max_training=30))
    assert 15 <= len(seen[0]) <= 30


def test_a_process_is_given_no_more_than_it_can_take():
    """Of 20 parameters, and of more evaluations than would fit with their gradients."""
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=20)
    method = lw.RNSHMC(lw.GaussianProcess(trend="quadratic"), 0.5, 5)
    found = lw.sample(target, 5, tune=80, chains=4, method=method, random_seed=1)
    assert found.warmup.cost.n_gradients * 21 > 12_000
    assert 100 < len(found.kernel.surrogate.posterior.rows.points) <= 250


def test_the_same_seed_gives_the_same_draws(target):
    for make in METHODS.values():
        first, second, other = (
            run(target, make(lw.SoftplusNetwork(30)), random_seed=seed).draws for seed in (1, 1, 2)
        )
        np.testing.assert_array_equal(first, second)
        assert not np.array_equal(first, other)


def test_what_was_not_set_is_found_while_exploring(target):
    found = run(target, lw.RNSHMC(lw.QuadraticNetwork()), tune=100, init=None)
    assert found.settings["step_size"] > 0 and found.settings["trajectory_length"] > 0
    assert found.settings["method"] == "RNSHMC"
    assert found.settings["surrogate"]["name"] == "QuadraticNetwork"
    assert isinstance(found.kernel, lw.SurrogateHMC) and isinstance(found.kernel.metric, lw.DenseMetric)
    assert found.posterior.stats["acceptance_rate"].mean() > 0.6


def test_exploration_can_have_other_settings(target):
    found = run(target, lw.RNSHMC(lw.QuadraticNetwork(), 0.1, 3, explore=lw.HMC(0.25, 5)))
    assert set(np.unique(found.warmup.stats["step_size"])) == {0.25}
    assert set(np.unique(found.posterior.stats["step_size"])) == {0.1}


class TestAdaptation:
    def test_results_say_that_they_are_adaptive(self, target):
        found = run(target, METHODS["ARNSHMC"](lw.SoftplusNetwork(30), freeze_after=None))
        assert not found.exact and found.n_adaptive == 50 and found.exact_draws.shape[1] == 0
        assert any("adaptive" in each for each in found.summary().warnings)
        assert found.to_datatree()["posterior"].attrs["adaptive"] == 1

    def test_freezing_ends_it(self, target):
        found = run(target, METHODS["ARNSHMC"](lw.SoftplusNetwork(30), freeze_after=20))
        assert not found.exact and found.n_adaptive == 20 and found.exact_draws.shape == (4, 30, DIM)
        assert any("first 20 of 50" in each for each in found.summary().warnings)

    def test_frozen_from_the_start_it_is_rnshmc(self, target):
        frozen = run(target, METHODS["ARNSHMC"](lw.SoftplusNetwork(30), freeze_after=0))
        plain = run(target, METHODS["RNSHMC"](lw.SoftplusNetwork(30)))
        assert frozen.exact
        np.testing.assert_array_equal(frozen.draws, plain.draws)

    def test_the_surrogate_is_published_as_chance_says_and_not_after_freezing(self, target):
        used = []

        class Watched(lw.SurrogateHMC):
            pass

        step = lw.SurrogateHMC.step

        def spy(self, streams, state, evaluator):
            used.append(self.surrogate)
            return step(self, streams, state, evaluator)

        for chance, changes in ((lambda t: 0.0, {30}), (lambda t: 1.0, set(range(1, 31)))):
            used.clear()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(lw.SurrogateHMC, "step", spy)
                run(
                    target,
                    METHODS["ARNSHMC"](lw.SoftplusNetwork(30), freeze_after=30, refit_probability=chance),
                )
            assert {i for i in range(1, 50) if used[i] is not used[i - 1]} == changes

    def test_it_learns_from_what_the_draws_cost(self, target):
        learned = []

        class Student:
            def __init__(self, inner):
                self.inner = inner

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def update(self, training):
                learned.append(training)
                return self

        class Recipe(lw.QuadraticNetwork):
            def fit(self, training, rng):
                return Student(super().fit(training, rng))

        found = run(target, METHODS["ARNSHMC"](Recipe(), freeze_after=None))
        assert sum(map(len, learned)) == found.posterior.cost.n_values
        assert all(each.gradient is None for each in learned)

    def test_the_default_chance_vanishes_but_its_sum_does_not_converge(self):
        t = np.array([1, 10, 10**4, 10**8])
        chances = np.array([vanishing(int(each)) for each in t])
        assert (np.diff(chances) < 0).all() and chances[-1] < 1e-3
        assert (chances * t > 0.5 * np.sqrt(t)).all()  # sums grow like the root

    def test_a_chance_that_is_none_is_refused(self, target):
        with pytest.raises(InputError, match="refit_probability"):
            run(target, METHODS["ARNSHMC"](lw.SoftplusNetwork(30), refit_probability=lambda t: 2.0))


def test_a_trained_surrogate_needs_no_gradient():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    network = lw.QuadraticNetwork().fit(lw.TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    target = lw.Target(lambda x: -0.5 * x @ x, dim=2)
    found = lw.sample(
        target, 50, tune=0, chains=2, method=lw.SurrogateHMC(0.5, 4, surrogate=network), random_seed=1
    )
    assert found.cost.n_values == 2 + 100 and found.cost.n_gradients == 0


def test_a_surrogate_that_breaks_ends_the_run_with_the_draws_so_far(target):
    class Fragile(lw.QuadraticNetwork):
        def fit(self, training, rng):
            fitted = super().fit(training, rng)
            calls = []

            class Broken:
                def __getattr__(self, name):
                    return getattr(fitted, name)

                def potential_and_gradient(self, position):
                    calls.append(None)
                    if len(calls) > 40:
                        raise FloatingPointError("no more")
                    return fitted.potential_and_gradient(position)

            return Broken()

    with pytest.raises(SurrogateError, match="Broken raised FloatingPointError") as caught:
        run(target, lw.RNSHMC(Fragile(), 0.25, 5))
    assert 0 < caught.value.run.draws.shape[1] < 50


@every_method
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"collect": "some"}, "collect"),
        ({"skip": -1}, "skip"),
        ({"max_training": 1}, "max_training"),
        ({"explore": lw.UnitMetric()}, "explore"),
    ],
)
def test_bad_settings_are_refused(make, changes, word):
    if make is METHODS["RNSRMHMC"] and word == "explore":
        with pytest.raises(InputError, match=word):
            lw.RNSRMHMC(lw.SoftplusNetwork(5), 0.5, 3, **changes)
        return
    with pytest.raises(InputError, match=word):
        make(lw.SoftplusNetwork(5), **changes)


@every_method
@pytest.mark.parametrize("bad", [None, 5, lw.SoftplusNetwork], ids=str)
def test_what_is_no_recipe_is_refused(make, bad):
    with pytest.raises(InputError, match="recipe"):
        make(bad)


def test_a_trained_surrogate_is_no_recipe():
    x = np.random.default_rng(0).normal(size=(20, 2))
    fitted = lw.QuadraticNetwork().fit(lw.TrainingSet(x, x[:, 0]), np.random.default_rng(0))
    with pytest.raises(InputError, match="SurrogateHMC"):
        lw.RNSHMC(fitted)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: lw.RNSRMHMC(lw.SoftplusNetwork(5)), "step_size"),
        (lambda: lw.RNSRMHMC(lw.SoftplusNetwork(5), 0.5, 3, form="round"), "form"),
        (lambda: lw.RNSRMHMC(lw.SoftplusNetwork(5), 0.5, 3, floor=0.0), "floor"),
        (lambda: lw.RNSRMHMC(lw.SoftplusNetwork(5), 0.5, 3, solver=3), "solver"),
        (lambda: lw.RNSHMC(lw.SoftplusNetwork(5), -0.1), "step_size"),
        (lambda: lw.RNSHMC(lw.SoftplusNetwork(5), target_acceptance=2.0), "target_acceptance"),
        (lambda: lw.ARNSHMC(lw.SoftplusNetwork(5), refit_probability=0.1), "refit_probability"),
        (lambda: lw.ARNSHMC(lw.SoftplusNetwork(5), freeze_after=-1), "freeze_after"),
    ],
)
def test_other_bad_settings_are_refused(make, word):
    with pytest.raises(InputError, match=word):
        make()


@pytest.mark.parametrize(("tune", "skip"), [(0, None), (10, 10), (5, 8)])
def test_too_short_an_exploration_is_refused_before_anything_is_spent(target, tune, skip):
    calls = []
    watched = lw.Target(lambda x: calls.append(1) or -0.5 * x @ x, lambda x: -x, dim=3)
    with pytest.raises(InputError, match="tune"):
        lw.sample(watched, 10, tune=tune, method=lw.RNSHMC(lw.SoftplusNetwork(5), 0.1, 3, skip=skip))
    assert not calls


def test_a_target_without_gradient_is_refused():
    with pytest.raises(InputError, match="RNSHMC needs the gradient"):
        lw.sample(lw.Target(lambda x: -0.5 * x @ x, dim=2), method=lw.RNSHMC(lw.SoftplusNetwork(5)))


class TestTrouble:
    @pytest.mark.slow
    def test_heavy_tails_are_reached_by_default(self):
        """A full Hessian would confine chains to where the potential is convex, |x| < 2; see the next test."""
        found = lw.sample(STUDENT, 400, tune=200, chains=4, random_seed=3, method=_riemannian("softabs"))
        assert np.abs(found.draws).max() > 2.5

    @pytest.mark.slow
    def test_where_a_full_hessian_confines_chains_the_warning_says_so(self):
        found = lw.sample(STUDENT, 300, tune=200, chains=4, random_seed=3, method=_riemannian("full"))
        assert np.abs(found.draws).max() < 2.1
        assert any("softabs" in each for each in found.summary().warnings)

    def test_a_surrogate_whose_derivatives_contradict_each_other_is_refused(self):
        class Crooked:
            def potential(self, q):
                return (q**2 / 2 + q**4 / 4).sum(axis=1)

            def potential_and_gradient(self, q):
                return self.potential(q), q + q**3

            def hessian(self, q):
                return (1 + 3 * q**2)[:, :, None]

            def quadratic_contraction(self, q, v):
                return 0.0 * v

            def trace_contraction(self, q, a):
                return 6 * q * a[:, :, 0]

        target = lw.Target(lambda x: -(x @ x) / 2, dim=1)
        kernel = lw.SurrogateRMHMC(0.3, 3, surrogate=Crooked())
        with pytest.raises(InputError, match="quadratic_contraction"):
            lw.sample(target, 10, tune=0, method=kernel, init=[1.0])

    def test_values_that_differ_with_and_without_gradient_are_refused(self):
        target = lw.Target(
            lambda x: -0.5 * x @ x - 20, value_and_gradient=lambda x: (-0.5 * x @ x, -x), dim=2
        )
        with pytest.raises(OutputError, match="same value"):
            lw.sample(target, 10, tune=30, method=lw.RNSHMC(lw.QuadraticNetwork(), 0.5, 5), random_seed=1)

    def test_a_fit_that_fails_keeps_what_was_collected(self, target):
        class Broken(lw.QuadraticNetwork):
            def fit(self, training, rng):
                raise ValueError("my fit broke")

        with pytest.raises(SurrogateError, match=r"Broken\.fit raised ValueError: my fit broke") as caught:
            run(target, lw.RNSHMC(Broken(), 0.25, 5))
        assert len(caught.value.run.training) > 100 and caught.value.run.warmup.draws.shape[1] == 40

    def test_the_training_set_is_kept(self, target):
        found = run(target, lw.RNSHMC(lw.QuadraticNetwork(), 0.25, 5, max_training=50))
        assert 25 <= len(found.training) <= 50

    @pytest.mark.parametrize("make", [lw.SurrogateHMC, lw.SurrogateRMHMC])
    def test_kernels_without_lengths_are_refused_before_anything_is_spent(self, target, make):
        found = run(target, lw.RNSHMC(lw.QuadraticNetwork(), 0.25, 5))
        with pytest.raises(InputError, match="step_size and n_steps"):
            lw.sample(target, 10, tune=0, method=make(surrogate=found.kernel.surrogate))

    @pytest.mark.parametrize("make", [lw.ARNSHMC, lw.RNSRMHMC])
    def test_a_fitted_surrogate_that_lacks_a_method_is_named(self, target, make):
        class Poor:
            def __init__(self, inner):
                self.potential, self.potential_and_gradient = inner.potential, inner.potential_and_gradient

        class Recipe(lw.QuadraticNetwork):
            def fit(self, training, rng):
                return Poor(super().fit(training, rng))

        with pytest.raises(InputError, match=r"update|hessian"):
            run(target, make(Recipe(), 0.25, 5, explore=lw.HMC(0.25, 5)))

    def test_other_mistakes_have_a_sentence(self):
        with pytest.raises(InputError, match="ForwardTarget"):
            lw.OutputSurrogate.of(lw.Target(lambda x: 0.0, dim=1))
        with pytest.raises(InputError, match="at least two different positions"):
            lw.SoftplusNetwork(3).fit(lw.TrainingSet(np.empty((0, 2)), []), np.random.default_rng(0))
        with pytest.raises(InputError, match="TrainingSet"):
            lw.SoftplusNetwork(3).fit(np.ones((3, 2)), np.random.default_rng(0))


def _log_density(x):
    return -2.5 * np.log1p(x**2 / 4.0).sum(axis=-1)


STUDENT = lw.Target(_log_density, lambda x: -5.0 * x / (4.0 + x**2), dim=1, vectorized=True)


def _riemannian(form):
    return lw.RNSRMHMC(lw.QuadraticNetwork(40), step_size=0.2, n_steps=8, form=form)
