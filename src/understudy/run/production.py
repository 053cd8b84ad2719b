"""Production: all strands to their end, one after another or each in a thread of its own.

Threads serve waiting only. One *baton* goes round: whoever computes has it, and lays it down while an evaluation is
under way elsewhere. So everything but the model runs as if there were one thread, and yet no chain waits for another's
evaluation. What a chain does depends on its own streams and answers alone, hence on the seed, not on who came first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from understudy.errors import BudgetError, EngineClosed
from understudy.kernels import Info
from understudy.run.progress import Progress
from understudy.run.strand import Strand
from understudy.targets.engines import Engine

#: Seconds between looks at whether somebody wants to stop.
_LOOK = 0.2


@contextmanager
def laid_down(baton: threading.Lock) -> Iterator[None]:
    """Let others have the baton meanwhile."""
    baton.release()
    try:
        yield
    finally:
        baton.acquire()


def draw(strands: list[Strand], engine: Engine | None, progress: Progress) -> None:
    """Bring all strands to their end; side by side if there is an engine that evaluates elsewhere."""
    tell = _teller(strands, progress)
    try:
        if engine is None or len(strands) == 1:
            _in_turns(strands, tell)
        else:
            _side_by_side(strands, engine, tell)
    finally:
        for strand in strands:
            strand.keep()


def _in_turns(strands: list[Strand], tell: Callable[[Strand, Info], None]) -> None:
    """Make one step of each strand after the other, so that all are as far when something ends the run."""
    under_way = {strand: strand.steps() for strand in strands}
    while under_way:
        for strand, steps in list(under_way.items()):
            try:
                tell(strand, next(steps))
            except StopIteration:
                del under_way[strand]
            except BudgetError:
                strand.budget_spent = True
                del under_way[strand]


def _advance(strand: Strand, tell: Callable[[Strand, Info], None], stop: Callable[[], bool]) -> None:
    try:
        for info in strand.steps():
            tell(strand, info)
            if stop():
                return
    except BudgetError:
        strand.budget_spent = True


def _side_by_side(strands: list[Strand], engine: Engine, tell: Callable[[Strand, Info], None]) -> None:
    """Run each strand in a thread of its own; the first error stops the others at their next step."""
    baton, stopped = threading.Lock(), threading.Event()
    failures: list[BaseException] = []

    def run(strand: Strand) -> None:
        # What comes back is recorded before the baton is waited for: until then a kill would lose it.
        strand.evaluator.aside = partial(laid_down, baton)
        with baton:
            try:
                _advance(strand, tell, stopped.is_set)
            except BaseException as error:
                if not (isinstance(error, EngineClosed) and stopped.is_set()):
                    failures.append(error)
                stopped.set()

    threads = [threading.Thread(target=run, args=(strand,), daemon=True) for strand in strands]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK)
    except BaseException:  # an interrupt: nobody wants to wait for what is under way
        stopped.set()
        engine.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if failures:
        raise failures[0]


def _teller(strands: list[Strand], progress: Progress) -> Callable[[Strand, Info], None]:
    """Return what tells the display of one step of a strand."""
    if len(strands) == 1:

        def together(strand: Strand, info: Info) -> None:
            progress.advance(
                strand.evaluator.counts.n_exact,
                float(info.acceptance_rate.mean()),
                discrepancy=info.discrepancy,
            )

        return together

    def apart(strand: Strand, info: Info) -> None:
        progress.add(
            1.0 / len(strands),
            sum(each.evaluator.counts.n_exact for each in strands),
            float(info.acceptance_rate.mean()),
            discrepancy=info.discrepancy,
        )

    return apart
