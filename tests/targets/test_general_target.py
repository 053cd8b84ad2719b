"""The general target: how the model is called, which parameters it sees, and bad input before any run of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import leapwise as lw
from leapwise.errors import InputError, OutputError
from leapwise.targets.forward import PriorAndLikelihood
from leapwise.targets.identity import identify

T = np.array([0.0, 1.0, 2.0])
Y = np.array([2.1, 1.2, 0.6])


def decay(a, k):
    return a * np.exp(-k * T)


def prior(**more):
    return lw.Prior(a=lw.LogNormal(0.0, 1.0), k=lw.HalfNormal(1.0), **more)


def noisy(**settings):
    return lw.ForwardTarget(
        decay, lw.GaussianLikelihood(Y, sd="sigma"), prior(sigma=lw.HalfNormal(0.5)), **settings
    )


def expected(a, k, sigma):
    """The log-density, by scipy."""
    parts = [
        stats.lognorm(1.0).logpdf(a),
        stats.halfnorm().logpdf(k),
        stats.halfnorm(scale=0.5).logpdf(sigma),
        stats.norm(decay(a, k), sigma).logpdf(Y).sum(),
    ]
    return sum(parts)


def test_log_density_is_that_of_scipy():
    values = noisy().evaluate(np.array([[2.0, 0.5, 0.1]]), gradient=False)
    np.testing.assert_allclose(values.log_density, expected(2.0, 0.5, 0.1), rtol=1e-12)
    np.testing.assert_allclose(values.outputs[0], decay(2.0, 0.5))


def test_the_model_sees_its_inputs_alone():
    target = noisy()
    assert target.inputs.tolist() == [0, 1] and target.names == ("a", "k", "sigma")


def test_by_keyword_or_as_a_vector_is_the_same():
    by_vector = lw.ForwardTarget(
        lambda x: decay(x[0], x[1]),
        lw.GaussianLikelihood(Y, sd="sigma"),
        prior(sigma=lw.HalfNormal(0.5)),
    )
    here = np.array([[2.0, 0.5, 0.1]])
    one, other = (each.evaluate(here, gradient=False).log_density for each in (noisy(), by_vector))
    assert one == other and by_vector.inputs.tolist() == [0, 1]


def test_keywords_are_taken_by_name_in_any_order():
    """The prior's variables may lie in another order than the signature's, with others between them."""
    mixed = lw.Prior(
        sigma=lw.HalfNormal(0.5), k=lw.HalfNormal(1.0), mu=lw.Normal(0, 1), a=lw.LogNormal(0.0, 1.0)
    )
    target = lw.ForwardTarget(decay, lw.GaussianLikelihood(Y, sd="sigma"), mixed)
    values = target.evaluate(np.array([[0.1, 0.5, 0.3, 2.0]]), gradient=False)
    np.testing.assert_allclose(values.outputs[0], decay(2.0, 0.5))
    assert target.inputs.tolist() == [1, 3]


def test_a_vectorised_model_gets_arrays_with_a_first_axis():
    def many(a, theta):
        assert a.shape == (4,) and theta.shape == (4, 2)
        return a[:, None] * theta

    target = lw.ForwardTarget(
        many,
        lw.GaussianLikelihood([1.0, 2.0], sd=0.1),
        lw.Prior(a=lw.Normal(0, 1), theta=lw.Normal(0, 1, shape=2)),
        vectorized=True,
    )
    assert target.evaluate(np.ones((4, 3)), gradient=False).outputs.shape == (4, 2)


@pytest.mark.parametrize("way", ["jacobian", "vjp"])
def test_gradient_is_that_of_the_log_density(way, central_differences):
    def jacobian(x):
        e = np.exp(-x[1] * T)
        return x[0] * e, np.stack([e, -x[0] * T * e], axis=1)

    def vjp(x):
        outputs, matrix = jacobian(x)
        return outputs, lambda cotangent: matrix.T @ cotangent

    target = noisy(**{way: {"jacobian": jacobian, "vjp": vjp}[way]})
    here = np.array([[2.0, 0.5, 0.1], [1.0, 1.5, 0.7]])

    def value(x):
        return np.concatenate([target.evaluate(row[None], gradient=False).log_density for row in x])

    found = np.concatenate([target.evaluate(row[None], gradient=True).gradient for row in here])
    np.testing.assert_allclose(found, central_differences(value, here), rtol=1e-6)


def test_several_data_sets_and_outputs_of_any_shape():
    data = {"first": np.ones((2, 2)), "second": np.array([1.0, np.nan, 3.0])}

    def solve(a):
        return {"second": a * np.arange(3.0), "first": a * np.ones((2, 2))}

    likelihood = lw.GaussianLikelihood(data, sd={"first": "s", "second": 0.5})
    target = lw.ForwardTarget(solve, likelihood, lw.Prior(a=lw.Normal(0, 1), s=lw.HalfNormal(1.0)))
    values = target.evaluate(np.array([[2.0, 1.0]]), gradient=False)
    np.testing.assert_array_equal(values.outputs, [[2.0, 2.0, 2.0, 2.0, 0.0, 2.0, 4.0]])
    by_hand = stats.norm.logpdf(1.0, 2.0, 1.0) * 4 + stats.norm.logpdf([1.0, 3.0], [0.0, 4.0], 0.5).sum()
    by_hand += stats.norm.logpdf(2.0) + stats.halfnorm.logpdf(1.0)
    np.testing.assert_allclose(values.log_density, by_hand, rtol=1e-12)


def test_where_the_prior_is_zero_nothing_is_run():
    def never(x):
        raise AssertionError("the model was run")

    class Nowhere:
        dim = 2

        def log_density(self, points):
            return np.full(len(points), -np.inf)

        def gradient(self, points):
            return np.zeros_like(points)

    target = lw.Target(log_likelihood=never, log_prior=Nowhere())
    values = target.evaluate(np.zeros((3, 2)), gradient=False)
    assert np.isneginf(values.log_density).all() and values.n_run == 0


def test_likelihood_and_prior_are_the_log_density_together():
    """A signature that names some of the variables gets those, wherever they lie."""
    of_both = lw.Prior(mu=lw.Normal(0, 5), tau=lw.HalfCauchy(5), theta=lw.Normal("mu", "tau", shape=2))
    target = lw.Target(log_likelihood=lambda theta: -((theta[0] - 2 * theta[1]) ** 2), log_prior=of_both)
    here = np.array([[0.5, 2.0, 1.0, 3.0]])
    found = target.evaluate(here, gradient=False).log_density
    np.testing.assert_allclose(found, of_both.log_density(here) - 25.0, rtol=1e-12)


def test_a_joint_log_density_of_the_users_own():
    target = noisy()
    own = lw.ForwardTarget(lambda x: decay(*x), joint=target.joint, dim=3, inputs=[0, 1], bounds=(0, None))
    here = np.array([[2.0, 0.5, 0.1]])
    values = [each.evaluate(here, gradient=False).log_density for each in (own, target)]
    assert values[0] == values[1]


def test_joint_gradients_against_differences(central_differences):
    joint = noisy().joint
    assert isinstance(joint, PriorAndLikelihood)
    x, y = np.array([[2.0, 0.5, 0.1]]), np.array([[2.0, 1.0, 0.7]])
    by_parameters, by_outputs = joint.gradient(x, y)
    np.testing.assert_allclose(
        by_parameters,
        central_differences(lambda p: joint.log_density(p, np.repeat(y, len(p), 0)), x),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        by_outputs, central_differences(lambda o: joint.log_density(np.repeat(x, len(o), 0), o), y), rtol=1e-6
    )


GAUSSIAN = lw.GaussianLikelihood(Y, sd="sigma")
BAD = {
    "unknown name": (lambda: lw.ForwardTarget(decay, GAUSSIAN, prior()), "'sigma' that has no prior"),
    "no prior for an argument": (
        lambda: lw.ForwardTarget(lambda a, b: a, lw.GaussianLikelihood(Y, 0.1), prior()),
        "forward asks for 'b', for which there is no prior",
    ),
    "no argument has a prior": (
        lambda: lw.ForwardTarget(lambda u, v: u, lw.GaussianLikelihood(Y, 0.1), prior()),
        "forward asks for u, v, but the prior has a, k",
    ),
    "sd may be negative": (
        lambda: lw.ForwardTarget(decay, GAUSSIAN, prior(sigma=lw.Normal(0, 1))),
        "needs a positive 'sigma'",
    ),
    "shapes": (
        lambda: lw.ForwardTarget(decay, GAUSSIAN, prior(sigma=lw.HalfNormal(1.0, shape=2))),
        "sigma",
    ),
    "names twice": (lambda: noisy(names=["a", "b", "c"]), "drop names="),
    "inputs twice": (lambda: noisy(inputs=["a"]), "drop inputs="),
    "unknown input": (
        lambda: lw.ForwardTarget(lambda x: x, GAUSSIAN, prior(sigma=lw.HalfNormal(1.0)), inputs=["b"]),
        "inputs must be different variables",
    ),
    "joint and prior": (
        lambda: lw.ForwardTarget(decay, joint=noisy().joint, prior=prior()),
        "one or the other",
    ),
    "no joint": (lambda: lw.ForwardTarget(decay, joint=3, dim=2), "joint must have the methods"),
    "prior without likelihood": (
        lambda: lw.Target(log_prior=prior()),
        "log_prior= goes with log_likelihood=",
    ),
    "likelihood without prior": (lambda: lw.Target(log_likelihood=decay), "log_likelihood= needs log_prior="),
    "two functions": (
        lambda: lw.Target(decay, log_likelihood=decay, log_prior=prior()),
        "were both given",
    ),
    "coords": (
        lambda: lw.ForwardTarget(
            lambda theta: theta,
            lw.GaussianLikelihood(Y, 0.1),
            lw.Prior(theta=lw.Normal(0, 1, shape=3, dims="mode")),
            coords={"mode": ["a", "b"]},
        ),
        "must have 3 labels",
    ),
    "bounds without mass": (
        lambda: lw.ForwardTarget(
            decay, GAUSSIAN, prior(sigma=lw.Uniform(0.0, 1.0)), bounds=[(None, -1.0), None, None]
        ),
        "bounds must leave some of the prior's support",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=list(BAD))
def test_bad_input_is_one_sentence_before_any_run(make, words):
    with pytest.raises(InputError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value) and ";" in str(caught.value)


BAD_OUTPUTS = {
    "one array": (lambda a: np.ones(3), "must return a dict with one array for each of"),
    "other names": (lambda a: {"x": 1.0, "y": 2.0}, "returned outputs x, y"),
    "other shape": (lambda a: {"u": np.ones(2), "v": np.ones(3)}, r"must return outputs of shape \(2,\)"),
}


@pytest.mark.parametrize(("solve", "words"), BAD_OUTPUTS.values(), ids=list(BAD_OUTPUTS))
def test_outputs_that_do_not_fit_the_data(solve, words):
    likelihood = lw.GaussianLikelihood({"u": [1.0, 2.0], "v": [1.0, 2.0]}, sd=1.0)
    target = lw.ForwardTarget(solve, likelihood, lw.Prior(a=lw.Normal(0, 1)))
    with pytest.raises(OutputError, match=words):
        target.evaluate(np.zeros((1, 1)), gradient=False)


class TestOrderOfInputs:
    """A model that is given all parameters, but in another order."""

    def permuted(self, inputs=("k", "a")):
        def jacobian(x):
            return np.array([x[1] * x[0] ** 2]), np.array([[2.0 * x[0] * x[1], x[0] ** 2]])

        return lw.ForwardTarget(
            lambda x: np.array([x[1] * x[0] ** 2]),
            lw.GaussianLikelihood([1.0], sd=0.5),
            lw.Prior(a=lw.Normal(0, 1), k=lw.Normal(1, 1)),
            inputs=list(inputs),
            jacobian=jacobian,
        )

    def test_gradients_are_in_the_order_of_the_parameters(self):
        target, point = self.permuted(), np.array([[0.5, 1.2]])
        slope = target.evaluate(point, gradient=True).gradient[0]
        for column, step in zip(slope, 1e-6 * np.eye(2), strict=True):
            ahead, behind = (
                target.evaluate(point + sign * step, gradient=False).log_density[0] for sign in (1, -1)
            )
            np.testing.assert_allclose(column, (ahead - behind) / 2e-6, rtol=1e-6)

    def test_another_order_is_another_target(self):
        assert identify(self.permuted()) != identify(self.permuted(("a", "k")))

    @pytest.mark.parametrize("inputs", [["a", 0], [True]])
    def test_each_parameter_is_named_once(self, inputs):
        with pytest.raises(InputError, match="inputs must"):
            self.permuted(inputs)
