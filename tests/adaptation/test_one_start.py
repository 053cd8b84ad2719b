"""A forward model whose chains all start at one place, which the user has given."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw

TIMES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])
DATA = np.array([2.07, 1.62, 1.16, 0.87, 0.68, 0.44, 0.20, 0.10])


@pytest.mark.parametrize("seed", [1, 2])
def test_one_row_of_init_will_do(seed):
    target = lw.ForwardTarget(
        lambda x: x[0] * np.exp(-x[1] * TIMES),
        lw.GaussianLikelihood(DATA, sd=0.05),
        lw.UniformPrior([0.1, 0.01], [10.0, 5.0]),
    )
    run = lw.sample(target, draws=100, chains=4, init=[2.0, 0.5], random_seed=seed, progressbar=False)
    assert run.complete
    np.testing.assert_allclose(run.draws.mean(axis=(0, 1)), [2.086, 0.564], atol=0.03)
