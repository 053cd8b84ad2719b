r"""Implicit equations :math:`x = g(x)`, solved for a batch of chains at once.

Plain iteration :math:`x \leftarrow g(x)` converges only where :math:`g` contracts, and slowly where it hardly does.
Anderson acceleration remembers the last few residuals :math:`r = g(x) - x`, finds the combination of them that comes
closest to zero, and goes to the same combination of the :math:`g(x)`:

.. math:: x_{k+1} = g(x_k) - \sum_j \gamma_j \, \Delta g_j, \qquad
    \gamma = \arg\min \Big\| r_k - \sum_j \gamma_j \, \Delta r_j \Big\|,

with differences :math:`\Delta` between successive iterates. Lengths are measured in standard deviations, so that the
result does not depend on the units of the parameters.

The iteration stops when :math:`\|r_k\|` is within the tolerance, and :math:`x_{k+1}` is taken, which is better still by
the rate of convergence and costs nothing. A row whose residual does not shrink over any two iterations is given up:
iterations that wander before they converge depend on every digit of their start, and would not be found again on the
way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from leapwise.checks import require_positive, require_whole

DEPTH = 4  # residuals remembered

#: Takes the iterates ``(k, dim)`` of some rows, and which rows they are; returns g(x), and the residual g(x) - x in
#: standard deviations.
Update = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class ImplicitSolver:
    """How hard to work on the implicit equations.

    Parameters
    ----------
    tolerance : float
        Residual at which the iteration stops, in standard deviations; the solution is better than that.
    max_iterations : int
        Iterations after which an equation counts as unsolved.
    return_tolerance : float
        Largest distance between a step's start and where the way back ends, in standard deviations.

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


def fixed_point(
    update: Update, guess: np.ndarray, origin: np.ndarray, moving: np.ndarray, solver: ImplicitSolver
) -> tuple[np.ndarray, np.ndarray]:
    """Iterate until each moving row is within the tolerance; return the iterates and who was solved.

    No row depends on how long its neighbours take. Rows that are not solved rest at `origin`.

    Examples
    --------
    The iteration x <- 2 - 1.5 x runs away from its solution 0.8; accelerated, it does not:

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
    earlier, last_length = np.full((2, n), np.inf)  # smallest residual before the last, and the last
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
    """Length of each row."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def _combine(
    image: np.ndarray, residual: np.ndarray, images: np.ndarray, residuals: np.ndarray
) -> np.ndarray:
    """Return the images combined as makes their residuals smallest; differences are ``(k, known, dim)``."""
    known = residuals.shape[1]
    if not known or not len(image):
        return image
    gram = np.matmul(residuals, np.swapaxes(residuals, 1, 2))
    # Differences that are nearly parallel would give huge weights; what little they add is not worth it.
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2) + 1e-300
    gram[:, np.arange(known), np.arange(known)] += ridge[:, None]
    weights = np.linalg.solve(gram, np.matmul(residuals, residual[:, :, None]))
    return np.asarray(image - np.matmul(np.swapaxes(images, 1, 2), weights)[:, :, 0])
