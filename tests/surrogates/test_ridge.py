"""Ridge regression: all three solvers against brute force, the choice of the ridge, and degenerate systems."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.surrogates import ridge as ridge_module
from leapwise.surrogates.ridge import RowGroups, fibonacci_search, solve_ridge


@pytest.fixture(params=["spectral", "cholesky"])
def solver(request, monkeypatch):
    """Use singular values, or a Cholesky factor (primal or dual, depending on the shape)."""
    monkeypatch.setattr(ridge_module, "MAX_SPECTRAL", 10**9 if request.param == "spectral" else 0)
    return request.param


def brute_force(features, targets, ridge, weights, penalty):
    """Solve the stacked least-squares problem."""
    root = np.sqrt(weights)[:, None]
    rows = np.concatenate([root * features, np.diag(np.sqrt(ridge * penalty))])
    values = np.concatenate([root * targets, np.zeros((features.shape[1], targets.shape[1]))])
    return np.linalg.lstsq(rows, values, rcond=None)[0]


def problem(rng, n, size, m=2):
    features = rng.standard_normal((n, size)) @ (np.eye(size) + 0.5 * rng.standard_normal((size, size)))
    features[:, -1] = 1.0
    penalty = rng.uniform(0.3, 3.0, size)
    penalty[-1] = 0.0
    return features, rng.standard_normal((n, m)) + 3.0, rng.uniform(0.2, 4.0, n), penalty


SHAPES = [(50, 12), (20, 20), (14, 40)]


@pytest.mark.parametrize(("n", "size"), SHAPES)
@pytest.mark.parametrize("ridge", [1e-4, 0.1, 10.0])
def test_weights_are_those_of_least_squares(solver, n, size, ridge, rng):
    features, targets, weights, penalty = problem(rng, n, size)
    solution = solve_ridge(features, targets, ridge=ridge, weights=weights, penalty=penalty)
    expected = brute_force(features, targets, ridge, weights, penalty)
    np.testing.assert_allclose(solution.weights, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())
    assert solution.ridge == ridge


@pytest.mark.parametrize(("n", "size"), SHAPES)
@pytest.mark.parametrize("ridge", [1e-4, 0.1, 10.0])
@pytest.mark.parametrize("grouped", [False, True])
def test_leave_one_out_equals_brute_force(solver, n, size, ridge, grouped, rng):
    features, targets, weights, penalty = problem(rng, n, size)
    labels = rng.integers(0, n // 3, n) if grouped else np.arange(n)
    solution = solve_ridge(
        features, targets, ridge=ridge, weights=weights, penalty=penalty, groups=labels if grouped else None
    )
    expected = np.empty_like(targets)
    for label in np.unique(labels):
        out = labels == label
        found = brute_force(features[~out], targets[~out], ridge, weights[~out], penalty)
        expected[out] = targets[out] - features[out] @ found
    np.testing.assert_allclose(solution.leave_one_out, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


def test_one_target_has_one_axis(solver, rng):
    features, targets, weights, penalty = problem(rng, 30, 5, 1)
    one = solve_ridge(features, targets[:, 0], weights=weights, penalty=penalty)
    two = solve_ridge(features, targets, weights=weights, penalty=penalty)
    assert one.weights.shape == (5,) and one.leave_one_out.shape == (30,)
    np.testing.assert_array_equal(one.weights, two.weights[:, 0])


def test_arguments_are_not_changed(solver, rng):
    given = problem(rng, 30, 5)
    kept = [array.copy() for array in given]
    features, targets, weights, penalty = given
    solve_ridge(features, targets, weights=weights, penalty=penalty)
    for now, then in zip(given, kept, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("size", [20, 90])
def test_the_ridge_grows_with_the_noise(solver, size, rng):
    """It is tiny without noise, the largest for pure noise, and predicts best in between."""
    features = rng.standard_normal((60, size)) / np.arange(1.0, size + 1)
    truth = rng.standard_normal(size)
    chosen = [
        solve_ridge(features, features @ truth + noise * rng.standard_normal(60)).ridge
        for noise in (1e-6, 0.3, 100.0)
    ]
    assert chosen[0] < 1e-2 * chosen[1] < chosen[2]
    targets = features @ truth + 0.3 * rng.standard_normal(60)
    best = solve_ridge(features, targets)
    fresh = rng.standard_normal((500, size)) / np.arange(1.0, size + 1)

    def error(ridge):
        return np.linalg.norm(fresh @ (solve_ridge(features, targets, ridge=ridge).weights - truth))

    assert error(best.ridge) < 1.1 * error(1e-8) and error(best.ridge) < 0.5 * error(1e4)


def test_the_choice_minimises_leave_one_out(solver, rng):
    features, targets, _, penalty = problem(rng, 60, 25)
    best = solve_ridge(features, targets, penalty=penalty)
    for factor in (0.01, 100.0):
        other = solve_ridge(features, targets, penalty=penalty, ridge=best.ridge * factor)
        assert np.square(best.leave_one_out).sum() <= np.square(other.leave_one_out).sum()


def test_search_needs_five_scores_of_twelve():
    grid = np.arange(12.0)
    for best in grid:
        asked = []

        def score(x, best=best, asked=asked):
            asked.append(x)
            return (x - best) ** 2, -x

        assert fibonacci_search(score, grid) == (best, -best)
        assert len(asked) == 5 and len(set(asked)) == len(asked)


class TestDegenerateSystems:
    @pytest.mark.parametrize("ridge", [None, 0.0, 1e-300, 1.0])
    @pytest.mark.parametrize(
        "kind", ["zero", "equal rows", "equal columns", "no bias data", "huge", "tiny", "graded"]
    )
    @pytest.mark.parametrize("shape", [(30, 8), (8, 30), (1, 3)])
    def test_never_raises(self, solver, ridge, kind, shape, rng):
        features, penalty = rng.standard_normal(shape), np.ones(shape[1])
        if kind == "zero":
            features[:] = 0.0
        elif kind == "equal rows":
            features[:] = features[0]
        elif kind == "equal columns":
            features[:] = features[:, :1]
        elif kind == "no bias data":
            features[:, -2:], penalty[-2:] = 0.0, 0.0
        elif kind == "graded":
            features *= 10.0 ** -np.arange(shape[1])
        else:
            features *= {"huge": 1e100, "tiny": 1e-100}[kind]
        solution = solve_ridge(features, rng.standard_normal(shape[0]), ridge=ridge, penalty=penalty)
        assert np.isfinite(solution.weights).all()
        assert solution.weights.shape == (shape[1],)

    @pytest.mark.parametrize("shape", [(40, 10), (10, 40)])
    def test_no_ridge_is_the_pseudoinverse(self, shape, rng):
        features, targets = rng.standard_normal(shape), rng.standard_normal(shape[0])
        features[:, 0] = features[:, 1]
        solution = solve_ridge(features, targets, ridge=0.0)
        np.testing.assert_allclose(solution.weights, np.linalg.pinv(features) @ targets, atol=1e-10)

    def test_ill_conditioned_features_are_fitted(self, solver, rng):
        """Columns that differ by 1e-7: predictions stay as good as those of an orthogonal solver."""
        base = rng.standard_normal((60, 5))
        features = np.concatenate([base, base + 1e-7 * rng.standard_normal((60, 5))], axis=1)
        targets = base @ np.ones(5)
        solution = solve_ridge(features, targets, ridge=1e-10)
        expected = brute_force(features, targets[:, None], 1e-10, np.ones(60), np.ones(10))[:, 0]
        np.testing.assert_allclose(features @ solution.weights, features @ expected, atol=1e-10)


class TestBadInput:
    @pytest.mark.parametrize("ridge", [-1.0, np.nan, np.inf, "1", True * 1j])
    def test_ridge(self, ridge):
        with pytest.raises(InputError, match="ridge must be a number of at least 0"):
            solve_ridge(np.eye(3), np.ones(3), ridge=ridge)

    def test_rows(self):
        with pytest.raises(InputError, match="features must be finite"):
            solve_ridge(np.full((3, 3), np.nan), np.ones(3))
        with pytest.raises(InputError, match="targets must have shape"):
            solve_ridge(np.eye(3), np.ones(4))
        with pytest.raises(InputError, match="at least one row"):
            solve_ridge(np.empty((0, 3)), np.empty(0))

    @pytest.mark.parametrize("weights", [[1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0], [1.0, np.nan, 1.0]])
    def test_weights(self, weights):
        with pytest.raises(InputError, match="weights must be"):
            solve_ridge(np.eye(3), np.ones(3), weights=weights)

    @pytest.mark.parametrize("penalty", [[1.0, -1.0, 1.0], [1.0]])
    def test_penalty(self, penalty):
        with pytest.raises(InputError, match="penalty must be"):
            solve_ridge(np.eye(3), np.ones(3), penalty=penalty)

    @pytest.mark.parametrize("groups", [[0, 1], [0.5, 1.0, 2.0]])
    def test_groups(self, groups):
        with pytest.raises(InputError, match="groups must be"):
            solve_ridge(np.eye(3), np.ones(3), groups=groups)


def test_groups_hold_every_row_once(rng):
    labels = rng.integers(0, 9, 40)
    groups = RowGroups.from_labels(labels)
    assert sorted(np.concatenate([block.ravel() for block in groups.members])) == list(range(40))
    for block in groups.members:
        assert (labels[block] == labels[block[:, :1]]).all()


def test_thinned_groups_stay_whole(rng):
    labels = np.repeat(np.arange(30), 4)
    thin, rows = RowGroups.from_labels(labels).thin(20)
    assert 16 <= len(rows) <= 40
    (block,) = thin.members
    assert (labels[rows][block] == labels[rows][block[:, :1]]).all() and block.shape[1] == 4


class TestManyRows:
    """So many that singular values are first found from eigenvalues of the Gram matrix."""

    @pytest.mark.parametrize("shape", [(150, 90), (90, 150)])
    def test_eigenvalues_give_the_same_ridge_and_weights(self, shape, rng, monkeypatch):
        features, targets, weights, penalty = problem(rng, *shape)
        quick = solve_ridge(features, targets, weights=weights, penalty=penalty)
        monkeypatch.setattr(ridge_module, "_MANY", 10**9)
        slow = solve_ridge(features, targets, weights=weights, penalty=penalty)
        assert quick.ridge == slow.ridge
        np.testing.assert_allclose(quick.weights, slow.weights, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(quick.leave_one_out, slow.leave_one_out, rtol=1e-6, atol=1e-9)

    def test_a_small_ridge_is_found_from_accurate_singular_values(self, rng, monkeypatch):
        """Targets in the span of ill-conditioned features lead to a tiny ridge."""
        features = rng.standard_normal((150, 80)) * np.logspace(0.0, -6.0, 80)
        targets = features @ (rng.standard_normal(80) / np.logspace(0.0, -6.0, 80))
        found = solve_ridge(features, targets)
        monkeypatch.setattr(ridge_module, "_SENSITIVE", 0.0)
        hasty = solve_ridge(features, targets)
        monkeypatch.setattr(ridge_module, "_MANY", 10**9)
        slow = solve_ridge(features, targets)
        np.testing.assert_array_equal(found.weights, slow.weights)
        assert not np.array_equal(found.weights, hasty.weights)
