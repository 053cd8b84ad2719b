"""Hamiltonian motion of a batch of chains: metrics, leapfrog, swings, generalised leapfrog.

Nothing here knows of targets: a *force* is any function of positions that returns potentials and gradients.
"""

from leapwise.dynamics.generalized import (
    ImplicitSolver,
    InvertedMetric,
    RiemannianPoint,
    evaluate_metric,
    generalized_leapfrog,
    require_solver,
    riemannian_energy,
    riemannian_momentum,
)
from leapwise.dynamics.hessian_metric import HessianMetric
from leapwise.dynamics.leapfrog import Force, Gradient, PhasePoint, leapfrog, plain_leapfrog
from leapwise.dynamics.metrics import (
    DenseMetric,
    DiagonalMetric,
    EuclideanMetric,
    LocalMetric,
    ProductMetric,
    RiemannianMetric,
    UnitMetric,
    batched_cholesky,
    check_metric,
    kinetic_energy,
)
from leapwise.dynamics.split import split_flow

__all__ = [
    "DenseMetric",
    "DiagonalMetric",
    "EuclideanMetric",
    "Force",
    "Gradient",
    "HessianMetric",
    "ImplicitSolver",
    "InvertedMetric",
    "LocalMetric",
    "PhasePoint",
    "ProductMetric",
    "RiemannianMetric",
    "RiemannianPoint",
    "UnitMetric",
    "batched_cholesky",
    "check_metric",
    "evaluate_metric",
    "generalized_leapfrog",
    "kinetic_energy",
    "leapfrog",
    "plain_leapfrog",
    "require_solver",
    "riemannian_energy",
    "riemannian_momentum",
    "split_flow",
]
