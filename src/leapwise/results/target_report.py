"""What a run knows of its target, so that advice fits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.targets import AnyTarget, GaussianLikelihood

#: A misfit so many standard deviations above what the errors account for is no fit.
FAR_OFF = 6.0


class Known(Protocol):
    """Positions with their exact potentials, as a state of chains or a training set has them."""

    @property
    def position(self) -> np.ndarray:
        """One row each, without bounds."""
        ...

    @property
    def potential(self) -> np.ndarray:
        """Exact."""
        ...


@dataclass(frozen=True)
class TargetReport:
    """What kind of target a run had, and how well it fits its data.

    Attributes
    ----------
    is_forward : bool
        Whether it is a forward model with a likelihood and a prior.
    has_gradient : bool
        Whether methods with exact gradients are open to it.
    is_bounded : bool
        Whether some of its parameters have bounds that are known.
    misfit : float
        chi^2 at the lowest position known; NaN but for forward models with a `GaussianLikelihood`.
    n_outputs : int
        How many observations it is of.

    Examples
    --------
    >>> TargetReport(is_forward=True, misfit=9.0, n_outputs=8).fits
    True
    >>> TargetReport(is_forward=True, misfit=90.0, n_outputs=8).fits
    False
    """

    is_forward: bool = False
    has_gradient: bool = True
    is_bounded: bool = False
    misfit: float = np.nan
    n_outputs: int = 0

    @classmethod
    def of(cls, target: AnyTarget, *known: Known | None) -> TargetReport:
        """Look at a target, and at the lowest of the positions that are known of it; nothing is evaluated for it."""
        likelihood = getattr(target, "likelihood", None)
        kind = likelihood is not None, target.has_gradient, not target.transform.is_identity
        some = [each for each in known if each is not None and len(each.position)]
        if not isinstance(likelihood, GaussianLikelihood) or not some:
            return cls(*kind)
        best = min(some, key=lambda each: float(each.potential.min()))
        return cls(*kind, _misfit(target, best), likelihood.data.size)

    @property
    def fits(self) -> bool:
        """Whether the lowest position is as near to the data as errors let it be; True if that is not known.

        For a model that is right, chi^2 at a draw has the chi-squared distribution of as many degrees of freedom as
        there are outputs, whatever the prior.
        """
        return not self.misfit > self.n_outputs + FAR_OFF * np.sqrt(2.0 * self.n_outputs)


def _misfit(target: AnyTarget, known: Known) -> float:
    """Return chi^2 at the lowest position: what is left of its potential without prior, Jacobian and constant."""
    lowest = int(known.potential.argmin())
    position = known.position[[lowest]]
    likelihood, prior = target.likelihood, target.prior  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        best = likelihood.log_density(likelihood.data[None])
        others = np.ravel(prior.log_density(target.transform.to_parameters(position)))
        others = others + target.transform.log_jacobian(position)
        return float(2.0 * (best + others + known.potential[lowest])[0])
