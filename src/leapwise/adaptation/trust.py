"""Trust: how many steps with exact gradients the draws need beside the surrogate.

None, if its predictions were right; all of them, if it could not learn the posterior or was surprised again and again.
In between, a share of exact steps keeps chains from being held up where the surrogate is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.adapt import AdaptationResult
from leapwise.errors import SurrogateError


@dataclass(frozen=True)
class Trust:
    """The share of exact steps, and why it is not zero."""

    exact_share: float
    reason: str = ""


def judge(result: AdaptationResult) -> Trust:
    """Return how far the surrogate of an adaptation can be trusted."""
    limits, useless = result.settings.trust, result.settings.stopping.useless
    doubt = max(
        (result.sd - limits.good) / (useless - limits.good),
        (result.surprises - limits.few_surprises) / (limits.many_surprises - limits.few_surprises),
        limits.missed if result.missed_mass else 0.0,
    )
    if doubt <= 0:  # False for NaN
        return Trust(0.0)
    return Trust(1.0 if not doubt < limits.most_mixed else doubt, _reason(result))


def _reason(result: AdaptationResult) -> str:
    sd = "too few of its predictions were tested where there is mass to estimate sd(D)"
    if result.sd < np.inf:
        sd = f"its sd(D) is {result.sd:.2g}"
    lower = f" and {result.surprises:.0%} of its last predictions were surprises" if result.surprises else ""
    reason = f"{sd}{lower}, after {len(result.training)} evaluations"
    if result.missed_mass:
        reason += "; beyond its outermost draws there is mass (a long tail, a curved ridge, an edge) it does not reach"
    return reason


def require_use(result: AdaptationResult, trust: Trust, remedies: str = "give one") -> None:
    """Raise if the surrogate is useless and there is no gradient to fall back on; `remedies` says what to do.

    Surprises alone do not make it useless: they have been trained on, and the run warns of them.
    """
    if result.is_useful:
        return
    raise SurrogateError(
        f"the surrogate could not be trained well enough to draw with: {trust.reason}. There is no gradient to fall "
        f"back on; {remedies}"
    )
