"""An inconsistent metric is refused before it can bias a draw."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.dynamics import check_metric
from leapwise.errors import InputError, StartError


class Local:
    """G = diag(1 + q^2), with one thing about it wrong."""

    def __init__(self, q, wrong):
        self.q, self.wrong = q, wrong
        diagonal = 1.0 + q**2 if wrong != "not positive" else -np.ones_like(q)
        self.matrix = diagonal[:, :, None] * np.eye(q.shape[1])
        self.cholesky = lw.batched_cholesky(self.matrix)
        if wrong == "cholesky":
            self.cholesky = 1.5 * self.cholesky
        if wrong == "shape":
            self.matrix = self.matrix[0]

    def quadratic_contraction(self, velocity):
        return {"nu": 0.0, "half nu": 0.5}.get(self.wrong, 1.0) * 2.0 * self.q * velocity**2

    def trace_contraction(self):
        return (0.0 if self.wrong == "trace" else 1.0) * 2.0 * self.q / (1.0 + self.q**2)


class Metric:
    def __init__(self, wrong=None):
        self.wrong = wrong

    def at(self, position):
        return Local(position, self.wrong)


class WithProduct(Metric):
    def product(self, position, velocity):
        return (2.0 if self.wrong == "product" else 1.0) * (1.0 + position**2) * velocity


POSITION, NORMALS = np.array([[0.7, -0.4, 1.1]]), np.random.default_rng(0).normal(size=(2, 3))


@pytest.mark.parametrize("kind", [Metric, WithProduct])
def test_a_right_metric_passes(kind, rng):
    for _ in range(20):
        assert check_metric(kind(), rng.normal(size=(1, 3)), rng.normal(size=(2, 3))) == 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("nu", "quadratic_contraction"),
        ("half nu", "quadratic_contraction"),
        ("trace", "trace_contraction"),
        ("cholesky", "cholesky @ cholesky.T"),
        ("shape", r"matrix must have shape \(n, 3, 3\)"),
        ("product", "product"),
    ],
)
def test_a_wrong_one_does_not(wrong, words):
    with pytest.raises(InputError, match=words):
        check_metric(WithProduct(wrong), POSITION, NORMALS)


def test_a_start_without_a_metric_is_refused():
    with pytest.raises(StartError, match="not positive definite at the start"):
        check_metric(Metric("not positive"), POSITION, NORMALS)


def test_sample_asks_before_it_draws():
    target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    with pytest.raises(InputError, match="biased"):
        lw.sample(
            target,
            draws=10,
            tune=0,
            chains=2,
            method=lw.RMHMC(0.5, 2, metric=Metric("half nu")),
            init=[1.0, 2.0],
        )
