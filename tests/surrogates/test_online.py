"""Row updates, the stable ones and the paper's, against solving for all rows at once."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy.linalg import qr, solve_triangular

from leapwise.errors import InputError
from leapwise.surrogates.online import PseudoinverseUpdater, RowUpdater


class LinearRows:
    """Features with singular values that span `condition`, targets with noise, and rows for testing."""

    def __init__(self, seed, n, size, *, condition=1e2, duplicated=0.0):
        rng = np.random.default_rng(seed)
        turn = np.linalg.qr(rng.standard_normal((size, size)))[0]
        scale = np.logspace(0.0, -np.log10(condition), size)
        self.features = (rng.standard_normal((n, size)) * scale) @ turn.T
        self.targets = self.features @ (turn @ rng.standard_normal(size)) + 0.1 * rng.standard_normal(n)
        repeats = rng.permutation(n)[: int(n * duplicated)]
        originals = np.setdiff1d(np.arange(n), repeats)
        chosen = rng.choice(originals, size=len(repeats))
        self.features[repeats], self.targets[repeats] = self.features[chosen], self.targets[chosen]
        self.unseen = (rng.standard_normal((500, size)) * scale) @ turn.T

    def batch(self, ridge):
        """Weights by one Householder QR of all rows, with those of the ridge."""
        size = self.features.shape[1]
        stacked = np.zeros((len(self.features) + size, size + 1), order="F")
        stacked[:size, :size] = np.sqrt(ridge) * np.eye(size)
        stacked[size:, :size], stacked[size:, size] = self.features, self.targets
        triangle = qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0][:size]
        return solve_triangular(triangle[:, :size], triangle[:, size])

    def drift(self, weights, reference):
        """Largest difference of predictions for unseen rows, relative to their spread."""
        expected = self.unseen @ reference
        return np.abs(self.unseen @ weights - expected).max() / expected.std()


def one_by_one(updater, rows):
    for features, target in zip(rows.features, rows.targets, strict=True):
        updater = updater.append(features[None], [target])
    return updater


CASES = {
    "plain": {},
    "duplicated": {"duplicated": 0.5},
    "ill-conditioned": {"condition": 1e12},
    "both": {"duplicated": 0.5, "condition": 1e12},
}


class TestRowUpdaterEqualsBatch:
    @pytest.mark.parametrize("case", CASES)
    def test_after_many_single_rows_from_an_empty_start(self, case):
        rows = LinearRows(1, 1000, 50, **CASES[case])
        updater = one_by_one(RowUpdater.start(50, ridge=1e-8), rows)
        assert updater.n_rows == 1000
        assert rows.drift(updater.weights, rows.batch(1e-8)) < 1e-10

    @pytest.mark.slow
    @pytest.mark.parametrize(("case", "size"), [*((case, 50) for case in CASES), ("both", 500)])
    def test_after_a_hundred_thousand_single_rows(self, case, size):
        rows = LinearRows(2, 100_000, size, **CASES[case])
        updater = one_by_one(RowUpdater.start(size, ridge=1e-8), rows)
        assert rows.drift(updater.weights, rows.batch(1e-8)) < 1e-9

    @pytest.mark.parametrize("condition", [1e2, 1e12])
    @pytest.mark.parametrize("n", [1, 20, 63, 64, 100])
    def test_with_fewer_rows_than_features(self, n, condition):
        rows = LinearRows(3, n, 120, condition=condition)
        updater = one_by_one(RowUpdater.start(120, ridge=1e-8), rows)
        assert rows.drift(updater.weights, rows.batch(1e-8)) < 1e-9

    def test_from_a_batch_start_and_at_every_row_on_the_way(self):
        rows = LinearRows(4, 200, 20, condition=1e6)
        updater = RowUpdater.from_rows(rows.features[:30], rows.targets[:30], 1e-6)
        seen = LinearRows(4, 200, 20, condition=1e6)
        for i in range(30, 200):
            updater = updater.append(rows.features[i : i + 1], rows.targets[i : i + 1])
            seen.features, seen.targets = rows.features[: i + 1], rows.targets[: i + 1]
            assert rows.drift(updater.weights, seen.batch(1e-6)) < 1e-10

    def test_blocks_of_any_size(self):
        rows = LinearRows(5, 500, 30)
        updater = RowUpdater.start(30, 1e-6)
        for features, targets in zip(
            np.split(rows.features, [0, 1, 40, 300]), np.split(rows.targets, [0, 1, 40, 300]), strict=True
        ):
            updater = updater.append(features, targets)
        assert rows.drift(updater.weights, rows.batch(1e-6)) < 1e-12

    def test_no_rows_change_nothing(self):
        updater = RowUpdater.start(3, 1.0)
        assert updater.append(np.zeros((0, 3)), []) is updater

    def test_several_targets_at_once(self):
        rows = LinearRows(6, 150, 12)
        targets = np.stack([rows.targets, np.sin(rows.targets), np.ones(150)], axis=1)
        updater = RowUpdater.start(12, 1e-3, n_targets=3)
        for i in range(0, 150, 7):
            updater = updater.append(rows.features[i : i + 7], targets[i : i + 7])
        assert updater.weights.shape == (12, 3)
        for column, weights in zip(targets.T, updater.weights.T, strict=True):
            alone = RowUpdater.from_rows(rows.features, column, 1e-3)
            np.testing.assert_allclose(weights, alone.weights, rtol=1e-9, atol=1e-12)

    def test_row_weights_are_repeated_rows(self):
        rows = LinearRows(7, 80, 10)
        counts = np.random.default_rng(7).integers(0, 4, 80)
        weighted = RowUpdater.from_rows(rows.features, rows.targets, 1e-4, row_weights=counts)
        repeated = RowUpdater.from_rows(rows.features.repeat(counts, 0), rows.targets.repeat(counts), 1e-4)
        np.testing.assert_allclose(weighted.weights, repeated.weights, rtol=1e-9)

    def test_one_ridge_for_each_feature(self):
        rows = LinearRows(8, 40, 6)
        ridge = np.array([0.0, 1.0, 2.0, 0.5, 3.0, 1e3])
        updater = RowUpdater.from_rows(rows.features, rows.targets, ridge)
        normal = rows.features.T @ rows.features + np.diag(ridge)
        np.testing.assert_allclose(updater.weights, np.linalg.solve(normal, rows.features.T @ rows.targets))


class TestRowUpdaterWithoutRidge:
    def test_weights_of_least_norm_if_rows_do_not_determine_them(self):
        rows = LinearRows(9, 12, 30)
        updater = one_by_one(RowUpdater.start(30, 0.0), rows)
        np.testing.assert_allclose(updater.weights, np.linalg.pinv(rows.features) @ rows.targets, rtol=1e-8)

    def test_full_rank_is_plain_least_squares(self):
        rows = LinearRows(10, 200, 30)
        updater = one_by_one(RowUpdater.start(30, 0.0), rows)
        np.testing.assert_allclose(
            updater.weights, np.linalg.lstsq(rows.features, rows.targets)[0], rtol=1e-10
        )

    def test_equal_columns_share_their_weight(self):
        column = np.linspace(1.0, 2.0, 100)[:, None]
        updater = RowUpdater.from_rows(np.repeat(column, 4, axis=1), 8.0 * column[:, 0], 0.0)
        np.testing.assert_allclose(updater.weights, 2.0)

    def test_without_information_weights_are_zero(self):
        assert not RowUpdater.start(5, 0.0).weights.any()
        assert not RowUpdater.from_rows(np.zeros((100, 5)), np.ones(100), 0.0).weights.any()

    @pytest.mark.parametrize("scale", [1e-150, 1e150])
    def test_extreme_scales(self, scale):
        rows = LinearRows(11, 100, 10)
        updater = RowUpdater.from_rows(rows.features * scale, rows.targets, 0.0)
        np.testing.assert_allclose(updater.weights * scale, rows.batch(0.0), rtol=1e-10)


class TestRowUpdaterNeverChanges:
    def test_append_does_not_change_the_old_one(self):
        rows = LinearRows(12, 300, 15)
        old = RowUpdater.from_rows(rows.features[:100], rows.targets[:100], 1e-6)
        before, triangle = old.weights.copy(), old.triangle.copy(order="F")
        branches = [old.append(rows.features[100:], rows.targets[100:]) for _ in range(2)]
        np.testing.assert_array_equal(RowUpdater(triangle, old.projection).weights, before)
        np.testing.assert_array_equal(old.triangle, triangle)
        np.testing.assert_array_equal(branches[0].weights, branches[1].weights)
        assert (branches[0].weights != before).any()

    def test_arrays_given_may_be_changed_afterwards(self):
        rows = LinearRows(13, 20, 8)
        features, targets = rows.features.copy(), rows.targets.copy()
        updater = RowUpdater.start(8, 1e-6).append(features, targets)
        features[:], targets[:] = np.nan, np.nan
        np.testing.assert_allclose(updater.weights, rows.batch(1e-6), rtol=1e-9)

    def test_reading_weights_does_not_change_later_ones(self):
        rows = LinearRows(14, 150, 10)
        unread = read = RowUpdater.start(10, 1e-6)
        for features, target in zip(rows.features, rows.targets, strict=True):
            unread, read = unread.append(features[None], [target]), read.append(features[None], [target])
            assert np.isfinite(read.weights).all()
        np.testing.assert_array_equal(unread.weights, read.weights)

    def test_frozen_and_read_only(self):
        updater = RowUpdater.start(3, 1.0)
        with pytest.raises(FrozenInstanceError):
            updater.n_rows = 5
        with pytest.raises(ValueError, match="read-only"):
            updater.weights[0] = 1.0
        with pytest.raises(ValueError, match="read-only"):
            updater.triangle[0, 0] = 1.0

    def test_memory_does_not_grow_with_rows(self):
        rows = LinearRows(15, 1000, 10)
        updater = RowUpdater.start(10, 1.0)
        for features, target in zip(rows.features, rows.targets, strict=True):
            updater = updater.append(features[None], [target])
            assert updater.triangle.shape == (10, 10)
            assert sum(block.size for block, _ in updater.pending) < 64 * 10


def by_proposition(updater, features, targets):
    for row, target in zip(features, targets, strict=True):
        updater = updater.append(row, target)
    return updater


class TestProposition:
    """The paper's update, from a batch start."""

    @pytest.mark.parametrize("duplicated", [0.0, 0.5])
    @pytest.mark.parametrize("condition", [1e2, 1e5])
    def test_stays_with_batch(self, condition, duplicated):
        rows = LinearRows(20, 800, 40, condition=condition, duplicated=duplicated)
        updater = PseudoinverseUpdater.from_rows(rows.features[:200], rows.targets[:200])
        updater = by_proposition(updater, rows.features[200:], rows.targets[200:])
        assert rows.drift(updater.weights, rows.batch(0.0)) < 1e-6

    def test_stays_with_batch_on_ill_conditioned_features_with_a_ridge(self):
        rows = LinearRows(21, 800, 40, condition=1e12)
        features = np.concatenate([1e-3 * np.eye(40), rows.features[:200]])
        updater = PseudoinverseUpdater.from_rows(features, np.append(np.zeros(40), rows.targets[:200]))
        updater = by_proposition(updater, rows.features[200:], rows.targets[200:])
        assert rows.drift(updater.weights, rows.batch(1e-6)) < 1e-6

    def test_projector_survives_ill_conditioned_features(self):
        """With a tolerance of 1e-8 it is lost: its trace, the number of unseen directions, falls below -1000."""
        rows = LinearRows(21, 800, 40, condition=1e12)
        updater = PseudoinverseUpdater.from_rows(rows.features[:200], rows.targets[:200])
        unseen = np.trace(updater.null_projector)
        updater = by_proposition(updater, rows.features[200:], rows.targets[200:])
        assert 0.5 < np.trace(updater.null_projector) < unseen + 1e-6
        np.testing.assert_allclose(
            updater.null_projector @ updater.null_projector, updater.null_projector, atol=1e-8
        )

    @pytest.mark.parametrize("n_start", [0, 15, 45])
    def test_auxiliary_matrices_are_what_they_are_called(self, n_start):
        """Both branches: new directions until the rows span everything, none after."""
        rows = LinearRows(22, 60, 30, condition=10.0)
        updater = PseudoinverseUpdater.from_rows(rows.features[:n_start], rows.targets[:n_start])
        for n in range(n_start, 60):
            updater = updater.append(rows.features[n], rows.targets[n])
            seen, inverse = rows.features[: n + 1], np.linalg.pinv(rows.features[: n + 1])
            scale = np.abs(inverse @ inverse.T).max()
            np.testing.assert_allclose(updater.null_projector, np.eye(30) - inverse @ seen, atol=1e-8)
            np.testing.assert_allclose(updater.gram_pinv, inverse @ inverse.T, atol=1e-6 * scale)
            np.testing.assert_allclose(updater.weights, inverse @ rows.targets[: n + 1], rtol=1e-5, atol=1e-6)

    def test_dependent_features_never_leave_their_span(self):
        rows = LinearRows(23, 200, 10)
        features = np.concatenate([rows.features, rows.features[:, :5] @ np.ones((5, 3))], axis=1)
        updater = PseudoinverseUpdater.from_rows(features[:4], rows.targets[:4])
        updater = by_proposition(updater, features[4:], rows.targets[4:])
        assert np.trace(updater.null_projector) == pytest.approx(3.0, abs=1e-6)
        np.testing.assert_allclose(updater.weights, np.linalg.pinv(features) @ rows.targets, rtol=1e-5)

    def test_several_targets_at_once(self):
        rows = LinearRows(24, 60, 10)
        targets = np.stack([rows.targets, rows.targets**2], axis=1)
        updater = PseudoinverseUpdater.from_rows(rows.features[:20], targets[:20])
        updater = by_proposition(updater, rows.features[20:], targets[20:])
        np.testing.assert_allclose(updater.weights, np.linalg.pinv(rows.features) @ targets, rtol=1e-7)

    def test_taken_literally_it_diverges_at_the_first_row(self):
        """With tolerance 0, round-off in c counts as a new direction and is divided by its own square."""
        rows = LinearRows(25, 110, 40)
        literal = PseudoinverseUpdater.from_rows(rows.features[:100], rows.targets[:100], tolerance=0.0)
        guarded = PseudoinverseUpdater.from_rows(rows.features[:100], rows.targets[:100])
        seen = LinearRows(25, 110, 40)
        seen.features, seen.targets = rows.features[:101], rows.targets[:101]
        expected = seen.batch(0.0)
        assert rows.drift(literal.append(rows.features[100], rows.targets[100]).weights, expected) > 1e6
        assert rows.drift(guarded.append(rows.features[100], rows.targets[100]).weights, expected) < 1e-10

    def test_never_changes(self):
        rows = LinearRows(26, 30, 5)
        updater = PseudoinverseUpdater.from_rows(rows.features, rows.targets)
        before = updater.weights.copy()
        updater.append(rows.features[0], 9.0)
        np.testing.assert_array_equal(updater.weights, before)
        with pytest.raises(ValueError, match="read-only"):
            updater.gram_pinv[0, 0] = 1.0


