r"""The explicit integrators, for a batch of chains: leapfrog, and the split flow.

**Leapfrog.** One step of size :math:`\epsilon` is the composition of three shears (Algorithm 1 of the paper),

.. math::
    p_{1/2} = p - \tfrac{\epsilon}{2} \nabla U(q), \qquad
    q' = q + \epsilon M^{-1} p_{1/2}, \qquad
    p' = p_{1/2} - \tfrac{\epsilon}{2} \nabla U(q').

A shear changes one variable by a function of the other, so it preserves volume. The composition is symmetric: applied
to the end with :math:`p \to -p` it leads back to the start, so it is reversible. Neither property requires that
:math:`\nabla U` is the gradient of the true potential, or of any function. Any force that is a function of the position
alone will do. The gradient at the end of one step is also the gradient at the start of the next, so a trajectory costs
`n_steps` gradients.

`leapfrog` is for expensive forces: it stops when the energy diverges. `plain_leapfrog` is for cheap ones: it takes all
steps and never needs the potential.

**The split flow** is the exact flow of a standard normal, plus kicks by the rest of the potential. In coordinates in
which the posterior is close to a standard normal, the energy is split into that of the standard normal and the rest,

.. math:: H(q, p) = \tfrac12 |q|^2 + \tfrac12 |p|^2 + \big(U(q) - \tfrac12 |q|^2\big).

The flow of the first two terms is a rotation of each pair :math:`(q_i, p_i)` by an angle equal to the time. The flow of
the last term is a kick. One step of size :math:`\epsilon` is a rotation by :math:`\epsilon/2`, a kick, and a rotation
by :math:`\epsilon/2`:

.. math::
    (q, p) \to (c\, q + s\, p,\; c\, p - s\, q), \qquad
    p \to p - \epsilon\, \big(\nabla U(q) - q\big), \qquad
    (q, p) \to (c\, q + s\, p,\; c\, p - s\, q),

with :math:`c, s = \cos, \sin(\epsilon/2)`. Rotations and shears preserve volume. With :math:`p \to -p`, a rotation is
undone by the same rotation and a kick by the same kick, and the composition is symmetric, so it is reversible. As for
leapfrog, none of this requires that :math:`\nabla U` is the gradient of any function.

For a standard normal a step of any size is exact. In general the error of a step is that of leapfrog times the relative
difference between the posterior and the normal, so a few large steps suffice where leapfrog needs many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from leapwise.dynamics.metrics import EuclideanMetric, kinetic_energy

#: With at most this many rows, rows that have ended are still computed, and ignored: removing them costs more than it
#: saves. A guess.
FEW_ROWS = 16

#: Gradients ``(n, dim)`` at positions ``(n, dim)``.
Gradient = Callable[[np.ndarray], np.ndarray]
#: Potentials ``(n,)`` and their gradients ``(n, dim)`` at positions ``(n, dim)``.
Force = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class PhasePoint:
    """Positions and momenta of a batch of chains, with the force's potentials and gradients there.

    Rows for which `complete` is False hold the point at which the trajectory was abandoned.
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
    """Integrate each chain for its own number of steps of its own size.

    A trajectory is abandoned, and must then be rejected, when it meets a number that is not finite, or when the
    energies along it (with the force's potential) differ by more than `max_energy_range`. Both are properties of the
    set of points visited. That set is the same for the reversed trajectory, so both directions are abandoned together
    and detailed balance holds.

    Parameters
    ----------
    force : callable
        Potentials and gradients of positions. It is called only for chains that still move, at finite positions.
    metric : EuclideanMetric
        Gives velocities.
    start : PhasePoint
        Start, with the force already evaluated there. Chains that are not `complete` do not move.
    step_size : ndarray of shape (n,)
    n_steps : ndarray of int, shape (n,)
    max_energy_range : float
        Largest minus smallest energy allowed along a trajectory.

    Returns
    -------
    end : PhasePoint
        Where each trajectory ended or was abandoned.
    n_taken : ndarray of int, shape (n,)
        Steps taken by each chain; each is one call of the force.

    Examples
    --------
    A harmonic oscillator returns after one period:

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
        rows = np.flatnonzero(end.complete & (n_steps > 0))  # chains that still move, as the arrays below
        q, p, gradient = end.position[rows], end.momentum[rows], end.gradient[rows]
        lowest = highest = energy[rows]
        for step in range(1, int(n_steps.max(initial=0)) + 1):
            if not rows.size:
                break
            epsilon = step_size[rows, None]
            half = p - 0.5 * epsilon * gradient
            q = q + epsilon * metric.velocity(half)
            if not np.isfinite(q).all():  # a position that is not finite cannot be evaluated
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
    """Integrate like `leapfrog`, for a cheap force whose potential is not needed.

    Energies are not monitored. A trajectory is abandoned only when it meets a number that is not finite. That depends
    on the set of points visited, which is the same for the reversed trajectory. The `potential` of the end point is
    that of the start.

    Parameters
    ----------
    gradient : callable
        Gradients of positions. It is called only at finite positions.
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
            half = half - epsilon * slope  # two half kicks at one position are one whole kick
        end.complete[:] &= np.isfinite(end.momentum).all(axis=1) & np.isfinite(end.gradient).all(axis=1)
    return end


