"""The one way to an exact evaluation.

The evaluator maps positions to parameters, has the engine call the target, checks what comes back, adds the Jacobian,
counts, times, records to the ledger or replays from it, and applies the rules for failures:

* a log-density of -inf is legal: the potential is +inf and the position will be rejected;
* an exception, a NaN, a log-density of +inf, or a non-finite gradient at a finite log-density is a *failure*.
  It is retried at the identical position; if it persists, `EvaluationError` names the position. Only with
  ``on_failure="reject"``, by which the user declares such positions outside the support, does it become a
  potential of +inf, and it is counted;
* a position that is not finite, or whose parameter is not representable inside its bounds, has potential +inf
  and is not evaluated;
* a result of the wrong shape or dtype is an `OutputError` at once: a retry would not fix it.

Here *numbers* are judged: finite, infinite or NaN. The shape and dtype of what the user's functions return are checked
before, in `leapwise.targets.calls`; the arguments that users pass, in `leapwise.checks`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from leapwise.checks import require_whole
from leapwise.errors import BudgetError, EvaluationError, InputError, LedgerMismatch, OutputError, WorkerError
from leapwise.execution.engine import Attempt, BlasThreads, Engine, FailedRow, InProcess, shown
from leapwise.storage import Row
from leapwise.storage.replay import Replay
from leapwise.targets.calls import Values, stack
from leapwise.targets.target import AnyTarget

#: Seconds to wait before the second retry of a failing row; twice as long before each further one, up to the longest.
#: A guess: long enough for a licence server or a network disk to recover, short beside an expensive evaluation.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0

#: How near a repeated log-density must come to the recorded one, relative to its size if that is above 1. A guess:
#: looser than the rounding of another machine or library, tighter than a change of model or data that matters.
_SAME_LOG_DENSITY = 1e-6


@dataclass
class Counts:
    """What has been spent on exact evaluations.

    Attributes
    ----------
    n_values, n_gradients : int
        Positions evaluated for their value alone, and for value and gradient together; retries count.
    value_seconds, gradient_seconds : float
        Time inside the target for either.
    n_failures : int
        Positions that still failed when they were retried.
    n_failed_attempts : int
        Evaluations that failed, whether a retry succeeded or not.
    """

    n_values: int = 0
    n_gradients: int = 0
    value_seconds: float = 0.0
    gradient_seconds: float = 0.0
    n_failures: int = 0
    n_failed_attempts: int = 0

    @property
    def n_exact(self) -> int:
        """All evaluations, with gradient or without."""
        return self.n_values + self.n_gradients

    def add(self, n: int, seconds: float, *, gradient: bool) -> None:
        """Count evaluations of one kind."""
        if gradient:
            self.n_gradients += n
            self.gradient_seconds += seconds
        else:
            self.n_values += n
            self.value_seconds += seconds

    def copy(self) -> Counts:
        """Return a snapshot."""
        return Counts(**vars(self))

    def since(self, earlier: Counts) -> Counts:
        """Return what was spent after an earlier snapshot."""
        return Counts(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Exact potentials of a batch of positions.

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
        """Return `position`, of which the `rows` of a mask were evaluated, with these as they were evaluated.

        They differ only where a run is resumed on a machine that rounds differently: recorded positions win.
        """
        if self.position is position or (self.position == position[rows]).all():
            return position
        position = np.array(position)
        position[rows] = self.position
        return position


@dataclass(eq=False)
class _Batch:
    """Rows of one request, all inside the bounds, and what is known of them so far."""

    position: np.ndarray
    parameters: np.ndarray
    gradient: bool
    index: np.ndarray | None = None  # their places in the ledger
    whole: Values | None = None  # the values of all rows, if a single call returned them without a failure
    found: dict[int, Values] = field(default_factory=dict)
    failed: dict[int, FailedRow] = field(default_factory=dict)
    raised: bool = False  # whether a call for several rows at once raised
    under_way: int = 0  # rows that the target is being called for

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def failing(self) -> list[int]:
        """The rows that have failed and have no values yet."""
        return [] if self.whole is not None else sorted(self.failed.keys() - self.found.keys())

    def take(self, rows: np.ndarray, attempt: Attempt) -> np.ndarray:
        """Keep the outcome of an attempt at `rows`; return which of them did not fail."""
        n, values = len(rows), attempt.values
        self.raised |= values is None and n > 1
        good = np.zeros(n, dtype=bool) if values is None else ~values.failures()
        if values is not None and n == len(self) and good.all():  # the usual case, and quick
            self.whole = values
            return good
        for i, row in enumerate(rows.tolist()):
            one = None if values is None else values.row(i)
            if good[i]:
                assert one is not None
                self.found[row] = one
            else:
                attempts, seconds = self.spent(row)
                self.failed[row] = FailedRow(one, attempt.error, attempts + 1, seconds + attempt.seconds / n)
        return good

    def spent(self, row: int) -> tuple[int, float]:
        """Return the number of failed attempts at a row, and their seconds."""
        failed = self.failed.get(row)
        return (0, 0.0) if failed is None else (failed.attempts, failed.seconds)

    def values(self) -> Values:
        """Return the values of all rows, in order."""
        if self.whole is not None:
            return self.whole
        if not len(self):
            return Values(np.empty(0), np.empty(self.parameters.shape) if self.gradient else None)
        return stack([self.found[row] for row in range(len(self))])


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
    counts : Counts
        What has been spent so far.
    limit : int, optional
        How many exact evaluations there may be in all. A batch that would go beyond it is a `BudgetError`, and none of
        it is evaluated. `limited_to` sets another limit for a while.
    engine : Engine, optional
        Where rows are evaluated; in this process if none is given.
    replay : Replay, optional
        Where every evaluation is recorded before it is used, and from which it is replayed if it is there already.
    threads : BlasThreads, optional
        Threads of linear algebra, given to a target that is called in this process.
    observer : callable, optional
        Is given every evaluation, to train on it. `observe` sets another one, `observed_by` for a while.

    Attributes
    ----------
    last_failure : str
        What happened at the last position that failed and was rejected or raised; empty if there was none.
    failures : list of ndarray
        Parameters of all those positions.
    recent : list of Evaluation or None
        Evaluations since its owner last emptied it, for outputs of the chains' positions; None if nobody needs them.

    Examples
    --------
    >>> from leapwise import Target
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
    limit: int | None = None
    engine: Engine | None = None
    replay: Replay | None = None
    threads: BlasThreads | None = None
    observer: Callable[[Evaluation], None] | None = None
    recent: list[Evaluation] | None = field(default=None, init=False, repr=False)
    last_failure: str = field(default="", init=False)
    failures: list[np.ndarray] = field(default_factory=list, init=False, repr=False)
    _lock: threading.Lock | None = field(default=None, init=False, repr=False)
    # The kinds of request (False: value, True: with gradient) whose shapes were checked, and that ever had values.
    _proven: set[bool] = field(default_factory=set, init=False, repr=False)
    _succeeded: set[bool] = field(default_factory=set, init=False, repr=False)
    _n_outputs: int | None = field(default=None, init=False, repr=False)  # their width, once seen

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
        require_whole("retries", self.retries, 0)
        self._engine: Engine = self.engine or InProcess(self.target, threads=self.threads)

    def value(self, position: np.ndarray, *, gradient: bool = False) -> Evaluation:
        """Return exact potentials of positions ``(n, dim)``, with their gradients if asked for."""
        parameters, inside = self._parameters(position)
        batch = self._begin(position, parameters, inside, gradient)
        with self._lock_released(batch):
            for rows, one_by_one in self._to_call(batch):
                try:
                    for attempt in self._engine.evaluate(
                        batch.parameters[rows], gradient=gradient, one_by_one=one_by_one
                    ):
                        self._take(batch, rows, attempt)
                except KeyboardInterrupt:
                    self.counts.add(batch.under_way, 0.0, gradient=gradient)  # these are paid for as well
                    raise
        evaluation = self._evaluation(position, inside, batch)
        if self.observer is not None:
            self.observer(evaluation)
        if self.recent is not None:
            self.recent.append(evaluation)
        return evaluation

    def value_and_gradient(self, position: np.ndarray) -> Evaluation:
        """Return exact potentials and their gradients."""
        if not self.target.has_gradient:
            raise InputError(
                "this method needs the gradient of the log-density and the target has none; "
                "give Target(gradient=...), or ForwardTarget(vjp=...) or (jacobian=...)"
            )
        return self.value(position, gradient=True)

    @contextmanager
    def limited_to(self, limit: int | None) -> Iterator[None]:
        """Allow so many exact evaluations in all, as long as this context lasts."""
        before, self.limit = self.limit, limit
        try:
            yield
        finally:
            self.limit = before

    def observe(self, observer: Callable[[Evaluation], None] | None) -> None:
        """Give every evaluation to this observer from now on, and to no other; None ends that."""
        self.observer = observer

    @contextmanager
    def observed_by(self, observer: Callable[[Evaluation], None] | None) -> Iterator[None]:
        """Give every evaluation to this observer and no other (None: to none), as long as this context lasts."""
        before, self.observer = self.observer, observer
        try:
            yield
        finally:
            self.observer = before

    @contextmanager
    def releasing(self, lock: threading.Lock) -> Iterator[None]:
        """Release a lock, which the caller holds, whenever the target is called, as long as this context lasts.

        Chains in threads hold it for everything else. It is released until the evaluation is recorded: a kill before
        that would lose it.
        """
        self._lock = lock
        try:
            yield
        finally:
            self._lock = None

    @property
    def proven(self) -> list[bool]:
        """For which requests, without and with gradient, it is known that many points have one value each."""
        return sorted(self._proven)

    def trust_shapes(self, proven: Collection[bool] = (False, True)) -> None:
        """Assume that an earlier run has called the target and that its results had the right shape.

        A run that is resumed must call the target exactly as the earlier one would have: see `_to_call`.
        """
        self._proven |= set(proven)
        self._succeeded |= {False, True}

    def restore(
        self, counts: Counts, failures: Sequence[np.ndarray], proven: Collection[bool], index: int
    ) -> None:
        """Continue from a checkpoint, with the next evaluation at this place of the ledger."""
        self.counts, self.failures = counts, list(failures)
        self.trust_shapes(proven)
        if self.replay is not None:
            self.replay.skip_to(index)

    def _parameters(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the parameters of positions and a mask of those inside the bounds, None if all are."""
        transform = self.target.transform
        if position.ndim != 2 or position.shape[1] != self.target.dim:
            raise InputError(
                f"positions must have shape (n, {self.target.dim}), got {position.shape}; "
                "give one row for each chain"
            )
        parameters = transform.to_parameters(position)
        if transform.is_identity and np.isfinite(parameters).all():
            return parameters, None
        inside = transform.contains(parameters)
        return parameters, None if inside.all() else inside

    def _begin(
        self, position: np.ndarray, parameters: np.ndarray, inside: np.ndarray | None, gradient: bool
    ) -> _Batch:
        """Return the rows inside the bounds, with the values of those that the ledger has."""
        if inside is not None:
            position, parameters = position[inside], parameters[inside]
        batch = _Batch(position, parameters, gradient)
        if self.replay is None:
            return batch
        recorded = self.replay.recall(position, gradient=gradient)
        for i, row in enumerate(recorded):
            if row is not None:
                batch.found[i] = self._recorded(row, gradient=gradient)
        if batch.found:
            batch.position = np.stack(
                [
                    point if row is None else row.position
                    for point, row in zip(position, recorded, strict=True)
                ]
            )
        batch.index = self.replay.claim(len(batch)) + np.arange(len(batch))
        return batch

    def _recorded(self, row: Row, *, gradient: bool) -> Values:
        """Return a recorded evaluation, and count it as it was counted when it was made."""
        self._require_room(1)
        was_run = row.outputs is not None or row.log_density > -np.inf or row.status == "rejected"
        if not was_run:
            was_run = self.target.is_run_at(self.target.transform.to_parameters(row.position[None])[0])
        n_run = row.attempts if was_run else 0
        self.counts.add(n_run, row.seconds, gradient=gradient)
        self.counts.n_failed_attempts += row.attempts - (row.status == "ok")
        self._succeeded.add(gradient)
        if row.status == "rejected":
            self._note_failure(self.target.transform.to_parameters(row.position[None])[0], row.message)
        return Values(
            np.array([row.log_density]),
            None if row.gradient is None else row.gradient[None],
            None if row.outputs is None else row.outputs[None],
        )

    def _to_call(self, batch: _Batch) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield the rows to call the target for, and whether one by one, until all have values.

        At first all rows are called together, then those that failed, one by one. The first time that there are as
        many rows as parameters, the first row is called alone: a vectorised function that sums over the wrong axis
        would return the right shape then, and only then.
        """
        n, gradient = len(batch), batch.gradient
        todo = np.setdiff1d(np.arange(n), list(batch.found)) if batch.found else np.arange(n)
        split = self._is_square(len(todo)) and gradient not in self._proven
        for part in (todo[:1], todo[1:]) if split else (todo,):
            yield from self._to_call_until_found(batch, part)
        if split or (len(todo) < n and self._is_square(n)):
            self._proven.add(gradient)

    def _to_call_until_found(self, batch: _Batch, rows: np.ndarray) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield rows, then those of them that failed, as often as they may be retried; abandon the rest."""
        retry, batch.raised = 0, False
        while len(rows):
            if retry > 1:
                time.sleep(min(FIRST_PAUSE * 2.0 ** (retry - 2), LONGEST_PAUSE))
            self._require_room(len(rows))
            batch.under_way = len(rows) if self._calls_many else 1
            yield rows, retry > 0
            # A call for many rows that raises does not say which of them failed: each is tried alone at least once.
            if retry >= max(self.retries, int(batch.raised)):
                break
            rows, retry = np.array(batch.failing, dtype=int), retry + 1
        for row in batch.failing:
            batch.found[row] = self._abandon(batch, row)

    @property
    def _calls_many(self) -> bool:
        """Whether several rows may be under way at once."""
        return self.target.vectorized or self.engine is not None

    def _is_square(self, n: int) -> bool:
        return self.target.vectorized and n == self.target.dim > 1

    def _take(self, batch: _Batch, rows: np.ndarray, attempt: Attempt) -> None:
        """Count, keep and record one attempt at some of these rows."""
        under_way, batch.under_way = batch.under_way, 0
        n, values, gradient = len(attempt.rows), attempt.values, batch.gradient
        n_run = n if values is None or values.n_run is None else values.n_run
        self.counts.add(n_run, attempt.seconds, gradient=gradient)
        if values is not None:
            self._succeeded.add(gradient)
        # At first it is a mistake of the user. Later it is how a model fails, such as a solver that stops early.
        elif isinstance(attempt.error, OutputError) and gradient not in self._succeeded:
            raise attempt.error
        rows = rows[attempt.rows]
        good = batch.take(rows, attempt)
        self.counts.n_failed_attempts += int((~good).sum())
        if self.replay is not None:
            self._record(self.replay, batch, rows, attempt, good)
        batch.under_way = max(under_way - n, 0) if self._calls_many else 1

    def _record(
        self, replay: Replay, batch: _Batch, rows: np.ndarray, attempt: Attempt, good: np.ndarray
    ) -> None:
        """Write one attempt to the ledger."""
        assert batch.index is not None
        position, index, values = batch.position, batch.index, attempt.values
        seconds = attempt.seconds / len(rows)
        if values is not None and not batch.failed:
            replay.record(index[rows], position[rows], values, attempt.seconds, attempts=1)
        elif values is not None:
            with replay.ledger.transaction():  # what came together is recorded together
                for i in np.flatnonzero(good):
                    row = int(rows[i])
                    attempts, spent = batch.spent(row)
                    what = batch.failed[row].what if attempts else ""
                    one = slice(row, row + 1)
                    replay.record(
                        index[one], position[one], values.row(int(i)), spent + seconds, attempts + 1, what
                    )
        for row in rows[~good].tolist():
            failed = batch.failed[row]
            replay.failed(int(index[row]), failed.attempts, position[row], failed.what, seconds)

    def _abandon(self, batch: _Batch, row: int) -> Values:
        """Return zero density for a row that keeps failing, if the user said so; else raise."""
        parameters, failed = batch.parameters[row], batch.failed[row]
        layout = getattr(self.target, "output_variables", ())
        labels = [label for each in layout for label in each.labels]
        message = failed.message(parameters, vectorized=self.target.vectorized, outputs=labels)
        # Workers may die for other reasons than this row, and those must not decide about draws.
        if self.on_failure == "raise" or isinstance(failed.error, WorkerError):
            self._note_failure(parameters, message)
            if self.replay is not None:
                where = f"the ledger {self.replay.ledger.path}"
                message += f"; once it is fixed, the same call continues from all that {where} holds"
            raise EvaluationError(message, parameters.copy()) from failed.error
        if self.replay is not None and batch.index is not None:
            place, position = int(batch.index[row]), batch.position[row]
            self.replay.reject(place, position, batch.gradient, failed.seconds, failed.attempts, message)
        self._note_failure(parameters, message)
        outputs = None if failed.values is None else failed.values.outputs
        gradient = np.zeros((1, len(parameters))) if batch.gradient else None
        return Values(np.array([-np.inf]), gradient, outputs)

    def _evaluation(self, position: np.ndarray, inside: np.ndarray | None, batch: _Batch) -> Evaluation:
        """Return potentials in positions: signs turned, Jacobians added, +inf where there is no mass."""
        transform, values = self.target.transform, batch.values()
        if inside is None:
            position = batch.position
        else:
            position = np.array(position)
            position[inside] = batch.position
            values = values.scatter(inside, np.full(len(inside), -np.inf))
        with np.errstate(all="ignore"):
            potential = -(values.log_density + transform.log_jacobian(position))
            slope = None if values.gradient is None else -transform.pull_back(position, values.gradient)
        # Jacobians can overflow where the log-density itself is fine; such positions hold no mass either.
        if not (np.isfinite(potential).all() and (slope is None or np.isfinite(slope).all())):
            finite = np.isfinite(potential)
            if slope is not None:
                finite &= np.isfinite(slope).all(axis=1)
            potential[~finite] = np.inf
            if slope is not None:
                slope[~finite] = 0.0
        outputs = values.outputs
        if outputs is not None:
            self._n_outputs = outputs.shape[1]
        elif self._n_outputs is not None:  # the model has outputs but was not run for this batch
            outputs = np.full((len(potential), self._n_outputs), np.nan)
        return Evaluation(position, potential, slope, outputs)

    def _note_failure(self, parameters: np.ndarray, message: str) -> None:
        self.counts.n_failures += 1
        self.last_failure = message
        self.failures.append(parameters.copy())

    def _require_room(self, n: int) -> None:
        if self.limit is not None and self.counts.n_exact + n > self.limit:
            raise BudgetError(
                f"{self.limit} exact evaluations are allowed, {self.counts.n_exact} are spent and "
                f"{n} more were asked for; allow more (max_evaluations=)"
            )

    @contextmanager
    def _lock_released(self, batch: _Batch) -> Iterator[None]:
        if self._lock is None or len(batch.found) == len(batch):  # all replayed: there is nothing to call
            yield
            return
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()


