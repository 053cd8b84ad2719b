"""`sample`: from a target to draws.

SIGTERM ends a run as Ctrl-C does: with what has been drawn by then.

Go on with a run of which only the ledger and the target are at hand.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from types import FrameType
from typing import Any, Literal

from numpy.typing import ArrayLike

from leapwise.errors import InputError, LedgerMismatch
from leapwise.execution import BlasThreads, Evaluation, Evaluator, engine_for
from leapwise.results import Run, unseen_elsewhere
from leapwise.run.progress import Progress
from leapwise.run.request import Method, Request, check_manner, check_request
from leapwise.run.reuse import read_lessons
from leapwise.run.runner import Job
from leapwise.run.store import ASKED, Book, Keeper
from leapwise.run.stored import parts_of
from leapwise.storage import Ledger
from leapwise.targets import AnyTarget
from leapwise.warmup import Auto


@contextmanager
def stopping_cleanly() -> Iterator[None]:
    """Take SIGTERM for an interrupt; batch systems send it before they kill.

    Only the main thread may say what becomes of signals, and somebody else's handler stays in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


#: Tells what `Run.summary` would, of what nobody would notice who goes on with the draws alone.
_LOG = logging.getLogger("leapwise.draws")


def sample(
    target: AnyTarget,
    draws: int = 1000,
    *,
    tune: int | None = None,
    chains: int = 4,
    random_seed: int | None = None,
    method: Method | None = None,
    init: ArrayLike | None = None,
    max_evaluations: int | None = None,
    progressbar: bool | None = None,
    on_failure: Literal["raise", "reject"] = "raise",
    retries: int = 1,
    timeout: float | None = None,
    ledger: str | PathLike[str] | None = None,
    version: str | None = None,
    learn_from: Sequence[str | PathLike[str]] | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    cores: int | None = None,
) -> Run:
    """Draw from the posterior of a target, exactly.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to sample. A gradient helps, but is not needed.
    draws : int
        Draws to keep from each chain.
    tune : int, optional
        What may be spent on warm-up, of which nothing is kept as a draw: exact evaluations of all chains together. It
        is a limit: warm-up ends before, where learning more would not pay. By default about 170 and 10 for each
        parameter; besides, up to 15 % of the draws while mass is found that the surrogate had missed, of which a look
        for other modes of a forward model takes 3 % at most, or 48; and where there are only values up to 35 %, or
        what a quadratic takes. For other methods than the default, steps of each chain;
        500 if not given.
    chains : int
        Number of chains; they move together, each with random numbers of its own.
    random_seed : int, optional
        The same seed gives the same draws.
    method : Auto, HMC, NUTS, RMHMC, RNSHMC, RNSRMHMC, ARNSHMC or a kernel, optional
        How to sample; ``Auto()`` by default, which learns a surrogate and draws at one exact value each. ``HMC()``
        tunes itself too, with exact gradients all the way.
    init : array_like of shape (dim,) or (chains, dim), optional
        Parameters to start from; by default draws from the prior, or random positions.
    max_evaluations : int, optional
        All that may be spent on exact evaluations, warm-up and draws together. It is divided between them so that there
        are as many effective draws as can be had, at most `draws` for each chain; it is never exceeded.
    progressbar : bool, optional
        Whether to show progress; by default if standard error is a terminal.
    on_failure : {"raise", "reject"}
        What to do where the target raises or returns NaN, even when retried there: stop with an error that holds the
        draws so far, or count the point as outside the support.
    retries : int
        How often a failing evaluation is tried again, at the same position; from the second retry on after a pause
        that grows.
    timeout : float, optional
        Seconds that one evaluation may take; a longer one has failed.
    ledger : path, optional
        A file in which every exact evaluation is recorded before it is used. The same call with the same file goes on
        where an earlier one ended, however it ended, and pays for nothing twice; with more `draws` it continues the
        same chains.
    version : str, optional
        Of your model, kept in the ledger: change it with the model, and evaluations of the old one are refused.
    learn_from : sequence of paths, optional
        Ledgers of earlier runs of the same target, with whatever settings: the surrogate learns from their evaluations
        as well, and chains start where they have found the posterior. One position of each is evaluated again to see
        that the target has not changed.
    executor : concurrent.futures.Executor or callable, optional
        Where to evaluate: a pool of threads or processes, ``Client.get_executor()`` of Dask, an MPI pool; or a
        function that makes one, which is called again if the pool breaks. Evaluations of a round of warm-up run side
        by side; when draws are made each chain moves on as soon as its own evaluation is back. The draws depend on the
        seed alone, not on the executor or its workers.
    cores : int, optional
        Evaluate in so many processes on this machine; needs the extra ``parallel``.

    Returns
    -------
    Run
        Draws, statistics, cost and settings. An interrupt (Ctrl-C, or SIGTERM) returns what has been drawn by then; an
        error that ends the run has it as its attribute ``run``.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> run = lw.sample(target, draws=200, chains=2, random_seed=1)
    >>> run.draws.shape, run.posterior.cost.n_exact
    ((2, 200, 2), 400)
    """
    given: Method = Auto() if method is None else method
    check_manner(progressbar, version)
    seed = check_request(target, draws, tune, chains, random_seed, given, init, max_evaluations)
    request = Request(target, given, chains, draws, tune, seed, init, max_evaluations)
    Evaluator(
        target, on_failure, retries
    )  # checks its own settings before a file is made or a worker started
    engine, threads = None, BlasThreads()
    if executor is not None or cores is not None or timeout is not None:
        engine = engine_for(target, executor=executor, cores=cores, timeout=timeout, threads=threads)
    elsewhere = executor is not None or cores is not None
    if learn_from is not None and not isinstance(given, Auto):
        raise InputError(
            f"learn_from= is for the default method, not {type(given).__name__}; leave one of them out"
        )
    book = None
    try:
        if ledger is not None:
            book = Book.open(
                ledger,
                request,
                apart=elsewhere,
                on_failure=on_failure,
                version=version,
                seed_given=random_seed is not None,
            )
            request = replace(request, seed=book.seed)
        with stopping_cleanly(), threads:
            evaluator = Evaluator(
                target, on_failure, retries, limit=max_evaluations, engine=engine, threads=threads
            )
            known = _known(evaluator, book, learn_from, version)
            if book is not None:
                evaluator.journal = book.journal(0)
            job = Job(request, evaluator, engine if elsewhere else None, book, known)
            return _run(job, progressbar)
    finally:
        if engine is not None:
            engine.close()
        if book is not None:
            book.close()


