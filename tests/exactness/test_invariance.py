"""One step from exact draws gives exact draws: every public kernel, every exact target, every kind of settings.

A correct kernel fails one of these checks with probability 1e-7; the summary adds it up over all checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from gumbel_surrogates import Fair, walled_gumbel
from public_kernels import LISTED, public_kernels
from scalar_metrics import CURVATURE, HOLED, STEEP
from tiers import SLOW, seed

import leapwise.kernels.nuts
import leapwise.kernels.trajectory
from leapwise import (
    HMC,
    NUTS,
    RMHMC,
    DenseMetric,
    DiagonalMetric,
    HessianMetric,
    SurrogateHMC,
    SurrogateRMHMC,
    SurrogateTransition,
    UnitMetric,
    testing,
)
from leapwise.dynamics import leapfrog
from leapwise.testing import ExactTarget, gumbel

TARGETS = {
    name: getattr(testing, name)
    for name in ("gaussian", "gumbel", "banana", "mixture", "student_t", "exponential")
}
COVARIANCE = np.array([[1.6, 1.3], [1.3, 2.7]])
MANY, FEWER = 100_000, 20_000


def test_every_public_kernel_is_listed():
    listed = {each for entry in LISTED.values() for each in entry.covers}
    assert listed == public_kernels()


def test_every_exact_target_is_used():
    made = {name for name in testing.__all__ if _makes_exact_target(getattr(testing, name))}
    assert made == set(TARGETS)


def _makes_exact_target(what: object) -> bool:
    return getattr(what, "__annotations__", {}).get("return") in (ExactTarget, "ExactTarget")


def cells() -> Iterator[Any]:
    """Yield every kernel on every target in both tiers; most cells of expensive kernels are slow."""
    for name, listed in LISTED.items():
        for target in TARGETS:
            is_quick = not listed.is_expensive or target in ("gumbel", "exponential")
            yield pytest.param(name, target, 1, id=f"{name}-{target}-quick", marks=[] if is_quick else SLOW)
            yield pytest.param(name, target, 10, id=f"{name}-{target}-full", marks=SLOW)


@pytest.mark.parametrize(("name", "target", "tier"), list(cells()))
def test_leaves_the_target_invariant(check, name, target, tier):
    listed, exact = LISTED[name], TARGETS[target]()
    verdict = check(
        listed.make(exact),
        exact,
        table="every kernel on every target",
        row=name,
        column=exact.name,
        n_chains=tier * listed.n_chains,
        steps=listed.steps,
        random_seed=seed(name, target, tier),
    )
    assert 0.2 < verdict.acceptance <= listed.most_accepted


SETTINGS = {
    "diagonal metric": HMC(0.6, 3, metric=DiagonalMetric([1.6, 2.7])),
    "dense metric, fixed number of steps": HMC(0.9, (3, 3), metric=DenseMetric(COVARIANCE)),
    "by time": HMC(0.9, trajectory_length=1.5, metric=UnitMetric()),
    "a step size for each chain": HMC(np.linspace(0.1, 1.2, MANY), 3, metric=UnitMetric()),
    "NUTS, short steps": NUTS(0.15, metric=UnitMetric()),
    "NUTS, dense metric": NUTS(0.7, metric=DenseMetric(COVARIANCE)),
    "NUTS, shallow trees": NUTS(0.3, metric=DiagonalMetric([1.6, 2.7]), max_depth=3),
    "NUTS, a step size for each chain": NUTS(np.linspace(0.1, 1.6, MANY), metric=UnitMetric()),
    "surrogate, dense metric": SurrogateHMC(0.7, 3, surrogate=Fair(), metric=DenseMetric(COVARIANCE)),
    "surrogate, by time": SurrogateHMC(0.7, trajectory_length=1.5, surrogate=Fair()),
    "transition, one inner step": SurrogateTransition(0.7, 3, surrogate=Fair(), inner_steps=1),
    "transition, dense metric, by time": SurrogateTransition(
        0.7, trajectory_length=1.5, surrogate=Fair(), metric=DenseMetric(COVARIANCE)
    ),
    "transition, split flow": SurrogateTransition(
        0.9,
        trajectory_length=1.8,
        surrogate=Fair(),
        metric=DenseMetric(COVARIANCE),
        inner_steps=2,
        centre=[0.3, 0.8],
    ),
    "transition, split flow far from the centre": SurrogateTransition(
        0.7, 3, surrogate=Fair(), inner_steps=1, centre=[2.0, -1.0]
    ),
}
PLAIN = {
    "HMC": HMC(0.7, 3, metric=UnitMetric()),
    "NUTS": NUTS(0.7, metric=UnitMetric()),
    "surrogate": SurrogateHMC(0.7, 3, surrogate=Fair()),
    "transition": SurrogateTransition(0.7, 2, surrogate=Fair(), inner_steps=2),
    "split-flow transition": SurrogateTransition(0.7, 2, surrogate=Fair(), inner_steps=2, centre=[0.5, 0.5]),
}
RIEMANNIAN = {
    "by time": RMHMC(1.2, trajectory_length=1.5, metric=CURVATURE),
    "steps too long to be solved": RMHMC(2.5, 2, metric=CURVATURE),
    "several solutions": RMHMC(1.0, 2, metric=STEEP),
    "hole in the metric": RMHMC(0.8, 2, metric=HOLED),
}
FORMS = {"full": 0.5, "diagonal": 0.9, "softabs": 0.7}


def settings(row: str) -> dict[str, Any]:
    """Say where in the summary a check goes, and give it a seed."""
    title = "other settings, on Gumbel variables"
    return {"table": title, "row": row, "column": "largest", "random_seed": seed(row)}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(check, name):
    check(SETTINGS[name], gumbel(), n_chains=MANY, **settings(name))


@pytest.mark.parametrize("name", RIEMANNIAN)
def test_riemannian_settings(check, name):
    check(RIEMANNIAN[name], gumbel(1), n_chains=FEWER, **settings(f"Riemannian, {name}"))


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_surrogates_curvature(check, form):
    metric = HessianMetric(Fair(), form, floor=0.3)
    kernel = SurrogateRMHMC(FORMS[form], 2, surrogate=Fair(), metric=metric)
    check(kernel, gumbel(), n_chains=FEWER, **settings(f"Riemannian surrogate, {form}"))


@pytest.mark.parametrize("name", PLAIN)
def test_walls(check, name):
    """No mass beyond a wall: trajectories that meet it are abandoned, in both directions."""
    check(PLAIN[name], walled_gumbel(), n_chains=MANY, **settings(f"{name}, a wall"))


@pytest.mark.parametrize("name", PLAIN)
def test_the_second_step_uses_what_the_first_has_stored(check, name):
    check(PLAIN[name], gumbel(), n_chains=MANY, steps=2, **settings(f"{name}, two steps"))


def test_abandoned_trajectories_of_large_energy_range(check, monkeypatch):
    """With a limit that ends half of the trajectories, which is symmetric."""
    monkeypatch.setattr(leapwise.kernels.trajectory, "leapfrog", partial(leapfrog, max_energy_range=0.5))
    kernel = HMC(1.0, (4, 4), metric=UnitMetric())
    verdict = check(kernel, gumbel(), n_chains=MANY, **settings("energy limit"))
    assert verdict.acceptance < 0.7


def test_trees_that_end_on_the_energy_range(check, monkeypatch):
    """With a limit that ends most trees: it applies to all leaves of a tree, wherever it began."""
    monkeypatch.setattr(leapwise.kernels.nuts, "MAX_ENERGY_RANGE", 0.2)
    kernel = NUTS(1.0, metric=UnitMetric())
    verdict = check(kernel, gumbel(), n_chains=MANY, **settings("NUTS, energy limit"))
    assert verdict.acceptance < 0.9