def require_unchanged(rows: Sequence[Row], evaluator: Evaluator, path: str) -> None:
    """Evaluate one of these recorded positions again, and raise if its log-density has changed, or if it fails.

    It is the one with the median log-density: not at a mode, where changes may cancel, nor far out in a tail.
    """
    row = sorted(rows, key=lambda each: each.log_density)[len(rows) // 2]
    parameters = evaluator.target.transform.to_parameters(row.position[None])
    alone = Evaluator(evaluator.target, "raise", evaluator.retries, engine=evaluator.engine)
    try:
        potential = float(alone.value(row.position[None]).potential[0])
    except EvaluationError as error:
        raise EvaluationError(
            f"a position recorded in {path} was evaluated again, to check that the target is the same, and {error}; "
            "the ledger was not changed",
            error.parameters,
        ) from error
    found = -potential - float(evaluator.target.transform.log_jacobian(row.position[None])[0])
    if found == row.log_density or abs(found - row.log_density) <= _SAME_LOG_DENSITY * max(
        1.0, abs(row.log_density)
    ):
        return
    raise LedgerMismatch(
        f"the log-density at a position recorded in {path} was {row.log_density:.9g} and is now {found:.9g} "
        f"(parameters {shown(parameters[0])}): the model, its data or the prior has changed, or the model is random; "
        "use the target that the ledger was made with, or start a new ledger"
    )
