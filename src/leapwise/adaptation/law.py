r"""The law of efficiency: what a surrogate of given quality is worth, and when learning no longer pays.

Let proposals come from the surrogate independently of where the chain is, with :math:`D = U - \tilde U` normal of
standard deviation s. A chain at discrepancy D accepts with probability

.. math:: a(D) = \mathrm{E}\min(1, e^{D - D'}) = \Phi(D/s) + e^{D + s^2/2}\, \Phi(-D/s - s), \qquad D' \sim N(0, s^2),

whose mean under the posterior, where :math:`D \sim N(-s^2, s^2)`, is :math:`\mathrm{erfc}(s/2)`. A chain that stays
with probability :math:`1 - a(D)` and otherwise forgets everything has autocorrelations :math:`\mathrm{E}(1 - a)^k`, so
each exact value is worth

.. math:: e(s) = \Big(1 + 2\,\mathrm{E}\,\frac{1 - a(D)}{a(D)}\Big)^{-1}

effective draws. Learning from n evaluations and then drawing N times gives :math:`N e(s_n)` effective draws for
:math:`N + n` evaluations. It pays to learn on while that ratio still rises.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import erfc, ndtr

#: sd(D) from which on a surrogate is of no use: exact steps cost less.
USELESS = 1.3
#: How much larger the training set is in the look ahead of `learning_pays`, and how fast sd(D) falls with it.
LOOK_AHEAD = 1.25
USUAL_RATE = 0.7


def acceptance(sd: float) -> float:
    """Return how often far moves are accepted, of a surrogate with sd(D) = `sd`.

    Examples
    --------
    >>> round(acceptance(0.5), 3)
    0.724
    """
    return float(erfc(0.5 * sd))


def efficiency(sd: float) -> float:
    """Return effective draws for each exact value, of a surrogate with sd(D) = `sd`.

    Examples
    --------
    >>> [round(efficiency(sd), 2) for sd in (0.0, 0.25, 0.5, 1.0)]
    [1.0, 0.73, 0.49, 0.18]
    """
    if not sd > 1e-6:
        return 1.0
    if not sd < 5.0:
        return 0.0
    nodes, weights = _nodes()
    discrepancy = sd * nodes - sd**2
    accept = ndtr(discrepancy / sd) + np.exp(discrepancy + 0.5 * sd**2) * ndtr(-discrepancy / sd - sd)
    stay = np.average((1.0 - accept) / accept, weights=weights)
    return float(1.0 / (1.0 + 2.0 * stay))


@cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a mean over a standard normal; to find them takes longer than to use them."""
    return np.polynomial.hermite_e.hermegauss(40)


def learning_pays(sd: float, n: int, n_draws: int, rate: float = USUAL_RATE) -> bool:
    """Whether it pays to evaluate more before drawing, with sd(D) falling like n to the power of minus `rate`.

    Parameters
    ----------
    sd : float
        sd(D) now, after `n` evaluations.
    n : int
    n_draws : int
        Exact values to be spent on draws.
    rate : float

    Examples
    --------
    >>> learning_pays(0.5, 100, n_draws=4000), learning_pays(0.1, 200, n_draws=200)
    (True, False)
    """
    if not np.isfinite(sd):
        return True
    later = LOOK_AHEAD * n
    now = efficiency(sd) * n_draws / (n_draws + n)
    then = efficiency(sd * LOOK_AHEAD**-rate) * n_draws / (n_draws + later)
    return bool(then > now)


def learning_pays_within(budget: int, n: int, sd: float, rate: float = USUAL_RATE) -> bool:
    """Whether it pays to go on learning when `budget` evaluations are all there is, `n` of them spent.

    Examples
    --------
    >>> learning_pays_within(500, 60, 0.6), learning_pays_within(500, 250, 0.3)
    (True, False)
    """
    if not np.isfinite(sd):
        return LOOK_AHEAD * n < budget
    now = efficiency(sd) * (budget - n)
    then = efficiency(sd * LOOK_AHEAD**-rate) * (budget - LOOK_AHEAD * n)
    return bool(then > now)
