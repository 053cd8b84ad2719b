"""What follows from the outputs at the draws, at no further evaluation: predictions, replicated data, log-likelihoods.

Outputs of the forward model were computed for the draws and kept with them. Everything here is cheap: the likelihood at
these outputs and parameters, and random data from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_real
from leapwise.errors import InputError
from leapwise.surrogates import OutputSurrogate, TrainingSet, Whitening
from leapwise.surrogates.joint import NoPrior
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.targets.forward import PriorAndLikelihood
from leapwise.targets.variables import columns, split

if TYPE_CHECKING:
    from leapwise.results.run import Run

#: Replicated data and pointwise log-likelihoods are made by default if the outputs take at most so many bytes: a guess,
#: since they take as much again, twice.
MAX_BYTES = 1 << 26
#: Stands before the seed of the run, so that replicated data are independent of the draws.
_STREAM = 0x9E3779B9
#: Draws that an emulator for predictions is trained and tested on, at most and at least, and its hidden units. Guesses:
#: a fit takes about a second, and smooth outputs need no more.
_MAX_ROWS, _MIN_ROWS, _N_HIDDEN = 1000, 20, 200
#: Trainings, each without one part of the draws. A guess: few, and enough to see where they differ.
_N_FOLDS = 4
#: Strengths of the ridge that are tried, from outputs that are smooth to rounding to rough ones. A guess.
_RIDGES = (1e-8, 1e-4, 1.0)
#: Unit of an output's errors, as a share of its spread: components below a hundredth of it are left out. A guess.
_PRECISION = 1e-2


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
        ``predictions`` (outputs and derived quantities at the draws, ``(chain, draw, *shape)``),
        ``posterior_predictive`` (replicated data), ``log_likelihood`` (of each datum), ``observed_data``,
        ``constant_data`` (known arguments of the likelihood); those that can be made.
    """
    model, outputs = run.model, run.posterior.outputs
    if model is None or outputs is None or not outputs.size:
        left_out = ("posterior_predictive", "log_likelihood") if predictive is False else ()
        return {name: group for name, group in run.groups.items() if name not in left_out}
    layout = run.output_variables
    groups = {"predictions": split(layout, outputs)}
    likelihood: Any = model.likelihood
    if not all(hasattr(likelihood, name) for name in ("pointwise", "sample", "data")):
        return groups
    layout, outputs = layout[: len(layout) - len(model.qoi)], outputs[..., : model.n_data]
    groups["observed_data"] = split(layout, likelihood.data)
    if constants := getattr(likelihood, "constants", {}):
        groups["constant_data"] = constants
    if predictive is None:
        predictive = outputs.nbytes <= MAX_BYTES
    if not predictive:
        return groups
    parameters, flat = at_outputs(run).reshape(-1, run.draws.shape[2]), outputs.reshape(-1, outputs.shape[2])
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


def at_outputs(run: Run) -> np.ndarray:
    """Return the draws whose outputs were kept, ``(chains, kept, dim)``."""
    assert run.posterior.outputs is not None
    return run.draws[:, :: max(run.posterior.every, 1)][:, : run.posterior.outputs.shape[1]]


class Prediction(NamedTuple):
    """Emulated outputs by name, and their errors.

    Attributes
    ----------
    outputs : dict of str to ndarray of shape (n, *shape)
    error : dict of str to ndarray of shape (n, *shape)
        Two sources, added as squares: the median error at draws that an emulator was not trained on, and how much the
        emulators of several trainings differ at this input, which grows away from the draws. A guide, not a bound. NaN
        beyond all draws.
    """

    outputs: dict[str, np.ndarray]
    error: dict[str, np.ndarray]


@dataclass(frozen=True)
class _EqualErrors:
    """A log-density of outputs with which all of them matter equally, each in units of its own spread."""

    unit: np.ndarray

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return log-densities ``(n,)``."""
        return np.asarray(-0.5 * np.square(points / self.unit).sum(axis=1))

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Return gradients ``(n, m)``."""
        return -points / self.unit**2


