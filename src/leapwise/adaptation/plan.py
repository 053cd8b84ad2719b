"""How much to spend on learning."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from leapwise.adaptation.law import learning_pays, learning_pays_within

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
