"""Metrics and integrators of Hamiltonian dynamics, for a batch of chains.

Nothing here depends on targets or surrogates: a *force* is any function of positions that returns potentials and
gradients. Each integrator's module proves that it preserves volume and is reversible for every such force.

Notation: position q, momentum p, potential U, mass matrix M, Riemannian metric G(q), step size epsilon.
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
from leapwise.dynamics.leapfrog import Force, Gradient, PhasePoint, leapfrog, plain_leapfrog, split_flow
from leapwise.dynamics.metrics import (
    DenseMetric,
    DiagonalMetric,
    EuclideanMetric,
    HessianMetric,
    LocalMetric,
    ProductMetric,
    RiemannianMetric,
    UnitMetric,
    batched_cholesky,
    check_metric,
    kinetic_energy,
)

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
