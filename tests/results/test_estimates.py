"""`Run.estimate` and `Run.log_evidence`: of what, how precise, why plain, and what is kept in files."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import InputError
from leapwise.results import Run
from leapwise.testing import gumbel

T = np.array([0.5, 1.0, 2.0])
GUMBEL = gumbel(2)


@pytest.fixture(scope="module")
def run() -> Run:
    return lw.sample(GUMBEL.target, draws=250, random_seed=1)


@pytest.fixture(scope="module")
def outputs() -> Run:
    """A run of a forward model with two named parameters and three outputs."""
    target = lw.ForwardTarget(
        lambda a, k: a * np.exp(-k * T),
        lw.GaussianLikelihood([1.3, 0.8, 0.3], sd=0.05),
        lw.Prior(a=lw.LogNormal(0.0, 1.0), k=lw.HalfNormal(1.0)),
    )
    return lw.sample(target, draws=150, random_seed=1)


@pytest.fixture(scope="module")
def exact_hmc() -> Run:
    return lw.sample(GUMBEL.target, draws=50, tune=50, method=lw.HMC(0.3, 5), random_seed=1)


class TestOfParameters:
    def test_they_are_right_and_more_precise(self, run):
        found = run.estimate()
        assert found.is_sharpened and not found.reason
        x = found["x"]
        true = np.array([GUMBEL.expected["q0"], GUMBEL.expected["q1"]])
        assert (np.abs(x.mean - true) < 5 * x.mcse_mean).all()
        assert (x.gain > 5.0).all()
        plain = run.estimate(plain=True)["x"]
        np.testing.assert_allclose(plain.mean, run.draws.mean(axis=(0, 1)))
        np.testing.assert_allclose(plain.mcse_mean**2 / x.mcse_mean**2, x.gain)
        assert (plain.gain == 1.0).all()

    def test_arrays_have_the_shape_of_the_variable(self, run):
        x = run.estimate(probabilities=(0.1, 0.9))["x"]
        assert x.mean.shape == x.effective.shape == (2,)
        assert x.quantiles.shape == x.mcse_quantiles.shape == (2, 2)

    def test_probabilities_of_quantiles(self, run):
        found = run.estimate(probabilities=(0.025, 0.5))
        assert [key for key in found.rows[0] if key.startswith("q")] == ["q2.5", "q50"]
        assert found["x"].quantiles[1] == pytest.approx(run.estimate()["x"].quantiles[1])
        assert not run.estimate(probabilities=())["x"].quantiles.size

    def test_covariances(self, run):
        found = run.estimate()
        sd = found["x"].sd
        np.testing.assert_allclose(np.diag(found.covariance), sd**2, rtol=0.02)
        np.testing.assert_allclose(found.covariance, found.covariance.T)
        # Cov(x0, x1) = 0.8 Var(x0)
        z = (found.covariance[0, 1] - 0.8 * np.pi**2 / 6.0) / found.mcse_covariance[0, 1]
        assert abs(z) < 5.0

    def test_summary_shows_them_and_says_so(self, run):
        summary, plain = run.summary(), run.summary(plain=True)
        x = run.estimate()["x"]
        assert [row["mean"] for row in summary.rows] == x.mean.tolist()
        assert [row["mcse"] for row in summary.rows] == x.mcse_mean.tolist()
        assert "Sharpened by the surrogate" in str(summary) and "sharpened, in all" in str(summary)
        assert "harpened" not in str(plain)
        assert [row["mean"] for row in plain.rows] == run.draws.mean(axis=(0, 1)).tolist()
        assert summary.cost["total"]["estimate_seconds"] > 0.0

    def test_table(self, run):
        text = str(run.estimate(probabilities=(0.05, 0.25, 0.5, 0.75, 0.95)))
        assert "x[0]" in text and "75%" in text and "…" not in text

    def test_same_run_same_numbers(self, run):
        again = lw.sample(GUMBEL.target, draws=250, random_seed=1)
        assert again.estimate().rows == run.estimate().rows

    def test_no_evaluation_is_spent(self, run):
        calls = []
        counted = lw.Target(
            lambda x: calls.append(1) or -np.cosh(x).sum(), lambda x: calls.append(1) or -np.sinh(x), dim=2
        )
        found = lw.sample(counted, draws=60, random_seed=1)
        before = len(calls)
        found.estimate()
        found.log_evidence()
        assert len(calls) == before


class TestOfFunctions:
    def test_of_the_whole_vector(self, run):
        found = run.estimate(lambda x: x[:, 0] - x[:, 1])
        assert found.labels == ("f",)
        true = GUMBEL.expected["q0"] - GUMBEL.expected["q1"]
        assert abs(found["f"].mean - true) < 5 * found["f"].mcse_mean and found["f"].gain > 3.0

    def test_of_variables_by_name(self, outputs):
        def half_life(k):
            return np.log(2.0) / k

        found = outputs.estimate(half_life)
        assert found.labels == ("half_life",)
        plain = np.mean(np.log(2.0) / outputs["k"])
        assert (
            abs(found["half_life"].mean - plain)
            < 5 * outputs.estimate(half_life, plain=True)["half_life"].mcse_mean
        )

    def test_several_by_name(self, run):
        found = run.estimate(lambda x: {"sum": x.sum(axis=1), "powers": np.stack([x, x**2], axis=1)})
        assert found["sum"].mean.shape == () and found["powers"].mean.shape == (2, 2)
        assert found.labels == ("sum", "powers[0,0]", "powers[0,1]", "powers[1,0]", "powers[1,1]")
        np.testing.assert_allclose(found["powers"].mean[0], run.estimate()["x"].mean)

    def test_rare_values_that_no_draw_has(self, run):
        found = run.estimate(lambda x: x[:, 0] > 15.0)
        assert found["f"].mean == 0.0 and not found["f"].mcse_mean > 0.0
        assert np.isnan(run.estimate(lambda x: x[:, 0] > run.draws[..., 0].max())["f"].mcse_mean)

    def test_discrete_values_keep_plain_quantiles(self, run):
        found = run.estimate(lambda x: np.floor(x[:, 0]))["f"]
        assert (found.quantiles == np.floor(found.quantiles)).all()

    def test_extreme_quantiles_have_no_error(self, run):
        assert np.isnan(run.estimate(probabilities=(1e-4,))["x"].mcse_quantiles).all()

    def test_many_quantiles_are_in_tables_of_their_own(self, run):
        text = str(run.estimate(probabilities=np.linspace(0.03, 0.97, 12)))
        assert text.count("x[0]") == 4 and "effective" in text and "97%" in text

    def test_few_draws_have_no_error(self):
        found = lw.sample(GUMBEL.target, draws=2, chains=2, random_seed=1).estimate()["x"]
        assert np.isnan(found.mcse_mean).all() and np.isnan(found.mcse_sd).all()

    def test_an_indicator_is_a_probability(self, run):
        found = run.estimate(lambda x: x[:, 0] < 0.0)
        assert abs(found["f"].mean - np.exp(-1.0)) < 5 * found["f"].mcse_mean

    @pytest.mark.parametrize(
        ("f", "said"),
        [
            (lambda x: x.sum(), "one real number or one array for each of the"),
            (lambda x: x[:3, 0], "one real number or one array for each of the"),
            (lambda x: x[:, 0].astype(complex), "dtype complex"),
            (lambda x: "text", "one real number"),
            (lambda x: {}, "returned no numbers"),
            (lambda x: np.where(x[:, 0] > 1.0, np.nan, 1.0), "must be finite"),
            ("nothing", "no variable or output 'nothing'"),
            ([], "f must be a name"),
            (3, "f must be a name"),
            (["x", "nothing"], "no variable or output 'nothing'"),
        ],
    )
    def test_what_is_no_function_of_the_variables(self, run, f, said):
        with pytest.raises(InputError, match=said):
            run.estimate(f)

    @pytest.mark.parametrize("given", [(0.0, 0.5), (1.5,), ("a",), [[0.1]], (np.nan,)])
    def test_probabilities_that_are_none(self, run, given):
        with pytest.raises(InputError, match="probabilities"):
            run.estimate(probabilities=given)

    def test_a_function_that_is_infinite_only_at_points_of_the_surrogate(self, run):
        least = run.draws[..., 0].min()
        found = run.estimate(lambda x: np.where(x[:, 0] < least, np.inf, x[:, 0]))
        assert not found.is_sharpened and "not finite" in found.reason


class TestOfOutputs:
    def test_means_are_right_and_more_precise(self, outputs):
        found = outputs.estimate("y")
        assert found.is_sharpened and found.labels == ("y[0]", "y[1]", "y[2]")
        plain = outputs.estimate("y", plain=True)
        z = (found["y"].mean - plain["y"].mean) / plain["y"].mcse_mean
        assert (np.abs(z) < 5.0).all() and (found["y"].gain > 3.0).all()
        # The same is a function of the parameters here.
        exact = outputs.estimate(lambda a, k: a[:, None] * np.exp(-k[:, None] * T))
        z = (found["y"].mean - exact["f"].mean) / np.hypot(found["y"].mcse_mean, exact["f"].mcse_mean)
        assert (np.abs(z) < 5.0).all()

    @pytest.mark.parametrize("kept", [False, 3])
    def test_outputs_that_were_not_all_kept(self, kept):
        """Surrogates of outputs cannot be trained again then."""
        target = lw.ForwardTarget(
            lambda x: x[0] * np.exp(-np.exp(x[1]) * T) + 0.4 * np.sin(2.0 * x[0] * x[1]),
            lw.GaussianLikelihood([1.3, 0.8, 0.3], sd=0.35),
            lw.NormalPrior(0.0, 1.0, dim=2),
        )
        run = lw.sample(target, draws=150, random_seed=1, keep_outputs=kept)
        assert len(run.summary().rows) == 2
        assert not run.estimate().cross_fitted
        run.to_datatree()

    def test_variables_and_outputs_are_estimated_apart(self, outputs):
        with pytest.raises(InputError, match="in two calls"):
            outputs.estimate(["a", "y"])
        assert outputs.estimate(["k", "a"]).labels == ("a", "k")


class TestPlain:
    def reason(self, run: Run) -> str:
        found = run.estimate()
        assert not found.is_sharpened and found.about().startswith("Estimates of the draws alone: ")
        return found.reason

    def test_without_a_surrogate(self, exact_hmc):
        assert "without a surrogate" in self.reason(exact_hmc)
        assert "harpened" not in str(exact_hmc.summary())
        with pytest.raises(InputError, match="without a surrogate"):
            exact_hmc.log_evidence()

    def test_while_the_surrogate_learns(self):
        run = lw.sample(
            GUMBEL.target, draws=60, tune=60, method=lw.ARNSHMC(lw.SoftplusNetwork(20), 0.3, 5), random_seed=1
        )
        assert "still learning" in self.reason(run)

    def test_few_draws(self):
        assert "fewer than" in self.reason(lw.sample(GUMBEL.target, draws=8, chains=2, random_seed=1))

    def test_a_hard_edge(self):
        """Half of the surrogate's mass is where the posterior has none: the identity does not hold."""
        target = lw.Target(
            lambda x: np.where(x[:, 0] > 0.0, -0.5 * (x**2).sum(axis=1), -np.inf), dim=2, vectorized=True
        )
        surrogate = lw.QuadraticNetwork().fit(_normal_training(), np.random.default_rng(0))
        kernel = lw.SurrogateTransition(0.5, 4, surrogate=surrogate)
        run = lw.sample(target, draws=300, tune=0, method=kernel, init=np.ones((4, 2)), random_seed=1)
        assert "outside the support" in self.reason(run)
        assert abs(run.estimate()["x"].mean[0] - np.sqrt(2.0 / np.pi)) < 5 * run.estimate()["x"].mcse_mean[0]
        with pytest.raises(InputError, match="outside the support"):
            run.log_evidence()

    def test_asked_for(self, run):
        assert run.estimate(plain=True).reason == "plain=True was asked for"


