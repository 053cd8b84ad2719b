r"""When to stop: learn on while effective draws per evaluation, warm-up included, still rise.

Let :math:`s_n` be sd(D) after n evaluations of warm-up, and :math:`e(s)` the number of effective draws that each exact
value is worth with a surrogate of quality s. N draws then give :math:`N e(s_n)` effective draws for :math:`N + n`
evaluations. More learning lowers s and raises n; it pays as long as

.. math:: \frac{N e(s_n)}{N + n}

rises with n. `learning_pays` compares it now and after a quarter more evaluations, and `learning_pays_within` does so
for a fixed sum N + n. `AdaptationPlan` applies this rule within the limits of a run.

**The efficiency e(s).** Let proposals come from the surrogate independently of the state, and let the discrepancy
:math:`D = U - \tilde U` be normal with standard deviation s under the surrogate. A chain at discrepancy D accepts with
probability

.. math:: a(D) = \mathrm{E}\min(1, e^{D - D'}) = \Phi(D/s) + e^{D + s^2/2}\, \Phi(-D/s - s), \qquad D' \sim N(0, s^2),

whose mean under the posterior, where :math:`D \sim N(-s^2, s^2)`, is :math:`\mathrm{erfc}(s/2)`. A chain that stays
with probability :math:`1 - a(D)` and otherwise forgets everything has autocorrelations :math:`\mathrm{E}(1 - a)^k`, so

.. math:: e(s) = \Big(1 + 2\,\mathrm{E}\,\frac{1 - a(D)}{a(D)}\Big)^{-1}.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import erfc, ndtr

from leapwise.adaptation.settings import DEFAULT, StoppingSettings


def acceptance(sd: float) -> float:
    """Return how often far moves are accepted with a surrogate of sd(D) = `sd`.

    Examples
    --------
    >>> round(acceptance(0.5), 3)
    0.724
    """
    return float(erfc(0.5 * sd))


def efficiency(sd: float) -> float:
    """Return effective draws per exact value with a surrogate of sd(D) = `sd`.

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
    """Return nodes and weights of a mean over a standard normal; computing them takes longer than using them."""
    return np.polynomial.hermite_e.hermegauss(40)


def learning_pays(
    sd: float, n: int, n_draws: int, rate: float | None = None, settings: StoppingSettings = DEFAULT.stopping
) -> bool:
    """Return whether it pays to evaluate more before drawing, if sd(D) falls like n to the power of minus `rate`.

    Parameters
    ----------
    sd : float
        sd(D) now, after `n` evaluations.
    n : int
    n_draws : int
        Exact values to be spent on draws.
    rate : float, optional
        ``settings.usual_rate`` if not given.
    settings : StoppingSettings

    Examples
    --------
    >>> learning_pays(0.5, 100, n_draws=4000), learning_pays(0.1, 200, n_draws=200)
    (True, False)
    """
    if not np.isfinite(sd):
        return True
    ahead, rate = settings.look_ahead, settings.usual_rate if rate is None else rate
    later = ahead * n
    now = efficiency(sd) * n_draws / (n_draws + n)
    then = efficiency(sd * ahead**-rate) * n_draws / (n_draws + later)
    return bool(then > now)


def learning_pays_within(
    budget: int, n: int, sd: float, rate: float | None = None, settings: StoppingSettings = DEFAULT.stopping
) -> bool:
    """Return whether it pays to learn on if `budget` evaluations are allowed in all, `n` of them spent.

    Examples
    --------
    >>> learning_pays_within(500, 60, 0.6), learning_pays_within(500, 250, 0.3)
    (True, False)
    """
    ahead, rate = settings.look_ahead, settings.usual_rate if rate is None else rate
    if not np.isfinite(sd):
        return ahead * n < budget
    now = efficiency(sd) * (budget - n)
    then = efficiency(sd * ahead**-rate) * (budget - ahead * n)
    return bool(then > now)


