"""A chain depends only on the seed and on its number, not on how many chains run beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from leapwise import HMC, RMHMC, DenseMetric, DiagonalMetric, Target, UnitMetric, sample

COVARIANCE = np.array([[1.0, 0.5, 0.1], [0.5, 1.3, 0.4], [0.1, 0.4, 0.9]])
LINK = np.eye(3) - 0.6 * np.eye(3, k=-1)


@dataclass
class LocalMetric:
    position: np.ndarray

    def __post_init__(self):
        self.tail = np.exp(-np.matmul(LINK, self.position[:, :, None]))  # (n, 3, 1)
        self.matrix = LINK.T @ ((1.0 + self.tail) * LINK)
        self.cholesky = np.linalg.cholesky(self.matrix)

    def quadratic_contraction(self, velocity):
        return -np.matmul(LINK.T, self.tail * np.matmul(LINK, velocity[:, :, None]) ** 2)[:, :, 0]

    def trace_contraction(self):
        leverage = np.diagonal(LINK @ np.linalg.solve(self.matrix, LINK.T[None]), axis1=1, axis2=2)
        return -np.matmul(LINK.T, self.tail * leverage[:, :, None])[:, :, 0]


class Metric:
    """The Hessian of the target below, plus that of a normal."""

    def at(self, position):
        return LocalMetric(position)


def one_by_one(bounds=None):
    """Correlated Gumbel variables, one point at a time."""

    def log_density(x):
        z = LINK @ x
        return -(z + np.exp(-z)).sum()

    return Target(log_density, lambda x: LINK.T @ (np.exp(-LINK @ x) - 1.0), dim=3, bounds=bounds)


METHODS = {
    "unit": HMC(0.7, 5, metric=UnitMetric()),
    "diagonal": HMC(0.7, 5, metric=DiagonalMetric([1.0, 1.3, 0.9])),
    "dense": HMC(0.7, 5, metric=DenseMetric(COVARIANCE)),
    "by time": HMC(0.4, trajectory_length=1.5, metric=DenseMetric(COVARIANCE)),
    "riemannian": RMHMC(0.7, 3, metric=Metric()),
    "riemannian, long steps": RMHMC(1.5, 3, metric=Metric()),
}
N_DRAWS = 12
INIT = np.random.default_rng(8).gumbel(size=(8, 3)) * 0.5 + 0.3


def run(method, n_chains, seed=3, target=None):
    return sample(
        one_by_one() if target is None else target,
        draws=N_DRAWS,
        tune=0,
        chains=n_chains,
        random_seed=seed,
        method=method,
        init=INIT[:n_chains],
        progressbar=False,
    )


@pytest.fixture(params=METHODS)
def method(request):
    return METHODS[request.param]


def require_same_chains(many, few):
    """Chain 3 of 8 is chain 3 of 4, bit for bit, with all that is recorded of it."""
    np.testing.assert_array_equal(many.draws[:4], few.draws)
    assert (few.posterior.stats["accepted"].mean(axis=1) > 0).all()
    for name, values in few.posterior.stats.items():
        if name != "n_metrics":  # a neighbour that is solved later costs one evaluation more
            np.testing.assert_array_equal(many.posterior.stats[name][:4], values, err_msg=name)


def test_a_chain_does_not_depend_on_its_neighbours(method):
    require_same_chains(run(method, 8), run(method, 4))


def test_nor_does_it_inside_bounds():
    method = HMC(0.15, 9, metric=DenseMetric(COVARIANCE))
    require_same_chains(*(run(method, n, target=one_by_one(bounds=(-3, 12))) for n in (8, 4)))


def test_a_chain_alone_is_the_first_of_many(method):
    np.testing.assert_array_equal(run(method, 1).draws, run(method, 8).draws[:1])


def test_the_same_seed_gives_the_same_draws_and_another_gives_others(method):
    first, again, other = run(method, 3), run(method, 3), run(method, 3, seed=4)
    np.testing.assert_array_equal(first.draws, again.draws)
    assert not np.isin(other.draws[:, -1], first.draws).any()


def test_chains_from_one_start_part_at_once(method):
    together = sample(
        one_by_one(),
        draws=5,
        tune=0,
        chains=4,
        random_seed=3,
        method=method.replace(step_size=0.2),
        init=INIT[0],
        progressbar=False,
    )
    assert len(np.unique(together.draws[:, -1], axis=0)) == 4


@pytest.mark.slow  # the quick tier checks the same in tests/run
def test_with_all_of_warm_up_the_same_seed_gives_the_same_draws():
    """Warm-up learns across chains, so here the number of chains does matter; the seed still decides all."""
    runs = [
        sample(one_by_one(), draws=20, tune=60, chains=3, random_seed=seed, progressbar=False)
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].draws, runs[1].draws)
    assert not np.isin(runs[2].draws[:, -1], runs[0].draws).any()
