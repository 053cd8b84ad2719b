"""Warnings about the target: a support with hard edges, and a model that does not fit its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from leapwise.results.run import Record
    from leapwise.results.target_report import TargetReport

#: Share of trajectories outside the support that costs next to nothing.
FEW_OUTSIDE = 0.05


def outside(stats: dict[str, np.ndarray]) -> np.ndarray:
    """Return which trajectories ended outside the support, or were given up there; all False if that is not known.

    Examples
    --------
    >>> outside({"diverging": np.array([True, True]), "discrepancy": np.array([np.inf, 2000.0])})
    array([ True, False])
    """
    diverging = stats.get("diverging", np.zeros((0, 0), dtype=bool))
    discrepancy, left = stats.get("discrepancy"), stats.get("left")
    found = np.zeros(diverging.shape, dtype=bool)
    if discrepancy is not None:
        found |= np.isposinf(discrepancy)
    # Where a surrogate led all the way, `left` tells of its own edges, which are not those of the support.
    if left is not None and (discrepancy is None or "part" in stats):
        found |= left
    return found


def n_outside(record: Record) -> int:
    """Count trajectories that ended outside the support; failures, taken as rejections, are counted elsewhere."""
    return max(int(outside(record.stats).sum()) - record.cost.n_failures, 0)


def hard_edge(record: Record, target: TargetReport | None) -> list[str]:
    """Say what rejections at the edge of the support cost, and what spares them."""
    count, size = n_outside(record), record.stats.get("diverging", np.empty(0)).size
    if not count or count <= FEW_OUTSIDE * size:
        return []
    return [
        f"{count} of {size} trajectories ended outside the support, where the log-density is -inf: rejecting them "
        f"biases nothing, but costs effective draws; {_inside(target)}"
    ]


def _inside(target: TargetReport | None) -> str:
    """Say how a target of this kind keeps trajectories inside."""
    if target is not None and target.is_bounded:
        return "reparametrise the model so that edges other than its bounds are bounds too"
    if target is not None and target.is_forward:
        return "give the prior's limits as bounds=, or take a prior that has them (UniformPrior)"
    return "give bounds= for parameters that have them, or reparametrise the model"


def poor_fit(target: TargetReport | None) -> list[str]:
    """Say that a forward model is further from its data than their errors account for."""
    if target is None or target.fits:
        return []
    return [
        f"the model does not fit the data within its errors (chi^2 of {target.misfit:,.0f} for {target.n_outputs} "
        "outputs): the noise is understated, the model is wrong, or a better mode was missed; check the errors given "
        "to GaussianLikelihood, look at the residuals, or start elsewhere (init=)"
    ]
