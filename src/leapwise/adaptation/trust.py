"""Trust: the share of the draws' steps that take exact gradients instead of the surrogate.

`judge` returns this share, and the reason if it is not 0. `leapwise.run.automatic` calls it after each adaptation.
The *doubt* grows from 0 to 1 with sd(D) and with the share of surprises, and is at least 0.3 if mass was missed
(`TrustSettings`). The share of exact steps is

- 0 without doubt: the surrogate alone makes the draws;
- the doubt if it is below one half: exact steps then move chains that are held up where the surrogate is wrong;
- 1 otherwise: the surrogate did not learn the posterior, or had surprises again and again.

Before HMC takes over, `refuse_heavy_tails` looks whether the posterior is proper at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leapwise.adaptation.adapt import AdaptationResult
from leapwise.adaptation.minimise import improper
from leapwise.adaptation.record import EvaluationRecord
from leapwise.errors import EvaluationError, SurrogateError
from leapwise.surrogates import Whitening


@dataclass(frozen=True)
class Trust:
    """The share of exact steps, and the reason if it is not 0."""

    exact_share: float
    reason: str = ""


def judge(result: AdaptationResult) -> Trust:
    """Return the share of exact steps that the draws need beside the surrogate, and the reason if it is not 0."""
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
    if result.sd < result.settings.stopping.useless_values:
        return
    raise SurrogateError(
        f"the surrogate could not be trained well enough to draw with: {trust.reason}. There is no gradient to fall "
        f"back on; {remedies}"
    )


def refuse_heavy_tails(record: EvaluationRecord, rng: np.random.Generator) -> None:
    r"""Raise if the density falls off so slowly in all directions that its integral is infinite.

    Along a ray the mass beyond a radius is about :math:`\int r^{d-1} e^{-U(r)} dr` in d dimensions. It is infinite if U
    rises no faster than :math:`d \log r`. The exact potential is compared at two radii on a few random rays and their
    opposites. One ray along which it rises faster is enough to go on.
    """
    settings, known = record.settings.trust, record.training().select()
    if len(known) <= known.dim:
        return
    lowest = known.position[int(known.potential.argmin())]
    frame = Whitening(lowest, Whitening.from_positions(known.position).factor)
    ray = rng.standard_normal((settings.n_rays, known.dim))
    ray = np.concatenate([ray, -ray]) / np.sqrt(np.mean(ray**2))
    near, far = settings.radii
    places = frame.from_white(np.concatenate([near * ray, far * ray]))
    try:
        with record.evaluator.observed_by(None):
            potential = record.evaluator.value(places).potential
    except EvaluationError:  # a model need not work so far out
        return
    with np.errstate(invalid="ignore"):
        rise = np.subtract(*np.split(potential, 2)[::-1])
    if (rise <= settings.least_tail * known.dim * np.log(far / near)).all():
        raise improper(record.evaluator.target, places[len(ray)] - frame.mean, "falls off too slowly")
