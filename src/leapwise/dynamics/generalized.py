r"""The generalised leapfrog for a Riemannian metric, for a batch of chains.

For :math:`H = \phi(q) + \frac12 p^T G(q)^{-1} p` with :math:`\phi = U + \frac12 \log\det G`, one step is (the
paper's eqs. (8)-(10))

.. math::
    p_{1/2} &= p - \tfrac{\epsilon}{2} \left[\nabla\phi(q) - \tfrac12 \nu(q, p_{1/2})\right] \\
    q' &= q + \tfrac{\epsilon}{2} \left[G(q)^{-1} + G(q')^{-1}\right] p_{1/2} \\
    p' &= p_{1/2} - \tfrac{\epsilon}{2} \left[\nabla\phi(q') - \tfrac12 \nu(q', p_{1/2})\right],

where :math:`\nabla\phi = \nabla U + \frac12 \tau`, and :math:`\nu`, :math:`\tau` are the contractions of
`leapwise.dynamics.metrics`.

**When it is exact.** The first two equations are implicit. The map preserves volume and is reversible only if they are
solved, and only if the step back finds the same solution. So every step is also run backwards. A trajectory is
abandoned, and must then be rejected, if an equation is not solved or the step back does not return to the start; such
rejections are counted.

**Distances** are measured in the metric itself (:math:`\|\delta q\|^2 = \delta q^T G\, \delta q`,
:math:`\|\delta p\|^2 = \delta p^T G^{-1} \delta p`), so tolerances mean the same for every posterior: a fraction of a
standard deviation, whatever the units of the parameters.

**The implicit equations** :math:`x = g(x)` are solved by fixed-point iteration. Plain iteration
:math:`x \leftarrow g(x)` converges only where :math:`g` contracts. Anderson acceleration keeps the last few residuals
:math:`r = g(x) - x`, finds the combination of them that is closest to zero, and takes the same combination of the
:math:`g(x)`:

.. math:: x_{k+1} = g(x_k) - \sum_j \gamma_j \, \Delta g_j, \qquad
    \gamma = \arg\min \Big\| r_k - \sum_j \gamma_j \, \Delta r_j \Big\|,

with differences :math:`\Delta` between successive iterates. The iteration stops when :math:`\|r_k\|` is within the
tolerance, and the result is :math:`x_{k+1}`, which is more accurate and costs nothing more. A row whose residual does
not shrink over two successive iterations is abandoned: an iteration that wanders before it converges depends on every
digit of its start, and the step back would not find the same solution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from leapwise.checks import require_positive, require_whole
from leapwise.dynamics.leapfrog import Force
from leapwise.dynamics.metrics import LocalMetric, ProductMetric, RiemannianMetric, times_rows
from leapwise.errors import InputError

#: Residuals kept for Anderson acceleration. A guess: more help little, and make the small systems ill-conditioned.
DEPTH = 4

#: Takes the iterates ``(k, dim)`` of some rows and the numbers of these rows. Returns g(x), and the residual g(x) - x
#: in standard deviations.
Update = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ImplicitSolver:
    """Tolerances of the implicit equations.

    Parameters
    ----------
    tolerance : float
        Residual at which the iteration stops, in standard deviations. The solution is more accurate than that.
    max_iterations : int
        Number of iterations after which an equation counts as unsolved.
    return_tolerance : float
        Largest distance between the start of a step and the end of the step back, in standard deviations.

    Examples
    --------
    >>> ImplicitSolver(tolerance=1e-9).max_iterations
    40
    """

    tolerance: float = 1e-6
    max_iterations: int = 40
    return_tolerance: float = 1e-4

    def __post_init__(self) -> None:
        require_positive(self.tolerance, "tolerance", ())
        require_whole("max_iterations", self.max_iterations, 1)
        require_positive(self.return_tolerance, "return_tolerance", ())


def require_solver(solver: object) -> None:
    """Raise unless `solver` is an `ImplicitSolver`."""
    if not isinstance(solver, ImplicitSolver):
        raise InputError(f"solver must be an ImplicitSolver, got {solver!r}; leave it out for the default")


def fixed_point(
    update: Update, guess: np.ndarray, origin: np.ndarray, moving: np.ndarray, solver: ImplicitSolver
) -> tuple[np.ndarray, np.ndarray]:
    """Iterate until each moving row is within the tolerance; return the iterates and which rows were solved.

    The result of a row does not depend on the other rows. Rows that are not solved are set to `origin`.

    Examples
    --------
    The plain iteration x <- 2 - 1.5 x diverges from its solution 0.8; the accelerated one converges:

    >>> x, solved = fixed_point(
    ...     lambda x, rows: (2.0 - 1.5 * x, 2.0 - 2.5 * x),
    ...     np.zeros((1, 1)), np.zeros((1, 1)), np.array([True]), ImplicitSolver(),
    ... )
    >>> x.round(8), solved
    (array([[0.8]]), array([ True]))
    """
    n, dim = guess.shape
    x, solved = guess.copy(), np.zeros(n, dtype=bool)
    rows = np.flatnonzero(moving & np.isfinite(x).all(axis=1))
    earlier, last_length = np.full(
        (2, n), np.inf
    )  # the smallest residual before the last one, and the last one
    last_image, last_residual = np.empty((2, n, dim))
    images, residuals = np.empty((2, n, DEPTH, dim))
    for iteration in range(solver.max_iterations + 1):
        if not rows.size:
            break
        image, residual = update(x[rows], rows)
        length = norm(residual)
        sane = (length <= solver.tolerance) | (length < earlier[rows])  # False for NaN
        rows, image, residual, length = rows[sane], image[sane], residual[sane], length[sane]
        if iteration:
            slot = (iteration - 1) % DEPTH
            images[rows, slot] = image - last_image[rows]
            residuals[rows, slot] = residual - last_residual[rows]
        known = min(iteration, DEPTH)
        x[rows] = _combine(image, residual, images[rows, :known], residuals[rows, :known])
        done = length <= solver.tolerance
        solved[rows] = done & np.isfinite(x[rows]).all(axis=1)
        last_image[rows], last_residual[rows] = image, residual
        earlier[rows], last_length[rows] = np.minimum(earlier[rows], last_length[rows]), length
        rows = rows[~done]
    x[~solved] = origin[~solved]
    return x, solved


def norm(rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean norm of each row."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def _combine(
    image: np.ndarray, residual: np.ndarray, images: np.ndarray, residuals: np.ndarray
) -> np.ndarray:
    """Return the combination of images with the smallest residual; differences are ``(k, known, dim)``."""
    known = residuals.shape[1]
    if not known or not len(image):
        return image
    gram = np.matmul(residuals, np.swapaxes(residuals, 1, 2))
    # Nearly parallel differences would get huge weights. This ridge is far below the tolerances of the solver.
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2) + 1e-300
    gram[:, np.arange(known), np.arange(known)] += ridge[:, None]
    weights = np.linalg.solve(gram, np.matmul(residuals, residual[:, :, None]))
    return np.asarray(image - np.matmul(np.swapaxes(images, 1, 2), weights)[:, :, 0])


#: Some chains of a batch, by index, or all of them.
Rows = np.ndarray | slice
EVERY = slice(None)


@dataclass(frozen=True, eq=False)
class RiemannianPoint:
    """Positions and momenta of a batch of chains, with potential, gradient and metric there.

    `complete` is False for abandoned trajectories. `unsolved` is True if an implicit equation was the reason.
    """

    position: np.ndarray
    momentum: np.ndarray
    potential: np.ndarray
    gradient: np.ndarray
    local: InvertedMetric
    complete: np.ndarray
    unsolved: np.ndarray

    def take(self, rows: np.ndarray, local: InvertedMetric) -> RiemannianPoint:
        """Return some of the chains; `local` is the metric at their positions."""
        return RiemannianPoint(local=local, **{name: getattr(self, name)[rows] for name in _ARRAYS})

    def put(self, rows: np.ndarray, point: RiemannianPoint) -> RiemannianPoint:
        """Return all chains, with these rows replaced by `point`; the metric is not changed."""
        moved = {name: getattr(self, name).copy() for name in _ARRAYS}
        for name, values in moved.items():
            values[rows] = getattr(point, name)
        return replace(self, **moved)


_ARRAYS = ("position", "momentum", "potential", "gradient", "complete", "unsolved")


@dataclass(frozen=True, eq=False)
class InvertedMetric:
    """A local metric with its inverse, which is computed once because dozens of velocities need it."""

    local: LocalMetric
    inverse: np.ndarray  # (n, dim, dim); NaN where the metric is not positive definite

    @property
    def matrix(self) -> np.ndarray:
        """The metric."""
        return self.local.matrix

    @property
    def cholesky(self) -> np.ndarray:
        """Its lower Cholesky factor."""
        return self.local.cholesky

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        """Return :math:`\\nu`."""
        return self.local.quadratic_contraction(velocity)

    def trace_contraction(self) -> np.ndarray:
        """Return :math:`\\tau`."""
        return self.local.trace_contraction()


def evaluate_metric(metric: RiemannianMetric, position: np.ndarray) -> InvertedMetric:
    """Evaluate a metric at positions, and invert it."""
    local = metric.at(position)
    cholesky = local.cholesky
    pivots = np.diagonal(cholesky, axis1=1, axis2=2)
    usable = np.isfinite(cholesky).all(axis=(1, 2)) & (pivots > 0).all(axis=1)
    inverse = np.full(cholesky.shape, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        factor = np.linalg.inv(cholesky if usable.all() else cholesky[usable])
        inverse[usable] = np.matmul(np.swapaxes(factor, 1, 2), factor)
    return InvertedMetric(local, inverse)


def velocity(local: InvertedMetric, momentum: np.ndarray, rows: Rows = EVERY) -> np.ndarray:
    """Return :math:`G^{-1} p` for these rows; NaN where the metric is not positive definite."""
    return times_rows(local.inverse[rows], momentum)


def riemannian_energy(point: RiemannianPoint) -> np.ndarray:
    r"""Return :math:`U + \frac12 \log\det G + \frac12 p^T G^{-1} p` of each row; NaN where there is no metric."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_det = 2.0 * np.log(np.diagonal(point.local.cholesky, axis1=1, axis2=2)).sum(axis=1)
        kinetic = 0.5 * np.einsum("ij,ij->i", point.momentum, velocity(point.local, point.momentum))
        return np.asarray(point.potential + 0.5 * log_det + kinetic)


