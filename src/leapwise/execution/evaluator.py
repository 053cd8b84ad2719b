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

One request on its way: which rows are settled, and which have to be tried again.

What has been spent on exact evaluations.

Rows to answers: from the record, or from the engine; counted, retried, and given up by the rules.

What a failure is, and what becomes of it, is told in `leapwise.execution.evaluator`.

Is the target still the one that a ledger is of?
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from leapwise.errors import BudgetError, EvaluationError, InputError, LedgerMismatch, OutputError, WorkerError
from leapwise.execution.engine import Answer, BlasThreads, Engine, InProcess
from leapwise.storage import Row
from leapwise.storage.replay import Journal
from leapwise.targets.returns import Raw, stack
from leapwise.targets.target import AnyTarget

#: Seconds to wait before the second retry of a failing row; twice as long before each further one.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0


@dataclass(frozen=True, eq=False)
class Failed:
    """A row that failed in its last attempt: what came of it, how often it was tried, and the time that took."""

    raw: Raw | None
    error: Exception | None
    attempts: int
    seconds: float

    @property
    def what(self) -> str:
        """What happened, in a few words."""
        if self.error is not None:
            return f"raised {type(self.error).__name__}: {self.error}"
        if self.raw is not None and np.isfinite(self.raw.log_density[0]):
            return "returned a gradient that is not finite"
        return f"returned a log-density of {self.raw.log_density[0] if self.raw is not None else np.nan}"


@dataclass(eq=False)
class Settling:
    """Rows of one request: answers of those that are settled, and the last failure of those that ever failed."""

    n_rows: int
    parts: dict[int, Raw] = field(default_factory=dict)
    failed: dict[int, Failed] = field(default_factory=dict)

    @property
    def unsettled(self) -> list[int]:
        """The rows that have failed up to now."""
        return sorted(self.failed.keys() - self.parts.keys())

    def take(self, answer: Answer) -> np.ndarray:
        """Note an answer; return which of *its* rows are settled by it."""
        n, raw = len(answer.rows), answer.raw
        good = np.zeros(n, dtype=bool) if raw is None else ~raw.failures()
        for i in np.flatnonzero(~good):
            row = int(answer.rows[i])
            before = self.failed.get(row)
            self.failed[row] = Failed(
                None if raw is None else raw.row(int(i)),
                answer.error,
                1 + (0 if before is None else before.attempts),
                answer.seconds / n + (0.0 if before is None else before.seconds),
            )
        if raw is not None:
            for i in np.flatnonzero(good):
                self.parts[int(answer.rows[i])] = raw.row(int(i))
        return good

    @property
    def raw(self) -> Raw:
        """All answers, in order; every row must be settled."""
        return stack([self.parts[row] for row in range(self.n_rows)])


def pause(retry: int) -> None:
    """Wait before a retry, the first being number 1: that one is at once, and further ones ever later."""
    if retry > 1:
        time.sleep(min(FIRST_PAUSE * 2.0 ** (retry - 2), LONGEST_PAUSE))


def failure_message(parameters: np.ndarray, failed: Failed) -> str:
    """Return one sentence about a row that failed for good."""
    if isinstance(failed.error, WorkerError):
        words = " ".join(str(failed.error).split())
        return f"the target could not be evaluated at parameters {shown(parameters)}: {words}"
    retries = failed.attempts - 1
    again = f" (and again when retried {retries} time{'s' if retries > 1 else ''})" if retries else ""
    return (
        f"the target {failed.what} at parameters {shown(parameters)}{again}; return -inf where the density is zero, "
        "mend the model there, or pass on_failure='reject' to declare such points outside the support"
    )


