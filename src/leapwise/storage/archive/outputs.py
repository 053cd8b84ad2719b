"""The cheap parts of an emulator of outputs: functions, which no file holds, made again from the target.

A `FittedOutputs` asks a prior and a likelihood that are not Gaussian through functions that close over the target's
own parts. An archive keeps what they close over. That the functions made again are the same is checked when they are
stored: both must give the same answers, to the last bit, at positions trained on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from leapwise.errors import ArchiveError
from leapwise.surrogates.output_prior import in_white, prior_potential
from leapwise.surrogates.output_space import OutputSpace, SmoothPotential
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.whitening import Whitening

#: So many positions are looked at.
_PROBES = 20


def parts_of(
    fitted: FittedOutputs, references: dict[str, Any]
) -> tuple[tuple[Any, Any] | None, tuple[Any, OutputSpace] | None]:
    """Return what a surrogate's functions close over, None where it has something else than a function.

    The first is the prior and the transform of its parameters, the second the likelihood and the space of outputs.
    """
    white = fitted.whitening.to_white(fitted.training.position[:_PROBES])
    prior = misfit = None
    if type(fitted.prior) is SmoothPotential:
        for target in references.values():
            if not (hasattr(target, "prior") and hasattr(target, "transform")):
                continue
            if _same(fitted.prior, white_prior(target.prior, target.transform, fitted.whitening), white):
                prior = target.prior, target.transform
        if prior is None:
            raise ArchiveError(
                "an emulator of outputs with a prior that is not the target's cannot be stored; make it with "
                "OutputSurrogate.of(target), or replay the run"
            )
    if type(fitted.misfit) is SmoothPotential:
        assert fitted.training.outputs is not None
        components = fitted.space.encode(fitted.training.outputs[:_PROBES])
        if not _same(fitted.misfit, component_misfit(fitted.likelihood, fitted.space), components):
            raise ArchiveError(
                "an emulator of outputs whose misfit is not that of its likelihood cannot be stored; replay the run"
            )
        misfit = fitted.likelihood, fitted.space
    return prior, misfit


def white_prior(prior: Any, transform: Any, whitening: Whitening) -> SmoothPotential:
    """Return the potential of a prior at whitened positions."""
    return in_white(prior_potential(prior, transform), whitening)


def component_misfit(likelihood: Any, space: OutputSpace) -> SmoothPotential:
    """Return the potential of a likelihood, of any kind, in components of the outputs."""

    def value_and_gradient(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs = space.decode(points)
        return -likelihood.log_density(outputs), -likelihood.gradient(outputs) @ space.decoder.T

    return SmoothPotential(value_and_gradient)


def _same(one: SmoothPotential, other: SmoothPotential, points: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        pairs = zip(one.value_and_gradient(points), other.value_and_gradient(points), strict=True)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
