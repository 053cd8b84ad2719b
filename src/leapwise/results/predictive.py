"""What follows from the outputs at the draws, at no further evaluation: predictions, replicated data, log-likelihoods.

Outputs of the forward model were computed for the draws and kept with them. Everything here is cheap: the likelihood at
these outputs and parameters, and random data from it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from leapwise.errors import InputError
from leapwise.targets.forward import PriorAndLikelihood
from leapwise.targets.variables import Variable, split

if TYPE_CHECKING:
    from leapwise.results.run import Run

#: Replicated data and pointwise log-likelihoods are made by default if the outputs take at most so many bytes: a guess,
#: since they take as much again, twice.
MAX_BYTES = 1 << 26
#: Added to the seed of the run, so that replicated data are independent of the draws.
_STREAM = 0x9E3779B9


def predictive_groups(run: Run, predictive: bool | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Return the groups of a `DataTree` that follow from the outputs at the draws, each a dict of variables.

    Parameters
    ----------
    run : Run
    predictive : bool, optional
        Whether to make `posterior_predictive` and `log_likelihood`; by default unless they are large.

    Returns
    -------
    dict
        ``predictions`` (outputs at the draws, ``(chain, draw, *shape)``), ``posterior_predictive`` (replicated data),
        ``log_likelihood`` (of each datum), ``observed_data``; those that can be made.
    """
    model, outputs = run.model, run.posterior.outputs
    if model is None or outputs is None or not outputs.size:
        return {}
    layout = _layout(model.output_variables, outputs.shape[2])
    groups = {"predictions": split(layout, outputs)}
    likelihood: Any = model.likelihood
    if not all(hasattr(likelihood, name) for name in ("pointwise", "sample", "data")):
        return groups
    groups["observed_data"] = split(layout, likelihood.data)
    if predictive is None:
        predictive = outputs.nbytes <= MAX_BYTES
    if not predictive:
        return groups
    kept = run.draws[:, :: max(run.posterior.every, 1)][:, : outputs.shape[1]]
    parameters, flat = kept.reshape(-1, kept.shape[2]), outputs.reshape(-1, outputs.shape[2])
    own = PriorAndLikelihood(model.prior, likelihood, run.variables).own(parameters)  # type: ignore[arg-type]
    rng = np.random.default_rng([_STREAM, 0 if run.seed is None else run.seed])
    found = {"posterior_predictive": likelihood.sample(flat, *(own or (None,)), rng)}
    with suppress(InputError):  # of correlated errors: no datum has a log-likelihood of its own
        found["log_likelihood"] = likelihood.pointwise(flat, *own)
    missing = {name: np.isnan(data) for name, data in split(layout, likelihood.data).items()}
    for group, values in found.items():
        each = split(layout, values.reshape(*outputs.shape[:2], -1))
        if group == "log_likelihood":  # data that are missing have none
            each = {
                name: value[..., ~missing[name]] if missing[name].any() else value
                for name, value in each.items()
            }
        groups[group] = each
    return groups


def _layout(variables: tuple[Variable, ...], size: int) -> tuple[Variable, ...]:
    """Return the layout of outputs, or one vector if it is not known (the model may have run in other processes)."""
    return variables if sum(each.size for each in variables) == size else (Variable("y", (size,)),)
