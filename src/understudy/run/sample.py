"""`sample`: from a target to draws."""

from __future__ import annotations

from typing import Literal

from numpy.typing import ArrayLike

from understudy.kernels import HMC, Kernel, State, Streams
from understudy.results import Run
from understudy.run.describe import describe, versions
from understudy.run.progress import Progress
from understudy.run.recorder import Recorder
from understudy.run.request import check_request, needs_gradient
from understudy.targets import AnyTarget, Evaluator
from understudy.warmup import Learner, Training, Warmup, find_start, learner_for, warmup_for


def sample(
    target: AnyTarget,
    draws: int = 1000,
    *,
    tune: int = 500,
    chains: int = 4,
    random_seed: int | None = None,
    method: Kernel | Training | None = None,
    init: ArrayLike | None = None,
    progressbar: bool | None = None,
    on_failure: Literal["raise", "reject"] = "raise",
    retries: int = 1,
) -> Run:
    """Draw from the posterior of a target, exactly.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to sample. It needs a gradient.
    draws : int
        Draws to keep from each chain.
    tune : int
        Steps of warm-up before that, in which the method learns its settings; none of them is kept as a draw.
    chains : int
        Number of chains; they move together, each with random numbers of its own.
    random_seed : int, optional
        The same seed gives the same draws.
    method : HMC, RMHMC, RNSHMC, RNSRMHMC, ARNSHMC or a kernel, optional
        How to sample; ``HMC()``, which tunes itself, by default.
    init : array_like of shape (dim,) or (chains, dim), optional
        Parameters to start from; by default draws from the prior, or random positions.
    progressbar : bool, optional
        Whether to show progress; by default if standard error is a terminal.
    on_failure : {"raise", "reject"}
        What to do where the target raises or returns NaN, even when retried there: stop with an error that holds the
        draws so far, or count the point as outside the support.
    retries : int
        How often a failing evaluation is tried again.

    Returns
    -------
    Run
        Draws, statistics, cost and settings. An interrupt (Ctrl-C) returns what has been drawn by then; an error that
        ends the run has it as its attribute ``run``.

    Examples
    --------
    >>> import understudy as us
    >>> target = us.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> run = us.sample(target, draws=200, tune=100, chains=2, random_seed=1)
    >>> run.draws.shape
    (2, 200, 2)
    """
    method = HMC() if method is None else method
    seed = check_request(target, draws, tune, chains, random_seed, method, init)
    evaluator = Evaluator(target, on_failure, retries)
    streams = Streams(seed, chains)
    warmup_recorder = Recorder(chains, tune, evaluator)
    warmup_recorder.open()
    recorder = Recorder(chains, draws, evaluator)
    warmup: Warmup | None = None
    learner: Learner | None = None
    failure: Exception | None = None
    try:
        with Progress(progressbar) as progress:
            state = find_start(evaluator, streams, init, needs_gradient(method))
            warmup = warmup_for(method, tune, evaluator, streams, state)
            warmup_recorder.n_metrics = warmup.n_metrics
            progress.start("warm-up", tune)
            state = _advance(warmup, tune, state, streams, evaluator, warmup_recorder, progress)
            if isinstance(method, Training):
                progress.start("training", 1)
            kernel = warmup.freeze()
            warmup_recorder.n_metrics = warmup.n_metrics
            warmup_recorder.close()
            recorder.open()
            progress.start("draws", draws)
            learner = learner_for(method, kernel, evaluator, streams)
            _advance(learner, draws, state, streams, evaluator, recorder, progress)
    except KeyboardInterrupt:
        pass
    except (
        Exception
    ) as error:  # the target's, or a user's metric's: what was drawn is kept, and then it goes on
        failure = error
    last_kernel = None if learner is None else learner.kernel
    n_adaptive = 0 if learner is None else learner.n_adaptive
    run = Run(
        names=target.names,
        posterior=recorder.close(),
        warmup=warmup_recorder.close(),
        settings={
            "tune": int(tune),
            "on_failure": on_failure,
            "retries": int(retries),
            **describe(method, last_kernel),
        },
        seed=seed,
        versions=versions(),
        complete=recorder.is_full,
        n_adaptive=n_adaptive,
        kernel=last_kernel,
        training=getattr(warmup, "training", None),
    )
    if failure is not None:
        failure.run = run  # type: ignore[attr-defined]
        raise failure
    return run


def _advance(
    learner: Learner,
    n_steps: int,
    state: State,
    streams: Streams,
    evaluator: Evaluator,
    recorder: Recorder,
    progress: Progress,
) -> State:
    """Make the steps of one phase: move, learn, record."""
    for _ in range(n_steps):
        before = state
        state, info = learner.kernel.step(streams, before, evaluator)
        learner.learn(before, state, info)
        recorder.add(state, info)
        progress.advance(evaluator.counts.n_exact, float(info.acceptance_rate.mean()))
    return state