class TestBadInput:
    @pytest.mark.parametrize("ridge", [-1.0, np.nan, [1.0, 2.0], [1.0, -1.0, 1.0], "much"])
    def test_ridge(self, ridge):
        with pytest.raises(InputError, match="ridge must be"):
            RowUpdater.start(3, ridge)

    @pytest.mark.parametrize("count", [0, -2, 1.5, True])
    def test_counts(self, count):
        with pytest.raises(InputError, match="n_features must be a whole number"):
            RowUpdater.start(count, 1.0)
        with pytest.raises(InputError, match="n_targets must be a whole number"):
            RowUpdater.start(3, 1.0, count)

    @pytest.mark.parametrize(
        ("features", "targets"),
        [
            (np.ones((2, 4)), np.ones(2)),
            (np.ones((2, 3)), np.ones(3)),
            (np.ones((2, 3)), np.ones((2, 1))),
            (np.ones(3), np.ones(3)),
            (np.full((2, 3), np.nan), np.ones(2)),
            (np.ones((2, 3)), [1.0, np.inf]),
            (np.ones((2, 3)), 1.0),
        ],
    )
    def test_rows(self, features, targets):
        with pytest.raises(InputError, match=r"features|targets"):
            RowUpdater.start(3, 1.0).append(features, targets)

    @pytest.mark.parametrize("row_weights", [[1.0], [1.0, -1.0], [1.0, np.nan]])
    def test_row_weights(self, row_weights):
        with pytest.raises(InputError, match="row_weights must be"):
            RowUpdater.start(3, 1.0).append(np.ones((2, 3)), np.ones(2), row_weights=row_weights)

    @pytest.mark.parametrize(
        ("row", "target"), [([1.0, 2.0], 1.0), ([1.0, 2.0, 3.0], [1.0]), ([1.0, np.nan, 0.0], 1.0)]
    )
    def test_row_of_the_proposition(self, row, target):
        updater = PseudoinverseUpdater.from_rows(np.eye(3), np.ones(3))
        with pytest.raises(InputError, match="row"):
            updater.append(row, target)

    @pytest.mark.parametrize("tolerance", [-1e-9, 1.0, np.nan])
    def test_tolerance(self, tolerance):
        with pytest.raises(InputError, match="tolerance must be"):
            PseudoinverseUpdater.from_rows(np.eye(3), np.ones(3), tolerance=tolerance)
