"""Planted mistakes in Riemannian kernels."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from gumbel_surrogates import Fair
from mutations import OneStep, mistake
from scalar_metrics import CURVATURE, STEEP, LocalScalarMetric

import leapwise.kernels.hmc
from leapwise import RMHMC, SurrogateRMHMC
from leapwise.dynamics import (
    HessianMetric,
    ImplicitSolver,
    evaluate_metric,
    generalized_leapfrog,
    riemannian_energy,
)
from leapwise.testing import gumbel

LEAPFROG = sys.modules["leapwise.dynamics.generalized"]  # the function of that name hides it
QUICK = ImplicitSolver(tolerance=1e-7, return_tolerance=1e-5)
N = 40_000


def on_surrogate(form):
    metric = HessianMetric(Fair(), form, floor=0.3)
    return SurrogateRMHMC(0.5, 2, surrogate=Fair(), metric=metric, solver=QUICK)


CURVED = OneStep("RMHMC", RMHMC(1.6, 2, metric=CURVATURE, solver=QUICK), gumbel(1), N)
WIDE = OneStep(
    "RMHMC, long leapfrog steps, three steps",
    RMHMC(2.5, 1, metric=CURVATURE, solver=QUICK),
    gumbel(1),
    N,
    steps=3,
)
SEVERAL = OneStep("RMHMC, several solutions", RMHMC(1.0, 2, metric=STEEP, solver=QUICK), gumbel(1), N)
FULL = OneStep("SurrogateRMHMC", on_surrogate("full"), gumbel(), 15_000)
DIAGONAL = OneStep("SurrogateRMHMC, diagonal metric", on_surrogate("diagonal"), gumbel(), 30_000)


def without_determinant(point):
    log_det = 2.0 * np.log(np.diagonal(point.local.cholesky, axis1=1, axis2=2)).sum(axis=1)
    return riemannian_energy(point) - 0.5 * log_det


@mistake("log-determinant missing", CURVED)
def no_determinant(patch):
    patch.setattr(leapwise.kernels.hmc, "riemannian_energy", without_determinant)


@mistake("log-determinant missing, on a surrogate", DIAGONAL)
def no_determinant_of_a_surrogate(patch):
    patch.setattr(leapwise.kernels.hmc, "riemannian_energy", without_determinant)


@mistake("momenta from another metric", CURVED)
def other_momenta(patch):
    patch.setattr(leapwise.kernels.hmc, "riemannian_momentum", lambda local, normals: normals.copy())


@mistake("metric of the end point in the momentum draw", CURVED)
def ahead_of_time(patch):
    def redrawn(force, metric, start, *arguments):
        end, _, _ = generalized_leapfrog(force, metric, start, *arguments)
        start.momentum[:] *= (end.local.cholesky / start.local.cholesky)[:, :, 0]
        return generalized_leapfrog(force, metric, start, *arguments)

    patch.setattr(leapwise.kernels.hmc, "generalized_leapfrog", redrawn)


@mistake("metric remembered from a proposal that was rejected", WIDE)
def stale_metric(patch):
    step = RMHMC.step

    def forgetful(self, streams, state, evaluator):
        new, info = step(self, streams, state, evaluator)
        return replace(new, known_metric=(self.metric, evaluate_metric(self.metric, info.proposal))), info

    patch.setattr(RMHMC, "step", forgetful)


def never_look_back(metric, start, end, half, half_step, slope, solver):
    return np.zeros(len(half), dtype=int), end.complete


@mistake("unconverged implicit solve accepted", SEVERAL)
def hasty(patch):
    """Two iterations, and no look at what is left."""

    def twice(update, guess, origin, moving, solver):
        x, rows = guess.copy(), np.flatnonzero(moving)
        for _ in range(2):
            x[rows] = update(x[rows], rows)[0]
        solved = moving & np.isfinite(x).all(axis=1)
        return np.where(solved[:, None], x, origin), solved

    patch.setattr(LEAPFROG, "fixed_point", twice)
    patch.setattr(LEAPFROG, "_returns", never_look_back)


@mistake("trajectory accepted up to where a solve failed", SEVERAL)
def lenient(patch):
    def anyone(*arguments):
        end, n_taken, n_metrics = generalized_leapfrog(*arguments)
        return replace(end, complete=np.isfinite(end.momentum).all(axis=1)), n_taken, n_metrics

    patch.setattr(leapwise.kernels.hmc, "generalized_leapfrog", anyone)


@mistake("way back not checked", SEVERAL)
def no_return(patch):
    """Solutions that are not found again from the other side are proposals without a return."""
    patch.setattr(LEAPFROG, "_returns", never_look_back)


@mistake("way back begun with the momentum not negated", CURVED)
def forth_and_forth(patch):
    returns = LEAPFROG._returns

    def onwards(metric, start, end, *arguments):
        return returns(metric, start, replace(end, momentum=-end.momentum), *arguments)

    patch.setattr(LEAPFROG, "_returns", onwards)


@mistake("contraction of another metric", CURVED)
def wrong_sign(patch):
    """The map is then reversible but does not preserve volume."""
    contraction = LocalScalarMetric.quadratic_contraction
    patch.setattr(
        LocalScalarMetric, "quadratic_contraction", lambda self, velocity: -contraction(self, velocity)
    )


@mistake("third derivatives of the surrogate missing", FULL)
def no_third_derivatives(patch):
    patch.setattr(Fair, "quadratic_contraction", lambda self, position, velocity: 0.0 * velocity)
