"""What a run says of its surrogate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class SurrogateReport:
    """How the surrogate of a self-tuned run was learnt, and how far it was trusted.

    Attributes
    ----------
    kind : str
        Which candidate was chosen.
    sd : float
        sd(D) at the end of warm-up, on positions not trained on.
    usual : float
        Median of D then.
    surprises : float
        Share of the last trials of warm-up where the potential was more than 1 below what was predicted.
    exact_share : float
        Share of steps with exact gradients that the draws were given; 1 if the surrogate was not used at all.
    reason : str
        Why it is not zero; empty if it is.
    history : ndarray of shape (rounds, 2)
        Exact evaluations and sd(D), as warm-up went on.
    fingerprint : str
        Hash of the frozen surrogate, before the first kept draw and after the last; empty if it was not used.
    has_gradient : bool
        Whether the target has one, so that exact steps could take over, or be held against.
    n_modes : int
        Separate modes of the surrogate, between which chains jump (`leapwise.kernels.jumps`).
    tail : str
        Which tail the surrogate cuts, and how much of it, as the last look of warm-up saw it; empty if none.
    """

    kind: str
    sd: float
    usual: float
    surprises: float
    exact_share: float
    reason: str
    history: np.ndarray
    fingerprint: str = ""
    has_gradient: bool = True
    n_modes: int = 1
    tail: str = ""
