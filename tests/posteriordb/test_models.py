"""The sixteen posteriors of posteriordb against finite differences and their reference draws."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.posteriordb import data, transforms  # noqa: E402
from benchmarks.posteriordb.posterior import Posterior  # noqa: E402
from benchmarks.posteriordb.registry import NAMES, posterior  # noqa: E402

# About 1000 identities in all, on fixed draws: of 1000 standard normal numbers one or more exceeds this in
# size with probability 4e-5.
LARGEST_Z = 5.5
# The covariance of the process is singular but for 1e-10 on its diagonal, so its root has few exact digits.
ROUND_TRIP = {"gp_pois_regr-gp_pois_regr": 1e-7}
CHUNK = 500  # rows evaluated at once: the arrays of a hidden Markov model stay in the cache


@pytest.fixture(scope="module", params=NAMES)
def model(request) -> tuple[Posterior, np.ndarray]:
    try:
        data.folder()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    case = posterior(request.param)
    return case, case.reference()


def points(case: Posterior, reference: np.ndarray) -> np.ndarray:
    """Three reference draws and three points where a sampler may start."""
    rng = np.random.default_rng(3)
    return np.concatenate([reference[[0, 4, 9], [0, 500, 999]], rng.uniform(-2.0, 2.0, (3, case.dim))])


def central_difference(case: Posterior, x: np.ndarray, step: float) -> np.ndarray:
    """Fourth order, so that a step can be long enough for the rounding of large values."""
    steps = step * np.eye(case.dim)
    near, far = (case.log_density(x + k * steps) - case.log_density(x - k * steps) for k in (1, 2))
    return (8.0 * near - far) / (12.0 * step)


def gradients(case: Posterior, draws: np.ndarray) -> np.ndarray:
    parts = np.array_split(draws, max(1, len(draws) // CHUNK))
    return np.concatenate([case.value_and_gradient(part)[1] for part in parts])


def z_scores(samples: np.ndarray) -> np.ndarray:
    """Return how many standard errors the mean is from zero; draws are nearly independent."""
    return samples.mean(axis=0) / samples.std(axis=0, ddof=1) * np.sqrt(len(samples))


def test_there_are_sixteen():
    assert len(NAMES) == len(set(NAMES)) == 16


def test_gradient_is_that_of_central_differences(model):
    case, reference = model
    for x in points(case, reference):
        value, slope = case.value_and_gradient(x[None])
        assert np.isfinite(value[0])
        numeric = central_difference(case, x, 1e-4)
        np.testing.assert_allclose(slope[0], numeric, rtol=1e-5, atol=1e-5 * np.abs(numeric).max())


def test_value_alone_is_the_value_with_the_gradient(model):
    case, reference = model
    x = points(case, reference)
    np.testing.assert_array_equal(case.log_density(x), case.value_and_gradient(x)[0])
    raw = case.target().evaluate(x, gradient=True)
    np.testing.assert_array_equal(case.values().evaluate(x, gradient=False).log_density, raw.log_density)


def test_rows_do_not_depend_on_their_batch(model):
    case, reference = model
    x = points(case, reference)
    value, slope = case.value_and_gradient(x)
    for i in range(len(x)):
        alone = case.value_and_gradient(x[i : i + 1])
        np.testing.assert_allclose(alone[0][0], value[i], rtol=1e-10)
        np.testing.assert_allclose(alone[1][0], slope[i], rtol=1e-8, atol=1e-8 * np.abs(slope[i]).max())


def test_stein_identities_hold_for_the_reference_draws(model):
    case, reference = model
    draws = reference.reshape(-1, case.dim)
    slope = gradients(case, draws)
    assert np.abs(z_scores(slope)).max() < LARGEST_Z
    assert np.abs(z_scores(draws * slope + 1.0)).max() < LARGEST_Z


def test_stein_identities_hold_in_whitened_coordinates(model):
    """All pairs, E[w_i d_j log p] = -1 if i = j else 0: sharp where parameters are correlated, too."""
    case, reference = model
    draws = reference.reshape(-1, case.dim)
    root = np.linalg.cholesky(np.cov(draws.T))
    white = np.linalg.solve(root, (draws - draws.mean(axis=0)).T).T
    slope = gradients(case, draws) @ root
    assert np.abs(z_scores(white[:, :, None] * slope[:, None, :] + np.eye(case.dim))).max() < LARGEST_Z


def test_reference_draws_are_unchanged_by_the_round_trip(model):
    case, reference = model
    x = reference.reshape(-1, case.dim)[::50]
    draws = data.read_draws(case.name, case.columns).reshape(-1, len(case.columns))[::50]
    tolerance = ROUND_TRIP.get(case.name, 1e-12)
    np.testing.assert_allclose(case.constrain(x), draws, rtol=tolerance, atol=tolerance)


def test_far_points_give_minus_infinity_or_a_number(model):
    case, _ = model
    rng = np.random.default_rng(5)
    x = np.concatenate([scale * rng.uniform(-1.0, 1.0, (50, case.dim)) for scale in (10.0, 100.0, 1000.0)])
    value, slope = case.value_and_gradient(x)
    assert not np.isnan(value).any() and (value < np.inf).all()
    assert np.isfinite(slope).all()
    assert (slope[value == -np.inf] == 0.0).all()
    np.testing.assert_array_equal(case.log_density(x), value)


def test_names_and_pickling(model):
    case, reference = model
    assert len(set(case.names)) == case.dim == reference.shape[2]
    x = reference[0, :2]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(case)).log_density(x), case.log_density(x))


BLOCKS = [
    transforms.Positive(("a", "b")),
    transforms.Ordered(("a", "b", "c")),
    transforms.Ordered(("a", "b", "c"), positive=True),
    transforms.simplex(("a", "b", "c", "d")),
    transforms.parts_of_one(("a", "b")),
    transforms.parts_of_one(("a",)),
    transforms.Space(transforms.Real(("a",)), transforms.simplex(("b", "c")), transforms.Positive(("d",))),
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: "-".join([type(block).__name__, *block.names]))
def test_transforms(block):
    """The Jacobian against finite differences: of as many constrained entries as there are free ones."""
    rng, step = np.random.default_rng(7), 1e-5
    free = len(block.free_names)
    x, gradient = rng.normal(size=(1, free)), rng.normal(size=(1, len(block.names)))
    y = block.constrain(x)
    np.testing.assert_allclose(block.unconstrain(y), x, rtol=1e-12)
    steps = step * np.eye(free)
    jacobian = ((block.constrain(x + steps) - block.constrain(x - steps)) / (2 * step)).T
    if len(block.names) == free:
        square = jacobian
    else:  # each simplex has one entry too many: leave out its last
        kept = [
            i for i, name in enumerate(block.names) if f"logit_{name}" in block.free_names or name in "ad"
        ]
        square = jacobian[kept[:free]]
    np.testing.assert_allclose(block.log_jacobian(x), np.log(np.abs(np.linalg.det(square))), rtol=1e-7)
    by_jacobian = (block.log_jacobian(x + steps) - block.log_jacobian(x - steps)) / (2 * step)
    np.testing.assert_allclose(
        block.pull_back(x, y, gradient)[0], jacobian.T @ gradient[0] + by_jacobian, rtol=1e-6
    )


def test_simplex_is_uniform_at_zero():
    np.testing.assert_allclose(transforms.simplex(("a", "b", "c", "d")).constrain(np.zeros((1, 3))), 0.25)


def test_a_missing_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=data.VARIABLE):
        posterior(NAMES[0])


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(KeyError, match="garch-garch11"):
        posterior("garch")
