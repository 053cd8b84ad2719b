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
from dataclasses import dataclass, replace

import numpy as np

from understudy.checks import require_positive, require_whole
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

    def __post_init__(self) -> None:
        require_positive(self.tolerance, "tolerance", ())
        require_whole("max_iterations", self.max_iterations, 1)
        require_positive(self.return_tolerance, "return_tolerance", ())


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

    def take(self, rows: np.ndarray, local: LocalMetric) -> RiemannianPoint:
        """Return some of the chains; `local` is the metric where they are."""
        return RiemannianPoint(local=local, **{name: getattr(self, name)[rows] for name in _ROWS})

    def put(self, rows: np.ndarray, point: RiemannianPoint) -> RiemannianPoint:
        """Return all chains, with these rows moved to `point`; the metric is left as it is."""
        moved = {name: getattr(self, name).copy() for name in _ROWS}
        for name, values in moved.items():
            values[rows] = getattr(point, name)
        return replace(self, **moved)


_ROWS = ("position", "momentum", "potential", "gradient", "complete", "unsolved")


def velocity(local: LocalMetric, momentum: np.ndarray) -> np.ndarray:
    """Return :math:`G^{-1} p` of each row; NaN where the metric is not positive definite."""
    pivots = np.diagonal(local.cholesky, axis1=1, axis2=2)
    usable = np.isfinite(local.cholesky).all(axis=(1, 2)) & (pivots > 0).all(axis=1)
    if not usable.all():
        found = np.full_like(momentum, np.nan)
        found[usable] = _solve(local.matrix[usable], momentum[usable])
        return found
    return _solve(local.matrix, momentum)


