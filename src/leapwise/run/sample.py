"""`sample`, from a target to draws, and `resume`, which continues the run of a ledger."""

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

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_flag, require_version, require_whole
from leapwise.errors import InputError, LedgerMismatch
from leapwise.execution import BlasThreads, Evaluation, Evaluator, engine_for
from leapwise.results import Run, logged_warnings
from leapwise.run.ledgers import read_evaluations
from leapwise.run.request import Method, Request, read_seed
from leapwise.run.runner import Runner
from leapwise.run.store import RunStore
from leapwise.storage import Ledger
from leapwise.targets import AnyTarget
from leapwise.warmup import Auto

#: Logs the summary's surrogate warnings, for users who never print it.
_LOG = logging.getLogger("leapwise.draws")
#: Arguments of `sample` that `resume` accepts, because they do not decide which draws are made.
MAY_DIFFER = {"version", "executor", "cores", "timeout", "retries", "on_failure", "progressbar"}


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
    precision: float | None = None,
    progressbar: bool | None = None,
    on_failure: Literal["raise", "reject"] = "raise",
    retries: int = 1,
    timeout: float | None = None,
    ledger: str | PathLike[str] | None = None,
    version: str | None = None,
    learn_from: Sequence[str | PathLike[str]] | None = None,
    keep_outputs: bool | int | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    cores: int | None = None,
) -> Run:
    """Draw from the posterior of a target, exactly.

    Parameters
    ----------
    target : Target or ForwardTarget
        The posterior. A gradient helps, but is not needed.
    draws : int
        Draws to keep from each chain.
    tune : int, optional
        Limit of warm-up, of which nothing is kept as a draw. With other methods than the default: steps of each chain,
        500 by default. With the default method: exact evaluations of all chains together; warm-up ends earlier if
        learning more would not pay. If `tune` and `max_evaluations` are left out, the limit is 150 + 10 for each
        parameter, somewhat higher for more than four chains, and may grow (shares are of the draws of all chains):

        - with a gradient or a forward model: by 34, for the look beyond the outermost draws, and by up to 15 % while
          mass is found that the surrogate had missed (the search for other modes of a forward model takes at most
          3 % of this, or 48 if that is more);
        - with a log-density alone: by up to 35 %, or by what a quadratic takes if that is more;
        - with any log-density: by up to 35 % while the surrogate is poor but gets better;
        - if the posterior is hard to find: by up to 20 (dim + 10) gradients, or dim + 1 values for each of these;
        - for the last tests before the draws: by a few dozen, and more if the surrogate fails them.

        A fall-back on exact HMC has a warm-up of its own.
    chains : int
        Number of chains. Each has its own random numbers.
    random_seed : int, optional
        With the same settings and number of chains, the same seed gives the same draws.
    method : Auto, HMC, NUTS, RMHMC, RNSHMC, RNSRMHMC, ARNSHMC or a kernel, optional
        How to sample. The default, ``Auto()``, trains a surrogate and draws at one exact value each. ``HMC()`` tunes
        itself too, and takes exact gradients only.
    init : array_like of shape (dim,) or (chains, dim), optional
        Parameters to start from; by default draws from the prior, or random positions.
    max_evaluations : int, optional
        Limit of exact evaluations, warm-up and draws together; it is never exceeded. It is divided so that there are
        as many effective draws as possible, with at most `draws` draws of each chain.
    precision : float, optional
        Stop before `draws` draws of each chain if the Monte Carlo standard errors of the mean and of the standard
        deviation of every parameter are at most so many standard deviations: 0.03 is about what 1000 independent draws
        give. The errors are those of `Run.estimate`, and are first computed after 100 draws of all chains. If they are
        still larger at the end, a warning says so. Set `draws` high: it is a limit then.
    progressbar : bool, optional
        Whether to show progress; by default if standard error is a terminal.
    on_failure : {"raise", "reject"}
        What to do where the target raises or returns NaN, also when retried: stop with an error that holds the draws
        so far, or count the point as outside the support.
    retries : int
        How often a failed evaluation is retried at the same position; from the second retry on after a growing pause.
    timeout : float, optional
        Seconds that one evaluation may take; a longer one counts as failed.
    ledger : path, optional
        A file that records every exact evaluation before it is used. The same call with the same file continues where
        an earlier one ended, however it ended, and evaluates nothing twice. With more `draws` it continues the same
        chains.
    version : str, optional
        Version of your model, stored in the ledger. Change it with the model: evaluations of another version are
        refused.
    learn_from : sequence of paths, optional
        Ledgers of earlier runs of the same target, with any settings. The surrogate is trained on their evaluations
        too, and chains start where they found the posterior. One position of each is evaluated again, to check that
        the target has not changed.
    keep_outputs : bool or int, optional
        Of a `ForwardTarget`: whether the model's outputs at the draws are kept, or of every so many draws. They cost no
        further evaluation. By default all, or as many as fit into 256 MiB. A ledger keeps to what its first call said.
    executor : concurrent.futures.Executor or callable, optional
        Where to evaluate: a pool of threads or processes, ``Client.get_executor()`` of Dask, an MPI pool; or a
        function that makes one, which is called again if the pool breaks. In warm-up the evaluations of a round run at
        the same time; in the draws each chain continues as soon as its own evaluation is done. The draws depend on the
        seed alone, not on the executor or the number of workers.
    cores : int, optional
        Evaluate in this many processes on this machine; needs the extra ``parallel``.

    Returns
    -------
    Run
        Draws, statistics, cost and settings. An interrupt (Ctrl-C or SIGTERM) returns the draws so far; an error that
        ends the run has them as its attribute ``run``.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> run = lw.sample(target, draws=200, chains=2, random_seed=1)
    >>> run.draws.shape, run.posterior.cost.n_exact
    ((2, 200, 2), 400)
    """
    given: Method = Auto() if method is None else method
    if progressbar is not None:
        require_flag("progressbar", progressbar)
    require_version(version)
    if keep_outputs is not None and not isinstance(keep_outputs, (bool, np.bool_)):
        require_whole("keep_outputs", keep_outputs, 0)
    seed = read_seed(random_seed)
    request = Request(target, given, chains, draws, tune, seed, init, max_evaluations, precision)
    request.check()
    if learn_from is not None and not isinstance(given, Auto):
        raise InputError(
            f"learn_from= is for the default method, not {type(given).__name__}; leave one of them out"
        )
    Evaluator(target, on_failure, retries)  # checks its settings before a file is made or a worker started
    engine, threads = None, BlasThreads()
    if executor is not None or cores is not None or timeout is not None:
        engine = engine_for(target, executor=executor, cores=cores, timeout=timeout, threads=threads)
    on_executor = executor is not None or cores is not None
    store = None
    try:
        if ledger is not None:
            store = RunStore.open(
                ledger,
                request,
                apart=on_executor,
                on_failure=on_failure,
                version=version,
                seed_given=random_seed is not None,
            )
            request = replace(request, seed=store.seed)
        with _sigterm_as_interrupt(), threads:
            known = _known(Evaluator(target, retries=retries, engine=engine), store, learn_from, version)
            evaluator = Evaluator(
                target,
                on_failure,
                retries,
                limit=max_evaluations,
                engine=engine,
                replay=None if store is None else store.replay(0),
                threads=threads,
            )
            runner = Runner(request, evaluator, engine if on_executor else None, store, known, keep_outputs)
            run = runner.run(progressbar)
        for warning in logged_warnings(run):
            _LOG.warning("%s", warning)
        return run
    finally:
        if engine is not None:
            engine.close()
        if store is not None:
            store.close()


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send before they kill, as Ctrl-C.

    Only the main thread may set signal handlers, and a handler that the user has set stays in place.
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