def _normal_training() -> lw.TrainingSet:
    x = np.random.default_rng(0).normal(size=(40, 2))
    return lw.TrainingSet(x, 0.5 * (x**2).sum(axis=1))


class TestEvidence:
    def test_of_a_normalised_density(self, run):
        found = run.log_evidence()
        assert abs(found.value) < 5 * found.error < 0.2
        assert not found.is_normalised and "up to the constant" in str(found)

    def test_of_a_linear_model(self):
        design, data = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([0.4, 1.1, 1.3])
        covariance = design @ design.T + 0.09 * np.eye(3)
        true = -0.5 * (
            np.linalg.slogdet(2.0 * np.pi * covariance)[1] + data @ np.linalg.solve(covariance, data)
        )
        target = lw.ForwardTarget(
            lambda x: design @ x,
            lw.GaussianLikelihood(data, sd=0.3),
            lw.Prior(x=lw.Normal(0.0, 1.0, shape=2)),
        )
        found = lw.sample(target, draws=100, random_seed=1).log_evidence()
        assert abs(found.value - true) < 5 * found.error < 0.1
        assert found.is_normalised and str(found).startswith("log evidence -")

    def test_bounds_that_cut_the_prior(self):
        """The integral of what is left is not the evidence of a normalised prior."""

        def made(**bounds):
            target = lw.ForwardTarget(
                lambda a: a * np.ones(2),
                lw.GaussianLikelihood([0.5, 0.8], sd=0.5),
                lw.Prior(a=lw.Normal(0.0, 1.0)),
                **bounds,
            )
            return lw.sample(target, draws=60, random_seed=1).log_evidence()

        assert made().is_normalised and not made(bounds=(0, None)).is_normalised


