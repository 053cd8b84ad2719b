"""`sample` on posteriors of others: it starts, and the draws are right.

Means and standard deviations may differ from those of the reference draws by 5 combined standard errors. These are two
numbers for each of at most 13 parameters, so a correct run fails with a probability below 2e-5 if draws are normal;
seeds are fixed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.posteriordb.cases import get_case
from benchmarks.posteriordb.data import folder
from benchmarks.posteriordb.generator import random_posterior
from benchmarks.posteriordb.registry import NAMES, posterior

import leapwise as lw
from leapwise.results.statistics import statistics

#: Raw numbers, correlations of 0.9999, and a false mode in which most descents end.
QUICK = ("earnings-earn_height", "kilpisjarvi_mod-kilpisjarvi", "bball_drive_event_0-hmm_drive_0")
#: Random posteriors that take seconds; the others take longer.
QUICK_SEEDS = (2, 3, 5, 6, 7, 8)
#: The descent to its mode, 1e8 away along a bent ridge, does not end in time; it was taken for improper.
SLOW_DESCENT = 127
#: Falls back on exact HMC, and mixes slowly.
HARDEST = "gp_pois_regr-gp_pois_regr"


def has_data():
    try:
        return folder().is_dir()
    except FileNotFoundError:
        return False


needs_data = pytest.mark.skipif(not has_data(), reason="the data of posteriordb are not here")


def check(run, name):
    found = statistics(run.draws)
    squares = statistics((run.draws - run.draws.mean(axis=(0, 1))) ** 2)
    reference = posterior(name).reference().reshape(-1, run.draws.shape[2])
    mean, sd = reference.mean(axis=0), reference.std(axis=0)
    fourth = ((reference - mean) ** 4).mean(axis=0) / sd**4
    of_mean = sd * np.sqrt(1.0 / found.ess_bulk + 1.0 / len(reference))
    of_sd = sd * np.sqrt((fourth - 1.0) / 4.0 * (1.0 / squares.ess_bulk + 1.0 / len(reference)))
    assert found.rhat.max() < (1.05 if name == HARDEST else 1.01)
    assert np.abs((found.mean - mean) / of_mean).max() < 5.0
    assert np.abs((found.sd - sd) / of_sd).max() < 5.0


@needs_data
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_with_a_gradient(name):
    run = lw.sample(posterior(name).target(), random_seed=1)
    check(run, name)
    assert name == HARDEST or run.cost.n_exact < 12_000


@needs_data
@pytest.mark.parametrize("name", ["earnings-earn_height", "kilpisjarvi_mod-kilpisjarvi"])
def test_by_values(name):
    check(lw.sample(posterior(name).values(), random_seed=1), name)


@needs_data
@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(QUICK[0], lw.HMC(), id="HMC-raw numbers"),
        pytest.param(QUICK[1], lw.NUTS(), id="NUTS-correlated"),
        pytest.param(QUICK[0], lw.NUTS(), id="NUTS-raw numbers", marks=pytest.mark.slow),
        pytest.param(QUICK[1], lw.HMC(), id="HMC-correlated", marks=pytest.mark.slow),
    ],
)
def test_with_exact_gradients_only(name, method):
    check(lw.sample(posterior(name).target(), method=method, random_seed=1), name)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(s, marks=[] if s in QUICK_SEEDS else pytest.mark.slow)
        for s in (*range(1, 41), SLOW_DESCENT)
    ],
)
def test_random_posteriors_start(seed):
    """Scales of 1e-6 to 1e6, up to 40 parameters; all 200 are a benchmark.

    Chains in a funnel or a banana of many parameters may not mix, with exact HMC either. The run must say so.
    """
    case = get_case(f"random-{seed}")
    run = lw.sample(case.target, draws=300, random_seed=0)
    assert run.complete and np.isfinite(run.draws).all()
    if random_posterior(seed).kind in ("funnel", "banana") and run.summary().warnings:
        return
    assert statistics(run.draws).rhat.max() < 1.1
