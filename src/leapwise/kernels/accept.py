r"""The only place that says accept.

**Metropolis.** Let :math:`T` be a map of phase space that preserves volume and whose inverse is itself with the
momentum reversed, and let momenta be drawn anew from :math:`\exp(-K)` before each step. Proposing :math:`T(x)` and
accepting with probability :math:`\min(1, e^{H(x) - H(T(x))})` leaves :math:`\exp(-H)` invariant: the flow of
probability from :math:`x` to :math:`T(x)` is

.. math:: e^{-H(x)} \min(1, e^{H(x) - H(T(x))}) = \min(e^{-H(x)}, e^{-H(T(x))}),

the same as from :math:`T(x)`, reversed, back to :math:`x`. It does not matter what made :math:`T`; it matters that
:math:`H` holds the *exact* potential, and that proposals which were given up are given up both ways.

**Surrogate transition.** Let :math:`P(x, dy)` be *any* kernel that is reversible for :math:`e^{-\tilde U}`. Proposing
:math:`y \sim P(x, \cdot)` and accepting with probability :math:`\min(1, e^{D(x) - D(y)})`, where
:math:`D = U - \tilde U`, is reversible for :math:`e^{-U} = e^{-D} e^{-\tilde U}`: the flow from x to y is

.. math::
    e^{-D(x)} e^{-\tilde U(x)} P(x, dy) \min(1, e^{D(x) - D(y)})
    = e^{-\tilde U(x)} P(x, dy) \min(e^{-D(x)}, e^{-D(y)}),

the same from y to x, because :math:`e^{-\tilde U(x)} P(x, dy)\, dx` is.

**Progressive.** Of points that come one after another, take each instead of the one taken so far with probability its
weight over the weight of all so far, itself included: that draws one of them in proportion to the weights. Take one
set of points instead of another, of weights :math:`w'` and :math:`w`, with probability :math:`\min(1, w'/w)`: that is
Metropolis. `NUTS` says why it may do both.
"""

from __future__ import annotations

import numpy as np


def metropolis(
    energy: np.ndarray, proposal_energy: np.ndarray, uniforms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Decide which proposals stand.

    Parameters
    ----------
    energy : ndarray of shape (n,)
        Exact energy of each chain; where it is not finite no proposal is accepted.
    proposal_energy : ndarray of shape (n,)
        Exact energy of each proposal; not finite where there is none, which is never accepted.
    uniforms : ndarray of shape (n,)
        Uniform numbers on [0, 1).

    Returns
    -------
    accepted : ndarray of bool, shape (n,)
    probability : ndarray of shape (n,)
        With which each was accepted.

    Examples
    --------
    >>> metropolis(np.array([1.0, 1.0]), np.array([0.5, np.nan]), np.array([0.9, 0.0]))
    (array([ True, False]), array([1., 0.]))
    """
    with np.errstate(over="ignore", invalid="ignore"):
        probability = np.exp(-np.maximum(0.0, proposal_energy - energy))
    # A difference of finite numbers is one, or too large to hold, and then says which way it goes.
    usable = np.isfinite(energy) & np.isfinite(proposal_energy)
    if not usable.all():
        probability[~usable] = 0.0
    return uniforms < probability, probability


def surrogate_transition(
    discrepancy: np.ndarray, proposal_discrepancy: np.ndarray, uniforms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Decide which proposals of a kernel that is reversible for a surrogate stand for the exact potential.

    Parameters
    ----------
    discrepancy, proposal_discrepancy : ndarray of shape (n,)
        Exact potential less the surrogate's, of each chain and of each proposal; where one of them is not finite the
        proposal is not accepted.
    uniforms : ndarray of shape (n,)
        Uniform numbers on [0, 1).

    Returns
    -------
    accepted : ndarray of bool, shape (n,)
    probability : ndarray of shape (n,)
        With which each was accepted.

    Examples
    --------
    >>> surrogate_transition(np.array([0.3, 0.3]), np.array([0.1, np.inf]), np.array([0.9, 0.0]))
    (array([ True, False]), array([1., 0.]))
    """
    return metropolis(discrepancy, proposal_discrepancy, uniforms)


def progressive(log_weight: np.ndarray, log_other: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Decide which points, or sets of them, are taken instead of what was taken so far.

    Parameters
    ----------
    log_weight : ndarray of shape (n,)
        Logarithm of the weight of the new; minus infinity, or NaN, where it is never taken.
    log_other : ndarray of shape (n,)
        That of what it is compared with.
    uniforms : ndarray of shape (n,)
        Uniform numbers on [0, 1).

    Returns
    -------
    ndarray of bool, shape (n,)

    Examples
    --------
    >>> progressive(np.log([1.0, 3.0]), np.log([2.0, 2.0]), np.array([0.6, 0.6]))
    array([False,  True])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(uniforms < np.exp(np.minimum(0.0, log_weight - log_other)))