class TestFiles:
    def test_the_tree_has_them_beside_the_plain_draws(self, run):
        tree = run.to_datatree()
        np.testing.assert_array_equal(tree["posterior"]["x"].to_numpy(), run.draws)
        group = tree["estimates"]
        np.testing.assert_array_equal(group["x"].sel(statistic="mean").to_numpy(), run.estimate()["x"].mean)
        np.testing.assert_array_equal(
            group["x"].sel(statistic="mcse_q95").to_numpy(), run.estimate()["x"].mcse_quantiles[2]
        )
        assert group.attrs["sharpened"] == 1
        assert group.attrs["log_evidence"] == run.log_evidence().value

    @pytest.mark.parametrize("which", ["run", "outputs", "exact_hmc"])
    def test_a_loaded_run_has_the_same(self, which, request, tmp_path):
        run = request.getfixturevalue(which)
        run.save(tmp_path / "run.nc")
        again = lw.load(tmp_path / "run.nc")
        assert str(again.summary()) == str(run.summary())
        assert again.estimate().rows == run.estimate().rows
        if which != "exact_hmc":
            assert again.log_evidence() == run.log_evidence()
            other = again.estimate(run.variables[0].name, probabilities=(0.3,))
            assert "loaded" in other.reason

    def test_what_a_loaded_run_does_not_have(self, run, tmp_path):
        run.save(tmp_path / "run.nc")
        again = lw.load(tmp_path / "run.nc")
        with pytest.raises(InputError, match="plain=True"):
            _ = again.estimate().covariance
        assert again.estimate(plain=True).covariance.shape == (2, 2)
