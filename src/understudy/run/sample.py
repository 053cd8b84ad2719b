"""`sample`: from a target to draws."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import ArrayLike

from understudy.errors import BudgetError
from understudy.kernels import HMC, Kernel, State, Streams
from understudy.kernels.guides import ExactGuide
from understudy.results import Run, SurrogateReport
from understudy.run.automatic import check_unchanged, plan_for, prepare
from understudy.run.describe import describe, versions
from understudy.run.progress import Progress
from understudy.run.recorder import Recorder
from understudy.run.request import DEFAULT_TUNE, Method, check_request, needs_gradient
from understudy.surrogates import TrainingSet
from understudy.targets import AnyTarget, Evaluator
from understudy.warmup import Auto, Learner, Training, Warmup, find_start, learner_for, warmup_for
from understudy.warmup.rehearsal import Diary


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
) -> Run:
    """Draw from the posterior of a target, exactly.

    Parameters
    ----------
    target : Target or ForwardTarget
        What to sample. A gradient helps, but is not needed.
    draws : int
        Draws to keep from each chain.
    tune : int, optional
        What may be spent on warm-up, of which nothing is kept as a draw: exact evaluations of all chains together, by
        default 150 and 10 for each parameter at most (more where there are only values). For other methods than the
        default, steps of each chain; 500 if not given.
    chains : int
        Number of chains; they move together, each with random numbers of its own.
    random_seed : int, optional
        The same seed gives the same draws.
    method : Auto, HMC, RMHMC, RNSHMC, RNSRMHMC, ARNSHMC or a kernel, optional
        How to sample; ``Auto()`` by default, which learns a stand-in and draws at one exact value each. ``HMC()`` tunes
        itself too, with exact gradients all the way.
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
    >>> run = us.sample(target, draws=200, chains=2, random_seed=1)
    >>> run.draws.shape, run.posterior.cost.n_exact
    ((2, 200, 2), 400)
    """
    given: Method = Auto() if method is None else method
    seed = check_request(target, draws, tune, chains, random_seed, given, init, max_evaluations)
    evaluator = Evaluator(target, on_failure, retries, limit=max_evaluations)
    streams = Streams(seed, chains)
    job = _Job(target, evaluator, streams, chains, draws, tune, given, init, max_evaluations)
    failure: Exception | None = None
    try:
        with Progress(progressbar) as progress:
            job.warm_up(progress)
            job.draw(progress)
    except KeyboardInterrupt:
        pass
    except (
        Exception
    ) as error:  # the target's, or a user's metric's: what was drawn is kept, and then it goes on
        failure = error
    run = job.result(seed, {"on_failure": on_failure, "retries": int(retries)})
    if failure is not None:
        failure.run = run  # type: ignore[attr-defined]
        raise failure
    return run


class _Job:
    """One run: what has been learnt and recorded so far, whatever becomes of the rest."""

    def __init__(
        self,
        target: AnyTarget,
        evaluator: Evaluator,
        streams: Streams,
        chains: int,
        draws: int,
        tune: int | None,
        method: Method,
        init: ArrayLike | None,
        budget: int | None,
    ) -> None:
        self.evaluator, self.streams, self.init = evaluator, streams, init
        self.target, self.given, self.method = target, method, method
        self.tune, self.draws, self.budget = tune, draws, budget
        self.n_tune = _steps(method, tune)
        self.warmup_recorder = Recorder(chains, self.n_tune, evaluator)
        self.recorder = Recorder(chains, draws, evaluator)
        self.warmup: Warmup | None = None
        self.learner: Learner | None = None
        self.kernel: Kernel | None = None
        self.report: SurrogateReport | None = None
        self.training: TrainingSet | None = None
        self.diary: Diary | None = None
        self.budget_spent = False
        self.state: State | None = None
        self.warmup_recorder.open()

    def warm_up(self, progress: Progress) -> None:
        """Learn whatever the method needs; leave a kernel and the state of the chains."""
        evaluator, streams = self.evaluator, self.streams
        if isinstance(self.method, Auto):
            plan = plan_for(self.target, self.draws * streams.n_chains, self.tune, self.budget)
            self.diary = Diary.of(evaluator)
            found = prepare(self.method, self.diary, streams, self.init, plan, progress)
            self.state, self.report, self.training = found.state, found.report, found.training
            self.kernel = found.kernel
            if self.kernel is not None:
                return
            self.method = HMC()  # the surrogate has not earned any trust
            self.n_tune = DEFAULT_TUNE
            self.warmup_recorder = self.warmup_recorder.resized(self.n_tune)
            self.state = ExactGuide(evaluator).begin(self.state)[0]
        else:
            self.state = find_start(evaluator, streams, self.init, needs_gradient(self.method))
        self.warmup = warmup_for(self.method, self.n_tune, evaluator, streams, self.state)
        self.warmup_recorder.n_metrics = self.warmup.n_metrics
        progress.start("warm-up", self.n_tune)
        recorder = self.warmup_recorder
        self.state = _advance(self.warmup, self.n_tune, self.state, streams, evaluator, recorder, progress)
        if isinstance(self.method, Training):
            progress.start("training", 1)
        self.kernel = self.warmup.freeze()
        recorder.n_metrics = self.warmup.n_metrics
        self.training = getattr(self.warmup, "training", None)

    def draw(self, progress: Progress) -> None:
        """Make the draws to keep."""
        assert self.kernel is not None and self.state is not None
        self.warmup_recorder.close()
        self.recorder.open()
        progress.start("draws", self.draws)
        self.learner = learner_for(self.method, self.kernel, self.evaluator, self.streams)
        try:
            _advance(
                self.learner, self.draws, self.state, self.streams, self.evaluator, self.recorder, progress
            )
        except BudgetError:
            self.budget_spent = True
        check_unchanged(self.report, self.kernel)

    def result(self, seed: int, settings: dict[str, Any]) -> Run:
        """Return everything there is by now."""
        last = self.kernel if self.learner is None else self.learner.kernel
        if self.budget is not None:
            settings = settings | {"max_evaluations": int(self.budget)}
        return Run(
            names=self.target.names,
            posterior=self.recorder.close(),
            warmup=self.warmup_recorder.close(),
            settings={
                "tune": self.n_tune if self.tune is None else int(self.tune),
                **settings,
                **describe(self.given, last),
            },
            seed=seed,
            versions=versions(),
            complete=self.recorder.is_full or self.budget_spent,
            n_adaptive=0 if self.learner is None else self.learner.n_adaptive,
            kernel=last,
            training=self._training(),
            surrogate=self.report,
        )

    def _training(self) -> TrainingSet | None:
        """Return what the surrogate was trained on, or was to be."""
        if self.training is None and self.diary is not None and self.diary.heard:
            return self.diary.training()
        return self.training if self.training is not None else getattr(self.warmup, "training", None)


def _steps(method: Method, tune: int | None) -> int:
    """Return the steps of warm-up that are recorded: a rehearsal makes none."""
    if isinstance(method, Auto):
        return 0
    return DEFAULT_TUNE if tune is None else int(tune)


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
        progress.advance(
            evaluator.counts.n_exact, float(info.acceptance_rate.mean()), discrepancy=info.discrepancy
        )
    return state
