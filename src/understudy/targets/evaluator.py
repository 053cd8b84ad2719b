"""The one way to an exact evaluation.

The evaluator maps positions to parameters, calls the target, checks what comes back, adds the Jacobian,
counts, times, and applies the rules for failures:

* a log-density of -inf is legal: the potential is +inf and the position will be rejected;
* an exception, a NaN, a log-density of +inf, or a non-finite gradient at a finite log-density is a *failure*.
  It is retried at the identical position; if it persists, `EvaluationError` names the position. Only with
  ``on_failure="reject"``, by which the user declares such positions outside the support, does it become a
  potential of +inf, and it is counted;
* a position that is not finite, or whose parameter is not representable inside its bounds, has potential +inf
  and is not evaluated;
* a result of the wrong shape or dtype is an `OutputError` at once: trying again would not mend it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from understudy.errors import BudgetError, EvaluationError, InputError, OutputError
from understudy.targets.raw import Raw, stack
from understudy.targets.target import AnyTarget


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
        Of the forward model; NaN where it was not run. None if the target has none, or has not run it yet.
    """

    position: np.ndarray
    potential: np.ndarray
    gradient: np.ndarray | None = None
    outputs: np.ndarray | None = None


@dataclass
class Counts:
    """What has been spent.

    Attributes
    ----------
    n_values, n_gradients : int
        Positions evaluated for their value alone, and for value and gradient together; retries count.
    value_seconds, gradient_seconds : float
        Time inside the target for either.
    n_failures : int
        Positions that failed for good.
    """

    n_values: int = 0
    n_gradients: int = 0
    value_seconds: float = 0.0
    gradient_seconds: float = 0.0
    n_failures: int = 0

    @property
    def n_exact(self) -> int:
        """All requests, with gradient or without."""
        return self.n_values + self.n_gradients

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

    Attributes
    ----------
    counts : Counts
        What has been spent.
    observer : callable or None
        Is told of every evaluation, to learn from it.
    limit : int or None
        How many exact evaluations there may be in all. A batch that would go beyond it is a `BudgetError`, and none of
        it is evaluated.
    last_failure : str
        What happened at the last position that failed for good; empty if none did.

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
    observer: Callable[[Evaluation], None] | None = None
    limit: int | None = None
    last_failure: str = field(default="", init=False)
    # The width of the outputs, once seen, and the requests that have passed `_call_square`.
    _n_outputs: int | None = field(default=None, init=False, repr=False)
    _proven: set[bool] = field(default_factory=set, init=False, repr=False)
    _answered: set[bool] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.target, type) or not hasattr(self.target, "evaluate"):
            raise InputError(
                f"target must be a Target or a ForwardTarget, got {type(self.target).__name__}; "
                "wrap a function as Target(log_density, dim=...)"
            )
        if self.on_failure not in ("raise", "reject"):
            raise InputError(
                f"on_failure must be 'raise' or 'reject', got {self.on_failure!r}; choose one of them"
            )
        if (
            isinstance(self.retries, bool)
            or not isinstance(self.retries, (int, np.integer))
            or self.retries < 0
        ):
            raise InputError(
                f"retries must be a whole number of at least 0, got {self.retries!r}; the default is 1"
            )

    def value(self, position: np.ndarray) -> Evaluation:
        """Return exact potentials of positions ``(n, dim)``."""
        return self._evaluate(position, gradient=False)

    def value_and_gradient(self, position: np.ndarray) -> Evaluation:
        """Return exact potentials and their gradients."""
        if not self.target.has_gradient:
            raise InputError(
                "this method needs the gradient of the log-density and the target has none; "
                "give Target(gradient=...), or ForwardTarget(vjp=...) or (jacobian=...)"
            )
        return self._evaluate(position, gradient=True)

    def _evaluate(self, position: np.ndarray, *, gradient: bool) -> Evaluation:
        transform = self.target.transform
        if position.ndim != 2 or position.shape[1] != self.target.dim:
            raise InputError(
                f"positions must have shape (n, {self.target.dim}), got {position.shape}; "
                "give one row for each chain"
            )
        parameters = transform.to_parameters(position)
        easy = transform.is_identity and np.isfinite(parameters).all()
        if easy or (inside := transform.contains(parameters)).all():
            raw = self._call(parameters, gradient=gradient)
        else:
            raw = self._call(parameters[inside], gradient=gradient).scatter(
                inside, np.full(len(inside), -np.inf)
            )
        with np.errstate(all="ignore"):
            potential = -(raw.log_density + transform.log_jacobian(position))
            slope = None if raw.gradient is None else -transform.pull_back(position, raw.gradient)
        # Jacobians can overflow where the log-density itself is fine; such positions hold no mass either.
        if not (np.isfinite(potential).all() and (slope is None or np.isfinite(slope).all())):
            finite = np.isfinite(potential)
            if slope is not None:
                finite &= np.isfinite(slope).all(axis=1)
            potential[~finite] = np.inf
            if slope is not None:
                slope[~finite] = 0.0
        evaluation = Evaluation(position, potential, slope, self._outputs(raw))
        if self.observer is not None:
            self.observer(evaluation)
        return evaluation

    def _outputs(self, raw: Raw) -> np.ndarray | None:
        """Return the outputs, all NaN if the model has outputs but was not run for this batch."""
        if raw.outputs is not None:
            self._n_outputs = raw.outputs.shape[1]
        elif self._n_outputs is not None:
            return np.full((len(raw.log_density), self._n_outputs), np.nan)
        return raw.outputs

    def _call(self, parameters: np.ndarray, *, gradient: bool) -> Raw:
        """Evaluate rows inside the bounds, all at once if the target can; failures are retried row by row."""
        n = len(parameters)
        if not n:
            return Raw(np.empty(0), np.empty((0, self.target.dim)) if gradient else None)
        if not self.target.vectorized:
            return stack([self._settle(row[None], self.retries + 1, gradient=gradient) for row in parameters])
        if n == self.target.dim > 1 and gradient not in self._proven:
            return self._call_square(parameters, gradient=gradient)
        raw, error = self._attempt(parameters, gradient=gradient)
        if raw is None:
            # The batch does not say which row raised: each is tried alone, and that is its first retry.
            tries = self.retries if n == 1 else max(self.retries, 1)
            return stack(
                [self._settle(row[None], tries, gradient=gradient, error=error) for row in parameters]
            )
        if raw.is_finite or not (failed := raw.failures()).any():
            return raw
        rows = [raw.row(i) for i in range(n)]
        for i in np.flatnonzero(failed):
            rows[i] = self._settle(parameters[i : i + 1], self.retries, gradient=gradient, raw=rows[i])
        return stack(rows)

    def _call_square(self, parameters: np.ndarray, *, gradient: bool) -> Raw:
        """Evaluate as many rows as there are parameters, for the first time, in two parts.

        A sum over the wrong axis would have the right shape, and only there: one row alone gives it away.
        """
        parts = [self._call(part, gradient=gradient) for part in (parameters[:1], parameters[1:])]
        self._proven.add(gradient)
        return stack(parts)

    def _settle(
        self,
        row: np.ndarray,
        tries: int,
        *,
        gradient: bool,
        raw: Raw | None = None,
        error: Exception | None = None,
    ) -> Raw:
        """Try one row; `raw` or `error` is what went wrong before, if it was tried already."""
        for _ in range(tries):
            raw, error = self._attempt(row, gradient=gradient)
            if raw is not None and not raw.failures().any():
                return raw
        self.counts.n_failures += 1
        self.last_failure = _failure_message(row[0], raw, error, self.retries)
        if self.on_failure == "reject":
            outputs = None if raw is None else raw.outputs
            return Raw(np.array([-np.inf]), np.zeros_like(row) if gradient else None, outputs)
        raise EvaluationError(self.last_failure, row[0].copy()) from error

    def _attempt(self, parameters: np.ndarray, *, gradient: bool) -> tuple[Raw | None, Exception | None]:
        """Call the target once, counted and timed; return its answer or what it raised."""
        raw: Raw | None = None
        error: Exception | None = None
        if self.limit is not None and self.counts.n_exact + len(parameters) > self.limit:
            raise BudgetError(
                f"{self.limit} exact evaluations are allowed, {self.counts.n_exact} are spent and "
                f"{len(parameters)} more were asked for; allow more (max_evaluations=)"
            )
        started = time.perf_counter()
        try:
            raw = self.target.evaluate(parameters, gradient=gradient)
        except OutputError as caught:
            # At first it is the user's mistake. Later it is how a model fails, such as a solver that stops early.
            if gradient not in self._answered:
                raise
            error = caught
        except Exception as caught:
            error = caught
        finally:
            seconds = time.perf_counter() - started
            n_run = len(parameters) if raw is None or raw.n_run is None else raw.n_run
            if gradient:
                self.counts.n_gradients += n_run
                self.counts.gradient_seconds += seconds
            else:
                self.counts.n_values += n_run
                self.counts.value_seconds += seconds
        if raw is not None:
            self._answered.add(gradient)
        return raw, error


def _failure_message(parameters: np.ndarray, raw: Raw | None, error: Exception | None, retries: int) -> str:
    if error is not None:
        what = f"raised {type(error).__name__}: {error}"
    elif raw is not None and np.isfinite(raw.log_density[0]):
        what = "returned a gradient that is not finite"
    else:
        what = f"returned a log-density of {raw.log_density[0] if raw is not None else np.nan}"
    again = f" (and again when retried {retries} time{'s' if retries > 1 else ''})" if retries else ""
    point = np.array2string(parameters, precision=6, threshold=12, separator=", ", max_line_width=1000)
    return (
        f"the target {what} at parameters {point}{again}; return -inf where the density is zero, "
        "mend the model there, or pass on_failure='reject' to declare such points outside the support"
    )
