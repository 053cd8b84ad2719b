r"""Generalised leapfrog for a Riemannian metric, a batch of chains at a time.

For :math:`H = \phi(q) + \frac12 p^T G(q)^{-1} p` with :math:`\phi = U + \frac12 \log\det G`, one step is (the
paper's eqs. (8)-(10))

.. math::
    p_{1/2} &= p - \tfrac{\epsilon}{2} \left[\nabla\phi(q) - \tfrac12 \nu(q, p_{1/2})\right] \\
    q' &= q + \tfrac{\epsilon}{2} \left[G(q)^{-1} + G(q')^{-1}\right] p_{1/2} \\
    p' &= p_{1/2} - \tfrac{\epsilon}{2} \left[\nabla\phi(q') - \tfrac12 \nu(q', p_{1/2})\right],

where :math:`\nabla\phi = \nabla U + \frac12 \tau`, and :math:`\nu`, :math:`\tau` are the contractions of
`understudy.dynamics.metrics`. The first two equations are implicit and solved by fixed-point iteration. The
map is reversible and preserves volume only if they are solved, and only if the solution found is the one that is
also found on the way back. So every step is run backwards too, and a trajectory whose iteration did not converge,
or whose way back does not return to its start, is given up: it must be rejected, and is counted.

Distances are measured in the metric itself (:math:`\|\delta q\|^2 = \delta q^T G\, \delta q`,
:math:`\|\delta p\|^2 = \delta p^T G^{-1} \delta p`), so that tolerances mean the same for every posterior: a
fraction of a standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from understudy.dynamics.leapfrog import Force
from understudy.dynamics.metrics import LocalMetric, RiemannianMetric, times_rows


@dataclass(frozen=True)
class ImplicitSolver:
    """How hard to work on the implicit equations.

    Parameters
    ----------
    tolerance : float
        Largest residual of a solved equation, in standard deviations.
    max_iterations : int
        Iterations after which an equation counts as unsolved.
    return_tolerance : float
        Largest distance between a step's start and where the way back ends, in standard deviations.
    """

    tolerance: float = 1e-8
    max_iterations: int = 40
    return_tolerance: float = 1e-6


@dataclass(frozen=True, eq=False)
class RiemannianPoint:
    """Positions and momenta of a batch of chains, with potential, gradient and metric there.

    `complete` is False where the trajectory was given up; `unsolved` says that an implicit equation was why.
    """

    position: np.ndarray
    momentum: np.ndarray
    potential: np.ndarray
    gradient: np.ndarray
    local: LocalMetric
    complete: np.ndarray
    unsolved: np.ndarray


def velocity(local: LocalMetric, momentum: np.ndarray) -> np.ndarray:
    """Return :math:`G^{-1} p` of each row; NaN where the metric is not positive definite."""
    usable = np.isfinite(local.cholesky).all(axis=(1, 2))
    safe = (
        local.matrix
        if usable.all()
        else np.where(usable[:, None, None], local.matrix, np.eye(momentum.shape[1]))
    )
    return np.where(usable[:, None], np.linalg.solve(safe, momentum[:, :, None])[:, :, 0], np.nan)


def riemannian_energy(point: RiemannianPoint) -> np.ndarray:
    r"""Return :math:`U + \frac12 \log\det G + \frac12 p^T G^{-1} p` of each row."""
    log_det = 2.0 * np.log(np.diagonal(point.local.cholesky, axis1=1, axis2=2)).sum(axis=1)
    kinetic = 0.5 * np.einsum("ij,ij->i", point.momentum, velocity(point.local, point.momentum))
    return np.asarray(point.potential + 0.5 * log_det + kinetic)


def generalized_leapfrog(
    force: Force,
    metric: RiemannianMetric,
    start: RiemannianPoint,
    step_size: np.ndarray,
    n_steps: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[RiemannianPoint, np.ndarray, np.ndarray]:
    """Follow each chain for its own number of steps of its own size.

    Returns the end points, how many calls of the force each chain took, and how many of the metric.
    """
    point, n_metrics = start, np.zeros(len(start.position), dtype=int)
    n_taken = np.zeros(len(start.position), dtype=int)
    for step in range(int(n_steps.max(initial=0))):
        moving = point.complete & (n_steps > step)
        if not moving.any():
            break
        point, evaluated, n_calls = _step(
            force, metric, point, np.where(moving, step_size, 0.0), moving, solver
        )
        n_metrics += np.where(moving, n_calls, 0)
        n_taken += evaluated
    return point, n_taken, n_metrics


def _step(
    force: Force,
    metric: RiemannianMetric,
    point: RiemannianPoint,
    step_size: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[RiemannianPoint, np.ndarray, int]:
    """Make one step of the rows in `moving`, there and back. The others have step size 0 and stay.

    Returns the new point, which rows called the force, and the number of calls of the metric.
    """
    half_step = 0.5 * step_size[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        start_slope = point.gradient + 0.5 * point.local.trace_contraction()
        half, solved = _solve_momentum(point.local, point.momentum, half_step, start_slope, moving, solver)
        position, local, n_there, there = _solve_position(
            metric, point.local, point.position, half, half_step, moving & solved, solver
        )
        solved &= there
        potential, gradient = point.potential.copy(), point.gradient.copy()
        if solved.any():
            potential[solved], gradient[solved] = force(position[solved])
        slope = gradient + 0.5 * local.trace_contraction()
        momentum = half - half_step * (slope - 0.5 * local.quadratic_contraction(velocity(local, half)))
        finite = np.isfinite(potential) & np.isfinite(momentum).all(axis=1)
        n_back, returned = _returns(
            metric, point, position, local, momentum, half, half_step, slope, solved & finite, solver
        )
    complete = np.where(moving, solved & finite & returned, point.complete)
    unsolved = point.unsolved | (moving & ~(solved & (returned | ~finite)))
    keep = moving & complete
    return (
        RiemannianPoint(
            position,
            np.where(keep[:, None], momentum, point.momentum),
            np.where(keep, potential, point.potential),
            np.where(keep[:, None], gradient, point.gradient),
            local,
            complete,
            unsolved,
        ),
        solved,
        n_there + n_back,
    )


def _returns(
    metric: RiemannianMetric,
    start: RiemannianPoint,
    position: np.ndarray,
    local: LocalMetric,
    momentum: np.ndarray,
    half: np.ndarray,
    half_step: np.ndarray,
    slope: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[int, np.ndarray]:
    """Solve the implicit equations of the step back from ``(position, -momentum)``; say who finds the start."""
    back_half, solved = _solve_momentum(local, -momentum, half_step, slope, moving, solver)
    solved &= _covector_norm(local, back_half + half) <= solver.return_tolerance
    back, _, n_metrics, there = _solve_position(metric, local, position, back_half, half_step, solved, solver)
    close = _vector_norm(start.local, back - start.position) <= solver.return_tolerance
    return n_metrics, solved & there & close


def _solve_momentum(
    local: LocalMetric,
    momentum: np.ndarray,
    half_step: np.ndarray,
    slope: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the first implicit equation; the metric stays where it is."""

    def update(half: np.ndarray) -> np.ndarray:
        return momentum - half_step * (slope - 0.5 * local.quadratic_contraction(velocity(local, half)))

    return _fixed_point(update, momentum, lambda delta: _covector_norm(local, delta), moving, solver)[:2]


