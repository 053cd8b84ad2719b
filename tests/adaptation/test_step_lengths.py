"""How wide the posterior is along each axis, from few evaluations; and what has no width at all."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, Streams, Target
from leapwise.adaptation.initialise import find
from leapwise.adaptation.record import EvaluationRecord
from leapwise.errors import BudgetError, ImproperError
from leapwise.warmup.start import find_start

SCALES = 10.0 ** np.linspace(-5, 4, 8)


def search(log_density, gradient, dim, limit=400, init=None, **settings):
    """Find the typical set; return the record and the start."""
    target = Target(log_density, gradient, dim=dim, **settings)
    evaluator, streams = Evaluator(target, limit=limit), Streams(1, 4)
    record = EvaluationRecord(evaluator, target.has_gradient)
    return record, find(record, find_start(evaluator, streams, init, target.has_gradient), streams.shared)


@pytest.mark.parametrize("init", [None, np.zeros(8), SCALES], ids=["random", "mode", "typical"])
def test_values_alone_find_scales_over_nine_decades(init):
    _, found = search(lambda x: -0.5 * np.square(x / SCALES).sum(), None, 8, limit=700, init=init)
    width = np.sqrt(np.diag(found.frame.factor @ found.frame.factor.T)) / SCALES
    assert (width > 0.02).all() and (width < 20.0).all()


@pytest.mark.parametrize("given", [True, False], ids=["gradients", "values"])
class TestImproper:
    def test_a_flat_direction_is_named(self, given):
        with pytest.raises(ImproperError, match=r"does not fall off along \+x\[1\]") as caught:
            search(
                lambda x: -(x[0] ** 2), (lambda x: np.array([-2 * x[0], 0.0])) if given else None, 2, limit=60
            )
        assert "improper" in str(caught.value) and "bounds=" in str(caught.value)

    @pytest.mark.parametrize("power", [1, 2])
    def test_a_log_density_that_rises_without_end(self, power, given):
        def log_density(x):
            return np.abs(x[0]) ** power - 0.5 * x[1] ** 2

        def gradient(x):
            return np.array([power * np.sign(x[0]) * np.abs(x[0]) ** (power - 1), -x[1]])

        with pytest.raises(ImproperError, match=r"goes on rising along [+-]tilt, as far"):
            search(log_density, gradient if given else None, 2, names=["tilt", "other"])

    def test_few_evaluations_are_no_sign_of_it(self, given):
        with pytest.raises(BudgetError):
            search(
                lambda x: x[0] - x[1] ** 2,
                (lambda x: np.array([1.0, -2 * x[1]])) if given else None,
                2,
                limit=15,
            )

    @pytest.mark.parametrize("far", [1e3, 1e6])
    def test_far_away_or_wide_is_not_improper(self, far, given):
        search(
            lambda x: -0.5 * ((x[0] - far) ** 2 + (x[1] / far) ** 2),
            (lambda x: np.array([far - x[0], -x[1] / far**2])) if given else None,
            2,
        )


def test_a_flat_direction_across_the_axes_is_named():
    with pytest.raises(ImproperError, match=r"along [+-]x\[0\], [+-]x\[1\]"):
        search(lambda x: -((x[0] + x[1]) ** 2), lambda x: np.full(2, -2 * x.sum()), 2)


@pytest.mark.parametrize(
    ("log_density", "gradient"),
    [
        (lambda x: 0.0 if x @ x < 1 else -np.inf, np.zeros_like),
        (lambda x: -x.sum() if (x > 0).all() else -np.inf, lambda x: -np.ones(2)),
        (lambda x: -np.abs(x).sum(), lambda x: -np.sign(x)),
    ],
    ids=["disc", "exponential", "laplace"],
)
def test_where_gradients_tell_no_curvature_the_frame_is_as_wide_as_the_steps(log_density, gradient):
    _, found = search(log_density, gradient, 2)
    assert (np.abs(found.frame.factor) < 1e4).all() and (np.diag(found.frame.factor) > 1e-4).all()