def _known(
    evaluator: Evaluator,
    book: Book | None,
    paths: Sequence[str | PathLike[str]] | None,
    version: str | None,
) -> list[Evaluation]:
    """Return what earlier runs have evaluated, as it was when this run began."""
    if book is not None and (kept := book.keeper.known()) is not None:
        return kept
    if not paths:
        return []
    known = read_lessons(paths, evaluator, version)
    if book is not None:
        book.keeper.keep_known(known)
    return known


def _run(job: Job, progressbar: bool | None) -> Run:
    """Warm up and draw; whatever happens, what there is by then is handed over."""
    failure: Exception | None = None
    try:
        job.recheck()
        with Progress(progressbar) as progress:
            job.warm_up(progress)
            job.draw(progress)
    except KeyboardInterrupt:
        pass
    except (
        Exception
    ) as error:  # the target's, or a user's metric's: what was drawn is kept, and then it goes on
        failure = error
    run = job.result()
    if failure is not None:
        failure.run = run  # type: ignore[attr-defined]
        raise failure
    for warning in unseen_elsewhere(run):
        _LOG.warning("%s", warning)
    return run


#: What may differ from call to call.
MAY_DIFFER = {"version", "executor", "cores", "timeout", "retries", "on_failure", "progressbar"}


def resume(path: str | PathLike[str], target: AnyTarget, *, draws: int | None = None, **options: Any) -> Run:
    """Go on with the run of a ledger, with the settings that it began with.

    Parameters
    ----------
    path : path
        Of the ledger.
    target : Target or ForwardTarget
        What it is of.
    draws : int, optional
        Draws to keep of each chain, if not as many as asked for last.
    **options
        What may differ from call to call, as for `sample`: `version`, `executor`, `cores`, `timeout`, `retries`,
        `on_failure` (from "raise" to "reject") and `progressbar`.

    Examples
    --------
    >>> import tempfile
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = lw.sample(target, draws=50, chains=2, random_seed=1, ledger=f"{folder}/run.db")
    ...     more = lw.resume(f"{folder}/run.db", target, draws=80)
    >>> more.draws.shape, bool((more.draws[:, :50] == run.draws).all())
    ((2, 80, 2), True)
    """
    unknown_options = sorted(set(options) - MAY_DIFFER)
    if unknown_options:
        raise InputError(
            f"{unknown_options[0]}= is what the run in {path} began with and cannot be given anew; leave it out, or "
            "call sample() to begin another"
        )
    with Ledger.read(path) as ledger:
        settings = ledger.header.settings
        method = Keeper(ledger, parts_of(target)).method()
        asked = ledger.load(ASKED)
    for name, unknown in (("method", method is None), ("init", settings["init"] is not None)):
        if unknown:
            raise LedgerMismatch(
                f"the {name} of the run in {path} is not in its ledger; resume it by the call that began it, "
                f"sample(..., {name}=..., ledger={str(path)!r})"
            )
    return sample(
        target,
        int(asked[1]["draws"] if draws is None and asked is not None else draws or settings["draws"]),
        tune=settings["tune"],
        chains=settings["chains"],
        method=method,
        max_evaluations=settings["max_evaluations"],
        ledger=path,
        **{"on_failure": settings["on_failure"]} | options,
    )
