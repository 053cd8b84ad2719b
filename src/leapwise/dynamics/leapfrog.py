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

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from leapwise.dynamics.metrics import EuclideanMetric, kinetic_energy

#: Gradients ``(n, dim)`` at positions ``(n, dim)``.
Gradient = Callable[[np.ndarray], np.ndarray]
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

    >>> from leapwise.dynamics import UnitMetric
    >>> force = lambda q: (0.5 * (q**2).sum(axis=1), q)
    >>> q, p = np.array([[1.0]]), np.array([[0.0]])
    >>> start = PhasePoint(q, p, *force(q), complete=np.array([True]))
    >>> end, _ = leapfrog(force, UnitMetric(), start, np.array([2 * np.pi / 1000]), np.array([1000]))
    >>> bool(abs(end.position[0, 0] - 1.0) < 1e-4)
    True
    """
    end = PhasePoint(*(np.array(each) for each in _arrays(start)))
    n_taken = np.zeros(len(n_steps), dtype=int)
    with np.errstate(over="ignore", invalid="ignore"):
        energy = end.potential + kinetic_energy(metric, end.momentum)
        end.complete[:] &= np.isfinite(energy) & np.isfinite(end.gradient).all(axis=1)
        rows = np.flatnonzero(end.complete & (n_steps > 0))  # chains that move; what follows is theirs alone
        q, p, gradient = end.position[rows], end.momentum[rows], end.gradient[rows]
        lowest = highest = energy[rows]
        for step in range(1, int(n_steps.max(initial=0)) + 1):
            if not rows.size:
                break
            epsilon = step_size[rows, None]
            half = p - 0.5 * epsilon * gradient
            q = q + epsilon * metric.velocity(half)
            if not np.isfinite(q).all():  # where the numbers end there is nothing to evaluate
                finite = np.isfinite(q).all(axis=1)
                end.complete[rows[~finite]] = False
                rows, q, half, epsilon = rows[finite], q[finite], half[finite], epsilon[finite]
                lowest, highest = lowest[finite], highest[finite]
                if not rows.size:
                    break
            potential, gradient = force(q)
            p = half - 0.5 * epsilon * gradient
            energy = potential + kinetic_energy(metric, p)
            lowest, highest = np.minimum(lowest, energy), np.maximum(highest, energy)
            complete = highest - lowest <= max_energy_range  # False for NaN
            going_on = complete & (n_steps[rows] > step)
            if not going_on.all():
                _store(end, rows, PhasePoint(q, p, potential, gradient, complete))
                n_taken[rows] = step
                rows, q, p, gradient = rows[going_on], q[going_on], p[going_on], gradient[going_on]
                lowest, highest = lowest[going_on], highest[going_on]
    return end, n_taken


def plain_leapfrog(
    gradient: Gradient,
    metric: EuclideanMetric,
    start: PhasePoint,
    step_size: np.ndarray,
    n_steps: np.ndarray,
) -> PhasePoint:
    """Follow each chain like `leapfrog`, for a force that costs next to nothing and need not know its potential.

    No energy is looked at on the way: a trajectory is given up only where the numbers end, which like its reversal
    depends on the points visited alone. The `potential` of the end point is that of the start.

    Parameters
    ----------
    gradient : callable
        Gradients of positions; called only where positions are finite.
    metric, start, step_size, n_steps
        As for `leapfrog`.

    Examples
    --------
    >>> from leapwise.dynamics import UnitMetric
    >>> q, p = np.array([[1.0]]), np.array([[0.0]])
    >>> start = PhasePoint(q, p, np.array([0.5]), q, complete=np.array([True]))
    >>> end = plain_leapfrog(lambda q: q, UnitMetric(), start, np.array([2 * np.pi / 1000]), np.array([1000]))
    >>> bool(abs(end.position[0, 0] - 1.0) < 1e-4)
    True
    """
    end = PhasePoint(*(np.array(each) for each in _arrays(start)))
    ends = set(n_steps.tolist())
    with np.errstate(all="ignore"):
        end.complete[:] &= np.isfinite(end.momentum).all(axis=1) & np.isfinite(end.gradient).all(axis=1)
        rows = np.flatnonzero(end.complete & (n_steps > 0))
        q, p, slope, epsilon = (
            end.position[rows],
            end.momentum[rows],
            end.gradient[rows],
            step_size[rows, None],
        )
        half = p - 0.5 * epsilon * slope
        for step in range(1, max(ends, default=0) + 1):
            q = q + epsilon * metric.velocity(half)
            if not math.isfinite(q.sum()):
                finite = np.isfinite(q).all(axis=1)
                end.complete[rows[~finite]] = False
                rows, q, half, epsilon = rows[finite], q[finite], half[finite], epsilon[finite]
            if not rows.size:
                break
            slope = gradient(q)
            if step in ends:
                here = n_steps[rows] == step
                done, on = rows[here], ~here
                end.position[done], end.gradient[done] = q[here], slope[here]
                end.momentum[done] = half[here] - 0.5 * epsilon[here] * slope[here]
                rows, q, half, slope, epsilon = (each[on] for each in (rows, q, half, slope, epsilon))
            half = half - epsilon * slope  # the half kicks before and after the next drift are one
        end.complete[:] &= np.isfinite(end.momentum).all(axis=1) & np.isfinite(end.gradient).all(axis=1)
    return end


def _arrays(point: PhasePoint) -> tuple[np.ndarray, ...]:
    return point.position, point.momentum, point.potential, point.gradient, point.complete


def _store(end: PhasePoint, rows: np.ndarray, point: PhasePoint) -> None:
    """Write the rows of a batch where they belong."""
    for whole, part in zip(_arrays(end), _arrays(point), strict=True):
        whole[rows] = part
