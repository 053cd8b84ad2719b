"""Rows to answers: from the record, or from the engine; counted, retried, and given up by the rules.

What a failure is, and what becomes of it, is told in `leapwise.execution.evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from leapwise.errors import BudgetError, EvaluationError, InputError, OutputError, WorkerError
from leapwise.execution.answer import Answer, Engine
from leapwise.execution.blas import BlasThreads
from leapwise.execution.counts import Counts
from leapwise.execution.in_process import InProcess
from leapwise.execution.settling import Failed, Settling, failure_message, pause
from leapwise.storage import Row
from leapwise.storage.journal import Journal
from leapwise.targets.raw import Raw, stack
from leapwise.targets.target import AnyTarget


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
        was_run = (
            row.outputs is not None or row.log_density > -np.inf or not hasattr(self.target, "likelihood")
        )
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
