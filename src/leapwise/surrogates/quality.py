r"""The quality of a surrogate: sd(D), the standard deviation of its discrepancy.

The discrepancy :math:`D = U - \tilde U` is the exact minus the predicted potential. Acceptance depends only on
differences of D, so a constant in D does not matter. The distance of appendix B of the paper is therefore a variance,

.. math:: \min_c \mathrm{E}\,\big(\tilde U - U - c\big)^2 = \mathrm{Var}(\tilde U - U) = \mathrm{Var}(D),

under the posterior, estimated from evaluations that the surrogate was *not* trained on. Far moves are accepted about as
often as :math:`\mathrm{erfc}(\mathrm{sd}(D)/2)`.

All functions take discrepancies ``(n,)``. Their centre is the median, which a few extreme ones do not move.

These are formulas only. During the adaptation `leapwise.adaptation.record` measures D with them, at each evaluation
before the surrogate is trained on it. For the draws `leapwise.results.statistics` does, at the proposals of the frozen
kernel.
"""

from __future__ import annotations

import numpy as np

#: A discrepancy counts as at most this far from the median. Derived: a proposal with D this far above the median is
#: accepted with a probability of about e^-4 = 2 %, so being further off makes no difference. Without a limit a single
#: discrepancy of a hundred would make a good surrogate look useless.
CLIP = 4.0
#: Half of the values of a normal distribution are within this many standard deviations of the median.
_PROBABLE_ERROR = 0.6745


def median_discrepancy(discrepancy: np.ndarray) -> float:
    """Return the median of the finite discrepancies, 0 if there are none."""
    finite = discrepancy[np.isfinite(discrepancy)]
    return float(np.median(finite)) if len(finite) else 0.0


def discrepancy_sd(discrepancy: np.ndarray) -> float:
    """Return sd(D): the root mean square deviation from the median, each clipped at 4; NaN if there are none.

    Examples
    --------
    >>> round(discrepancy_sd(np.append(np.random.default_rng(1).normal(5.0, 0.3, 4000), 1e6)), 1)
    0.3
    """
    if not discrepancy.size:
        return np.nan
    deviation = np.clip(discrepancy - median_discrepancy(discrepancy), -CLIP, CLIP)
    return float(np.sqrt(np.mean(deviation**2)))


def robust_discrepancy_sd(discrepancy: np.ndarray) -> float:
    """Return sd(D) estimated from the middle half of the discrepancies, 0 if there are none.

    Up to a quarter of the discrepancies on either side can be extreme without widening it.

    Examples
    --------
    >>> round(robust_discrepancy_sd(np.append(np.random.default_rng(1).normal(5.0, 0.3, 4000), [1e6] * 40)), 1)
    0.3
    """
    if not discrepancy.size:
        return 0.0
    return float(np.median(np.abs(discrepancy - np.median(discrepancy)))) / _PROBABLE_ERROR