@dataclass(frozen=True)
class AdaptationPlan:
    """How many evaluations the adaptation may take, and when it has learned enough.

    Parameters
    ----------
    dim : int
        Number of parameters.
    n_draws : int
        Exact values that the draws will cost.
    most : int
        Evaluations to learn from at most.
    budget : int, optional
        Limit on learning and draws together.
    is_capped : bool
        Whether `most` is the user's own limit.
    reserve : int
        Evaluations of `most` that are kept for the look beyond the outermost draws.
    extra : int
        Evaluations that may be added while such looks find mass that the surrogate misses.
    patience : int
        Evaluations that may be added while the surrogate is poor but gets better: an effective draw with exact
        gradients costs ten to a hundred of them.
    poor_sd : float
        sd(D) when some were last added for that reason.
    to_initialise : int
        Evaluations beyond `most` that finding the typical set may take.
    settings : StoppingSettings
    """

    dim: int
    n_draws: int
    most: int
    budget: int | None = None
    is_capped: bool = False
    reserve: int = 0
    extra: int = 0
    patience: int = 0
    poor_sd: float = np.inf
    to_initialise: int = 0
    settings: StoppingSettings = DEFAULT.stopping

    @property
    def is_limited(self) -> bool:
        """Whether the user has set a limit."""
        return self.budget is not None or self.is_capped

    @property
    def most_to_initialise(self) -> int:
        """Evaluations at most until the typical set is found."""
        return self.most + self.to_initialise

    @property
    def most_in_all(self) -> int:
        """Evaluations at most, with everything that may be added."""
        return self.most + self.extra + self.patience

    @property
    def least(self) -> int:
        """Evaluations to learn from at least, if the budget allows."""
        if self.budget is not None:
            return min(self._few, self.budget // 2)
        return min(max(self._few, int(self.settings.cheap_share * self.n_draws)), self.most)

    @property
    def _few(self) -> int:
        return self.settings.few + self.settings.few_each * self.dim

    def after_initialise(self, n: int, n_far: int = 0) -> AdaptationPlan:
        """Return the plan after `n` evaluations found the typical set, with enough left to learn it.

        `n_far` of them were so far above it that they are not trained on; these do not count as learning.
        """
        if self.is_limited:
            return self
        return replace(self, most=max(self.most + n_far, n + self.reserve + 2 * self._few))

    def extended(self, n: int) -> AdaptationPlan:
        """Return the plan with room to learn the mass that was found after `n` evaluations, as far as it may grow."""
        wanted = n + self.reserve + int(self.settings.growth * n) - self.most
        added = min(max(wanted, 0), self.extra)
        return replace(self, most=self.most + added, extra=self.extra - added)

    def extended_while_poor(self, n: int, sd: float, *, insist: bool = False) -> AdaptationPlan | None:
        """Return the plan with room to learn on after `n` evaluations, or None if sd(D) is good or gets no better.

        `insist`: while the surrogate is useless any improvement counts, because nothing else could make the draws.
        """
        settings = self.settings
        added = min(self.patience, max(2 * self._few, int(settings.growth * n)))
        better = 1.0 if insist and sd > settings.useless else settings.better
        improves = np.isinf(self.poor_sd) or sd < better * self.poor_sd
        if not sd > settings.poor or added <= 0 or not improves:
            return None
        return replace(
            self,
            most=n + self.reserve + added,
            patience=self.patience - added,
            poor_sd=min(sd, settings.hopeless),
        )

    def is_enough(self, n: int, sd: float, surprises: float, rate: float) -> bool:
        """Return whether to stop learning after `n` evaluations, with sd(D) falling at a `rate`."""
        if n >= self.most - self.reserve:
            return True
        if n < self.least:
            return False
        if surprises > self.settings.few_surprises:
            return False
        if self.budget is not None:
            return not learning_pays_within(self.budget, n, sd, rate, self.settings)
        return not learning_pays(sd, n, self.n_draws, rate, self.settings)
