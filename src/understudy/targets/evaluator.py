"""The one way to an exact evaluation.

The evaluator maps positions to parameters, calls the target, checks what comes back, adds the Jacobian, counts,
times, and applies the rules for failures:

* a log-density of -inf is legal: the potential is +inf and the position will be rejected;
* an exception, a NaN, a log-density of +inf, or a non-finite gradient at a finite log-density is a *failure*. It
  is retried at the identical position; if it persists, `EvaluationError` names the position. Only with
  ``on_failure="reject"``, by which the user declares such positions outside the support, does it become a
  potential of +inf, and it is counted.
* a position that is not finite, or whose parameter is not representable inside its bounds, has potential +inf and
  is not evaluated.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from understudy.errors import EvaluationError, InputError, OutputError
from understudy.targets.target import AnyTarget, Raw


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Exact answers for a batch of positions.

    Attributes
    ----------
    position : ndarray of shape (n, dim)
    potential : ndarray of shape (n,)
        Minus log-density minus log-Jacobian; +inf where there is no mass, never NaN.
    gradient : ndarray of shape (n, dim) or None
        Of the potential; zero where the potential is infinite. None if it was not asked for.
    outputs : ndarray of shape (n, m) or None
        Of the forward model, if the target has one; NaN where it was not run.
    """

    position: np.ndarray
    potential: np.ndarray
    gradient: np.ndarray | None = None
    outputs: np.ndarray | None = None


@dataclass
class Counts:
    """What has been spent: value-only requests, value-and-gradient requests, and seconds inside each."""

    n_values: int = 0
    n_gradients: int = 0
    value_seconds: float = 0.0
    gradient_seconds: float = 0.0
    n_failures: int = 0

    def copy(self) -> Counts:
        """Return a snapshot."""
        return Counts(**vars(self))

    def since(self, earlier: Counts) -> Counts:
        """Return what was spent after an earlier snapshot."""
        return Counts(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})


@dataclass
class Evaluator:
    """Evaluate a target at positions, exactly; count and time it.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to evaluate.
    on_failure : {"raise", "reject"}
        What to do at a position where the target keeps failing.
    retries : int
        How often a failing position is tried again before that.

    Examples
    --------
    >>> from understudy import Target
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2))
    >>> evaluator.value(np.ones((3, 2))).potential
    array([1., 1., 1.])
    >>> evaluator.counts.n_values, evaluator.counts.n_gradients
    (3, 0)
    """

    target: AnyTarget
    on_failure: Literal["raise", "reject"] = "raise"
    retries: int = 1
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        if self.on_failure not in ("raise", "reject"):
            raise InputError(f"on_failure must be 'raise' or 'reject', got {self.on_failure!r}")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise InputError(f"retries must be a whole number of at least 0, got {self.retries!r}")

    def value(self, position: np.ndarray) -> Evaluation:
        """Return exact potentials of positions ``(n, dim)``."""
        return self._evaluate(position, gradient=False)

    def value_and_gradient(self, position: np.ndarray) -> Evaluation:
        """Return exact potentials and their gradients."""
        if not self.target.has_gradient:
            raise InputError(
                "this method needs the gradient of the log-density and the target has none; "
                "give Target(gradient=...) or ForwardTarget(vjp=...)"
            )
        return self._evaluate(position, gradient=True)

    def _evaluate(self, position: np.ndarray, *, gradient: bool) -> Evaluation:
        transform = self.target.transform
        parameters = transform.to_parameters(position)
        inside = transform.contains(parameters)
        if inside.all():
            raw = self._call(parameters, gradient=gradient)
        else:
            raw = _scatter(self._call(parameters[inside], gradient=gradient), inside)
        with np.errstate(invalid="ignore"):
            potential = -(raw.log_density + transform.log_jacobian(position))
            slope = None if raw.gradient is None else -transform.pull_back(position, raw.gradient)
        # Jacobians can overflow where the log-density itself is fine; such positions hold no mass either.
        lost = ~np.isfinite(potential) if slope is None else ~(np.isfinite(potential) & np.isfinite(slope).all(axis=1))
        if lost.any():
            potential = np.where(lost, np.inf, potential)
            if slope is not None:
                slope = np.where(lost[:, None], 0.0, slope)
        return Evaluation(position, potential, slope, raw.outputs)

    def _call(self, parameters: np.ndarray, *, gradient: bool) -> Raw:
        """Evaluate rows inside the bounds; failures are retried row by row."""
        if not len(parameters):
            return Raw(np.empty(0), np.empty((0, self.target.dim)) if gradient else None)
        if not self.target.vectorized:
            return _stack([self._call_row(row[None], gradient=gradient) for row in parameters])
        try:
            raw = self._timed(parameters, gradient=gradient)
        except OutputError:
            raise
        except Exception:
            return _stack([self._call_row(row[None], gradient=gradient) for row in parameters])
        failed = np.flatnonzero(_failures(raw))
        if failed.size:
            rows = [
                self._call_row(parameters[[i]], gradient=gradient, first=_take(raw, i)) if i in failed else _take(raw, i)
                for i in range(len(parameters))
            ]
            return _stack(rows)
        return raw

    def _call_row(self, row: np.ndarray, *, gradient: bool, first: Raw | None = None) -> Raw:
        """Evaluate one row, again if it fails; `first` is an answer already had and found failing."""
        error: Exception | None = None
        raw = first
        for attempt in range(self.retries + 1):
            if attempt or raw is None:
                try:
                    raw, error = self._timed(row, gradient=gradient), None
                except OutputError:
                    raise
                except Exception as caught:
                    raw, error = None, caught
            if raw is not None and not _failures(raw).any():
                return raw
        self.counts.n_failures += 1
        if self.on_failure == "reject":
            outputs = None if raw is None else raw.outputs
            return Raw(np.array([-np.inf]), np.zeros_like(row) if gradient else None, outputs)
        raise EvaluationError(_failure_message(row[0], raw, error, self.retries), row[0]) from error

    def _timed(self, parameters: np.ndarray, *, gradient: bool) -> Raw:
        started = time.perf_counter()
        try:
            return self.target.evaluate(parameters, gradient=gradient)
        finally:
            seconds = time.perf_counter() - started
            if gradient:
                self.counts.n_gradients += len(parameters)
                self.counts.gradient_seconds += seconds
            else:
                self.counts.n_values += len(parameters)
                self.counts.value_seconds += seconds