class OutputEmulator:
    """An emulator of a model's outputs, trained on the draws of a run, with its errors at other draws.

    All outputs are learned alike, missing data and derived quantities too. The surrogate of a run serves another
    purpose: it leaves out what the likelihood does not depend on.

    Parameters
    ----------
    run : Run
        Of a `ForwardTarget`, with kept outputs.
    """

    def __init__(self, run: Run) -> None:
        if run.model is None or run.posterior.outputs is None:
            why = (
                "kept no outputs"
                if run.model is not None
                else "is not of a ForwardTarget, or was loaded from a file"
            )
            raise InputError(
                f"outputs cannot be predicted, since this run {why}; sample a ForwardTarget here"
            )
        self.model, self.layout, self.labels = run.model, run.output_variables, run.parameter_names
        parameters = at_outputs(run).reshape(-1, run.draws.shape[2])
        self.middle = np.median(parameters, axis=0)
        position = run.model.transform.to_position(parameters)[:, run.model.inputs]
        outputs = run.posterior.outputs.reshape(len(position), -1)
        rows, everywhere = _different(position, outputs)
        if len(rows) < _MIN_ROWS:
            raise InputError(
                f"outputs are predicted from at least {_MIN_ROWS} different draws, got {len(rows)}; draw more (draws=)"
            )
        _, self.fitted, residuals = _trained(position[rows], outputs[rows])
        self.error = np.median(np.abs(residuals), axis=0)
        self.radius = float(np.linalg.norm(self._white(everywhere), axis=1).max())

    def _white(self, position: np.ndarray) -> np.ndarray:
        return self.fitted[0].whitening.to_white(position)

    def predict(self, inputs: Mapping[str, ArrayLike] | ArrayLike) -> Prediction:
        """Return outputs and errors at inputs, as for `Run.predict`."""
        position = self.model.transform.to_position(self._parameters(inputs))[:, self.model.inputs]
        found = np.array([fitted.outputs(position) for fitted in self.fitted])
        error = np.hypot(self.error, found.std(axis=0, ddof=1))
        error[np.linalg.norm(self._white(position), axis=1) > self.radius] = np.nan
        return Prediction(split(self.layout, found.mean(axis=0)), split(self.layout, error))

    def _parameters(self, inputs: Mapping[str, ArrayLike] | ArrayLike) -> np.ndarray:
        """Return whole vectors of parameters with these inputs; the others, which the model does not see, as usual."""
        model, where = self.model, columns(self.model.variables)
        if not isinstance(inputs, Mapping):
            rows = np.atleast_2d(require_real(inputs, "inputs"))
            if rows.ndim != 2 or rows.shape[1] != len(model.inputs):
                listed = ", ".join(self.labels[column] for column in model.inputs)
                raise InputError(
                    f"inputs must be rows of {len(model.inputs)} numbers ({listed}), got shape {rows.shape}; or give a "
                    "dict by name"
                )
            return self._filled(rows)
        inside = set(model.inputs.tolist())
        seen = [each for each in model.variables if inside & set(range(self.middle.size)[where[each.name]])]
        names = [each.name for each in seen]
        if sorted(map(str, inputs)) != sorted(names):
            raise InputError(
                f"the model sees {', '.join(names)}, got {', '.join(map(str, inputs))}; give these, no others"
            )
        given = {each.name: require_real(inputs[each.name], each.name) for each in seen}
        n = max(len(given[each.name]) if given[each.name].ndim > len(each.shape) else 1 for each in seen)
        whole = np.tile(self.middle, (n, 1))
        try:
            for each in seen:
                shaped = np.broadcast_to(given[each.name], (n, *each.shape))
                whole[:, where[each.name]] = shaped.reshape(n, -1)
        except ValueError:
            shapes = ", ".join(f"{name} {value.shape}" for name, value in given.items())
            raise InputError(
                f"inputs must have the shapes of their variables, or one more axis of equal length; got {shapes}"
            ) from None
        return self._filled(whole[:, model.inputs])

    def _filled(self, rows: np.ndarray) -> np.ndarray:
        """Return parameters ``(n, dim)`` with the inputs given, checked to be inside the bounds."""
        parameters = np.tile(self.middle, (len(rows), 1))
        parameters[:, self.model.inputs] = rows
        lower, upper = self.model.transform.lower, self.model.transform.upper
        bad = np.argwhere(~((parameters > lower) & (parameters < upper)))
        if len(bad):
            row, column = bad[0]
            raise InputError(
                f"inputs must be inside the support of their priors, got {parameters[row, column]:g} in row {row} for "
                f"{self.labels[column]}; leave it out"
            )
        return parameters


