"""From a run to its estimates: whether they may be sharpened, of which functions, and when they are precise enough.

`leapwise.estimates` has the arithmetic, and knows arrays only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from leapwise.checks import require_real
from leapwise.errors import InputError
from leapwise.estimates import Columns, ExactDraws, Part, Sharpening, figures, find_parts, log_evidence
from leapwise.kernels.free_moves import surrogate_part
from leapwise.results.diagnostics import MAX_RHAT, RHAT_OF_FEW
from leapwise.results.estimates import Estimates, Evidence, Precision
from leapwise.results.predictive import at_outputs, emulators_of_halves
from leapwise.surrogates import TrainingSet
from leapwise.targets import ForwardTarget, Prior
from leapwise.targets.calls import ByKeyword, keywords
from leapwise.targets.observations import Observations
from leapwise.targets.transforms import Transform
from leapwise.targets.variables import Variable, split

if TYPE_CHECKING:
    from leapwise.results.run import Run

#: With fewer effective draws of any parameter estimates are plain: the standard error of the corrected series is then
#: not known. A guess.
MIN_EFFECTIVE = 50
#: Numbers in an array of outputs at points of the surrogate; with more outputs fewer points are used.
_MAX_NUMBERS = 1 << 24
#: Points of the surrogate are enough for a check of precision if their part of the variance is below this share of the
#: limit. A guess: it hardly changes the number of draws.
_SHARE_OF_LIMIT = 0.05
#: Draws of all chains, and of each, before the first check of precision. Guesses: with fewer no standard error can be
#: believed.
FEWEST_DRAWS, FEWEST_OF_CHAIN = 100, 20
#: The number of draws grows by these factors between checks. Guesses: with many checks draws would stop when the error
#: happens to be estimated too small.
LEAST_GROWTH, MOST_GROWTH = 1.2, 2.0
#: Surrogates are trained again on the draws if the error without that is below so many times the precision. A guess.
_NEAR = 2.0


# Whether a run can be sharpened -------------------------------------------------------------------------------------


def plain_reason(run: Run, *, modes_matter: bool = True) -> str:
    """Return why estimates of a run are those of its draws alone, as far as that is known without the surrogate."""
    surrogate = getattr(surrogate_part(run.kernel), "surrogate", None)
    if run.n_adaptive:
        return "the surrogate was still learning while these draws were made"
    if run.kernel is None:
        return "there is no surrogate, since the run was loaded from a file or has no draws"
    if surrogate is None or run.transform is None:
        return "these draws were made without a surrogate"
    if np.isposinf(run.posterior.stats.get("discrepancy", 0.0)).any():
        return "some proposals were outside the support, which the surrogate does not know"
    if modes_matter and run.surrogate is not None and run.surrogate.n_modes > 1:
        return "the posterior has separate modes, and jumps between them decide how precise estimates are"
    known = np.isfinite(run.statistics.ess_bulk)
    if not known.any() or run.statistics.ess_bulk[known].min() < MIN_EFFECTIVE:
        return f"there are fewer than {MIN_EFFECTIVE} effective draws"
    return "" if chains_agree(run) else "the chains disagree (R-hat)"


def chains_agree(run: Run) -> bool:
    """Whether no R-hat is larger than it may be by chance."""
    rhat = run.statistics.rhat
    return not (rhat > max(MAX_RHAT, 1.0 + RHAT_OF_FEW / max(run.draws.shape[1], 1))).any()


def sharpening_of(
    run: Run,
    reason: str,
    *,
    cross_fit: bool = True,
    least_variance: float = 0.0,
    before: Sharpening | None = None,
) -> Sharpening:
    """Return what sharpened estimates of a run are made of, or why they are plain.

    Parameters
    ----------
    run : Run
    reason : str
        What `plain_reason` says.
    cross_fit : bool
        Whether surrogates may be trained again on the draws.
    least_variance : float
        As for `leapwise.estimates.parts`.
    before : Sharpening, optional
        That of the first draws of the same run, whose points of the surrogate are used again.
    """
    if reason:
        return Sharpening(reason=reason)
    kernel, outputs = surrogate_part(run.kernel), run.posterior.outputs
    if run.posterior.every != 1 or outputs is None or outputs.shape[1] != run.draws.shape[1]:
        outputs = None
    assert run.transform is not None
    flat = run.draws.reshape(-1, run.draws.shape[2])
    with np.errstate(all="ignore"):
        position = run.transform.to_position(flat).reshape(run.draws.shape)
    if not np.isfinite(position).all():
        return Sharpening(reason="some draws are at the edge of their bounds")
    stats = run.posterior.stats
    exact = ExactDraws(position, -stats["lp"], run.transform.to_parameters, outputs, stats.get("discrepancy"))
    points = before.parts[0].points if before is not None and before.parts else None
    training = run.training if cross_fit and isinstance(run.training, TrainingSet) else None
    return find_parts(
        kernel, kernel.surrogate, exact, 0 if run.seed is None else run.seed, training, points, least_variance
    )


@contextmanager
def showing_work() -> Iterator[None]:
    """Show in a terminal that estimates are being made."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status("estimates from the surrogate"):
        yield