def _failures(raw: Raw) -> np.ndarray:
    failed = np.isnan(raw.log_density) | (raw.log_density == np.inf)
    if raw.gradient is not None:
        failed |= np.isfinite(raw.log_density) & ~np.isfinite(raw.gradient).all(axis=1)
    return np.asarray(failed)


def _failure_message(parameters: np.ndarray, raw: Raw | None, error: Exception | None, retries: int) -> str:
    if error is not None:
        what = f"raised {type(error).__name__}: {error}"
    elif raw is not None and np.isfinite(raw.log_density[0]):
        what = "returned a gradient that is not finite"
    else:
        what = f"returned {raw.log_density[0] if raw is not None else np.nan}"
    again = f" (and again when retried {retries} time{'s' if retries > 1 else ''})" if retries else ""
    point = np.array2string(parameters, precision=6, threshold=12, separator=", ")
    return (
        f"the target {what} at parameters {point}{again}; return -inf where the density is zero, mend the model "
        "there, or pass on_failure='reject' to declare such points outside the support"
    )


def _scatter(raw: Raw, inside: np.ndarray) -> Raw:
    """Put the rows that were evaluated among those that were not."""
    log_density = np.full(len(inside), -np.inf)
    log_density[inside] = raw.log_density
    gradient = outputs = None
    if raw.gradient is not None:
        gradient = np.zeros((len(inside), raw.gradient.shape[1]))
        gradient[inside] = raw.gradient
    if raw.outputs is not None:
        outputs = np.full((len(inside), raw.outputs.shape[1]), np.nan)
        outputs[inside] = raw.outputs
    return Raw(log_density, gradient, outputs)


def _take(raw: Raw, row: int) -> Raw:
    return Raw(
        raw.log_density[[row]],
        None if raw.gradient is None else raw.gradient[[row]],
        None if raw.outputs is None else raw.outputs[[row]],
    )


def _stack(rows: list[Raw]) -> Raw:
    gradients = [row.gradient for row in rows if row.gradient is not None]
    width = next((row.outputs.shape[1] for row in rows if row.outputs is not None), None)
    outputs = None
    if width is not None:
        missing = np.full((1, width), np.nan)
        outputs = np.concatenate([missing if row.outputs is None else row.outputs for row in rows])
    return Raw(
        np.concatenate([row.log_density for row in rows]),
        np.concatenate(gradients) if gradients else None,
        outputs,
    )