def _solve_position(
    metric: RiemannianMetric,
    local: LocalMetric,
    position: np.ndarray,
    half: np.ndarray,
    half_step: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, LocalMetric, int, np.ndarray]:
    """Solve the second implicit equation; return the metric at the solution too, as the last one evaluated."""
    here = velocity(local, half)
    latest = local

    def update(candidate: np.ndarray) -> np.ndarray:
        nonlocal latest
        latest = metric.at(candidate)
        return position + half_step * (here + velocity(latest, half))

    guess = np.where(moving[:, None], position + 2.0 * half_step * here, position)
    solution, solved, n_calls = _fixed_point(
        update, guess, lambda delta: _vector_norm(local, delta), moving, solver, origin=position
    )
    return solution, latest, n_calls, solved


def _fixed_point(
    update: Callable[[np.ndarray], np.ndarray],
    guess: np.ndarray,
    norm: Callable[[np.ndarray], np.ndarray],
    moving: np.ndarray,
    solver: ImplicitSolver,
    origin: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Iterate ``x <- update(x)`` until each moving row has a residual within the tolerance.

    A row stops at the iterate whose residual passed, so that what `update` last computed there can be used again,
    and so that no row depends on how long its neighbours take. Rows that do not move, or that leave the finite
    numbers, rest at `origin`.
    """
    x = guess.copy()
    origin = guess if origin is None else origin
    solved = np.zeros(len(x), dtype=bool)
    open_rows = moving & np.isfinite(x).all(axis=1)
    x[~open_rows] = origin[~open_rows]
    n_calls = 0
    while True:
        proposal = update(x)
        n_calls += 1
        residual = norm(proposal - x)
        solved |= open_rows & (residual <= solver.tolerance)
        lost = open_rows & ~np.isfinite(residual)
        open_rows = open_rows & ~solved & ~lost
        if n_calls > solver.max_iterations or not open_rows.any():
            failed = lost | open_rows
            if failed.any():
                x[failed] = origin[failed]
                update(x)  # leaves behind what belongs to the rows as they now are
                n_calls += 1
            return x, solved, n_calls
        x[lost] = origin[lost]
        x[open_rows] = proposal[open_rows]


def _vector_norm(local: LocalMetric, delta: np.ndarray) -> np.ndarray:
    """Length of displacements of the position, in standard deviations."""
    scaled = np.matmul(np.swapaxes(local.cholesky, 1, 2), delta[:, :, None])[:, :, 0]
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", scaled, scaled)))


def _covector_norm(local: LocalMetric, delta: np.ndarray) -> np.ndarray:
    """Length of differences of momentum, in standard deviations."""
    return np.sqrt(np.einsum("ij,ij->i", delta, velocity(local, delta)))


def riemannian_momentum(local: LocalMetric, normals: np.ndarray) -> np.ndarray:
    """Turn standard normals into momenta of covariance G(q)."""
    return times_rows(local.cholesky, normals)
