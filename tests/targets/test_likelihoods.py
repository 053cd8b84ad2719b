"""Likelihoods with and without parameters of their own: against scipy.stats, differences, and bad input."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from leapwise.errors import InputError
from leapwise.targets.likelihoods import (
    BernoulliLikelihood,
    BinomialLikelihood,
    GaussianLikelihood,
    LogNormalLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)
from leapwise.targets.variables import Variable

REAL = np.array([0.3, -1.2, 2.0, 0.7])
AMOUNTS = np.array([0.3, 1.2, 2.0, 0.7])
COUNTS = np.array([0, 3, 11, 1])
ODDS = np.array([0, 1, 1, 0])
SDS = np.array([0.4, 1.0, 3.0, 0.7])
TRIALS = np.array([2, 3, 12, 1])
ROOT = np.array([[1.0, 0, 0, 0], [0.6, 1.2, 0, 0], [0.1, -0.4, 0.5, 0], [0.3, 0.2, 0.2, 0.9]])
COVARIANCE = ROOT @ ROOT.T


def normal(mean, own):
    return stats.norm(mean, own["sd"])


def student(mean, own):
    return stats.t(own["df"], mean, own["sd"])


def lognormal(mean, own):
    return stats.lognorm(own["sd"], scale=mean)


def negative_binomial(mean, own):
    return stats.nbinom(own["phi"], own["phi"] / (own["phi"] + mean))


def relative(mean, own):
    return stats.norm(mean, np.hypot(own.get("sd", 0.0), own["r"] * mean))


@dataclass(frozen=True)
class Case:
    """A likelihood, its distribution in scipy given what is observed, and values of its parameters by kind."""

    likelihood: Any
    law: Callable[[np.ndarray, dict[str, Any]], Any]
    numbers: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    positive_outputs: bool = False


G, T, LN = GaussianLikelihood, StudentTLikelihood, LogNormalLikelihood
P, NB, B = PoissonLikelihood, NegativeBinomialLikelihood, BinomialLikelihood
CASES = {
    "gaussian": Case(G(REAL, 0.7), normal, {"sd": 0.7}),
    "gaussian sds": Case(G(REAL, SDS), normal, {"sd": SDS}),
    "gaussian named": Case(G(REAL, "sd"), normal, shapes={"sd": ()}),
    "gaussian named sds": Case(G(REAL, "sd"), normal, shapes={"sd": (4,)}),
    "gaussian relative": Case(G(REAL, 0.7, relative_sd=0.3), relative, {"sd": 0.7, "r": 0.3}),
    "gaussian relative named": Case(G(REAL, "sd", relative_sd="r"), relative, shapes={"sd": (), "r": ()}),
    "gaussian relative alone": Case(G(REAL, relative_sd="r"), relative, shapes={"r": ()}),
    "gaussian relative same name": Case(
        G(REAL, "sd", relative_sd="sd"),
        lambda mean, own: relative(mean, {"sd": own["sd"], "r": own["sd"]}),
        shapes={"sd": ()},
    ),
    "student": Case(T(REAL, 3.5, SDS), student, {"df": 3.5, "sd": SDS}),
    "student named": Case(T(REAL, "df", "sd"), student, shapes={"df": (), "sd": (4,)}),
    "student large df": Case(T(REAL, 1e9, 1.0), student, {"df": 1e9, "sd": 1.0}),
    "lognormal": Case(LN(AMOUNTS, SDS), lognormal, {"sd": SDS}, positive_outputs=True),
    "lognormal named": Case(LN(AMOUNTS, "sd"), lognormal, shapes={"sd": ()}, positive_outputs=True),
    "poisson": Case(P(COUNTS), lambda mean, own: stats.poisson(mean), positive_outputs=True),
    "negative binomial": Case(NB(COUNTS, 2.5), negative_binomial, {"phi": 2.5}, positive_outputs=True),
    "negative binomial named": Case(
        NB(COUNTS, "phi"), negative_binomial, shapes={"phi": ()}, positive_outputs=True
    ),
    "binomial": Case(B(COUNTS, TRIALS), lambda mean, own: stats.binom(TRIALS, expit(mean))),
    "bernoulli": Case(BernoulliLikelihood(ODDS), lambda mean, own: stats.bernoulli(expit(mean))),
    "scaled": Case(
        G(REAL, 0.7, scale=2.0, offset=-1.0), lambda f, own: stats.norm(2 * f - 1, 0.7), {"sd": 0.7}
    ),
    "scaled by names": Case(
        G(REAL, "sd", scale="gain", offset="shift"),
        lambda f, own: stats.norm(own["gain"] * f + own["shift"], own["sd"]),
        shapes={"sd": (), "gain": (), "shift": (4,)},
    ),
    "relative and scaled": Case(
        G(REAL, 0.7, relative_sd="r", scale="gain", offset="shift"),
        lambda f, own: relative(own["gain"] * f + own["shift"], {"sd": 0.7, "r": own["r"]}),
        shapes={"gain": (), "shift": (), "r": ()},
    ),
    "poisson with background": Case(
        P(COUNTS, scale="gain", offset="shift"),
        lambda f, own: stats.poisson(own["gain"] * f + own["shift"]),
        shapes={"gain": (), "shift": ()},
        positive_outputs=True,
    ),
    "binomial with offset": Case(
        B(COUNTS, TRIALS, offset="shift"),
        lambda f, own: stats.binom(TRIALS, expit(f + own["shift"])),
        shapes={"shift": ()},
    ),
}
CORRELATED = {
    "covariance": G(REAL, covariance=COVARIANCE),
    "covariance and names": G(REAL, covariance=COVARIANCE, scale="gain", offset="shift"),
}


def draw_inputs(case, rng, n=12):
    """Outputs, and own parameters; all positive, away from zero."""
    outputs = rng.normal(scale=2.0, size=(n, 4))
    if case.positive_outputs:
        outputs = np.exp(0.5 * outputs)
    return outputs, {name: rng.uniform(0.5, 2.0, size=(n, *shape)) for name, shape in case.shapes.items()}


def as_columns(case, own):
    """The arguments of the distribution, each (n, 1), (n, 4), or numbers."""
    return case.numbers | {name: each.reshape(len(each), -1) for name, each in own.items()}


@pytest.fixture(params=CASES, ids=list(CASES))
def case(request):
    return CASES[request.param]


class TestEveryFamily:
    def test_log_density_is_scipys(self, case, rng):
        outputs, own = draw_inputs(case, rng)
        law = case.law(outputs, as_columns(case, own))
        terms = (law.logpmf if hasattr(law.dist, "logpmf") else law.logpdf)(case.likelihood.data)
        expected = terms.sum(axis=1)
        found = case.likelihood.log_density(outputs, own)
        # scipy itself loses digits in the gamma functions of a large df
        loss = 1e-7 if case.numbers.get("df", 0) > 1e6 else 1e-12
        np.testing.assert_allclose(found, expected, rtol=loss, atol=loss)
        np.testing.assert_allclose(case.likelihood.pointwise(outputs, own), terms, rtol=1e-11, atol=loss)

    def test_gradient_in_the_outputs(self, case, rng, central_differences):
        outputs, own = draw_inputs(case, rng)
        repeated = {name: np.repeat(each, 4, axis=0) for name, each in own.items()}
        expected = central_differences(lambda f: case.likelihood.log_density(f, repeated), outputs)
        found = case.likelihood.gradient(outputs, own)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)

    def test_gradient_in_the_parameters(self, case, rng, central_differences):
        outputs, own = draw_inputs(case, rng)
        found = case.likelihood.parameter_gradient(outputs, own)
        assert set(found) == set(case.likelihood.parameters) == set(own)
        for name, value in own.items():
            flat = value.reshape(len(value), -1)
            size = flat.shape[1]

            def changed(points, name=name, size=size, shape=value.shape[1:]):
                others = {other: np.repeat(each, size, axis=0) for other, each in own.items()}
                others[name] = points.reshape(len(points), *shape)
                return case.likelihood.log_density(np.repeat(outputs, size, axis=0), others)

            assert found[name].shape == value.shape
            expected = central_differences(changed, flat).reshape(value.shape)
            np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6)

    def test_samples_have_the_law(self, case, rng):
        outputs, own = draw_inputs(case, rng, n=1)
        n = 4000
        many = {name: np.repeat(each, n, axis=0) for name, each in own.items()}
        found = case.likelihood.sample(np.repeat(outputs, n, axis=0), many, rng)
        assert found.shape == (n, 4)
        law = case.law(outputs, as_columns(case, own))
        if hasattr(law.dist, "logpmf"):  # spread over the steps, the shares of counts are uniform too
            below, at = law.cdf(found - 1), law.pmf(found)
            shares = below + rng.uniform(size=found.shape) * at
        else:
            shares = law.cdf(found)
        # The chance of a false alarm is at most 4e-6 for each case, below 1e-4 for all.
        assert min(stats.kstest(each, "uniform").pvalue for each in shares.T) > 1e-6

    def test_pointwise_sums_to_the_log_density(self, case, rng):
        outputs, own = draw_inputs(case, rng)
        total = case.likelihood.pointwise(outputs, own).sum(axis=1)
        np.testing.assert_allclose(total, case.likelihood.log_density(outputs, own), rtol=1e-13, atol=1e-13)

    def test_rows_do_not_mix_and_arguments_are_left_alone(self, case, rng):
        outputs, own = draw_inputs(case, rng)
        kept = outputs.copy(), {name: each.copy() for name, each in own.items()}
        found = case.likelihood.gradient(outputs, own)
        case.likelihood.parameter_gradient(outputs, own)
        case.likelihood.sample(outputs, own, rng)
        np.testing.assert_array_equal(outputs, kept[0])
        for name, each in own.items():
            np.testing.assert_array_equal(each, kept[1][name])
        alone = case.likelihood.gradient(outputs[3:4], {name: each[3:4] for name, each in own.items()})
        np.testing.assert_allclose(found[3:4], alone, rtol=1e-14)

    def test_no_rows(self, case, rng):
        outputs, own = draw_inputs(case, rng, n=0)
        assert case.likelihood.log_density(outputs, own).shape == (0,)
        assert case.likelihood.gradient(outputs, own).shape == (0, 4)
        assert case.likelihood.pointwise(outputs, own).shape == (0, 4)
        assert case.likelihood.sample(outputs, own, rng).shape == (0, 4)
        slopes = case.likelihood.parameter_gradient(outputs, own)
        assert {name: each.shape[1:] for name, each in slopes.items()} == case.shapes

    @pytest.mark.parametrize("size", [1.0, 1e-200, 1e-30, 1e30, 1e200])
    def test_extreme_outputs_are_quiet(self, case, size, rng):
        """No warnings, which are errors here, no NaN, and finite slopes even where there is no density."""
        values = [0.0, -0.0, 1e-320, 1e-300, -1e-300, 1e-9, 1e9, -3.0, 1e160, -1e160, 1e305, np.inf, -np.inf]
        outputs = np.repeat(np.array(values)[:, None], 4, axis=1)
        own = {name: np.full((len(values), *shape), size) for name, shape in case.shapes.items()}
        assert (case.likelihood.log_density(outputs, own) < np.inf).all()
        finite = np.isfinite(outputs).all(axis=1) | ~np.array(getattr(case.likelihood, "is_plain", False))
        assert np.isfinite(case.likelihood.gradient(outputs, own)[finite]).all()
        for slope in case.likelihood.parameter_gradient(outputs, own).values():
            assert np.isfinite(slope).all()
        case.likelihood.sample(outputs, own, rng)

    @pytest.mark.parametrize("size", [0.0, -1.0, np.inf, np.nan])
    def test_impossible_parameters_have_no_density(self, case, size, rng):
        outputs, own = draw_inputs(case, rng)
        for name in case.likelihood.positive:
            changed = own | {name: np.full_like(own[name], size)}
            found = case.likelihood.log_density(outputs, changed)
            slopes = case.likelihood.parameter_gradient(outputs, changed)
            assert np.isnan(case.likelihood.sample(outputs, changed, rng)).all()
            if np.isnan(size):
                assert np.isnan(found).all()
            else:
                assert (found == -np.inf).all()
                assert (case.likelihood.gradient(outputs, changed) == 0).all()
                assert all((each == 0).all() for each in slopes.values())

    def test_nan_outputs_give_nan(self, case, rng):
        outputs, own = draw_inputs(case, rng)
        outputs[2, 1] = np.nan
        found = case.likelihood.log_density(outputs, own)
        assert np.isnan(found[2])
        assert np.isfinite(np.delete(found, 2)).all()
        drawn = case.likelihood.sample(outputs, own, rng)
        assert np.isnan(drawn[2, 1]) and np.isfinite(np.delete(drawn, 2, axis=0)).all()

    def test_layout_identity_and_pickle(self, case, rng):
        likelihood = case.likelihood
        assert likelihood.outputs == (Variable("y", (4,)),)
        assert likelihood.data.dtype == float and likelihood.data.shape == (4,)
        assert likelihood.observed.all()
        assert json.loads(json.dumps(likelihood.identity(), allow_nan=False)) == likelihood.identity()
        assert likelihood.identity()["class"] == type(likelihood).__name__
        again = pickle.loads(pickle.dumps(likelihood))
        outputs, own = draw_inputs(case, rng)
        np.testing.assert_array_equal(again.log_density(outputs, own), likelihood.log_density(outputs, own))
        likelihood.require_variables([Variable(name, shape) for name, shape in case.shapes.items()])


def test_names_in_order_of_appearance_and_once():
    likelihood = StudentTLikelihood(REAL, "df", "s", scale="a", offset="s")
    assert likelihood.parameters == ("df", "s", "a")
    assert likelihood.positive == ("df", "s")
    assert GaussianLikelihood(REAL, 1.0).parameters == GaussianLikelihood(REAL, 1.0).positive == ()
    assert repr(likelihood) == "StudentTLikelihood(4 data, parameters=('df', 's', 'a'))"


def test_identities_tell_likelihoods_apart():
    different = [each.likelihood.identity() for each in CASES.values()]
    different += [each.identity() for each in CORRELATED.values()]
    different += [G({"y": REAL[:2], "z": REAL[2:]}, 0.7).identity(), G(REAL.reshape(2, 2), 0.7).identity()]
    # "gaussian named" and "gaussian named sds" are the same likelihood, with priors of different shapes
    assert len({json.dumps(each) for each in different}) == len(different) - 1


@pytest.mark.parametrize("likelihood", CORRELATED.values(), ids=list(CORRELATED))
class TestCorrelatedErrors:
    own = {"gain": np.full(5, 1.7), "shift": np.full(5, -0.3)}  # noqa: RUF012

    def inputs(self, likelihood, rng):
        own = {name: self.own[name] for name in likelihood.parameters}
        outputs = rng.normal(size=(5, 4))
        return (
            outputs,
            own,
            outputs * own.get("gain", np.ones(5))[:, None] + own.get("shift", np.zeros(5))[:, None],
        )

    def test_against_scipy_and_differences(self, likelihood, rng, central_differences):
        outputs, own, mean = self.inputs(likelihood, rng)
        expected = [stats.multivariate_normal(each, COVARIANCE).logpdf(REAL) for each in mean]
        np.testing.assert_allclose(likelihood.log_density(outputs, own), expected, rtol=1e-12)
        repeated = {name: np.repeat(each, 4) for name, each in own.items()}
        expected = central_differences(lambda f: likelihood.log_density(f, repeated), outputs)
        np.testing.assert_allclose(likelihood.gradient(outputs, own), expected, rtol=1e-6, atol=1e-6)
        for name, slope in likelihood.parameter_gradient(outputs, own).items():
            expected = central_differences(
                lambda x, name=name: likelihood.log_density(outputs, own | {name: x[:, 0]}),
                own[name][:, None],
            )
            np.testing.assert_allclose(slope, expected[:, 0], rtol=1e-6, atol=1e-6)

    def test_missing_data_are_marginalised(self, likelihood, rng):
        outputs, own, mean = self.inputs(likelihood, rng)
        data = REAL.copy()
        data[1] = np.nan
        kept = [0, 2, 3]
        names = {"scale": "gain", "offset": "shift"} if own else {}
        partial = GaussianLikelihood(data, covariance=COVARIANCE, **names)
        marginal = COVARIANCE[np.ix_(kept, kept)]
        expected = [stats.multivariate_normal(each[kept], marginal).logpdf(REAL[kept]) for each in mean]
        np.testing.assert_allclose(partial.log_density(outputs, own), expected, rtol=1e-12)
        slope = partial.gradient(outputs, own)
        assert (slope[:, 1] == 0).all() and slope.all(axis=0).tolist() == [True, False, True, True]

    def test_samples_have_the_covariance(self, likelihood, rng):
        n = 20000
        outputs, own, mean = self.inputs(likelihood, rng)
        many = {name: np.full(n, each[0]) for name, each in own.items()}
        found = likelihood.sample(np.repeat(outputs[:1], n, axis=0), many, rng)
        z = np.linalg.solve(ROOT, (found - mean[0]).T)
        # Moments of standard normals: 4 means and 10 second moments, each beyond 5.5 sds with probability 4e-8.
        assert np.abs(z.mean(axis=1)).max() < 5.5 / np.sqrt(n)
        assert np.abs(z @ z.T / n - np.eye(4)).max() < 5.5 * np.sqrt(2.0 / n)

    def test_pointwise_is_refused(self, likelihood, rng):
        outputs, own, _ = self.inputs(likelihood, rng)
        with pytest.raises(InputError, match="correlated"):
            likelihood.pointwise(outputs, own)


DATA_OF = {
    "gaussian": (lambda y, s: G(y, s), REAL),
    "relative": (lambda y, s: G(y, s, relative_sd=0.3), REAL),
    "student": (lambda y, s: T(y, 4.0, s), REAL),
    "lognormal": (lambda y, s: LN(y, s), AMOUNTS),
    "poisson": (lambda y, s: P(y, scale=s), COUNTS),
    "negative binomial": (lambda y, s: NB(y, s), COUNTS),
    "binomial": (lambda y, s: B(y, 20, scale=s), COUNTS),
    "bernoulli": (lambda y, s: BernoulliLikelihood(y, scale=s), ODDS),
}


@pytest.fixture(params=DATA_OF, ids=list(DATA_OF))
def family(request):
    return DATA_OF[request.param]


class TestLayouts:
    """Data of other shapes, several sets and gaps give what the observations give one by one."""

    own = {"a": np.linspace(0.5, 2.0, 6), "b": np.linspace(1.5, 0.7, 6)}  # noqa: RUF012

    def outputs(self, rng, m=4):
        return rng.uniform(0.2, 3.0, size=(6, m))

    def test_missing_data_do_not_count(self, family, rng, caplog):
        make, data = family
        gaps = np.insert(data.astype(float), 2, np.nan)
        with caplog.at_level(logging.INFO, logger="leapwise"):
            partial = make(gaps, "a")
        assert [each.getMessage() for each in caplog.records] == [
            "1 of 5 data are missing (NaN) and left out"
        ]
        outputs = self.outputs(rng, 5)
        kept = [0, 1, 3, 4]
        whole = make(data, "a")
        assert partial.observed.tolist() == [True, True, False, True, True]
        np.testing.assert_array_equal(partial.data, gaps)
        outputs[3:, 2] = np.nan  # nobody asks
        for name in ("pointwise", "gradient"):
            found = getattr(partial, name)(outputs, self.own)
            expected = getattr(whole, name)(outputs[:, kept], self.own)
            np.testing.assert_array_equal(found[:, kept], expected)
            assert (found[:, 2] == 0).all()
        np.testing.assert_array_equal(
            partial.log_density(outputs, self.own), whole.log_density(outputs[:, kept], self.own)
        )
        np.testing.assert_array_equal(
            partial.parameter_gradient(outputs, self.own)["a"],
            whole.parameter_gradient(outputs[:, kept], self.own)["a"],
        )
        drawn = partial.sample(outputs, self.own, rng)
        assert np.isfinite(drawn[:3]).all() and np.isnan(drawn[3:, 2]).all()
        assert partial.identity()["data"]["y"][2] is None

    def test_variables_of_the_datas_shape_with_gaps(self, family, rng):
        make, data = family
        gaps = np.insert(data.astype(float), 2, np.nan)
        outputs, value = self.outputs(rng, 5), rng.uniform(0.5, 2.0, size=(6, 5))
        kept = [0, 1, 3, 4]
        found = make(gaps, "a").parameter_gradient(outputs, {"a": value})["a"]
        expected = make(data, "a").parameter_gradient(outputs[:, kept], {"a": value[:, kept]})["a"]
        np.testing.assert_array_equal(found[:, kept], expected)
        assert (found[:, 2] == 0).all()

    def test_several_data_sets(self, family, rng):
        make, data = family
        outputs = self.outputs(rng)
        both = make({"prey": data[:3], "predator": data[3:]}, {"prey": "a", "predator": "b"})
        assert both.outputs == (Variable("prey", (3,)), Variable("predator", (1,)))
        assert both.parameters == ("a", "b")
        one, other = make(data[:3], "a"), make(data[3:], "b")
        parts = outputs[:, :3], outputs[:, 3:]
        for name in ("pointwise", "gradient"):
            expected = np.concatenate(
                [getattr(each, name)(part, self.own) for each, part in zip((one, other), parts, strict=True)],
                axis=1,
            )
            np.testing.assert_allclose(getattr(both, name)(outputs, self.own), expected, rtol=1e-14)
        slopes = both.parameter_gradient(outputs, self.own)
        np.testing.assert_allclose(slopes["a"], one.parameter_gradient(parts[0], self.own)["a"], rtol=1e-13)
        np.testing.assert_allclose(slopes["b"], other.parameter_gradient(parts[1], self.own)["b"], rtol=1e-13)

    def test_one_variable_for_all_data_sets(self, family, rng):
        make, data = family
        outputs = self.outputs(rng)
        both, whole = make({"u": data[:3], "v": data[3:]}, "a"), make(data, "a")
        found, expected = (each.log_density(outputs, self.own) for each in (both, whole))
        np.testing.assert_array_equal(found, expected)
        found, expected = (each.parameter_gradient(outputs, self.own)["a"] for each in (both, whole))
        np.testing.assert_allclose(found, expected, rtol=1e-13)

    def test_a_number_for_one_set_and_a_variable_for_another(self, family, rng):
        make, data = family
        outputs = self.outputs(rng)
        sets = {"u": data[:3], "v": data[3:]}
        mixed = make(sets, {"u": 0.5, "v": "a"})
        named = make(sets, {"u": "b", "v": "a"})
        half = self.own | {"b": np.full(6, 0.5)}
        np.testing.assert_array_equal(mixed.log_density(outputs, self.own), named.log_density(outputs, half))
        np.testing.assert_array_equal(mixed.gradient(outputs, self.own), named.gradient(outputs, half))
        slopes = named.parameter_gradient(outputs, half)
        np.testing.assert_array_equal(mixed.parameter_gradient(outputs, self.own)["a"], slopes["a"])

    def test_tables_are_flattened_in_c_order(self, family, rng):
        make, data = family
        outputs = self.outputs(rng)
        table, whole = make(np.asfortranarray(data.reshape(2, 2)), "a"), make(data, "a")
        assert table.outputs == (Variable("y", (2, 2)),)
        np.testing.assert_array_equal(
            table.log_density(outputs, self.own), whole.log_density(outputs, self.own)
        )
        value = rng.uniform(0.5, 2.0, size=(6, 2, 2))
        slope = table.parameter_gradient(outputs, {"a": value})["a"]
        expected = whole.parameter_gradient(outputs, {"a": value.reshape(6, 4)})["a"]
        np.testing.assert_array_equal(slope, expected.reshape(6, 2, 2))
        numbers = make(data.reshape(2, 2), SDS.reshape(2, 2)), make(data, SDS)
        np.testing.assert_array_equal(*(each.log_density(outputs) for each in numbers))

    def test_a_single_number_is_one_observation(self, family, rng):
        make, data = family
        single = make(data[1], "a")
        assert single.outputs == (Variable("y", ()),)
        outputs = self.outputs(rng, 1)
        expected = make(data[1:2], "a").log_density(outputs, self.own)
        np.testing.assert_array_equal(single.log_density(outputs, self.own), expected)


def test_each_data_set_has_its_own_scale_and_offset(rng):
    sets = {"u": REAL[:3], "v": REAL[3:]}
    outputs = rng.normal(size=(5, 4))
    likelihood = GaussianLikelihood(sets, 0.5, scale={"v": 3.0}, offset={"u": "shift"})
    shift = rng.normal(size=5)
    moved = np.concatenate([outputs[:, :3] + shift[:, None], 3.0 * outputs[:, 3:]], axis=1)
    found = likelihood.log_density(outputs, {"shift": shift})
    np.testing.assert_allclose(found, GaussianLikelihood(REAL, 0.5).log_density(moved), rtol=1e-13)


def test_additive_error_of_one_data_set_and_relative_error_of_another(rng):
    sets = {"u": REAL[:3], "v": REAL[3:]}
    outputs = rng.normal(size=(5, 4))
    likelihood = GaussianLikelihood(sets, {"u": 0.5}, relative_sd={"v": "r"})
    assert likelihood.parameters == likelihood.positive == ("r",)
    np.testing.assert_array_equal(likelihood.sd, [0.5, 0.5, 0.5, 0.0])
    r = rng.uniform(0.1, 1.0, size=5)
    expected = stats.norm(outputs[:, :3], 0.5).logpdf(REAL[:3]).sum(axis=1)
    expected += stats.norm(outputs[:, 3], r * np.abs(outputs[:, 3])).logpdf(REAL[3])
    np.testing.assert_allclose(likelihood.log_density(outputs, {"r": r}), expected, rtol=1e-12)
    assert (likelihood.log_density(outputs, {"r": 0 * r}) == -np.inf).all()


@pytest.mark.parametrize("errors", [{"sd": 0.3}, {"sd": SDS}, {"covariance": COVARIANCE}], ids=str)
def test_plain_gaussian_has_the_bits_it_always_had(errors, rng):
    """The operations, and their order, of the class as it was before likelihoods could have parameters."""
    from scipy.linalg import solve_triangular

    likelihood, points = GaussianLikelihood(REAL, **errors), rng.normal(scale=3.0, size=(7, 4))
    assert likelihood.is_plain
    residual = points - REAL
    if "sd" in errors:
        sd = np.broadcast_to(np.asarray(errors["sd"]), (4,))
        z, log_det = residual / sd, 2.0 * np.log(sd).sum()
        slope = -z / sd
    else:
        factor = np.linalg.cholesky(COVARIANCE)
        z = solve_triangular(factor, residual.T, lower=True, check_finite=False).T
        slope = -solve_triangular(factor, z.T, lower=True, trans=1, check_finite=False).T
        log_det = 2.0 * np.log(np.diag(factor)).sum()
    constant = -0.5 * (4 * np.log(2 * np.pi) + log_det)
    np.testing.assert_array_equal(
        likelihood.log_density(points), constant - 0.5 * np.einsum("ij,ij->i", z, z)
    )
    np.testing.assert_array_equal(likelihood.gradient(points), slope)


def test_what_is_not_plain():
    gap = np.array([1.0, np.nan])
    others = [
        GaussianLikelihood(REAL, "sd"),
        GaussianLikelihood(REAL, 1.0, relative_sd=0.1),
        GaussianLikelihood(REAL, 1.0, offset=1.0),
        GaussianLikelihood(REAL, 1.0, scale="a"),
        GaussianLikelihood(REAL.reshape(2, 2), 1.0),
        GaussianLikelihood({"u": REAL, "v": REAL}, 1.0),
        GaussianLikelihood(gap, 1.0),
    ]
    assert not any(each.is_plain for each in others)


def test_impossible_means_have_no_density():
    outputs = np.array([[1.0, -1e-12], [1.0, 0.0], [1.0, 1.0]])
    for likelihood in (P([2, 1]), NB([2, 1], 3.0), LN([2.0, 1.0], 0.5)):
        assert np.isfinite(likelihood.log_density(outputs)).tolist() == [False, False, True]
    zero = np.array([[0.0, 0.0]])
    assert P([0, 0]).log_density(zero) == NB([0, 0], 3.0).log_density(zero) == 0.0  # no count is certain
    for likelihood in (P([0, 0]), NB([0, 0], 3.0)):
        np.testing.assert_array_equal(likelihood.gradient(zero), [[-1.0, -1.0]])
    assert np.isnan(P([2, 1]).sample(outputs, None, np.random.default_rng(1))).tolist()[0] == [False, True]


def test_counts_of_many_orders_of_magnitude_can_be_drawn(rng):
    means = np.array([[1e-300, 1e15, 1e18, 1e19, 1e300]])
    for likelihood in (P(np.ones(5)), NB(np.ones(5), 1e12)):
        drawn = likelihood.sample(means, None, rng)[0]
        assert drawn[0] == 0 and np.isnan(drawn[3:]).all()
        assert np.abs(drawn[1:3] / means[0, 1:3] - 1.0).max() < 1e-4  # at most 1e-6 of standard deviation


def test_later_changes_of_the_data_do_not_matter():
    data, sd = REAL.copy(), SDS.copy()
    likelihoods = [StudentTLikelihood(data, 3.0, sd), GaussianLikelihood({"u": data}, {"u": sd})]
    before = [each.log_density(np.ones((1, 4))) for each in likelihoods]
    data[:], sd[:] = 9.0, 9.0
    assert [each.log_density(np.ones((1, 4))) for each in likelihoods] == before


SETS = {"prey": REAL[:3], "predator": REAL[3:]}
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no sd": (lambda: G(REAL), "exactly one"),
    "sd and covariance": (lambda: G(REAL, "sd", covariance=COVARIANCE), "exactly one"),
    "relative and covariance": (lambda: G(REAL, covariance=COVARIANCE, relative_sd=0.1), "no relative_sd"),
    "relative alone with a zero": (lambda: G([1.0, 0.0], relative_sd=0.1), "observation of 0"),
    "negative relative sd": (lambda: G(REAL, 1.0, relative_sd=-0.1), "relative_sd must be positive"),
    "zero sd beside a relative one": (lambda: G(REAL, 0.0, relative_sd=0.1), "sd must be positive"),
    "neither sd": (lambda: G(SETS, {"prey": 1.0}, relative_sd={"prey": 0.1}), "'predator' has neither"),
    "number in quotes": (lambda: G(REAL, "0.1"), "sd must be real numbers or the name"),
    "empty name": (lambda: G(REAL, ""), "sd must be real numbers or the name"),
    "bytes as name": (lambda: G(REAL, b"sd"), "sd must be real numbers"),
    "list of names": (lambda: G(REAL, ["a", "b", "c", "d"]), "sd must be real numbers"),
    "names that are no strings": (
        lambda: G(SETS, {"prey": 1.0, "predator": None}),
        "sd of 'predator' is miss",
    ),
    "an object": (lambda: G(REAL, 1.0, scale=object()), "scale must be real numbers"),
    "sd of the wrong shape": (lambda: G(REAL, SDS[:3]), r"shape \(4,\), got shape \(3,\)"),
    "sd not of the table's shape": (lambda: G(REAL.reshape(2, 2), SDS), r"shape \(2, 2\), got shape \(4,\)"),
    "sd of one set": (lambda: G(SETS, {"prey": 1.0}), "sd of 'predator' is missing"),
    "sd of a strange set": (lambda: G(SETS, {"prey": 1.0, "lynx": 2.0}), "'lynx', which is not a data set"),
    "dict for one array": (lambda: G(REAL, {"y": 1.0}), "sd is a dict, but data is a single array"),
    "wrong shape in a set": (
        lambda: G(SETS, {"prey": SDS, "predator": 1.0}),
        r"sd of 'prey'.*got shape \(4,\)",
    ),
    "scale of a strange set": (lambda: P({"u": COUNTS}, scale={"v": 1.0}), "'v', which is not a data set"),
    "offset of the wrong shape": (lambda: P(COUNTS, offset=SDS[:2]), r"offset must be one number"),
    "scale zero": (lambda: P(COUNTS, scale=0.0), "scale must not be 0"),
    "NaN scale": (lambda: P(COUNTS, scale=np.nan), "scale must be finite"),
    "infinite data": (lambda: G([1.0, np.inf, np.nan], 1.0), "data must be finite, got inf at index 1"),
    "all missing": (lambda: G([np.nan, np.nan], 1.0), "only NaN"),
    "no data": (lambda: P([]), r"got shape \(0,\)"),
    "no data sets": (lambda: P({}), "empty dict"),
    "an empty data set": (lambda: P({"u": COUNTS, "v": []}), "data of 'v'.*got shape"),
    "data sets without names": (lambda: P({1: COUNTS}), "names must be strings"),
    "data set with an empty name": (lambda: P({"": COUNTS}), "names must be different"),
    "masked data": (lambda: P(np.ma.masked_greater(COUNTS, 5)), "missing"),
    "masked NaN": (lambda: G(np.ma.masked_invalid([1.0, np.nan]), 1.0), "missing"),
    "complex data": (lambda: G([1j, np.nan], 1.0), "data must be real numbers"),
    "data of strings": (lambda: P(["1"]), "data must be real numbers"),
    "negative counts": (lambda: P([1, -2]), "data must be counts.*got -2 at index 1"),
    "half counts": (lambda: NB([1, 2.5], 1.0), "data must be counts.*got 2.5 at index 1"),
    "huge counts": (lambda: P([1e300]), "data must be counts"),
    "half counts in a table": (lambda: P([[1, 2], [np.nan, 2.5]]), r"got 2.5 at index \(1, 1\)"),
    "negative counts in a set": (lambda: P({"u": [1], "v": [1, -1]}), "data of 'v' must be.*at index 1"),
    "a negative count": (lambda: P(-1), "got -1; fix"),
    "Bernoulli 2": (lambda: BernoulliLikelihood([0, 2]), "data must be 0 or 1, got 2 at index 1"),
    "Bernoulli 0.5": (lambda: BernoulliLikelihood([0.5]), "data must be 0 or 1"),
    "more successes than trials": (lambda: B([3, 5], 4), "whole numbers from 0 to n, got 5 at index 1"),
    "no trials": (lambda: B([0], 0), "n must be positive"),
    "half a trial": (lambda: B([0], 1.5), "n must be whole numbers, got 1.5"),
    "named trials": (lambda: B([0], "n"), "n must be whole numbers, got the name 'n'"),
    "trials missing": (lambda: B([0], None), "n is missing"),
    "trials of the wrong shape": (lambda: B([0, 1], [1, 2, 3]), r"n must be one number or.*\(2,\)"),
    "log-normal zero": (lambda: LN([1.0, 0.0], 1.0), "data must be positive, got 0 at index 1"),
    "log-normal sd missing": (lambda: LN([1.0], None), "sd is missing"),
    "negative df": (lambda: T(REAL, -1.0, 1.0), "df must be positive"),
    "infinite df": (lambda: T(REAL, np.inf, 1.0), "df must be finite"),
    "df missing": (lambda: T(REAL, None, 1.0), "df is missing"),
    "zero dispersion": (lambda: NB(COUNTS, 0), "dispersion must be positive"),
    "no own parameters": (
        lambda: G(REAL, "sd").log_density(np.ones((1, 4))),
        r"needs the variables \['sd'\]",
    ),
    "other parameters": (
        lambda: P(COUNTS, scale="a").gradient(np.ones((1, 4)), {"b": np.ones(1)}),
        r"\['a'\], got \['b'\]",
    ),
    "parameter of another shape": (
        lambda: G(REAL, "sd").log_density(np.ones((1, 4)), {"sd": np.ones((1, 3))}),
        r"'sd' of the likelihood must be a scalar or have the shape \(4,\) of the data, got shape \(3,\)",
    ),
    "variable of another shape": (
        lambda: G(SETS, "sd").require_variables([Variable("sd", (3,))]),
        r"the shape \(1,\) of the data, got shape \(3,\)",
    ),
    "variable not there": (
        lambda: G(REAL, "sd").require_variables([Variable("s")]),
        r"\['sd'\], got \['s'\]",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=list(BAD))
def test_bad_input(make, words):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert len(str(caught.value)) < 300