def shown(parameters: np.ndarray) -> str:
    """Return parameters as people read them."""
    return np.array2string(parameters, precision=6, threshold=12, separator=", ", max_line_width=1000)


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
class Settler:
    """Answers for rows of parameters inside the bounds; see `Evaluator`, whose lower half this is."""

    target: AnyTarget
    on_failure: Literal["raise", "reject"] = "raise"
    retries: int = 1
    counts: Counts = field(default_factory=Counts)
    limit: int | None = None
    engine: Engine | None = None
    journal: Journal | None = None
    threads: BlasThreads | None = None
    last_failure: str = field(default="", init=False)
    failures: list[np.ndarray] = field(default_factory=list, init=False, repr=False)
    # What to do while an evaluation is under way and until it is recorded: threads let others compute meanwhile.
    aside: Callable[[], AbstractContextManager[None]] = field(default=nullcontext, init=False, repr=False)
    # The requests that have passed `_call_square`, and those that were ever answered.
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
        engine = self.engine
        self._engine: Engine = InProcess(self.target, threads=self.threads) if engine is None else engine
        # Any other takes rows one by one as it is.
        self._one_by_one: Engine = (
            InProcess(self.target, one_by_one=True, threads=self.threads) if engine is None else engine
        )

    @property
    def proven(self) -> list[bool]:
        """Of which requests, without and with gradient, it is known that answers for many points are one for each."""
        return sorted(self._proven)

    def trust_shapes(self, proven: Collection[bool] = (False, True)) -> None:
        """Take it that the target was asked before, by an earlier run, and that its answers had the right shape.

        A run that goes on must ask as the earlier one would have, to the point: see `_call_square`.
        """
        self._proven |= set(proven)
        self._answered |= {False, True}

    def settle(
        self, position: np.ndarray, parameters: np.ndarray, *, gradient: bool
    ) -> tuple[np.ndarray, Raw]:
        """Return positions and answers of rows inside the bounds: from the record as far as it goes, then anew."""
        journal, n = self.journal, len(parameters)
        if journal is None:
            with self.aside():
                return position, self._call(position, parameters, gradient=gradient)
        recalled = journal.recall(position, gradient=gradient)
        blank = np.array([row is None for row in recalled], dtype=bool)
        if blank.all():
            index = journal.claim(n) + np.arange(n)
            with self.aside():
                return position, self._call(position, parameters, gradient=gradient, index=index)
        position = np.stack(
            [point if row is None else row.position for point, row in zip(position, recalled, strict=True)]
        )
        parts = {i: self._replay(row, gradient=gradient) for i, row in enumerate(recalled) if row is not None}
        index = journal.claim(n) + np.arange(n)
        if blank.any():
            with self.aside():
                anew = self._call(position[blank], parameters[blank], gradient=gradient, index=index[blank])
            parts |= {int(i): anew.row(j) for j, i in enumerate(np.flatnonzero(blank))}
        if self._is_square(n):
            self._proven.add(gradient)  # when this was recorded
        return position, stack([parts[i] for i in range(n)])

    def _replay(self, row: Row, *, gradient: bool) -> Raw:
        """Return a recorded answer, and count it as it was counted when it was made."""
        self._require_room(1)
        was_run = row.outputs is not None or row.log_density > -np.inf or not self.target.emulates_outputs
        self._count(row.attempts if was_run or row.status == "rejected" else 0, row.seconds, gradient)
        self._answered.add(gradient)
        if row.status == "rejected":
            self._note_failure(self.target.transform.to_parameters(row.position[None])[0], row.message)
        return Raw(
            np.array([row.log_density]),
            None if row.gradient is None else row.gradient[None],
            None if row.outputs is None else row.outputs[None],
        )

    def _call(
        self, position: np.ndarray, parameters: np.ndarray, *, gradient: bool, index: np.ndarray | None = None
    ) -> Raw:
        """Evaluate rows, all at once if the engine can; those that fail are tried again, one by one."""
        n = len(parameters)
        if not n:
            return Raw(np.empty(0), np.empty((0, self.target.dim)) if gradient else None)
        if self._is_square(n) and gradient not in self._proven:
            return self._call_square(position, parameters, gradient=gradient, index=index)
        settling, rows, batch_raised = Settling(n), np.arange(n), False
        for attempt in range(self.retries + 2):
            pause(attempt)
            for answer in self._answers(
                parameters if attempt == 0 else parameters[rows], gradient=gradient, again=attempt > 0
            ):
                raw = answer.raw
                if (
                    raw is not None and len(raw.log_density) == n and raw.is_finite
                ):  # nothing can be wrong with it
                    self._record(settling, answer, position, index)
                    return raw
                if attempt:
                    answer = replace(answer, rows=rows[answer.rows])
                batch_raised |= raw is None and len(answer.rows) > 1
                self._record(settling, answer, position, index, settling.take(answer))
            # A batch that raises does not say which row it was: each is tried alone, were it without retries.
            most = max(self.retries, int(batch_raised))
            rows = np.array([row for row in settling.unsettled if attempt < most], dtype=int)
            if not len(rows):
                break
        for row in settling.unsettled:
            where = None if index is None else int(index[row])
            settling.parts[row] = self._give_up(
                position[row], parameters[row], settling.failed[row], gradient, where
            )
        return settling.raw

    def _is_square(self, n: int) -> bool:
        return self.target.vectorized and n == self.target.dim > 1

    def _call_square(
        self, position: np.ndarray, parameters: np.ndarray, *, gradient: bool, index: np.ndarray | None
    ) -> Raw:
        """Evaluate as many rows as there are parameters, for the first time, in two parts.

        A sum over the wrong axis would have the right shape, and only there: one row alone gives it away.
        """
        parts = [
            self._call(
                position[part],
                parameters[part],
                gradient=gradient,
                index=None if index is None else index[part],
            )
            for part in (slice(0, 1), slice(1, None))
        ]
        self._proven.add(gradient)
        return stack(parts)

    def _answers(self, parameters: np.ndarray, *, gradient: bool, again: bool) -> Iterator[Answer]:
        """Try rows once, counted and timed."""
        n = len(parameters)
        self._require_room(n)
        engine, n_answered = self._one_by_one if again else self._engine, 0
        try:
            for answer in engine.answers(parameters, gradient=gradient):
                n_answered += len(answer.rows)
                n_run = (
                    len(answer.rows) if answer.raw is None or answer.raw.n_run is None else answer.raw.n_run
                )
                self._count(n_run, answer.seconds, gradient)
                if answer.raw is not None:
                    self._answered.add(gradient)
                # At first it is the user's mistake. Later it is how a model fails, such as a solver that stops early.
                elif isinstance(answer.error, OutputError) and gradient not in self._answered:
                    raise answer.error
                yield answer
        except KeyboardInterrupt:  # what was under way is paid for as well
            at_once = n if self.target.vectorized or self.engine is not None else n_answered + 1
            self._count(max(at_once - n_answered, 0), 0.0, gradient)
            raise

    def _record(
        self,
        settling: Settling,
        answer: Answer,
        position: np.ndarray,
        index: np.ndarray | None,
        good: np.ndarray | None = None,
    ) -> None:
        """Write an answer down, if there is a journal; `good` are its rows that did not fail."""
        if self.journal is None or index is None:
            return
        rows, raw, seconds = answer.rows, answer.raw, answer.seconds / len(answer.rows)
        if raw is not None and not settling.failed:
            self.journal.record(index[rows], position[rows], raw, answer.seconds, attempts=1)
        elif raw is not None:
            with self.journal.ledger.transaction():  # what came together is recorded together
                for i in range(len(rows)) if good is None else np.flatnonzero(good):
                    row, before = rows[i : i + 1], settling.failed.get(int(rows[i]))
                    tries, spent = (0, 0.0) if before is None else (before.attempts, before.seconds)
                    what = "" if before is None else before.what
                    self.journal.record(
                        index[row], position[row], raw.row(int(i)), spent + seconds, tries + 1, what
                    )
        for i in () if good is None else np.flatnonzero(~good):
            row = rows[i]
            failed = settling.failed[int(row)]
            self.journal.failed(int(index[row]), failed.attempts, position[row], failed.what, seconds)

    def _give_up(
        self, position: np.ndarray, parameters: np.ndarray, failed: Failed, gradient: bool, index: int | None
    ) -> Raw:
        """Settle a row that fails for good: outside the support if the user says so, or an error."""
        message = failure_message(parameters, failed)
        # Workers that die may have other reasons than this row, and those must not decide about draws.
        if self.on_failure == "raise" or isinstance(failed.error, WorkerError):
            self._note_failure(parameters, message)
            if self.journal is not None:
                path = self.journal.ledger.path
                message += f"; once it is mended the same call goes on from all that the ledger {path} holds"
            raise EvaluationError(message, parameters.copy()) from failed.error
        if self.journal is not None and index is not None:
            self.journal.reject(index, position, gradient, failed.seconds, failed.attempts, message)
        self._note_failure(parameters, message)
        outputs = None if failed.raw is None else failed.raw.outputs
        return Raw(np.array([-np.inf]), np.zeros((1, len(parameters))) if gradient else None, outputs)

    def _note_failure(self, parameters: np.ndarray, message: str) -> None:
        self.counts.n_failures += 1
        self.last_failure = message
        self.failures.append(parameters.copy())

    def _count(self, n: int, seconds: float, gradient: bool) -> None:
        if gradient:
            self.counts.n_gradients += n
            self.counts.gradient_seconds += seconds
        else:
            self.counts.n_values += n
            self.counts.value_seconds += seconds

    def _require_room(self, n: int) -> None:
        if self.limit is not None and self.counts.n_exact + n > self.limit:
            raise BudgetError(
                f"{self.limit} exact evaluations are allowed, {self.counts.n_exact} are spent and "
                f"{n} more were asked for; allow more (max_evaluations=)"
            )


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


