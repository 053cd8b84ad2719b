"""How much to spend on learning."""

from __future__ import annotations

from dataclasses import dataclass, replace

from understudy.warmup.rehearsal.law import learning_pays, learning_pays_within

#: Share of the draws' cost that warm-up may always spend: it makes little difference, and buys safety.
CHEAP_SHARE = 0.03
#: What was known is added to by so large a share before another look is taken.
GROWTH = 0.3


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
    """

    dim: int
    n_draws: int
    most: int
    budget: int | None = None
    is_capped: bool = False
    reserve: int = 0
    more: int = 0

    few_surprises = 0.1

    @property
    def least(self) -> int:
        """Evaluations to learn from at least, if the budget allows."""
        if self.budget is not None:
            return min(40 + 2 * self.dim, self.budget // 2)
        return min(max(40 + 2 * self.dim, int(CHEAP_SHARE * self.n_draws)), self.most)

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