# Of which functions --------------------------------------------------------------------------------------------------


def estimate(
    run: Run,
    f: str | Sequence[str] | Callable[..., Any] | None,
    probabilities: Sequence[float],
    *,
    plain: bool,
) -> Estimates:
    """Estimate parameters, outputs or a function; see `Run.estimate`."""
    wanted = _checked_probabilities(probabilities)
    if not (f is None or callable(f) or (isinstance(f, (str, list, tuple)) and len(f))):
        raise InputError(
            f"f must be a name, a list of names, or a function of the variables, got {f!r:.80}; leave it out for all "
            "parameters"
        )
    if (
        f is None
        and run.stored_estimates is not None
        and not plain
        and wanted == run.stored_estimates.probabilities
    ):
        return run.stored_estimates
    if not run.draws.size:
        raise InputError("there is nothing to estimate, since the run has no draws; make some (draws=)")
    found = Sharpening(reason="plain=True was asked for") if plain else run.sharpening
    of_outputs = _named_outputs(run, f)
    if of_outputs:
        variables, columns, parts = _outputs(run, of_outputs, found.parts)
    else:
        variables, columns, parts = _parameters(run, f, found.parts)
    reason = found.reason
    known = [
        np.isfinite(each[part.points.weights > 0.0]).all()
        for each, part in zip(columns.points, parts, strict=True)
    ]
    if not reason and not all(known):
        columns, parts, reason = (
            Columns(columns.draws, []),
            [],
            "the function is not finite at some points of the surrogate",
        )
    elif not reason and not parts:
        columns = Columns(columns.draws, [])
        reason = (
            "outputs are emulated by halves of the chains, and there is one chain or too few different draws"
        )
    for each in columns.points:  # of weight 0
        np.nan_to_num(each, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    numbers = figures(columns, parts, wanted)
    return Estimates(variables, numbers, wanted, reason, found.cross_fitted, found.seconds, columns, parts)


def of_parameters(run: Run) -> Estimates | None:
    """Return the estimates of all parameters that summary and files hold; None if there was no surrogate."""
    if run.stored_estimates is not None:
        return run.stored_estimates
    if not run.draws.size or getattr(surrogate_part(run.kernel), "surrogate", None) is None:
        return None
    with showing_work():
        return run.default_estimates


def _checked_probabilities(probabilities: Sequence[float]) -> tuple[float, ...]:
    found = np.atleast_1d(require_real(probabilities, "probabilities"))
    if found.ndim != 1 or not ((found > 0.0) & (found < 1.0)).all():
        raise InputError(
            f"probabilities must be between 0 and 1, got {probabilities!r:.80}; give (0.05, 0.5, 0.95)"
        )
    return tuple(found.tolist())


def _named_outputs(run: Run, f: object) -> list[str]:
    """Return the names in f if they are those of outputs."""
    names = [f] if isinstance(f, str) else list(f) if isinstance(f, (list, tuple)) else []
    known = {each.name for each in run.variables}
    outputs = {each.name for each in run.output_variables} if run.posterior.outputs is not None else set()
    for name in names:
        if name not in known | outputs:
            raise InputError(
                f"there is no variable or output {name!r} in this run, which has {', '.join([*known, *outputs])}; take "
                "one of these, or give a function of the variables"
            )
    of_outputs = [name for name in names if name in outputs]
    if of_outputs and len(of_outputs) != len(names):
        raise InputError(
            f"{', '.join(map(str, names))} are variables and outputs; estimate them in two calls, one for each kind"
        )
    return of_outputs


Chosen = tuple[tuple[Variable, ...], Columns, list[Part]]


def _parameters(run: Run, f: Any, parts: list[Part]) -> Chosen:
    """Return columns of some variables, or of a function of them."""
    transform = run.transform

    def of_points(part: Part) -> np.ndarray:
        position = part.points.position
        assert transform is not None
        return transform.to_parameters(position.reshape(-1, position.shape[2]))

    shape = run.draws.shape
    flat = run.draws.reshape(-1, shape[2])
    if callable(f):
        function = _Function(f, run.variables)
        values = function(flat, "at the draws")
        if not np.isfinite(values).all():
            raise InputError(
                f"{function.name} must be finite, got {values[~np.isfinite(values)][0]} at a draw; correct it"
            )
        parts = [replace(each, points=each.points.first(_MAX_NUMBERS // values.shape[1])) for each in parts]
        found = [function(of_points(part), "at points of the surrogate") for part in parts]
        variables = function.variables
    else:
        names = [each.name for each in run.variables] if f is None else [f] if isinstance(f, str) else list(f)
        variables = tuple(each for each in run.variables if each.name in names)
        which = np.concatenate(
            [split(run.variables, np.arange(shape[2]))[each.name].ravel() for each in variables]
        )
        values, found = flat[:, which], [of_points(part)[:, which] for part in parts]
    points = [
        each.reshape(*part.points.log_weight.shape, -1) for part, each in zip(parts, found, strict=True)
    ]
    return variables, Columns(values.reshape(*shape[:2], -1), points), parts


class _Function:
    """A user's function of named variables, whose results are rows of numbers."""

    def __init__(self, function: Callable[..., Any], variables: tuple[Variable, ...]) -> None:
        name = getattr(function, "__name__", "f")
        self.name = "f" if name == "<lambda>" else name
        seen = keywords(function, variables, self.name)
        self._call = (
            function if seen is None else ByKeyword(function, variables, [each.name for each in seen], True)
        )
        self.variables: tuple[Variable, ...] = ()

    def __call__(self, parameters: np.ndarray, where: str) -> np.ndarray:
        found = self._call(parameters.copy())
        values = found if isinstance(found, Mapping) else {self.name: found}
        n, rows, variables = len(parameters), [], []
        for name, value in values.items():
            array = np.asarray(value)
            if array.ndim == 0 or len(array) != n or array.dtype.kind not in "fiub":
                raise InputError(
                    f"{self.name} must return one real number or one array for each of the {n} rows given to it, "
                    f"got shape {array.shape} and dtype {array.dtype} {where}; its arguments have a first axis of rows"
                )
            variables.append(Variable(str(name), array.shape[1:]))
            rows.append(array.reshape(n, -1).astype(float))
        if not rows or not sum(row.shape[1] for row in rows):
            raise InputError(f"{self.name} returned no numbers; return at least one for each row")
        if self.variables and tuple(variables) != self.variables:
            raise InputError(f"{self.name} must return the same names and shapes at each call; correct it")
        self.variables = tuple(variables)
        return np.concatenate(rows, axis=1)


def _outputs(run: Run, names: list[str], parts: list[Part]) -> Chosen:
    """Return columns of outputs; emulators that were trained on the other half of the chains are their controls."""
    layout = run.output_variables
    variables = tuple(each for each in layout if each.name in names)
    outputs = run.posterior.outputs
    assert outputs is not None
    which = np.concatenate(
        [split(layout, np.arange(outputs.shape[2]))[each.name].ravel() for each in variables]
    )
    values = outputs[:, :, which]
    if not np.isfinite(values).all():
        raise InputError(
            f"outputs {', '.join(names)} are not finite at some draws, so they have no mean; leave them out"
        )
    if not parts or run.model is None or run.transform is None or len(values) < 2:
        return variables, Columns(values, []), []
    parameters = at_outputs(run)
    position = run.transform.to_position(parameters.reshape(-1, parameters.shape[2])).reshape(
        parameters.shape
    )
    inputs, every = run.model.inputs, max(run.posterior.every, 1)
    emulators = emulators_of_halves(position[:, :, inputs], values)
    controls, points, found = np.empty_like(values), [], []
    for half, emulator in emulators:
        at_draws = position[half][:, :, inputs]
        controls[half] = emulator.outputs(at_draws.reshape(-1, len(inputs))).reshape(values[half].shape)
        for part in parts:
            both = np.isin(part.chains, half)
            if not both.any():
                continue
            few = part.points.first(_MAX_NUMBERS // len(which))
            discrepancy, predicted = (each[both][:, ::every] for each in (part.discrepancy, part.predicted))
            found.append(Part(part.chains[both], discrepancy, predicted, few, part.surrogate, part.unseen))
            here = few.position.reshape(-1, few.position.shape[2])[:, inputs]
            points.append(emulator.outputs(here).reshape(*few.log_weight.shape, -1))
    return variables, Columns(values, points, controls), found


# The evidence --------------------------------------------------------------------------------------------------------


def evidence(run: Run) -> Evidence:
    """Estimate the evidence; see `Run.log_evidence`."""
    if run.stored_evidence is not None:
        return run.stored_evidence
    reason = plain_reason(run, modes_matter=False)
    found = run.sharpening
    if not reason and plain_reason(run):  # several modes, which do not matter here
        found = sharpening_of(run, "")
    reason = reason or found.reason
    value, error = (np.nan, np.nan) if reason else log_evidence(found.parts)
    if not reason and not np.isfinite(value):
        reason = "no mixture of normals covers the surrogate's posterior well enough"
    if reason:
        raise InputError(
            f"the evidence of this run is not known: {reason}; it needs a good surrogate: the default method, bounds= "
            "for hard edges, or more draws"
        )
    return Evidence(value, error, _is_normalised(run.model))


def _is_normalised(model: ForwardTarget | None) -> bool:
    """Whether prior and likelihood are known to be normalised: ours, and no bounds cut the prior."""
    if model is None or not isinstance(model.prior, Prior) or not isinstance(model.likelihood, Observations):
        return False
    whole, used = Transform.from_bounds(model.prior.bounds, model.dim), model.transform
    return bool((whole.lower == used.lower).all() and (whole.upper == used.upper).all())


# Precise enough ------------------------------------------------------------------------------------------------------


class PrecisionCheck:
    """Whether the draws so far are precise enough: used by `sample(..., precision=)`.

    The first check is after few draws, each of the following after as many as the error suggests. Each costs a fraction
    of a second, since all use the same points of the surrogate; surrogates are trained again on the draws (which is
    slower) only where that may decide.

    Parameters
    ----------
    precision : float
        Standard errors of all means and standard deviations of parameters may be so many standard deviations.

    Attributes
    ----------
    result : Precision
        What was asked for, and what the last check found.
    sharpening : Sharpening or None
        What the last check made of the draws.
    """

    def __init__(self, precision: float) -> None:
        self.result = Precision(float(precision), np.inf)
        self.sharpening: Sharpening | None = None
        self._before: Sharpening | None = None

    @property
    def is_reached(self) -> bool:
        """Whether the last check found the draws precise enough."""
        return self.result.is_reached

    def first(self, n_chains: int, most: int) -> int:
        """Return the number of draws of each chain before the first check."""
        return min(max(-(-FEWEST_DRAWS // n_chains), FEWEST_OF_CHAIN), most)

    def following(self, n: int) -> int:
        """Return the number of draws of each chain before the next check, after n."""
        times = self.result.reached / self.result.asked  # with few draws errors fall nearly as 1 / n
        return int(np.ceil(n * np.clip(times, LEAST_GROWTH, MOST_GROWTH)))

    def __call__(self, run: Run) -> float:
        """Return the largest error of means and standard deviations, in standard deviations; inf if unknown."""
        asked, reason = self.result.asked, plain_reason(run)
        enough = _SHARE_OF_LIMIT * asked**2
        found = sharpening_of(run, reason, cross_fit=False, least_variance=enough, before=self._before)
        error = _largest_error(run, found)
        if found.parts:
            self._before = found
            if asked < error < _NEAR * asked:
                again = sharpening_of(run, reason, least_variance=enough, before=found)
                if again.cross_fitted and (less := _largest_error(run, again)) < error:
                    found, error = again, less
        self.sharpening, self.result = found, Precision(asked, error)
        return error

    def forget(self) -> None:
        """Forget what the last check found: more draws are being made."""
        self.sharpening, self.result = None, Precision(self.result.asked, np.inf)


def _largest_error(run: Run, found: Sharpening) -> float:
    """Return the largest error of means and standard deviations of parameters, in standard deviations."""
    if not chains_agree(run):
        return np.inf
    _, columns, parts = _parameters(run, None, found.parts)
    return figures(columns, parts, ()).largest_error()
