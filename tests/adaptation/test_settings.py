"""Settings reach the stages that they are of, and stages can be turned off."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation import settings
from leapwise.adaptation.settings import DEFAULT, StageSwitches
from leapwise.errors import InputError

SOURCE = "".join(file.read_text() for file in Path(settings.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("group", [each.name for each in fields(DEFAULT)])
def test_every_setting_is_read(group):
    unread = [each.name for each in fields(getattr(DEFAULT, group)) if f".{each.name}" not in SOURCE]
    assert not unread


@pytest.mark.parametrize("dim", [1, 7, 60])
def test_heights_are_quantiles_of_a_normal_posterior(dim):
    height = 0.5 * (np.random.default_rng(1).standard_normal((40_000, dim)) ** 2).sum(axis=1)
    heights = DEFAULT.heights
    # Counts of 400 and 40 draws above: 6 standard deviations, a false alarm below 1e-6.
    assert abs((height > heights.draws(dim)).sum() - 400) < 120
    assert abs((height > heights.mass(dim)).sum() - 40) < 45
    assert not (height > heights.training(dim)).any()


def normal(x):
    return -0.5 * (x**2).sum(axis=1)


def test_draws_are_right_with_all_stages_off():
    """800 draws of a standard normal that are worth no fewer: 6 standard errors."""
    off = StageSwitches(**{each.name: False for each in fields(StageSwitches)})
    method = lw.Auto(settings=replace(DEFAULT, stages=off))
    target = lw.Target(normal, lambda x: -x, dim=2, vectorized=True)
    run = lw.sample(target, 200, random_seed=1, method=method, progressbar=False)
    assert (np.abs(run.draws.mean(axis=(0, 1))) < 6.0 / np.sqrt(800)).all()
    assert (np.abs(run.draws.var(axis=(0, 1)) - 1.0) < 6.0 * np.sqrt(2.0 / 800)).all()


def test_a_stage_that_is_off_costs_nothing():
    target, costs = lw.Target(normal, lambda x: -x, dim=2, vectorized=True), []
    for stages in (DEFAULT.stages, replace(DEFAULT.stages, search_density=False)):
        method = lw.Auto(settings=replace(DEFAULT, stages=stages))
        run = lw.sample(target, 50, random_seed=1, method=method, progressbar=False)
        costs.append(run.warmup.cost.n_exact)
    assert costs[1] <= costs[0] - DEFAULT.modes.n_far


def test_other_settings_are_refused():
    target = lw.Target(normal, dim=2, vectorized=True)
    with pytest.raises(InputError, match="takes an AdaptationSettings as its settings, got 3"):
        lw.Auto(settings=3)
    with pytest.raises(
        InputError, match=r"takes an AdaptationSettings as its settings, got \{'tails': False\}"
    ):
        lw.Auto(settings={"tails": False})
    with pytest.raises(
        InputError, match="stages in the settings of Auto must be StageSwitches, got None; leave"
    ):
        lw.Auto(settings=replace(DEFAULT, stages=None))
    with pytest.raises(InputError, match="takes an AdaptationSettings as its settings, got StageSwitches"):
        lw.sample(target, 20, method=lw.Auto(settings=DEFAULT.stages), progressbar=False)
