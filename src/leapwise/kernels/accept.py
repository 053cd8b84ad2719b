r"""Accept rules: the only place where the library decides whether a proposal is accepted.

**Metropolis.** Let :math:`T` be a map of phase space that preserves volume and is its own inverse up to the sign of the
momentum. Let the momentum be drawn from :math:`\exp(-K)` before each step. Proposing :math:`T(x)` and accepting it with
probability :math:`\min(1, e^{H(x) - H(T(x))})` leaves :math:`\exp(-H)` invariant, because the flow of probability from
:math:`x` to :math:`T(x)` is

.. math:: e^{-H(x)} \min(1, e^{H(x) - H(T(x))}) = \min(e^{-H(x)}, e^{-H(T(x))}),

which is the same as the flow from :math:`T(x)`, with its momentum reversed, back to :math:`x`. The force behind
:math:`T` does not matter. Two conditions do: :math:`H` contains the *exact* potential, and a trajectory that is
abandoned in one direction is abandoned in the other direction too.

**Surrogate transition.** Let :math:`P(x, dy)` be *any* kernel that is reversible for :math:`e^{-\tilde U}`. Proposing
:math:`y \sim P(x, \cdot)` and accepting it with probability :math:`\min(1, e^{D(x) - D(y)})`, where
:math:`D = U - \tilde U`, is reversible for :math:`e^{-U} = e^{-D} e^{-\tilde U}`. The flow from x to y is

.. math::
    e^{-D(x)} e^{-\tilde U(x)} P(x, dy) \min(1, e^{D(x) - D(y)})
    = e^{-\tilde U(x)} P(x, dy) \min(e^{-D(x)}, e^{-D(y)}),

and it is symmetric in x and y because :math:`e^{-\tilde U(x)} P(x, dy)\, dx` is.

**Progressive sampling**, for the trees of NUTS. Points come one after another. Each replaces the current choice with
probability (its weight) / (the total weight so far, its own included). The final choice is then drawn in proportion to
the weights. A set of points of weight :math:`w'` replaces a set of weight :math:`w` with probability
:math:`\min(1, w'/w)`, which is Metropolis. The docstring of `NUTS` proves that it may use both.
"""

from __future__ import annotations

import numpy as np


def metropolis(
    energy: np.ndarray, proposal_energy: np.ndarray, uniforms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Accept or reject proposals by their exact energies.

    Parameters
    ----------
    energy : ndarray of shape (n,)
        Exact energy of each chain. If it is not finite, the proposal is rejected.
    proposal_energy : ndarray of shape (n,)
        Exact energy of each proposal. If it is not finite, the proposal is rejected.
    uniforms : ndarray of shape (n,)
        Uniform numbers on [0, 1).

    Returns
    -------
    accepted : ndarray of bool, shape (n,)
    probability : ndarray of shape (n,)
        Acceptance probability of each proposal.

    Examples
    --------
    >>> metropolis(np.array([1.0, 1.0]), np.array([0.5, np.nan]), np.array([0.9, 0.0]))
    (array([ True, False]), array([1., 0.]))
    """
    with np.errstate(over="ignore", invalid="ignore"):
        probability = np.exp(-np.maximum(0.0, proposal_energy - energy))
    # If both energies are finite, their difference is finite or overflows with the right sign: both are handled by exp.
    usable = np.isfinite(energy) & np.isfinite(proposal_energy)
    if not usable.all():
        probability[~usable] = 0.0
    return uniforms < probability, probability


def surrogate_transition(
    discrepancy: np.ndarray, proposal_discrepancy: np.ndarray, uniforms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Accept or reject proposals of a kernel that is reversible for a surrogate.

    Parameters
    ----------
    discrepancy, proposal_discrepancy : ndarray of shape (n,)
        Exact potential minus the surrogate's, at each chain and at each proposal. If one of them is not finite, the
        proposal is rejected.
    uniforms : ndarray of shape (n,)
        Uniform numbers on [0, 1).

    Returns
    -------
    accepted : ndarray of bool, shape (n,)
    probability : ndarray of shape (n,)
        Acceptance probability of each proposal.

    Examples
    --------
    >>> surrogate_transition(np.array([0.3, 0.3]), np.array([0.1, np.inf]), np.array([0.9, 0.0]))
    (array([ True, False]), array([1., 0.]))
    """
    return metropolis(discrepancy, proposal_discrepancy, uniforms)


def progressive(log_weight: np.ndarray, log_other: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Decide which new points, or sets of points, replace the current choice.

    Parameters
    ----------
    log_weight : ndarray of shape (n,)
        Log-weight of the new point or set. It is never chosen where this is minus infinity or NaN.
    log_other : ndarray of shape (n,)
        Log-weight that it is compared with.
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
