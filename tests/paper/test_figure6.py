"""Figure 6 and the agreement check: two samplers agree, disagree, or have too few draws to decide."""

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.paper.cells import Cells
from leapwise.paper.figure6 import (
    SHOWN,
    AgreementCheck,
    Figure6,
    agreement,
    agreement_check,
    compare,
    figure6,
)
from leapwise.paper.moments import PosteriorMoments, moments
from leapwise.paper.reproductions import Figure, save_table


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
def test_standard_errors_account_for_the_correlation_of_draws(rng, correlation):
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
    exact = PosteriorMoments(*np.ones((5, 2)))
    some = PosteriorMoments(np.ones(2), np.array([1.0, 1.06]), np.ones(2), np.full(2, 0.03), np.ones(2))
    many = PosteriorMoments(np.ones(2), np.array([1.0, 1.06]), np.ones(2), np.full(2, 1e-3), np.ones(2))
    exact = PosteriorMoments(exact.mean, exact.sd, exact.mean_error, np.full(2, 1e-3), exact.ess)
    assert compare(some, exact).verdict == "too few draws"
    assert compare(many, exact).verdict == "no"


def test_bad_input_is_one_clear_sentence(rng):
    with pytest.raises(InputError, match="shape"):
        moments(np.zeros((3, 10)))
    with pytest.raises(InputError, match="same parameters"):
        agreement(rng.standard_normal((2, 50, 3)), rng.standard_normal((2, 50, 2)))
    with pytest.raises(InputError, match="'hmc'"):
        agreement_check(method="hmc")


def test_picture_and_caption_name_the_method_that_disagrees(rng, tmp_path):
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


class FakeCells(Cells):
    """Cells whose every method has independent normal draws."""

    def get(self, name, settings, compute):
        rng = np.random.default_rng(len(name))
        if name.startswith("start"):
            return {"position": np.zeros((4, 50))}
        if name.startswith("table1"):
            return {}
        error = np.full(50, 0.02)
        found = PosteriorMoments(
            error * rng.standard_normal(50), np.ones(50), error, error, np.full(50, 2500.0)
        )
        return vars(found) | {
            "draws": rng.standard_normal((4, 300, len(SHOWN))),
            "acceptance": 0.75,
            "n_draws": 1200,
        }


@pytest.fixture(scope="module")
def found():
    return figure6(quick=True, cells=FakeCells())


def test_every_parameter_is_compared(found):
    assert isinstance(found, Figure)
    assert [row["parameter"] for row in found.rows] == [f"beta_{i}" for i in range(1, 51)]
    assert max(abs(row["z"]) for row in found.rows) == pytest.approx(found.found.worst_z)
    assert f"{found.found.worst_z:.1f} combined standard errors" in found.caption


def test_picture_and_table_of_figure_6_are_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    assert found.draw(tmp_path / "fig6.png").stat().st_size > 50_000
    assert len(save_table(found.rows, tmp_path / "fig6.csv").read_text().splitlines()) == 51


def test_the_title_shows_a_difference(rng):
    a, b = rng.standard_normal((2, 4, 300, 50))
    b[..., 7] += 1.0
    different = Figure6([], agreement(a, b), {}, {"hmc": 0.7, "rns-hmc": 0.7})
    assert different.found.worst_z > 8 and "p = 0.00" in different._title()
