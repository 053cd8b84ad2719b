"""Gaussian processes, held to what every surrogate must be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conformance import SurrogateConformance

from leapwise.surrogates.fitc import FITC
from leapwise.surrogates.gp import GaussianProcess


class Process(SurrogateConformance):
    n_training = 25
    settings: dict[str, object] = {}  # noqa: RUF012

    @pytest.fixture
    def recipe(self):
        return GaussianProcess(**self.settings)

    def refit(self, fitted, everything):
        if self.settings.get("trend") is None:
            return None  # the mean of the first evaluations is that of the process
        recipe = GaussianProcess(**self.settings)
        same = replace(recipe, hyperparameters=fitted.hyperparameters, whitening=fitted.whitening)
        return same.fit(everything, None)


class TestSquaredExponential(Process):
    pass


class TestRationalQuadraticWithRadialTrend(Process):
    settings = {"kernel": "rational_quadratic", "trend": "radial"}  # noqa: RUF012


class TestSquaredExponentialWithTrend(Process):
    settings = {"trend": "quadratic"}  # noqa: RUF012


class TestValuesOnly(Process):
    settings = {"trend": "quadratic"}  # noqa: RUF012
    gradients = False
    n_training = 80


class TestFITC(SurrogateConformance):
    n_training = 80

    @pytest.fixture
    def recipe(self):
        return FITC(40)
