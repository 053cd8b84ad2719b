"""Production: all groups to their end, one after another or each in a thread of its own.

Threads serve waiting only. One *baton* goes round: whoever computes has it, and lays it down while an evaluation is
under way elsewhere. So everything but the model runs as if there were one thread, and yet no chain waits for another's
evaluation. What a chain does depends on its own streams and answers alone, hence on the seed, not on who came first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from leapwise.errors import BudgetError, EngineClosed
from leapwise.execution import Engine
from leapwise.kernels import Info
from leapwise.run.chain_group import ChainGroup
from leapwise.run.progress import Progress

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


def draw(groups: list[ChainGroup], engine: Engine | None, progress: Progress) -> None:
    """Bring all groups to their end; side by side if there is an engine that evaluates elsewhere."""
    tell = _teller(groups, progress)
    try:
        if engine is None or len(groups) == 1:
            _in_turns(groups, tell)
        else:
            _side_by_side(groups, engine, tell)
    finally:
        for group in groups:
            group.keep()


def _in_turns(groups: list[ChainGroup], tell: Callable[[ChainGroup, Info], None]) -> None:
    """Make one step of each group after the other, so that all are as far when something ends the run."""
    under_way = {group: group.steps() for group in groups}
    while under_way:
        for group, steps in list(under_way.items()):
            try:
                tell(group, next(steps))
            except StopIteration:
                del under_way[group]
            except BudgetError:
                group.budget_spent = True
                del under_way[group]


def _advance(group: ChainGroup, tell: Callable[[ChainGroup, Info], None], stop: Callable[[], bool]) -> None:
    try:
        for info in group.steps():
            tell(group, info)
            if stop():
                return
    except BudgetError:
        group.budget_spent = True


def _side_by_side(groups: list[ChainGroup], engine: Engine, tell: Callable[[ChainGroup, Info], None]) -> None:
    """Run each group in a thread of its own; the first error stops the others at their next step."""
    baton, stopped = threading.Lock(), threading.Event()
    failures: list[BaseException] = []

    def run(group: ChainGroup) -> None:
        # What comes back is recorded before the baton is waited for: until then a kill would lose it.
        group.evaluator.aside = partial(laid_down, baton)
        with baton:
            try:
                _advance(group, tell, stopped.is_set)
            except BaseException as error:
                if not (isinstance(error, EngineClosed) and stopped.is_set()):
                    failures.append(error)
                stopped.set()

    threads = [threading.Thread(target=run, args=(group,), daemon=True) for group in groups]
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


def _teller(groups: list[ChainGroup], progress: Progress) -> Callable[[ChainGroup, Info], None]:
    """Return what tells the display of one step of a group."""
    if len(groups) == 1:

        def together(group: ChainGroup, info: Info) -> None:
            progress.advance(
                group.evaluator.counts.n_exact,
                float(info.acceptance_rate.mean()),
                discrepancy=info.discrepancy,
            )

        return together

    def apart(group: ChainGroup, info: Info) -> None:
        progress.add(
            1.0 / len(groups),
            sum(each.evaluator.counts.n_exact for each in groups),
            float(info.acceptance_rate.mean()),
            discrepancy=info.discrepancy,
        )

    return apart
