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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from leapwise.errors import InputError
from leapwise.execution.counts import Counts
from leapwise.execution.settler import Settler
from leapwise.targets.raw import Raw

__all__ = ["Counts", "Evaluation", "Evaluator"]


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

    def into(self, position: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return positions of which some `rows`, a mask, were asked for, with these as they were evaluated.

        They are the same, but where a run is resumed on a machine that rounds differently: recorded positions win.
        """
        if self.position is position or (self.position == position[rows]).all():
            return position
        position = np.array(position)
        position[rows] = self.position
        return position


@dataclass
class Evaluator(Settler):
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
    engine : Engine or None
        Where rows are evaluated; in this process if none is given.
    journal : Journal or None
        Where every evaluation is recorded before it is used, and taken from if it is there already.
    threads : BlasThreads or None
        Of linear algebra, given to a target that is called here.
    last_failure : str
        What happened at the last position that failed for good; empty if none did.
    failures : list of ndarray
        Parameters of all positions that failed for good.

    Examples
    --------
    >>> from leapwise import Target
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2))
    >>> evaluator.value(np.ones((3, 2))).potential
    array([1., 1., 1.])
    >>> evaluator.counts.n_values, evaluator.counts.n_gradients
    (3, 0)
    """

    observer: Callable[[Evaluation], None] | None = None
    _n_outputs: int | None = field(default=None, init=False, repr=False)  # their width, once seen

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Evaluate what the observer is not to hear of."""
        observer, self.observer = self.observer, None
        try:
            yield
        finally:
            self.observer = observer

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
            position, raw = self.settle(position, parameters, gradient=gradient)
        else:
            position = np.array(position)
            position[inside], raw = self.settle(position[inside], parameters[inside], gradient=gradient)
            raw = raw.scatter(inside, np.full(len(inside), -np.inf))
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