def _arrays(point: PhasePoint) -> tuple[np.ndarray, ...]:
    return point.position, point.momentum, point.potential, point.gradient, point.complete


def _store(end: PhasePoint, rows: np.ndarray, point: PhasePoint) -> None:
    """Write a batch of points into the given rows."""
    for whole, part in zip(_arrays(end), _arrays(point), strict=True):
        whole[rows] = part


def split_flow(
    gradient: Gradient,
    position: np.ndarray,
    momentum: np.ndarray,
    step_size: np.ndarray,
    n_steps: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integrate each chain for its own number of steps of its own size, in coordinates close to a standard normal.

    The gradient is evaluated once in each step, in its middle. Energies are not monitored. A trajectory is abandoned
    only when it meets a number that is not finite. That depends on the set of points visited, which is the same for the
    reversed trajectory.

    Parameters
    ----------
    gradient : callable
        Gradients of positions. It is called only at finite positions.
    position, momentum : ndarray of shape (n, dim)
        Start. Momenta are standard normals.
    step_size : ndarray of shape (n,)
    n_steps : ndarray of int, shape (n,)

    Returns
    -------
    position, momentum : ndarray of shape (n, dim)
        Where each trajectory ended; undefined for abandoned trajectories.
    complete : ndarray of bool, shape (n,)
        False for abandoned trajectories.

    Examples
    --------
    For a standard normal, after a quarter period the position is the initial momentum:

    >>> q, p = np.array([[1.0, 0.0]]), np.array([[0.3, 0.5]])
    >>> end, _, _ = split_flow(lambda q: q, q, p, np.array([np.pi / 4]), np.array([2]))
    >>> end.round(12)
    array([[0.3, 0.5]])
    """
    # With the complex number q + i p for each coordinate, a rotation is one multiplication.
    point = np.empty(position.shape, dtype=complex)
    point.real, point.imag = position, momentum
    ends, rows, end, epsilon = set(n_steps.tolist()), np.arange(len(point)), point.copy(), step_size[:, None]
    last = max(ends, default=0)
    with np.errstate(all="ignore"):
        half = np.exp(-0.5j * epsilon)
        whole = half * half
        point *= half
        for step in range(1, last + 1):
            if step - 1 in ends and len(rows) > FEW_ROWS:
                on = n_steps[rows] >= step
                rows, point, epsilon = rows[on], point[on], epsilon[on]
                half, whole = half[on], whole[on]
            q = point.real.copy()
            if not math.isfinite(np.add.reduce(q, axis=None)):
                # A position that is not finite cannot be evaluated: these rows go on from 0 with a momentum of NaN.
                lost = ~np.isfinite(q).all(axis=1)
                q[lost], point[lost] = 0.0, complex(0.0, np.nan)
            kick = gradient(q) - q
            kick *= epsilon
            point.imag -= kick
            if step in ends:
                here = np.flatnonzero(n_steps[rows] == step)
                end[rows[here]] = point[here] * half[here]
            point *= whole
        q, p = end.real.copy(), end.imag.copy()
        if math.isfinite(np.add.reduce(q, axis=None) + np.add.reduce(p, axis=None)):
            return q, p, np.ones(len(q), dtype=bool)
        return q, p, np.isfinite(q).all(axis=1) & np.isfinite(p).all(axis=1)
