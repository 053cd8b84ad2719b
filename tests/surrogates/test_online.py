"""Row updates against solving for all rows at once."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from linear_rows import Rows

from leapwise.errors import InputError
from leapwise.surrogates.online import RowUpdater


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
        rows = Rows(1, 3000, 50, **CASES[case])
        updater = one_by_one(RowUpdater.start(50, ridge=1e-8), rows)
        assert updater.n_rows == 3000
        assert rows.drift(updater.weights, rows.batch(1e-8)) < 1e-10

    @pytest.mark.slow
    @pytest.mark.parametrize("size", [50, 500])
    @pytest.mark.parametrize("case", CASES)
    def test_after_a_hundred_thousand_single_rows(self, case, size):
        rows = Rows(2, 100_000, size, **CASES[case])
        updater = one_by_one(RowUpdater.start(size, ridge=1e-8), rows)
        assert rows.drift(updater.weights, rows.batch(1e-8)) < 1e-9

    @pytest.mark.parametrize("condition", [1e2, 1e12])
    @pytest.mark.parametrize("n", [1, 20, 63, 64, 100])
    def test_with_fewer_rows_than_units(self, n, condition):
        rows = Rows(3, n, 120, condition=condition)
        updater = one_by_one(RowUpdater.start(120, ridge=1e-8), rows)
        assert rows.drift(updater.weights, rows.batch(1e-8)) < 1e-9

    def test_from_a_batch_start_and_at_every_row_on_the_way(self):
        rows = Rows(4, 200, 20, condition=1e6)
        updater = RowUpdater.from_rows(rows.features[:30], rows.targets[:30], 1e-6)
        seen = Rows(4, 200, 20, condition=1e6)
        for i in range(30, 200):
            updater = updater.append(rows.features[i : i + 1], rows.targets[i : i + 1])
            seen.features, seen.targets = rows.features[: i + 1], rows.targets[: i + 1]
            assert rows.drift(updater.weights, seen.batch(1e-6)) < 1e-10

    def test_blocks_of_any_size(self):
        rows = Rows(5, 500, 30)
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
        rows = Rows(6, 150, 12)
        targets = np.stack([rows.targets, np.sin(rows.targets), np.ones(150)], axis=1)
        updater = RowUpdater.start(12, 1e-3, n_targets=3)
        for i in range(0, 150, 7):
            updater = updater.append(rows.features[i : i + 7], targets[i : i + 7])
        assert updater.weights.shape == (12, 3)
        for column, weights in zip(targets.T, updater.weights.T, strict=True):
            alone = RowUpdater.from_rows(rows.features, column, 1e-3)
            np.testing.assert_allclose(weights, alone.weights, rtol=1e-9, atol=1e-12)

    def test_row_weights_are_repeated_rows(self):
        rows = Rows(7, 80, 10)
        counts = np.random.default_rng(7).integers(0, 4, 80)
        weighted = RowUpdater.from_rows(rows.features, rows.targets, 1e-4, row_weights=counts)
        repeated = RowUpdater.from_rows(rows.features.repeat(counts, 0), rows.targets.repeat(counts), 1e-4)
        np.testing.assert_allclose(weighted.weights, repeated.weights, rtol=1e-9)

    def test_one_ridge_for_each_feature(self):
        rows = Rows(8, 40, 6)
        ridge = np.array([0.0, 1.0, 2.0, 0.5, 3.0, 1e3])
        updater = RowUpdater.from_rows(rows.features, rows.targets, ridge)
        normal = rows.features.T @ rows.features + np.diag(ridge)
        np.testing.assert_allclose(updater.weights, np.linalg.solve(normal, rows.features.T @ rows.targets))


class TestRowUpdaterWithoutRidge:
    def test_weights_of_least_norm_where_rows_do_not_decide(self):
        rows = Rows(9, 12, 30)
        updater = one_by_one(RowUpdater.start(30, 0.0), rows)
        np.testing.assert_allclose(updater.weights, np.linalg.pinv(rows.features) @ rows.targets, rtol=1e-8)

    def test_full_rank_is_plain_least_squares(self):
        rows = Rows(10, 200, 30)
        updater = one_by_one(RowUpdater.start(30, 0.0), rows)
        np.testing.assert_allclose(
            updater.weights, np.linalg.lstsq(rows.features, rows.targets)[0], rtol=1e-10
        )

    def test_equal_columns_share_their_weight(self):
        column = np.linspace(1.0, 2.0, 100)[:, None]
        updater = RowUpdater.from_rows(np.repeat(column, 4, axis=1), 8.0 * column[:, 0], 0.0)
        np.testing.assert_allclose(updater.weights, 2.0)

    def test_nothing_learnt_is_zero(self):
        assert not RowUpdater.start(5, 0.0).weights.any()
        assert not RowUpdater.from_rows(np.zeros((100, 5)), np.ones(100), 0.0).weights.any()

    @pytest.mark.parametrize("scale", [1e-150, 1e150])
    def test_extreme_scales(self, scale):
        rows = Rows(11, 100, 10)
        updater = RowUpdater.from_rows(rows.features * scale, rows.targets, 0.0)
        np.testing.assert_allclose(updater.weights * scale, rows.batch(0.0), rtol=1e-10)


class TestRowUpdaterNeverChanges:
    def test_append_leaves_the_old_one_alone(self):
        rows = Rows(12, 300, 15)
        old = RowUpdater.from_rows(rows.features[:100], rows.targets[:100], 1e-6)
        before, triangle = old.weights.copy(), old.triangle.copy(order="F")
        branches = [old.append(rows.features[100:], rows.targets[100:]) for _ in range(2)]
        np.testing.assert_array_equal(RowUpdater(triangle, old.projection).weights, before)
        np.testing.assert_array_equal(old.triangle, triangle)
        np.testing.assert_array_equal(branches[0].weights, branches[1].weights)
        assert (branches[0].weights != before).any()

    def test_arrays_given_may_be_changed_afterwards(self):
        rows = Rows(13, 20, 8)
        features, targets = rows.features.copy(), rows.targets.copy()
        updater = RowUpdater.start(8, 1e-6).append(features, targets)
        features[:], targets[:] = np.nan, np.nan
        np.testing.assert_allclose(updater.weights, rows.batch(1e-6), rtol=1e-9)

    def test_asking_for_weights_changes_nothing_later(self):
        rows = Rows(14, 150, 10)
        quiet = nosy = RowUpdater.start(10, 1e-6)
        for features, target in zip(rows.features, rows.targets, strict=True):
            quiet, nosy = quiet.append(features[None], [target]), nosy.append(features[None], [target])
            assert np.isfinite(nosy.weights).all()
        np.testing.assert_array_equal(quiet.weights, nosy.weights)

    def test_frozen_and_read_only(self):
        updater = RowUpdater.start(3, 1.0)
        with pytest.raises(FrozenInstanceError):
            updater.n_rows = 5
        with pytest.raises(ValueError, match="read-only"):
            updater.weights[0] = 1.0
        with pytest.raises(ValueError, match="read-only"):
            updater.triangle[0, 0] = 1.0

    def test_memory_does_not_grow_with_rows(self):
        rows = Rows(15, 1000, 10)
        updater = RowUpdater.start(10, 1.0)
        for features, target in zip(rows.features, rows.targets, strict=True):
            updater = updater.append(features[None], [target])
            assert updater.triangle.shape == (10, 10)
            assert sum(block.size for block, _ in updater.waiting) < 64 * 10


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
