r"""The split flow: the exact flow of a standard normal, plus kicks by the rest of the potential.

In coordinates in which the posterior is close to a standard normal, the energy is split into that of the standard
normal and the rest,

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

import numpy as np

from leapwise.dynamics.leapfrog import Gradient

#: With at most this many rows, rows that have ended are still computed, and ignored: removing them costs more than it
#: saves. A guess.
FEW_ROWS = 16


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