#: How near a log-density must come to the recorded one, relative to its size, if it is above 1.
_NEAR = 1e-6


def middling(rows: Sequence[Row]) -> Row:
    """Return the row to look at: neither a mode, where changes may cancel, nor far out, where they drown."""
    return sorted(rows, key=lambda row: row.log_density)[len(rows) // 2]


def require_unchanged(row: Row, evaluator: Evaluator, path: str) -> None:
    """Evaluate a recorded position again, and raise if its log-density has changed, or if it fails."""
    parameters = evaluator.target.transform.to_parameters(row.position[None])
    alone = Evaluator(evaluator.target, "raise", evaluator.retries, engine=evaluator.engine)
    try:
        potential = float(alone.value(row.position[None]).potential[0])
    except EvaluationError as error:
        raise EvaluationError(
            f"a position recorded in {path} was evaluated again, to see that the target is the same, and {error}; the "
            "ledger is as it was",
            error.parameters,
        ) from error
    found = -potential - float(evaluator.target.transform.log_jacobian(row.position[None])[0])
    if found == row.log_density or abs(found - row.log_density) <= _NEAR * max(1.0, abs(row.log_density)):
        return
    raise LedgerMismatch(
        f"the log-density at a position recorded in {path} was {row.log_density:.9g} and is now {found:.9g} "
        f"(parameters {np.array2string(parameters[0], precision=6, threshold=8, separator=', ')}); "
        "the model, its data or the prior has changed (or the model gives another answer each time): use the target "
        "that the ledger is of, or start a new ledger"
    )