def _known(
    evaluator: Evaluator,
    store: RunStore | None,
    paths: Sequence[str | PathLike[str]] | None,
    version: str | None,
) -> list[Evaluation]:
    """Return the evaluations of earlier runs to learn from; a resumed run takes those that it began with."""
    if store is not None and (saved := store.known()) is not None:
        return saved
    if not paths:
        return []
    known = read_evaluations(paths, evaluator, version)
    if store is not None:
        store.save_known(known)
    return known


def resume(
    path: str | PathLike[str],
    target: AnyTarget,
    *,
    draws: int | None = None,
    precision: float | None = None,
    **options: Any,
) -> Run:
    """Continue the run of a ledger, with the settings that it began with.

    Parameters
    ----------
    path : path
        The ledger.
    target : Target or ForwardTarget
        The target of that run.
    draws : int, optional
        Draws to keep from each chain; by default as many as the last call asked for.
    precision : float, optional
        As for `sample`. If `draws` is left out too, that of the last call.
    **options
        Arguments of `sample` that do not decide which draws are made: `version`, `executor`, `cores`, `timeout`,
        `retries`, `progressbar`, and `on_failure`, which may change from "raise" to "reject".

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
            f"{unknown_options[0]}= cannot be changed when the run in {path} is resumed; leave it out, or begin "
            "another run with sample()"
        )
    with Ledger.read(path) as ledger:
        settings = ledger.header.settings
        store = RunStore(ledger, target)
        method, asked = store.method(), store.asked
    if draws is None:
        draws, precision = asked[0], asked[1] if precision is None else precision
    for name, unknown in (("method", method is None), ("init", settings["init"] is not None)):
        if unknown:
            raise LedgerMismatch(
                f"the {name} of the run in {path} is not stored in its ledger; resume it by the call that began it, "
                f"sample(..., {name}=..., ledger={str(path)!r})"
            )
    return sample(
        target,
        draws,
        tune=settings["tune"],
        chains=settings["chains"],
        method=method,
        max_evaluations=settings["max_evaluations"],
        ledger=path,
        precision=precision,
        **{"on_failure": settings["on_failure"]} | options,
    )
