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

from understudy.dynamics.leapfrog import Gradient


def swing(
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
    >>> end, _, _ = swing(lambda q: q, q, p, np.array([np.pi / 4]), np.array([2]))
    >>> end.round(12)
    array([[0.3, 0.5]])
    """
    q, p, epsilon = position, momentum, step_size[:, None]
    rows, ends = None, set(n_steps.tolist())
    end_q, end_p = np.array(position), np.array(momentum)
    if 0 in ends:
        rows = np.flatnonzero(n_steps > 0)
        q, p, epsilon = q[rows], p[rows], epsilon[rows]
    with np.errstate(all="ignore"):
        half = np.cos(0.5 * epsilon), np.sin(0.5 * epsilon)
        whole = (np.cos(epsilon), np.sin(epsilon)) if max(ends, default=0) > 1 else half
        q, p = turn(q, p, *half)
        for step in range(1, max(ends, default=0) + 1):
            if not math.isfinite(q.sum()):
                # Where the numbers end there is nothing to evaluate: such rows go on, but from nowhere.
                lost = ~np.isfinite(q).all(axis=1)
                q[lost], p[lost] = 0.0, np.nan
            slope = gradient(q)
            p = p - epsilon * (slope - q)
            if step in ends:
                here = (n_steps if rows is None else n_steps[rows]) == step
                if here.all():
                    last = turn(q, p, *half)
                    if rows is None:
                        end_q, end_p = last
                    else:
                        end_q[rows], end_p[rows] = last
                    break
                done = np.flatnonzero(here) if rows is None else rows[here]
                end_q[done], end_p[done] = turn(q[here], p[here], half[0][here], half[1][here])
                on = ~here
                rows = np.flatnonzero(on) if rows is None else rows[on]
                q, p, epsilon = q[on], p[on], epsilon[on]
                half, whole = (half[0][on], half[1][on]), (whole[0][on], whole[1][on])
            q, p = turn(q, p, *whole)
        if math.isfinite(end_q.sum() + end_p.sum()):
            return end_q, end_p, np.ones(len(end_q), dtype=bool)
        return end_q, end_p, np.isfinite(end_q).all(axis=1) & np.isfinite(end_p).all(axis=1)


def turn(q: np.ndarray, p: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn position and momentum into one another."""
    return cosine * q + sine * p, cosine * p - sine * q