def _solve(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Solve one system a row; NaN where the matrix is singular in floating point."""
    try:
        return np.asarray(np.linalg.solve(matrix, rows[:, :, None])[:, :, 0])
    except np.linalg.LinAlgError:
        if len(rows) == 1:
            return np.full_like(rows, np.nan)
        return np.concatenate([_solve(matrix[i : i + 1], rows[i : i + 1]) for i in range(len(rows))])


def riemannian_energy(point: RiemannianPoint) -> np.ndarray:
    r"""Return :math:`U + \frac12 \log\det G + \frac12 p^T G^{-1} p` of each row, NaN where it has no metric."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_det = 2.0 * np.log(np.diagonal(point.local.cholesky, axis1=1, axis2=2)).sum(axis=1)
        kinetic = 0.5 * np.einsum("ij,ij->i", point.momentum, velocity(point.local, point.momentum))
        return np.asarray(point.potential + 0.5 * log_det + kinetic)


def riemannian_momentum(local: LocalMetric, normals: np.ndarray) -> np.ndarray:
    """Turn standard normals into momenta of covariance G(q); not finite where there is no metric."""
    with np.errstate(over="ignore", invalid="ignore"):
        return times_rows(local.cholesky, normals)


def generalized_leapfrog(
    force: Force,
    metric: RiemannianMetric,
    start: RiemannianPoint,
    step_size: np.ndarray,
    n_steps: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[RiemannianPoint, np.ndarray, np.ndarray]:
    """Follow each chain for its own number of steps of its own size.

    Neither force nor metric is evaluated for chains that have arrived or were given up. Only, since a metric cannot
    be taken apart into rows, it is evaluated again for those that go on; and once for all, if not all ended together.

    Returns the end points, how many calls of the force each chain took, and how many of the metric.
    """
    n = len(start.position)
    n_taken, n_metrics = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
    end, rows, local = start, np.arange(n), start.local
    with np.errstate(over="ignore", invalid="ignore"):
        slope = start.gradient + 0.5 * local.trace_contraction()
        for step in range(int(n_steps.max(initial=0))):
            moving = np.flatnonzero(end.complete & (n_steps > step))
            if not moving.size:
                break
            if moving.size < rows.size:
                rows, local = moving, metric.at(end.position[moving])
                n_metrics[rows] += 1
            point, slope[rows], evaluated, n_calls = _step(
                force, metric, end.take(rows, local), slope[rows], step_size[rows], solver
            )
            end, local = end.put(rows, point), point.local
            n_taken[rows] += evaluated
            n_metrics[rows] += n_calls
        if rows.size < n:
            local = metric.at(end.position)
            n_metrics += 1
    return replace(end, local=local), n_taken, n_metrics


def _step(
    force: Force,
    metric: RiemannianMetric,
    start: RiemannianPoint,
    slope: np.ndarray,
    step_size: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[RiemannianPoint, np.ndarray, np.ndarray, np.ndarray]:
    r"""Make one step of all rows, there and back; `slope` is :math:`\nabla\phi` at the start.

    Returns the new point, the slope there, which rows called the force, and the calls of the metric for each.
    """
    half_step = 0.5 * step_size[:, None]
    everyone = np.ones(len(half_step), dtype=bool)
    half, solved = _solve_momentum(start.local, start.momentum, half_step, slope, everyone, solver)
    position, local, n_there, solved = _solve_position(metric, start, half, half_step, solved, solver)
    if local is None:
        local = metric.at(position)
        n_there += 1
    potential, gradient = start.potential.copy(), start.gradient.copy()
    if solved.any():
        potential[solved], gradient[solved] = force(position[solved])
    slope = gradient + 0.5 * local.trace_contraction()
    momentum = half - half_step * (slope - 0.5 * local.quadratic_contraction(velocity(local, half)))
    momentum = np.where(solved[:, None], momentum, start.momentum)
    finite = solved & np.isfinite(potential) & np.isfinite(momentum).all(axis=1)
    end = RiemannianPoint(position, momentum, potential, gradient, local, finite, ~solved)
    n_back, returned = _returns(metric, start, end, half, half_step, slope, solver)
    end = replace(end, complete=returned, unsolved=~solved | (finite & ~returned))
    return end, slope, solved, n_there + n_back


def _returns(
    metric: RiemannianMetric,
    start: RiemannianPoint,
    end: RiemannianPoint,
    half: np.ndarray,
    half_step: np.ndarray,
    slope: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the equations of the step back from `end` with its momentum reversed; say who finds the start."""
    back_half, solved = _solve_momentum(end.local, -end.momentum, half_step, slope, end.complete, solver)
    solved &= _covector_norm(end.local, back_half + half) <= solver.return_tolerance
    back, _, n_metrics, solved = _solve_position(metric, end, back_half, half_step, solved, solver)
    close = _vector_norm(start.local, back - start.position) <= solver.return_tolerance
    return n_metrics, solved & close


def _solve_momentum(
    local: LocalMetric,
    momentum: np.ndarray,
    half_step: np.ndarray,
    slope: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the first implicit equation; the metric stays where it is."""

    def update(half: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kick = slope - 0.5 * local.quadratic_contraction(velocity(local, half))
        proposal = momentum - half_step * kick
        return proposal[rows], _covector_norm(local, proposal - half)[rows]

    return _fixed_point(update, momentum, momentum, moving, solver)


def _solve_position(
    metric: RiemannianMetric,
    start: RiemannianPoint,
    half: np.ndarray,
    half_step: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, LocalMetric | None, np.ndarray, np.ndarray]:
    """Solve the second implicit equation.

    Returns the solution, the metric there unless some rows were solved before others, the number of calls of the
    metric for each row, and which rows were solved.
    """
    here = velocity(start.local, half)
    n_calls = np.zeros(len(half), dtype=int)
    latest = start.local

    def update(candidate: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal latest
        latest = metric.at(candidate[rows])
        n_calls[rows] += 1
        proposal = start.position.copy()
        proposal[rows] += half_step[rows] * (here[rows] + velocity(latest, half[rows]))
        return proposal[rows], _vector_norm(start.local, proposal - candidate)[rows]

    guess = start.position + 2.0 * half_step * here
    solution, solved = _fixed_point(update, guess, start.position, moving, solver)
    together = solved.all() and (n_calls == n_calls.max(initial=0)).all()
    return solution, latest if together else None, n_calls, solved


def _fixed_point(
    update: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    guess: np.ndarray,
    origin: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, np.ndarray]:
    """Iterate until each moving row has a residual within the tolerance; return the iterates and who was solved.

    ``update(x, rows)`` gives the next iterate of these rows and the residual that they have now. A row stops at the
    iterate whose residual passed, so that what `update` computed there can be used again, and so that no row depends
    on how long its neighbours take. Rows that are not solved rest at `origin`.
    """
    x, solved = guess.copy(), np.zeros(len(guess), dtype=bool)
    rows = np.flatnonzero(moving & np.isfinite(x).all(axis=1))
    for _ in range(solver.max_iterations + 1):
        if not rows.size:
            break
        proposal, residual = update(x, rows)
        solved[rows] = residual <= solver.tolerance
        going_on = ~solved[rows] & np.isfinite(residual)
        rows = rows[going_on]
        x[rows] = proposal[going_on]
    x[~solved] = origin[~solved]
    return x, solved


def _vector_norm(local: LocalMetric, delta: np.ndarray) -> np.ndarray:
    """Length of displacements of the position, in standard deviations."""
    scaled = times_rows(np.swapaxes(local.cholesky, 1, 2), delta)
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", scaled, scaled)))


def _covector_norm(local: LocalMetric, delta: np.ndarray) -> np.ndarray:
    """Length of differences of momentum, in standard deviations."""
    return np.sqrt(np.einsum("ij,ij->i", delta, velocity(local, delta)))
