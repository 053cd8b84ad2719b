"""Two samplers agree, or not, by what their draws can tell."""

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.paper.figure import Figure
from leapwise.paper.figure6 import AgreementCheck, agreement, agreement_check, compare
from leapwise.paper.moments import Moments, moments


def autoregressive(rng, correlation, chains=4, n=4000, dim=3):
    """Draws of standard normal variables whose neighbours have this correlation."""
    draws = np.empty((chains, n, dim))
    draws[:, 0] = rng.standard_normal((chains, dim))
    for i in range(1, n):
        draws[:, i] = correlation * draws[:, i - 1] + np.sqrt(1 - correlation**2) * rng.standard_normal(
            (chains, dim)
        )
    return draws


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.8])
def test_standard_errors_know_the_correlation_of_draws(rng, correlation):
    """Of the mean, with autocorrelation time (1 + r)/(1 - r), and of the sd, where it is that of r squared."""
    found = moments(10.0 + autoregressive(rng, correlation))
    n = 16_000
    mean_error = np.sqrt((1 + correlation) / (1 - correlation) / n)
    squared = correlation**2
    sd_error = np.sqrt((1 + squared) / (1 - squared) / (2 * n))
    assert found.mean_error == pytest.approx(mean_error, rel=0.25)
    assert found.sd_error == pytest.approx(sd_error, rel=0.25)


def test_draws_of_one_distribution_agree_whatever_their_correlation(rng):
    found = agreement(autoregressive(rng, -0.7), autoregressive(rng, 0.5))
    assert found.worst_z < 4.5 and found.worst_sd_z < 4.5  # false alarms below 1e-4
    assert found.verdict == "yes"
    assert 0 <= found.p_value <= 1


def test_differences_of_mean_and_sd_are_seen_and_signed(rng):
    a, b = rng.standard_normal((2, 4, 4000, 3))
    moved = a + np.array([0.0, 0.1, 0.0])
    assert agreement(moved, b).z.argmax() == 1 and agreement(moved, b).verdict == "no"
    wide = a * [1.0, 1.0, 1.1]
    found = agreement(wide, b)
    assert found.worst_sd == pytest.approx(0.1, abs=0.04) and found.verdict == "no"
    assert agreement(b, wide).worst_sd < 0


def test_few_draws_do_not_decide_about_sds(rng):
    exact = Moments(*np.ones((5, 2)))
    some = Moments(np.ones(2), np.array([1.0, 1.06]), np.ones(2), np.full(2, 0.03), np.ones(2))
    many = Moments(np.ones(2), np.array([1.0, 1.06]), np.ones(2), np.full(2, 1e-3), np.ones(2))
    exact = Moments(exact.mean, exact.sd, exact.mean_error, np.full(2, 1e-3), exact.ess)
    assert compare(some, exact).verdict == "too few draws"
    assert compare(many, exact).verdict == "no"


def test_bad_input_is_one_clear_sentence(rng):
    with pytest.raises(InputError, match="shape"):
        moments(np.zeros((3, 10)))
    with pytest.raises(InputError, match="same parameters"):
        agreement(rng.standard_normal((2, 50, 3)), rng.standard_normal((2, 50, 2)))
    with pytest.raises(InputError, match="'hmc'"):
        agreement_check(method="hmc")


def test_picture_and_caption_tell_who_disagrees(rng, tmp_path):
    pytest.importorskip("matplotlib")
    a, b = rng.standard_normal((2, 4, 1000, 3))
    found = {
        ("bank", "rns-hmc"): agreement(a, b),
        ("bank", "arns-hmc"): agreement(a, b + 1),
        ("a9a", "rns-hmc"): agreement(b, a),
    }
    rows = [{"experiment": e, "method": m, "agrees": each.verdict} for (e, m), each in found.items()]
    check = AgreementCheck(rows, found)
    assert isinstance(check, Figure)
    assert "Not in agreement: arns-hmc on bank." in check.caption
    assert check.draw(tmp_path / "agreement.png").stat().st_size > 10_000
