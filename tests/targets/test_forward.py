"""ForwardTarget: outputs, likelihood and prior put together, and no forward run wasted."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from leapwise import Evaluator, ForwardTarget, GaussianLikelihood, NormalPrior, UniformPrior
from leapwise.errors import EvaluationError, InputError, OutputError

DIM, M = 3, 4
MIX = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.3], [0.7, 0.0, 1.0], [0.2, 0.2, 0.2]])
LIKELIHOOD = GaussianLikelihood([0.5, -0.2, 1.0, 0.1], sd=[0.5, 1.0, 0.7, 2.0])
PRIOR = NormalPrior([0.0, 0.5, -0.5], [1.0, 2.0, 0.7])


def forward(x):
    return np.tanh(x @ MIX.T)


def jacobian(x):
    outputs = forward(x)
    return outputs, (1 - outputs**2)[..., None] * MIX


def vjp(x):
    outputs, matrix = jacobian(x)
    return outputs, lambda cotangent: np.einsum("...m,...md->...d", cotangent, matrix)


def vjp_in_a_tuple(x):
    outputs, pull_back = vjp(x)
    return outputs, lambda cotangent: (pull_back(cotangent),)


def make(likelihood=LIKELIHOOD, prior=PRIOR, **options):
    return ForwardTarget(options.pop("forward", forward), likelihood, prior, **options)


def rows_seen(function):
    """Return the function and the list of rows that it was called with."""
    seen = []

    @functools.wraps(function)
    def wrapped(x):
        seen.extend(np.atleast_2d(x).copy())
        return function(x)

    return wrapped, seen


class HalfSpace:
    """A normal prior cut off where the first parameter is negative; NaN where the second is above 50."""

    dim = DIM

    def log_density(self, points):
        inside = np.where(points[:, 0] > 0, PRIOR.log_density(points), -np.inf)
        return np.where(points[:, 1] > 50, np.nan, inside)

    def gradient(self, points):
        return PRIOR.gradient(points)


@pytest.mark.parametrize("bounds", [None, [(None, None), (0, None), (-2, 5)]], ids=["free", "bounded"])
@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("way", [{"jacobian": jacobian}, {"vjp": vjp}, {"vjp": vjp_in_a_tuple}])
def test_every_way_to_give_the_derivative_agrees(way, vectorized, bounds, rng, central_differences):
    evaluator = Evaluator(make(vectorized=vectorized, bounds=bounds, **way))
    position = rng.normal(size=(5, DIM))
    found = evaluator.value_and_gradient(position)
    parameters = evaluator.target.transform.to_parameters(position)
    log_density = LIKELIHOOD.log_density(forward(parameters)) + PRIOR.log_density(parameters)
    log_jacobian = evaluator.target.transform.log_jacobian(position)
    np.testing.assert_allclose(found.potential, -log_density - log_jacobian, rtol=1e-12)
    np.testing.assert_allclose(evaluator.value(position).potential, found.potential, rtol=1e-13)
    numerical = central_differences(lambda q: evaluator.value(q).potential, position)
    np.testing.assert_allclose(found.gradient, numerical, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.outputs, forward(parameters), rtol=1e-14)
    np.testing.assert_allclose(evaluator.value(position).outputs, found.outputs, rtol=1e-14)


def test_jax_vjp_as_it_comes(rng):
    jax = pytest.importorskip("jax")
    mix = jax.numpy.asarray(MIX)
    model = lambda x: jax.numpy.tanh(mix @ x)  # noqa: E731
    ours, theirs = (
        Evaluator(make(vjp=vjp)),
        Evaluator(make(forward=model, vjp=functools.partial(jax.vjp, model))),
    )
    position = rng.normal(size=(3, DIM))
    expected, found = ours.value_and_gradient(position), theirs.value_and_gradient(position)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-4)  # JAX computes in float32
    np.testing.assert_allclose(found.outputs, expected.outputs, rtol=1e-5)


@pytest.mark.parametrize("vectorized", [False, True])
def test_values_run_the_forward_model_and_gradients_the_derivative_once(vectorized, rng):
    position = rng.normal(size=(5, DIM))
    for name, function in (("vjp", vjp), ("jacobian", jacobian)):
        model, model_rows = rows_seen(forward)
        derivative, derivative_rows = rows_seen(function)
        evaluator = Evaluator(make(forward=model, vectorized=vectorized, **{name: derivative}))
        evaluator.value(position)
        assert (len(model_rows), len(derivative_rows)) == (5, 0)
        evaluator.value_and_gradient(position)
        assert (len(model_rows), len(derivative_rows)) == (5, 5)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("vectorized", [False, True])
def test_the_model_is_not_run_where_the_prior_is_zero(vectorized, gradient, rng):
    model, model_rows = rows_seen(forward)
    derivative, derivative_rows = rows_seen(vjp)
    evaluator = Evaluator(make(forward=model, vjp=derivative, prior=HalfSpace(), vectorized=vectorized))
    position = np.abs(rng.normal(size=(4, DIM)))
    position[[1, 3], 0] *= -1
    found = (evaluator.value_and_gradient if gradient else evaluator.value)(position)
    run = derivative_rows if gradient else model_rows
    np.testing.assert_array_equal(run, position[[0, 2]])
    assert len(derivative_rows) + len(model_rows) == 2
    assert evaluator.counts.n_values + evaluator.counts.n_gradients == 2
    assert np.isposinf(found.potential).tolist() == [False, True, False, True]
    assert np.isnan(found.outputs).all(axis=1).tolist() == [False, True, False, True]
    if gradient:
        assert (found.gradient != 0).any(axis=1).tolist() == [True, False, True, False]


def test_a_prior_that_fails_is_a_failure_without_a_run():
    model, seen = rows_seen(forward)
    evaluator = Evaluator(make(forward=model, prior=HalfSpace(), vectorized=True), on_failure="reject")
    found = evaluator.value(np.array([[1.0, 99.0, 0.0], [1.0, 0.0, 0.0]]))
    assert np.isposinf(found.potential).tolist() == [True, False]
    assert evaluator.counts.n_failures == len(seen) == evaluator.counts.n_values == 1


def test_no_adjoint_solve_where_the_likelihood_is_zero():
    class Impossible:
        def log_density(self, points):
            return np.full(len(points), -np.inf)

        def gradient(self, points):
            raise AssertionError("not needed")

    def pull_back(cotangent):
        raise AssertionError("not needed")

    target = make(likelihood=Impossible(), vjp=lambda x: (forward(x), pull_back))
    assert np.isposinf(Evaluator(target).value_and_gradient(np.zeros((2, DIM))).potential).all()


@pytest.mark.parametrize("vectorized", [False, True])
def test_arrays_are_not_shared(vectorized, rng):
    class Spoiler:
        dim = DIM

        def __init__(self, density):
            self.density = density

        def log_density(self, points):
            returned = self.density.log_density(points)
            points[...] = np.nan
            return returned

        def gradient(self, points):
            returned = self.density.gradient(points)
            points[...] = np.nan
            return returned

    buffer = np.empty((5, M) if vectorized else M)

    def spoiling_forward(x):
        buffer[...] = forward(x)
        x[...] = np.nan
        return buffer

    def spoiling_vjp(x):
        pull_back = vjp(x)[1]
        return spoiling_forward(x), pull_back

    position = rng.normal(size=(5, DIM))
    kept = position.copy()
    clean = Evaluator(make(vjp=vjp, vectorized=vectorized))
    dirty = Evaluator(
        make(
            Spoiler(LIKELIHOOD),
            Spoiler(PRIOR),
            forward=spoiling_forward,
            vjp=spoiling_vjp,
            vectorized=vectorized,
        )
    )
    expected = clean.value_and_gradient(position)
    found, value = dirty.value_and_gradient(position), dirty.value(position)
    dirty.value(position + 1.0)
    np.testing.assert_array_equal(position, kept)
    for attribute in ("potential", "gradient", "outputs"):
        np.testing.assert_array_equal(getattr(found, attribute), getattr(expected, attribute))
    np.testing.assert_array_equal(value.outputs, expected.outputs)
    rows = position if vectorized else position[:1]
    dirty.target.evaluate(rows, gradient=True)
    np.testing.assert_array_equal(position, kept)


def test_bounds_come_from_the_prior_unless_given():
    prior = UniformPrior(0, 1, dim=DIM)
    assert make(prior=prior).transform.upper.tolist() == [1.0] * DIM
    assert make(prior=prior, bounds=(0.2, 0.5)).transform.upper.tolist() == [0.5] * DIM
    assert make(prior=prior).names == "x"
    assert repr(make(prior=prior)) == "ForwardTarget(dim=3, gradient=False, vectorized=False)"


@pytest.mark.parametrize(
    ("prior", "bounds"),
    [
        (NormalPrior(0, 1, dim=40), (0, None)),
        (NormalPrior(0, 1, dim=40), (-0.1, 0.1)),
        (UniformPrior(0, 1, dim=40), None),
        (UniformPrior(0, 1, dim=40), (0.5, 2)),
    ],
)
def test_starts_are_inside_the_bounds(prior, bounds, rng):
    target = ForwardTarget(lambda x: x[:M], LIKELIHOOD, prior, bounds=bounds)
    starts = np.stack([target.sample_start(rng) for _ in range(20)])
    assert target.transform.contains(starts).all()
    assert np.isfinite(target.transform.to_position(starts)).all()
    assert len(np.unique(starts)) == starts.size


def test_no_start_where_the_prior_never_goes(rng):
    assert make(prior=NormalPrior(0, 1, dim=DIM), bounds=(100, None)).sample_start(rng) is None
    assert make(prior=HalfSpace()).sample_start(rng) is None


def test_an_unbounded_start_is_a_plain_draw_of_the_prior():
    ours, theirs = (np.random.default_rng(3) for _ in range(2))
    np.testing.assert_array_equal(make().sample_start(ours), PRIOR.sample(theirs))


def test_a_start_of_the_wrong_shape(rng):
    prior = HalfSpace()
    prior.sample = lambda rng: np.zeros(DIM + 1)
    with pytest.raises(OutputError, match=r"prior.sample must return shape \(3,\), got \(4,\)"):
        make(prior=prior).sample_start(rng)


def test_a_likelihood_with_data_of_its_own_shape(rng):
    """Only our own likelihood says how many outputs there are; another's data may be anything."""

    class Counts:
        data = np.arange(100).reshape(50, 2)

        def log_density(self, points):
            return LIKELIHOOD.log_density(points)

        def gradient(self, points):
            return LIKELIHOOD.gradient(points)

    found = Evaluator(make(likelihood=Counts(), vjp=vjp)).value_and_gradient(rng.normal(size=(2, DIM)))
    assert found.outputs.shape == (2, M)


def test_the_number_of_outputs_may_not_change():
    widths = iter([2, 3, 3])
    likelihood = HalfSpace()
    likelihood.log_density = lambda points: -points.sum(axis=1)
    evaluator = Evaluator(make(likelihood=likelihood, forward=lambda x: np.ones(next(widths))))
    with pytest.raises(EvaluationError, match=r"forward must return shape \(2,\), got \(3,\)"):
        evaluator.value(np.zeros((2, DIM)))


def test_asking_for_a_gradient_that_was_not_given():
    assert not make().has_gradient
    with pytest.raises(InputError, match="vjp= or jacobian="):
        make().evaluate(np.zeros((1, DIM)), gradient=True)
