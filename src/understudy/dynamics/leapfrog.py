r"""Leapfrog for a batch of chains.

One step of size :math:`\epsilon` is the composition of three shears (Algorithm 1 of the paper),

.. math::
    p_{1/2} = p - \tfrac{\epsilon}{2} \nabla U(q), \qquad
    q' = q + \epsilon M^{-1} p_{1/2}, \qquad
    p' = p_{1/2} - \tfrac{\epsilon}{2} \nabla U(q').

A shear changes one variable by a function of the other, so it preserves volume; and the composition read
backwards with :math:`p \to -p` is itself, so it is reversible. Neither property asks :math:`\nabla U` to be the
gradient of the true potential, or of anything: any force that is a function of the position alone will do. The
gradient at the end of one step is the one needed at the start of the next: a trajectory costs `n_steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from understudy.dynamics.metrics import EuclideanMetric, kinetic_energy

#: Potentials ``(n,)`` and their gradients ``(n, dim)`` at positions ``(n, dim)``.
Force = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class PhasePoint:
    """Where a batch of chains is: positions and momenta, and the force's potentials and gradients there.

    Rows for which `complete` is False hold the point at which the trajectory was given up.
    """

    position: np.ndarray  # (n, dim)
    momentum: np.ndarray  # (n, dim)
    potential: np.ndarray  # (n,)
    gradient: np.ndarray  # (n, dim)
    complete: np.ndarray  # (n,) bool


def leapfrog(
    force: Force,
    metric: EuclideanMetric,
    start: PhasePoint,
    step_size: np.ndarray,
    n_steps: np.ndarray,
    *,
    max_energy_range: float = 1000.0,
) -> tuple[PhasePoint, np.ndarray]:
    """Follow each chain for its own number of steps of its own size.

    A trajectory is given up, and must then be rejected, when it meets something that is not finite or when the
    energies along it (of the force's potential) differ by more than `max_energy_range`. Both are properties of
    the set of points visited, which is the same backwards, so giving up keeps the balance: it never depends on
    where in the set the trajectory began.

    Parameters
    ----------
    force : callable
        Potentials and gradients of positions; called only for chains that still move, and only where positions
        are finite.
    metric : EuclideanMetric
        Gives velocities.
    start : PhasePoint
        Where to begin, with the force already known there; chains that are not `complete` stay.
    step_size : ndarray of shape (n,)
    n_steps : ndarray of int, shape (n,)
    max_energy_range : float
        Largest minus smallest energy allowed along a trajectory.

    Returns
    -------
    end : PhasePoint
        Where each trajectory ended or was given up.
    n_taken : ndarray of int, shape (n,)
        How many steps each chain took, each one call of the force.

    Examples
    --------
    A harmonic oscillator comes back after one period:

    >>> from understudy.dynamics import UnitMetric
    >>> force = lambda q: (0.5 * (q**2).sum(axis=1), q)
    >>> q, p = np.array([[1.0]]), np.array([[0.0]])
    >>> start = PhasePoint(q, p, *force(q), complete=np.array([True]))
    >>> end, _ = leapfrog(force, UnitMetric(), start, np.array([2 * np.pi / 1000]), np.array([1000]))
    >>> bool(abs(end.position[0, 0] - 1.0) < 1e-4)
    True
    """
    position, momentum = start.position.copy(), start.momentum.copy()
    potential, gradient = start.potential.copy(), start.gradient.copy()
    n_taken = np.zeros(len(position), dtype=int)
    with np.errstate(over="ignore", invalid="ignore"):
        lowest = potential + kinetic_energy(metric, momentum)
        highest = lowest.copy()
        complete = start.complete & np.isfinite(lowest) & np.isfinite(gradient).all(axis=1)
        for step in range(int(n_steps.max(initial=0))):
            moving = np.flatnonzero(complete & (n_steps > step))
            if not moving.size:
                break
            rows = slice(None) if moving.size == len(position) else moving
            epsilon = step_size[rows, None]
            half = momentum[rows] - 0.5 * epsilon * gradient[rows]
            moved = position[rows] + epsilon * metric.velocity(half)
            finite = np.isfinite(moved).all(axis=1)
            if not finite.all():  # where the numbers end there is nothing to evaluate
                complete[rows], rows = finite, moving[finite]
                epsilon, half, moved = epsilon[finite], half[finite], moved[finite]
                if not rows.size:
                    continue
            position[rows] = moved
            potential[rows], gradient[rows] = force(moved)
            momentum[rows] = half - 0.5 * epsilon * gradient[rows]
            energy = potential[rows] + kinetic_energy(metric, momentum[rows])
            lowest[rows], highest[rows] = np.fmin(lowest[rows], energy), np.fmax(highest[rows], energy)
            complete[rows] = np.isfinite(energy) & (highest[rows] - lowest[rows] <= max_energy_range)
            n_taken[rows] += 1
    return PhasePoint(position, momentum, potential, gradient, complete), n_taken
