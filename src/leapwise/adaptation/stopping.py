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

How much to spend on learning.

Trust: how many steps with exact gradients the draws need beside the surrogate.

None, if what it predicted was right; all of them, if it could not learn the posterior or was surprised again and again.
In between a share of exact steps keeps chains from being held up where the surrogate is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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


#: Share of the draws' cost that warm-up may always spend: it makes little difference, and buys safety.
CHEAP_SHARE = 0.03
#: What was known is added to by so large a share before another look is taken.
GROWTH = 0.3
#: sd(D) above which a surrogate does not draw alone, what it must become of that to learn on, and what counts as none.
POOR, BETTER, HOPELESS = 0.5, 0.9, 4.0


@dataclass(frozen=True)
class Plan:
    """Decides when enough has been learnt.

    Parameters
    ----------
    dim : int
        Number of parameters.
    n_draws : int
        Exact values that the draws will cost.
    budget : int, optional
        All that may be spent, on learning and draws together.
    most : int
        Evaluations to learn from at most.
    is_capped : bool
        Whether that is the user's own limit.
    reserve : int
        How many of them are kept for a last look at what may be wrong.
    more : int
        How many may be added to them while such looks find mass that the surrogate had walled off.
    patience : int
        How many may be added while the surrogate is too poor to draw with alone, but gets better: an effective draw
        with exact gradients costs ten to a hundred of them.
    poor_sd : float
        sd(D) when some were last added for that.
    to_find : int
        How many it may take to find the typical set, beyond `most`.
    """

    dim: int
    n_draws: int
    most: int
    budget: int | None = None
    is_capped: bool = False
    reserve: int = 0
    more: int = 0
    patience: int = 0
    poor_sd: float = np.inf
    to_find: int = 0

    few_surprises = 0.1

    @property
    def is_limited(self) -> bool:
        """Whether the user has set a limit."""
        return self.budget is not None or self.is_capped

    @property
    def most_to_find(self) -> int:
        """Evaluations at most until the typical set is found."""
        return self.most + self.to_find

    @property
    def most_in_all(self) -> int:
        """Evaluations at most, whatever is met."""
        return self.most + self.more + self.patience

    def after(self, n: int) -> Plan:
        """Return the plan once it has taken `n` evaluations to find the typical set: enough is left to learn it."""
        if self.is_limited:
            return self
        return replace(self, most=max(self.most, n + self.reserve + 2 * self._few))

    def while_poor(self, n: int, sd: float) -> Plan | None:
        """Return the plan with room to learn on after `n` evaluations, or None if it is good or gets no better."""
        added = min(self.patience, max(2 * self._few, int(GROWTH * n)))
        if not sd > POOR or added <= 0 or not (np.isinf(self.poor_sd) or sd < BETTER * self.poor_sd):
            return None
        return replace(
            self, most=n + self.reserve + added, patience=self.patience - added, poor_sd=min(sd, HOPELESS)
        )

    @property
    def _few(self) -> int:
        """Evaluations that tell something of a surrogate."""
        return 40 + 2 * self.dim

    @property
    def least(self) -> int:
        """Evaluations to learn from at least, if the budget allows."""
        if self.budget is not None:
            return min(self._few, self.budget // 2)
        return min(max(self._few, int(CHEAP_SHARE * self.n_draws)), self.most)

    def longer(self, n: int) -> Plan:
        """Return the plan with room to learn what was found after `n` evaluations, as far as it may grow."""
        wanted = n + self.reserve + int(GROWTH * n) - self.most
        added = min(max(wanted, 0), self.more)
        return replace(self, most=self.most + added, more=self.more - added)

    def enough(self, n: int, sd: float, surprises: float, rate: float) -> bool:
        """Whether to stop learning after `n` evaluations, with sd(D) falling at a `rate`."""
        if n >= self.most - self.reserve:
            return True
        if n < self.least:
            return False
        if surprises > self.few_surprises:
            return False
        if self.budget is not None:
            return not learning_pays_within(self.budget, n, sd, rate)
        return not learning_pays(sd, n, self.n_draws, rate)