def riemannian_momentum(local: InvertedMetric, normals: np.ndarray) -> np.ndarray:
    """Turn standard normals into momenta with covariance G(q); not finite where there is no metric."""
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
    """Integrate each chain for its own number of steps of its own size.

    Force and metric are not evaluated for chains that have ended or were abandoned. A metric object cannot be split
    into rows, so it is evaluated again for the chains that go on, and once more for all chains if they did not end
    together.

    Returns
    -------
    end : RiemannianPoint
    n_taken : ndarray of int, shape (n,)
        Calls of the force for each chain.
    n_metrics : ndarray of int, shape (n,)
        Calls of the metric for each chain.
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
                rows, local = moving, evaluate_metric(metric, end.position[moving])
                n_metrics[rows] += 1
            point, slope[rows], evaluated, n_calls = _step(
                force, metric, end.take(rows, local), slope[rows], step_size[rows], solver
            )
            end, local = end.put(rows, point), point.local
            n_taken[rows] += evaluated
            n_metrics[rows] += n_calls
        if rows.size < n:
            local = evaluate_metric(metric, end.position)
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
    r"""Make one step of all rows, forwards and back; `slope` is :math:`\nabla\phi` at the start.

    Returns the new point, the slope there, which rows called the force, and the calls of the metric for each row.
    """
    half_step = 0.5 * step_size[:, None]
    everyone = np.ones(len(half_step), dtype=bool)
    half, solved = _solve_momentum(start.local, start.momentum, half_step, slope, everyone, solver)
    position, n_metrics, solved = _solve_position(metric, start, half, half_step, solved, solver)
    local = evaluate_metric(metric, position)
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
    return end, slope, solved, n_metrics + n_back + 1


def _returns(
    metric: RiemannianMetric,
    start: RiemannianPoint,
    end: RiemannianPoint,
    half: np.ndarray,
    half_step: np.ndarray,
    slope: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the step back from `end` with its momentum reversed; return the calls of the metric and who returned."""
    back_half, solved = _solve_momentum(end.local, -end.momentum, half_step, slope, end.complete, solver)
    solved &= norm(_white_covector(end.local, back_half + half)) <= solver.return_tolerance
    back, n_metrics, solved = _solve_position(metric, end, back_half, half_step, solved, solver)
    close = norm(_white_vector(start.local, back - start.position)) <= solver.return_tolerance
    return n_metrics, solved & close