def emulators_of_halves(position: np.ndarray, outputs: np.ndarray) -> list[tuple[np.ndarray, FittedOutputs]]:
    """Return each half of the chains, with an emulator trained on the draws of the other half.

    Parameters
    ----------
    position : ndarray of shape (chains, draws, n_inputs)
        Of the inputs of the model; at least two chains.
    outputs : ndarray of shape (chains, draws, m)

    Returns
    -------
    list of (ndarray, FittedOutputs)
        Empty if there are too few different draws.
    """
    every, found = np.arange(len(position)), list[tuple[np.ndarray, FittedOutputs]]()
    halves = every[: len(every) // 2], every[len(every) // 2 :]
    for own, other in (halves, halves[::-1]):
        x, y = position[other].reshape(-1, position.shape[2]), outputs[other].reshape(-1, outputs.shape[2])
        rows, _ = _different(x, y)
        if len(rows) < _MIN_ROWS:
            return []
        recipe, _, _ = _trained(x[rows], y[rows])
        training = TrainingSet(x[rows], np.zeros(len(rows)), outputs=y[rows])
        found.append((own, recipe.fit(training, np.random.default_rng(len(found)))))
    return found


def _different(position: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return indices of some different positions with finite outputs, and all different positions."""
    # A chain that does not move has the same outputs again.
    _, first = np.unique(position, axis=0, return_index=True)
    some = np.random.default_rng(0).permutation(np.sort(first))[:_MAX_ROWS]
    return some[np.isfinite(outputs[some]).all(axis=1)], position[first]


def _trained(
    position: np.ndarray, outputs: np.ndarray
) -> tuple[OutputSurrogate, list[FittedOutputs], np.ndarray]:
    """Return the recipe with the best ridge, and what `_cross_validated` returns for it."""
    spread = outputs.std(axis=0)
    equal = _EqualErrors(_PRECISION * np.where(spread > 0, spread, 1.0))
    recipe = OutputSurrogate(equal, NoPrior(), _N_HIDDEN, whitening=Whitening.from_positions(position))
    recipes = [replace(recipe, ridge=each) for each in _RIDGES]
    tried = [(each, *_cross_validated(each, position, outputs)) for each in recipes]
    # Medians, since a few draws far out would decide otherwise; there the emulators differ.
    return min(tried, key=lambda each: float(np.median(np.abs(each[2]) / equal.unit)))


def _cross_validated(
    recipe: OutputSurrogate, position: np.ndarray, outputs: np.ndarray
) -> tuple[list[FittedOutputs], np.ndarray]:
    """Return emulators that were trained without one part of the draws each, and their errors ``(n, m)`` there."""
    fold, fitted, residuals = np.arange(len(position)) % _N_FOLDS, [], np.empty_like(outputs)
    for i in range(_N_FOLDS):
        known = fold != i
        training = TrainingSet(position[known], np.zeros(known.sum()), outputs=outputs[known])
        fitted.append(recipe.fit(training, np.random.default_rng(i)))
        residuals[~known] = fitted[-1].outputs(position[~known]) - outputs[~known]
    return fitted, residuals
