r"""Swinging about a centre: the flow of a normal distribution, deflected by what a potential differs from it by.

In coordinates in which the posterior is about a standard normal, the energy is split into that of the standard normal
and the rest,

.. math:: H(q, p) = \tfrac12 |q|^2 + \tfrac12 |p|^2 + \big(U(q) - \tfrac12 |q|^2\big).

The first two terms alone turn position and momentum into one another, by an angle that is the time; the last alone is a
kick. One step of size :math:`\epsilon` is half a turn, a kick, and half a turn:

.. math::
    (q, p) \to (c\, q + s\, p,\; c\, p - s\, q), \qquad
    p \to p - \epsilon\, \big(\nabla U(q) - q\big), \qquad
    (q, p) \to (c\, q + s\, p,\; c\, p - s\, q),

with :math:`c, s = \cos, \sin(\epsilon/2)`. A turn is a rotation of phase space and a kick is a shear, so both preserve
volume; a turn with :math:`p \to -p` is undone by the same turn, a kick by the same kick, and the composition reads the
same backwards: it is reversible. As for leapfrog, none of this asks :math:`\nabla U` to be the gradient of anything.

For a standard normal a step of any length is exact. The error of a step is that of leapfrog times what the posterior
differs from a normal by, so that few and long steps do where leapfrog needs many.
"""

from __future__ import annotations

import math

import numpy as np

from leapwise.dynamics.leapfrog import Gradient

#: Of so few rows, those that have ended go on beside the others, unheard: to leave them out would take longer.
FEW_ROWS = 16


def split_flow(
    gradient: Gradient,
    position: np.ndarray,
    momentum: np.ndarray,
    step_size: np.ndarray,
    n_steps: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Follow each chain for its own number of steps of its own size, in coordinates about a standard normal.

    No energy is looked at on the way, and the gradient is asked for once a step, at neither end. A trajectory is given
    up only where the numbers end, which like its reversal depends on the points visited alone.

    Parameters
    ----------
    gradient : callable
        Gradients of positions; called only where positions are finite.
    position, momentum : ndarray of shape (n, dim)
        Where to begin; momenta are standard normals.
    step_size : ndarray of shape (n,)
    n_steps : ndarray of int, shape (n,)

    Returns
    -------
    position, momentum : ndarray of shape (n, dim)
        Where each trajectory ended; of one that was given up, something.
    complete : ndarray of bool, shape (n,)
        Whether it was not given up.

    Examples
    --------
    A quarter of a turn makes the position of a standard normal out of the momentum:

    >>> q, p = np.array([[1.0, 0.0]]), np.array([[0.3, 0.5]])
    >>> end, _, _ = split_flow(lambda q: q, q, p, np.array([np.pi / 4]), np.array([2]))
    >>> end.round(12)
    array([[0.3, 0.5]])
    """
    # With a complex number q + i p for each coordinate, a turn is one multiplication.
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
                # Where the numbers end there is nothing to evaluate: such rows go on, but from nowhere.
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
