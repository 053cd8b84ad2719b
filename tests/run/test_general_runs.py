"""Runs of general targets: unknown noise, exact priors, kept outputs, and what follows from them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

import leapwise as lw
from leapwise.errors import EvaluationError, InputError, OutputError
from leapwise.kernels.free_moves import FreeMoves
from leapwise.results.statistics import statistics
from leapwise.surrogates.joint import FittedJoint, WithPrior

T = np.linspace(0.0, 4.0, 12)
TRUE_A, TRUE_K, TRUE_SIGMA = 2.0, 0.6, 0.1
Y = TRUE_A * np.exp(-TRUE_K * T) + TRUE_SIGMA * np.random.default_rng(0).standard_normal(len(T))


class Decay:
    """A model that counts its runs."""

    def __init__(self):
        self.n_runs = 0

    def __call__(self, a, k):
        self.n_runs += 1
        return a * np.exp(-k * T)


def target(model=None):
    prior = lw.Prior(a=lw.LogNormal(0.0, 1.0), k=lw.HalfNormal(1.0), sigma=lw.HalfNormal(0.5))
    return lw.ForwardTarget(model or Decay(), lw.GaussianLikelihood(Y, sd="sigma"), prior)


def short(model=None, **settings):
    return lw.sample(target(model), **{"draws": 300, "chains": 4, "random_seed": 1} | settings)


@cache
def run():
    return short()


@cache
def reference():
    """Moments of the posterior by a sum over a grid."""
    a, k, s = np.linspace(1.6, 2.4, 80), np.linspace(0.4, 0.85, 80), np.exp(np.linspace(-3.5, -1.0, 90))
    a, k, s = np.meshgrid(a, k, s, indexing="ij")
    log = (
        stats.lognorm(1.0).logpdf(a)
        + stats.halfnorm.logpdf(k)
        + stats.halfnorm(scale=0.5).logpdf(s)
        + np.log(s)
    )
    for time, datum in zip(T, Y, strict=True):
        log += stats.norm.logpdf(datum, a * np.exp(-k * time), s)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    means = [float((weight * x).sum()) for x in (a, k, s)]
    return np.array(means), np.sqrt(
        [float((weight * (x - m) ** 2).sum()) for x, m in zip((a, k, s), means, strict=True)]
    )


def test_unknown_noise_is_sampled_right():
    """5 standard errors for each of three means: a false alarm in 2e-6 of all seeds."""
    mean, sd = reference()
    found = statistics(run().draws)
    assert (np.abs(found.mean - mean) < 5 * found.mcse).all()
    np.testing.assert_allclose(found.sd, sd, rtol=0.15)
    assert run().surrogate.sd < 0.3 and not run().summary().warnings


def test_the_surrogate_learns_the_model_over_its_inputs_alone():
    kernel = run().kernel
    surrogate = (kernel.kernel if isinstance(kernel, FreeMoves) else kernel).surrogate
    assert isinstance(surrogate, FittedJoint)
    assert surrogate.emulated.training.dim == 2


def test_outputs_are_those_of_the_model_at_the_draws():
    found = run()
    expected = found["a"][..., None] * np.exp(-found["k"][..., None] * T)
    np.testing.assert_allclose(found.posterior.outputs, expected, rtol=1e-9)


@pytest.mark.parametrize("keep", [None, False, 7])
def test_kept_outputs_cost_no_run_and_change_no_draw(keep):
    model = Decay()
    found = short(model, keep_outputs=keep)
    assert model.n_runs == run().cost.n_exact == found.cost.n_exact
    np.testing.assert_array_equal(found.draws, run().draws)
    if keep is False:
        assert found.posterior.outputs is None
    else:
        np.testing.assert_array_equal(found.posterior.outputs, run().posterior.outputs[:, :: keep or 1])


@pytest.mark.parametrize("method", [lw.HMC(), lw.NUTS()], ids=["HMC", "NUTS"])
def test_kernels_with_exact_gradients_have_outputs_too(method):
    def jacobian(x):
        e = np.exp(-x[1] * T)
        return x[0] * e, np.stack([e, -x[0] * T * e], axis=1)

    plain = target()
    exact = lw.ForwardTarget(plain.forward, plain.likelihood, plain.prior, jacobian=jacobian)
    found = lw.sample(exact, draws=30, tune=100, chains=2, method=method, random_seed=1)
    expected = found["a"][..., None] * np.exp(-found["k"][..., None] * T)
    np.testing.assert_allclose(found.posterior.outputs, expected, rtol=1e-9)


def test_a_resumed_run_has_the_same_draws_and_outputs(tmp_path):
    first = short(draws=120, ledger=tmp_path / "run.db")
    model = Decay()
    more = lw.resume(tmp_path / "run.db", target(model), draws=300)
    np.testing.assert_array_equal(more.draws[:, :120], first.draws)
    np.testing.assert_array_equal(more.posterior.outputs[:, :120], first.posterior.outputs)
    expected = more["a"][..., None] * np.exp(-more["k"][..., None] * T)
    np.testing.assert_allclose(more.posterior.outputs, expected, rtol=1e-9)
    assert model.n_runs <= more.cost.n_exact - first.cost.n_exact + 1  # one position is checked again


def test_workers_change_nothing_but_the_chains_grouping():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as one, ThreadPoolExecutor(4) as other:
        runs = [short(draws=60, executor=pool) for pool in (one, other)]
    np.testing.assert_array_equal(runs[0].draws, runs[1].draws)
    np.testing.assert_array_equal(runs[0].posterior.outputs, runs[1].posterior.outputs)


class TestTree:
    """The `DataTree` of a run."""

    def test_groups_and_shapes(self):
        tree = run().to_datatree()
        for name in ("predictions", "posterior_predictive", "log_likelihood"):
            assert tree[name]["y"].shape == (4, 300, len(T))
        np.testing.assert_array_equal(tree["observed_data"]["y"], Y)

    def test_log_likelihood_is_that_of_each_datum(self):
        found, tree = run(), run().to_datatree()
        expected = stats.norm.logpdf(Y, found.posterior.outputs, found["sigma"][..., None])
        np.testing.assert_allclose(tree["log_likelihood"]["y"], expected, rtol=1e-10)

    def test_loo_is_that_by_hand(self):
        """Importance weights smoothed by arviz-stats itself, the sum by hand."""
        import arviz_stats

        tree = run().to_datatree()
        log = tree["log_likelihood"]["y"].to_numpy()
        flat = log.reshape(-1, log.shape[2])
        found = arviz_stats.loo(tree, pointwise=True)
        np.testing.assert_allclose(found.elpd, float(np.sum(found.elpd_i)), rtol=1e-9)
        raw = np.log(len(flat)) - np.logaddexp.reduce(
            -flat, axis=0
        )  # without smoothing: near it, as k is small
        assert abs(found.elpd - raw.sum()) < 0.5
        predicted = np.logaddexp.reduce(flat, axis=0) - np.log(len(flat))
        np.testing.assert_allclose(found.p, predicted.sum() - found.elpd, atol=1e-6)

    def test_replicated_data_have_the_noise_of_their_draws(self):
        found, tree = run(), run().to_datatree()
        z = (tree["posterior_predictive"]["y"].to_numpy() - found.posterior.outputs) / found["sigma"][
            ..., None
        ]
        assert abs(z.mean()) < 5 / np.sqrt(z.size) and abs(z.var() - 1.0) < 5 * np.sqrt(2.0 / z.size)  # 1e-6
        np.testing.assert_array_equal(
            run().to_datatree()["posterior_predictive"]["y"], tree["posterior_predictive"]["y"]
        )

    def test_thinned_outputs_say_which_draws_they_belong_to(self):
        tree = short(keep_outputs=7).to_datatree()
        np.testing.assert_array_equal(tree["predictions"]["draw"], np.arange(0, 300, 7))

    def test_variables_have_shapes_dims_and_coords(self):
        shaped = lw.ForwardTarget(
            lambda theta: theta,
            lw.GaussianLikelihood([1.0, 2.0, 3.0], sd=0.5),
            lw.Prior(theta=lw.Normal(0, 5, shape=3, dims="mode")),
            coords={"mode": ["low", "middle", "high"]},
        )
        tree = lw.sample(shaped, draws=50, chains=2, random_seed=1).to_datatree()
        assert tree["posterior"]["theta"].dims == ("chain", "draw", "mode")
        assert tree["posterior"]["mode"].to_numpy().tolist() == ["low", "middle", "high"]

    def test_outputs_have_dims_and_coords(self):
        tree = derived().to_datatree()
        for name in ("predictions", "posterior_predictive", "log_likelihood", "observed_data"):
            assert tree[name]["y"].dims[-1] == "hour"
            np.testing.assert_array_equal(tree[name]["hour"], T)

    def test_missing_data_of_two_axes(self, tmp_path):
        data = np.array([[1.0, np.nan], [2.0, 3.0]])
        square = lw.ForwardTarget(
            lambda a: {"a/b": np.full((2, 2), a)},
            lw.GaussianLikelihood({"a/b": data}, sd=0.5),
            lw.Prior(a=lw.Normal(0, 5)),
            dims={"a/b": ["u", "v"]},
        )
        found = lw.sample(square, draws=30, chains=2, random_seed=1)
        for tree in (found.to_datatree(), lw.load(found.save(tmp_path / "run.nc")).to_datatree()):
            assert tree["log_likelihood"]["a_b"].dims == ("chain", "draw", "a_b_observed")
            assert tree["predictions"]["a_b"].shape == (2, 30, 2, 2)

    def test_known_arguments_are_constant_data(self):
        known = lw.ForwardTarget(
            lambda x: x, lw.GaussianLikelihood([1.0, 2.0], sd=[0.5, 0.6]), lw.NormalPrior(0.0, 5.0, dim=2)
        )
        tree = lw.sample(known, draws=20, chains=2, random_seed=1).to_datatree()
        np.testing.assert_array_equal(tree["constant_data"]["y_sd"], [0.5, 0.6])


def with_derived(a, k):
    return {"y": a * np.exp(-k * T), "half_life": np.log(2.0) / k, "pair": np.array([a, k * a])}


@cache
def derived():
    """Return a run of the same model with derived quantities and dims."""
    plain = target()
    shaped = lw.ForwardTarget(
        with_derived,
        plain.likelihood,
        plain.prior,
        qoi={"half_life": (), "pair": 2},
        dims={"y": ["hour"]},
        coords={"hour": T},
    )
    return lw.sample(shaped, draws=200, chains=4, random_seed=1)


class TestDerivedQuantities:
    def test_they_are_kept_and_exact(self):
        found, tree = derived(), derived().to_datatree()["predictions"]
        np.testing.assert_allclose(tree["half_life"], np.log(2.0) / found["k"], rtol=1e-9)
        np.testing.assert_allclose(tree["pair"][..., 1], found["a"] * found["k"], rtol=1e-9)

    @pytest.mark.parametrize("settings", [{"sd": 0.1}, {"covariance": 0.01 * np.eye(len(T))}])
    def test_they_go_with_known_noise(self, settings):
        prior = lw.Prior(a=lw.LogNormal(0.0, 1.0), k=lw.HalfNormal(1.0))
        known = lw.GaussianLikelihood(Y, **settings)
        derived = {"qoi": {"half_life": (), "pair": 2}}
        found = lw.sample(
            lw.ForwardTarget(with_derived, known, prior, **derived), draws=100, chains=4, random_seed=1
        )
        assert abs(found["k"].mean() - TRUE_K) < 0.1 and found.surrogate.sd < 0.3

    def test_they_do_not_enter_the_likelihood(self):
        point = np.array([[1.8, 0.7, 0.2]])
        one, other = target(), derived().model
        np.testing.assert_array_equal(
            one.evaluate(point, gradient=False).log_density, other.evaluate(point, gradient=False).log_density
        )
        assert "half_life" not in derived().to_datatree()["observed_data"]
        mean, _ = reference()  # 5 standard errors, as above
        moments = statistics(derived().draws)
        assert (np.abs(moments.mean - mean) < 5 * moments.mcse).all()

    def test_gradients_leave_them_out(self):
        def jacobian(x):
            e = np.exp(-x[1] * T)
            return with_derived(*x), np.stack([e, -x[0] * T * e], axis=1)

        plain = target()
        settings = {"qoi": {"half_life": (), "pair": 2}, "jacobian": jacobian}
        exact = lw.ForwardTarget(with_derived, plain.likelihood, plain.prior, **settings)
        point = np.array([[2.0, 0.6, 0.1]])
        slope = exact.evaluate(point, gradient=True).gradient[0]
        for column, step in zip(slope, 1e-6 * np.eye(3), strict=True):
            ahead, behind = (
                exact.evaluate(point + sign * step, gradient=False).log_density[0] for sign in (1, -1)
            )
            np.testing.assert_allclose(column, (ahead - behind) / 2e-6, rtol=1e-6)

    @pytest.mark.parametrize(
        ("qoi", "message"),
        [
            (["y"], "data set or a variable already"),
            (["k"], "data set or a variable already"),
            ({"peak": 0}, "at least 1"),
            (["peak", "peak"], "different"),
        ],
    )
    def test_bad_names_and_shapes_are_refused(self, qoi, message):
        plain = target()
        with pytest.raises(InputError, match=message):
            lw.ForwardTarget(plain.forward, plain.likelihood, plain.prior, qoi=qoi)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_they_must_be_finite(self, bad):
        plain = target()
        broken = lw.ForwardTarget(
            lambda a, k: {"y": a * np.exp(-k * T), "peak": bad}, plain.likelihood, plain.prior, qoi="peak"
        )
        with pytest.raises(EvaluationError, match="in its output peak"):
            lw.sample(broken, draws=20, random_seed=1)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ({"hour": [(1, 2)] * 12}, "list of numbers"),
            ({"hour": 4}, "list of numbers"),
            ({"hour": [None] * 12}, "list of numbers"),
            ({"hour": [1.0]}, "must have 12 labels"),
            ({"day": T}, "not a dim of any variable; use some of hour"),
            (["hour"], "dict of dims"),
        ],
    )
    def test_bad_labels_are_refused_before_any_run(self, labels, message):
        plain = target()
        with pytest.raises(InputError, match=message):
            lw.ForwardTarget(plain.forward, plain.likelihood, plain.prior, dims={"y": "hour"}, coords=labels)

    def test_a_model_that_does_not_return_them_is_told(self):
        plain = target()
        lacking = lw.ForwardTarget(plain.forward, plain.likelihood, plain.prior, qoi=["peak"])
        with pytest.raises(OutputError, match="return a dict with one array for each of y, peak"):
            lacking.evaluate(np.array([[2.0, 0.6, 0.1]]), gradient=False)


class TestPredict:
    """Emulated outputs at other inputs."""

    def test_errors_are_about_what_is_said(self, monkeypatch):
        """Of outputs at points between the draws: their root mean square is within a factor of 5 of what is said."""
        found = derived()
        points = {name: np.quantile(found[name], [0.2, 0.4, 0.6, 0.8]) for name in ("a", "k")}
        n_runs = []
        monkeypatch.setattr(found.model, "_model", lambda point: n_runs.append(point))
        predicted = found.predict(points)
        assert not n_runs
        for name, shape in (("y", (4, len(T))), ("half_life", (4,)), ("pair", (4, 2))):
            exact = np.array([with_derived(a, k)[name] for a, k in zip(*points.values(), strict=True)])
            assert predicted.outputs[name].shape == predicted.error[name].shape == shape
            wrong = np.sqrt(np.square(predicted.outputs[name] - exact).mean())
            assert wrong < 5.0 * np.sqrt(np.square(predicted.error[name]).mean()) + 1e-12

    def test_errors_grow_away_from_the_draws(self):
        """On circles around the draws, in units of their covariance: about as large as said, where that is said."""
        found = derived()
        middle = np.log([np.median(found["a"]), np.median(found["k"])])
        factor = np.linalg.cholesky(np.cov(np.log([found["a"].ravel(), found["k"].ravel()])))
        said = []
        for radius in (0.5, 3.0):
            angle = np.linspace(0.0, 2.0 * np.pi, 12, endpoint=False)
            points = np.exp(middle + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1) @ factor.T)
            predicted = found.predict(points)
            exact = np.array([with_derived(a, k)["half_life"] for a, k in points])
            known = np.isfinite(predicted.error["half_life"])
            wrong = np.abs(predicted.outputs["half_life"] - exact)[known]
            said.append(np.median(predicted.error["half_life"][known]))
            assert np.sqrt(np.square(wrong).mean()) < 10.0 * said[-1]
        assert said[1] > said[0]

    def test_beyond_the_draws_the_error_is_not_known(self):
        assert np.isnan(derived().predict({"a": 50.0, "k": 5.0}).error["y"]).all()

    def test_entries_of_a_variable_are_found(self):
        """The model sees the last and the first of three parameters, in this order."""
        some = lw.ForwardTarget(
            lambda x: np.array([x[0], x[0] + 10.0 * x[1]]),
            lw.GaussianLikelihood([0.3, 5.0], sd=0.1),
            lw.NormalPrior(0.0, 1.0, dim=3),
            inputs=[2, 0],
        )
        found = lw.sample(some, draws=50, random_seed=1)
        for inputs in ({"x": [0.5, 99.0, 0.3]}, [[0.3, 0.5]]):
            predicted = found.predict(inputs).outputs["y"]
            np.testing.assert_allclose(predicted, [[0.3, 5.3]], rtol=1e-4)

    def test_rows_and_names_are_the_same(self):
        named = derived().predict({"k": [0.6, 0.65], "a": 2.0})
        rows = derived().predict([[2.0, 0.6], [2.0, 0.65]])
        np.testing.assert_array_equal(named.outputs["y"], rows.outputs["y"])

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"a": 1.0}, "the model sees a, k, got a; give these"),
            ({"a": 1.0, "k": -1.0}, "inside the support"),
            ({"a": [1.0, 2.0], "k": [1.0, 2.0, 3.0]}, "shapes of their variables"),
            ([[1.0, 2.0, 3.0]], "rows of 2 numbers"),
        ],
    )
    def test_bad_inputs_are_refused(self, inputs, message):
        with pytest.raises(InputError, match=message):
            derived().predict(inputs)

    def test_runs_without_outputs_say_so(self):
        with pytest.raises(InputError, match="kept no outputs"):
            short(draws=20, keep_outputs=False).predict({"a": 1.0, "k": 1.0})


class TestLoad:
    @pytest.mark.parametrize("which", [run, derived])
    def test_a_loaded_run_has_the_same_groups(self, tmp_path, which):
        again, tree = lw.load(which().save(tmp_path / "run.nc")).to_datatree(), which().to_datatree()
        assert set(again.children) == set(tree.children)
        for name, group in tree.children.items():
            assert group.to_dataset().drop_attrs().equals(again[name].to_dataset().drop_attrs()), name

    def test_a_loaded_run_prints_as_before(self, tmp_path):
        found = run()
        again = lw.load(found.save(tmp_path / "run.nc"))
        assert str(again.summary()) == str(found.summary())
        np.testing.assert_array_equal(again["sigma"], found["sigma"])
        np.testing.assert_array_equal(again.posterior.outputs, found.posterior.outputs)
        assert again.cost == found.cost and again.settings["method"] == "Auto"

    @pytest.mark.parametrize("method", [None, lw.HMC()], ids=["auto", "HMC"])
    def test_runs_of_log_densities_too(self, tmp_path, method):
        plain = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=3, names="x")
        found = lw.sample(
            plain, draws=50, tune=None if method is None else 60, chains=2, random_seed=1, method=method
        )
        again = lw.load(found.save(tmp_path / "run.nc"))
        assert str(again.summary()) == str(found.summary())
        np.testing.assert_array_equal(again.draws, found.draws)
        np.testing.assert_array_equal(again.warmup.draws, found.warmup.draws)

    def test_other_files_are_refused(self, tmp_path):
        (tmp_path / "bad.nc").write_text("nothing")
        with pytest.raises(InputError, match="cannot read"):
            lw.load(tmp_path / "bad.nc")
        with pytest.raises(InputError, match="there is no file"):
            lw.load(tmp_path / "missing.nc")

    def test_damaged_files_are_refused(self, tmp_path):
        content = bytearray(run().save(tmp_path / "run.nc").read_bytes())
        rng = np.random.default_rng(0)
        for place in rng.integers(0, len(content) // 4, 400):
            content[place] = rng.integers(0, 256)
        (tmp_path / "bad.nc").write_bytes(content)
        with pytest.raises(InputError, match=r"cannot read|was not written"):
            lw.load(tmp_path / "bad.nc")
        with pytest.raises(InputError, match="name of a file"):
            lw.load(None)

    def test_dates_stay_dates(self, tmp_path):
        days = np.arange("2020-01-01", "2020-01-13", dtype="M8[D]")
        plain = target()
        dated = lw.ForwardTarget(
            plain.forward, plain.likelihood, plain.prior, dims={"y": "day"}, coords={"day": days}
        )
        found = lw.sample(dated, draws=20, chains=2, random_seed=1)
        again = lw.load(found.save(tmp_path / "run.nc")).to_datatree()
        np.testing.assert_array_equal(again["predictions"]["day"].to_numpy().astype("M8[D]"), days)

    def test_unknown_variables_are_named(self):
        with pytest.raises(InputError, match="no variable 'b' in this run, which has a, k, sigma"):
            run()["b"]


def test_an_exact_prior_leaves_the_likelihood_to_be_learned():
    """Eight schools, centred: the likelihood is a quadratic, and the funnel is in the exact prior."""
    y, sd = np.array([28, 8, -3, 7, -1, 1, 18, 12.0]), np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
    prior = lw.Prior(mu=lw.Normal(0, 5), tau=lw.HalfCauchy(5), theta=lw.Normal("mu", "tau", shape=8))
    schools = lw.Target(log_likelihood=lambda theta: -0.5 * np.sum(((y - theta) / sd) ** 2), log_prior=prior)
    found = lw.sample(schools, draws=100, chains=4, random_seed=1)
    assert isinstance(found.kernel.surrogate, WithPrior)
    assert found.surrogate.sd < 0.3 and found.surrogate.exact_share == 0.0
    # The tails of the draws reach far beyond the training positions: nothing is added to the quadratic there.
    assert np.nanmax(np.abs(found.posterior.stats["discrepancy"])) < 1e-6  # NaN: a chain that did not move
    # Means of a long exact run: 4.4 and 3.6; 5 standard errors of some 200 effective draws, at least.
    assert abs(found["mu"].mean() - 4.4) < 1.2 and 2.0 < found["tau"].mean() < 5.5