def _solve_momentum(
    local: InvertedMetric,
    momentum: np.ndarray,
    half_step: np.ndarray,
    slope: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the first implicit equation, in which the metric is fixed."""
    along = np.zeros_like(momentum)

    def update(half: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        along[rows] = velocity(local, half, rows)
        kick = slope[rows] - 0.5 * local.quadratic_contraction(along)[rows]
        proposal = momentum[rows] - half_step[rows] * kick
        return proposal, _white_covector(local, proposal - half, rows)

    return fixed_point(update, momentum - half_step * slope, momentum, moving, solver)


def _solve_position(
    metric: RiemannianMetric,
    start: RiemannianPoint,
    half: np.ndarray,
    half_step: np.ndarray,
    moving: np.ndarray,
    solver: ImplicitSolver,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Solve the second implicit equation.

    Computing the metric at each iterate is expensive. If the metric has a method `product`, only that is used: with
    :math:`u = G(q')^{-1} p_{1/2}` unknown, the equation is :math:`G(q')\,u = p_{1/2}` at
    :math:`q' = q + \frac{\epsilon}{2} (G(q)^{-1} p_{1/2} + u)`, and :math:`G(q)^{-1}` turns its residual into a change
    of :math:`u`.

    Returns the solution, the number of calls of the metric for each row, and which rows were solved.
    """
    here = velocity(start.local, half)
    n_calls = np.zeros(len(half), dtype=int)

    def by_metric(candidate: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n_calls[rows] += 1
        there = velocity(evaluate_metric(metric, candidate), half[rows])
        proposal = start.position[rows] + half_step[rows] * (here[rows] + there)
        return proposal, _white_vector(start.local, proposal - candidate, rows)

    def by_product(candidate: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unknown = (candidate - start.position[rows]) / half_step[rows] - here[rows]
        error = half[rows] - metric.product(candidate, unknown)  # type: ignore[attr-defined]
        change = half_step[rows] * velocity(start.local, error, rows)
        return candidate + change, _white_vector(start.local, change, rows)

    guess = start.position + 2.0 * half_step * here
    update = by_product if isinstance(metric, ProductMetric) else by_metric
    solution, solved = fixed_point(update, guess, start.position, moving, solver)
    return solution, n_calls, solved


def _white_vector(local: InvertedMetric, delta: np.ndarray, rows: Rows = EVERY) -> np.ndarray:
    """Return displacements in standard deviations."""
    return times_rows(np.swapaxes(local.cholesky[rows], 1, 2), delta)


def _white_covector(local: InvertedMetric, delta: np.ndarray, rows: Rows = EVERY) -> np.ndarray:
    """Return differences of momentum in standard deviations."""
    return _white_vector(local, velocity(local, delta, rows), rows)
