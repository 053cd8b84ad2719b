"""Rows of features and targets, with their solution in one go."""

from __future__ import annotations

import numpy as np
from scipy.linalg import qr, solve_triangular


class Rows:
    """Features with singular values over `condition`, targets with noise, and rows nobody trains on."""

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
