"""sd(D): constants do not matter, extreme discrepancies count little, and nothing is known of none."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.surrogates.quality import CLIP, discrepancy_sd, median_discrepancy, robust_discrepancy_sd


@pytest.fixture
def discrepancy(rng):
    return rng.normal(0.0, 0.3, 20_000)


@pytest.mark.parametrize("sd", [discrepancy_sd, robust_discrepancy_sd])
def test_it_is_the_standard_deviation_and_a_constant_does_not_matter(sd, discrepancy):
    assert sd(discrepancy) == pytest.approx(0.3, rel=0.03)
    assert sd(discrepancy - 12.0) == pytest.approx(sd(discrepancy))


def test_extreme_discrepancies_count_as_far_as_the_limit(discrepancy):
    extreme = np.append(discrepancy, np.full(200, -1e9))
    share = 200 / len(extreme)
    assert discrepancy_sd(extreme) == pytest.approx(np.sqrt(0.3**2 + share * CLIP**2), rel=0.03)
    assert robust_discrepancy_sd(extreme) == pytest.approx(0.3, rel=0.05)


def test_the_median_is_of_finite_ones():
    assert median_discrepancy(np.array([1.0, 2.0, 3.0, np.inf, np.inf])) == 2.0


def test_without_discrepancies():
    none = np.empty(0)
    assert np.isnan(discrepancy_sd(none))
    assert robust_discrepancy_sd(none) == 0.0 and median_discrepancy(none) == 0.0
