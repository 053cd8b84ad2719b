"""Trust: how many steps with exact gradients the draws need beside the surrogate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.adapt import Outcome
from leapwise.adaptation.stopping import USELESS
from leapwise.errors import SurrogateError

#: sd(D) up to which trust is full; from `USELESS` on there is none.
GOOD = 0.5


#: Share of surprises up to which trust is full, and from which on there is none.
FEW_SURPRISES, MANY_SURPRISES = 0.1, 0.4
#: Doubt if the last look beyond the frontier found mass that had been walled off.
WALLED = 0.3


#: A larger share of exact steps is not worth the rest.
MOST_MIXED = 0.5


@dataclass(frozen=True)
class Trust:
    """The share of exact steps, and why it is not zero."""

    exact_share: float
    reason: str = ""


def judge(outcome: Outcome) -> Trust:
    """Return how far the surrogate of the adaptation is to be trusted."""
    doubt = max(
        (outcome.sd - GOOD) / (USELESS - GOOD),
        (outcome.surprises - FEW_SURPRISES) / (MANY_SURPRISES - FEW_SURPRISES),
        WALLED if outcome.walled else 0.0,
    )
    if doubt <= 0:  # False for NaN
        return Trust(0.0)
    sd = (
        f"its sd(D) is {outcome.sd:.2g}"
        if outcome.sd < np.inf
        else "too few of its trials had mass to tell sd(D)"
    )
    lower = f" and {outcome.surprises:.0%} of its last trials were surprises" if outcome.surprises else ""
    why = f"{sd}{lower}, after {len(outcome.training)} evaluations"
    if outcome.walled:
        why += "; beyond its outermost draws there is mass (a long tail, a curved ridge, an edge) it does not reach"
    return Trust(1.0 if not doubt < MOST_MIXED else doubt, why)


def require_use(outcome: Outcome, trust: Trust, remedies: str = "give one") -> None:
    """Raise if the surrogate is of no use and there is no gradient to fall back on; `remedies` says what to do.

    Surprises alone do not make it useless: they have been learnt from, and the run warns of them.
    """
    if outcome.sd < USELESS:
        return
    raise SurrogateError(
        f"the surrogate could not be trained well enough to draw with: {trust.reason}. There is no gradient to fall "
        f"back on; {remedies}"
    )
