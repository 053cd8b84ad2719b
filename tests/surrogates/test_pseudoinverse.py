"""The paper's one-row update against the pseudo-inverse of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from linear_rows import Rows

from leapwise.errors import InputError
from leapwise.surrogates.online import PseudoinverseUpdater


def by_proposition(updater, features, targets):
    for row, target in zip(features, targets, strict=True):
        updater = updater.append(row, target)
    return updater


class TestProposition:
    """The paper's update, from a batch start."""

    @pytest.mark.parametrize("duplicated", [0.0, 0.5])
    @pytest.mark.parametrize("condition", [1e2, 1e5])
    def test_stays_with_batch(self, condition, duplicated):
        rows = Rows(20, 2000, 40, condition=condition, duplicated=duplicated)
        updater = PseudoinverseUpdater.from_rows(rows.features[:200], rows.targets[:200])
        updater = by_proposition(updater, rows.features[200:], rows.targets[200:])
        assert rows.drift(updater.weights, rows.batch(0.0)) < 1e-6

    def test_stays_with_batch_on_ill_conditioned_features_with_a_ridge(self):
        rows = Rows(21, 2000, 40, condition=1e12)
        features = np.concatenate([1e-3 * np.eye(40), rows.features[:200]])
        updater = PseudoinverseUpdater.from_rows(features, np.append(np.zeros(40), rows.targets[:200]))
        updater = by_proposition(updater, rows.features[200:], rows.targets[200:])
        assert rows.drift(updater.weights, rows.batch(1e-6)) < 1e-6

    def test_projector_survives_ill_conditioned_features(self):
        """A tolerance of 1e-8 would lose it: its trace, the number of unseen directions, falls below -1000."""
        rows = Rows(21, 2000, 40, condition=1e12)
        updater = PseudoinverseUpdater.from_rows(rows.features[:200], rows.targets[:200])
        unseen = np.trace(updater.null_projector)
        updater = by_proposition(updater, rows.features[200:], rows.targets[200:])
        assert 0.5 < np.trace(updater.null_projector) < unseen + 1e-6
        np.testing.assert_allclose(
            updater.null_projector @ updater.null_projector, updater.null_projector, atol=1e-8
        )

    @pytest.mark.parametrize("n_start", [0, 1, 15, 30, 45])
    def test_auxiliary_matrices_are_what_they_are_called(self, n_start):
        """Both branches: new directions until the rows span everything, none after."""
        rows = Rows(22, 60, 30, condition=10.0)
        updater = PseudoinverseUpdater.from_rows(rows.features[:n_start], rows.targets[:n_start])
        for n in range(n_start, 60):
            updater = updater.append(rows.features[n], rows.targets[n])
            seen, inverse = rows.features[: n + 1], np.linalg.pinv(rows.features[: n + 1])
            scale = np.abs(inverse @ inverse.T).max()
            np.testing.assert_allclose(updater.null_projector, np.eye(30) - inverse @ seen, atol=1e-8)
            np.testing.assert_allclose(updater.gram_pinv, inverse @ inverse.T, atol=1e-6 * scale)
            np.testing.assert_allclose(updater.weights, inverse @ rows.targets[: n + 1], rtol=1e-5, atol=1e-6)

    def test_dependent_features_never_leave_their_span(self):
        rows = Rows(23, 200, 10)
        features = np.concatenate([rows.features, rows.features[:, :5] @ np.ones((5, 3))], axis=1)
        updater = PseudoinverseUpdater.from_rows(features[:4], rows.targets[:4])
        updater = by_proposition(updater, features[4:], rows.targets[4:])
        assert np.trace(updater.null_projector) == pytest.approx(3.0, abs=1e-6)
        np.testing.assert_allclose(updater.weights, np.linalg.pinv(features) @ rows.targets, rtol=1e-5)

    def test_several_targets_at_once(self):
        rows = Rows(24, 60, 10)
        targets = np.stack([rows.targets, rows.targets**2], axis=1)
        updater = PseudoinverseUpdater.from_rows(rows.features[:20], targets[:20])
        updater = by_proposition(updater, rows.features[20:], targets[20:])
        np.testing.assert_allclose(updater.weights, np.linalg.pinv(rows.features) @ targets, rtol=1e-7)

    def test_taken_literally_it_diverges_at_once(self):
        """With tolerance 0, round-off in c counts as a new direction and is divided by its own square."""
        rows = Rows(25, 110, 40)
        literal = PseudoinverseUpdater.from_rows(rows.features[:100], rows.targets[:100], tolerance=0.0)
        guarded = PseudoinverseUpdater.from_rows(rows.features[:100], rows.targets[:100])
        seen = Rows(25, 110, 40)
        seen.features, seen.targets = rows.features[:101], rows.targets[:101]
        expected = seen.batch(0.0)
        assert rows.drift(literal.append(rows.features[100], rows.targets[100]).weights, expected) > 1e6
        assert rows.drift(guarded.append(rows.features[100], rows.targets[100]).weights, expected) < 1e-10

    def test_never_changes(self):
        rows = Rows(26, 30, 5)
        updater = PseudoinverseUpdater.from_rows(rows.features, rows.targets)
        before = updater.weights.copy()
        updater.append(rows.features[0], 9.0)
        np.testing.assert_array_equal(updater.weights, before)
        with pytest.raises(ValueError, match="read-only"):
            updater.gram_pinv[0, 0] = 1.0


class TestBadInput:
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
