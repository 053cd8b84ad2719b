r"""Sequential tests, with few false alarms and much power (Gandy and Scott, 2020).

A single test at level :math:`10^{-5}` needs a strong signal. Their Algorithm 3 tests up to k times, each time with
fresh draws. With :math:`\beta = \alpha / k` and :math:`\gamma = \beta^{1/k}`, and q the smallest of d p-values times d
(Bonferroni; d is their number here), stage i

- fails if :math:`q \le \beta\, \gamma^{1-i}`;
- passes if :math:`q > \beta\, \gamma^{1-i} + \gamma`;
- otherwise is undecided, and the next stage follows with more draws.

For a correct kernel, stage i is reached with probability at most :math:`\gamma^{i-1}` and then fails with probability
at most :math:`\beta\, \gamma^{1-i}`, so the probability of a false alarm is at most :math:`k \beta = \alpha`. The last
stage fails at :math:`q \le \gamma`, a level that a weak signal reaches; and a correct kernel rarely needs a second
stage.

`check_two_samples` is their first test in this form: it compares exact draws with exact draws that the kernel has
moved.

`check_ranks` is the exact rank test of reversible kernels (their Algorithm 2) in this form. Let M be uniform on
:math:`\{1, \ldots, L\}` and :math:`x_M` an exact draw of :math:`\pi`. Run a kernel from it in both directions: forwards
to :math:`x_{M+1}, \ldots, x_L` and, with the *same* kernel, backwards to :math:`x_{M-1}, \ldots, x_1`. If the kernel is
reversible for :math:`\pi`, then :math:`x_1, \ldots, x_L` is a stationary chain for every M, so it does not depend on
where it began. So the rank of :math:`f(x_M)` among all :math:`f(x_1), \ldots, f(x_L)`, with ties broken at random, is
exactly uniform, for any statistic f, any L, and however slowly the chain moves. Many such ranks are compared with the
uniform distribution by a chi-squared test. A kernel that leaves :math:`\pi` invariant without being reversible may fail
this test.

References
----------
Axel Gandy and James Scott, Unit testing for MCMC and other Monte Carlo methods, arXiv:2001.06465.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from scipy.stats import chisquare, ks_2samp

from leapwise.checks import require_callable, require_whole
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import Kernel, Mixture, SharedStream
from leapwise.targets import AnyTarget
from leapwise.testing.exact_targets import Draw, ExactTarget
from leapwise.testing.harness import (
    N_PILOT,
    Statistics,
    WatchedKernel,
    as_exact,
    require_false_alarm,
    require_kernel,
    require_seed,
    standardized,
    start,
    statistics_and_lost,
    statistics_of_draws,
)

#: Takes a number of draws and a generator; returns p-values by name.
PValues = Callable[[int, np.random.Generator], Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class SequentialStage:
    """One stage: the number of draws, the p-values, and the limits for their adjusted minimum.

    Attributes
    ----------
    n : int
        Number of draws.
    p_values : dict of str to float
    fails_below, passes_above : float
        Limits of `adjusted`; between them the stage is undecided.
    """

    n: int
    p_values: Mapping[str, float]
    fails_below: float
    passes_above: float

    @property
    def worst(self) -> str:
        """Name of the statistic with the smallest p-value."""
        return min(self.p_values, key=lambda name: self.p_values[name])

    @property
    def adjusted(self) -> float:
        """The smallest p-value times the number of p-values, at most one."""
        return min(1.0, len(self.p_values) * self.p_values[self.worst])


@dataclass(frozen=True, eq=False)
class SequentialTest:
    """Result of a sequential test.

    Attributes
    ----------
    stages : tuple of SequentialStage
        The stages that were needed.
    false_alarm : float
        Probability that a correct kernel fails.
    moved : float, optional
        For a test of a kernel, the share of chains moved by a step; if it is zero, nothing was tested.
    """

    stages: tuple[SequentialStage, ...]
    false_alarm: float
    moved: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the last stage did not fail."""
        return self.stages[-1].adjusted > self.stages[-1].fails_below

    def __repr__(self) -> str:
        last = self.stages[-1]
        return (
            f"SequentialTest({'passed' if self.passed else 'FAILED'}: adjusted p-value {last.adjusted:.2g} "
            f"({last.worst}) at stage {len(self.stages)}, fails below {last.fails_below:.2g}{self._untested})"
        )

    @property
    def _untested(self) -> str:
        return "; no chain moved: NOTHING WAS TESTED" if self.moved == 0 else ""

    def __str__(self) -> str:
        lines = [
            f"{'passed' if self.passed else 'FAILED'} (false alarms: {self.false_alarm:.1g}){self._untested}"
        ]
        for i, stage in enumerate(self.stages, 1):
            lines.append(
                f"  stage {i}: {stage.n} draws, adjusted p-value {stage.adjusted:.2g} ({stage.worst}); "
                f"fails below {stage.fails_below:.2g}, passes above {stage.passes_above:.2g}"
            )
        return "\n".join(lines)


def sequential_test(
    p_values: PValues,
    n: int,
    *,
    random_seed: int | None = 0,
    false_alarm: float = 1e-5,
    max_stages: int = 7,
    growth: float = 2.0,
) -> SequentialTest:
    """Repeat a test on more and fresh draws while it is undecided.

    Parameters
    ----------
    p_values : callable
        Takes a number of draws and a generator, makes that many *fresh* draws and returns a dict of p-values.
    n : int
        Number of draws at the first stage.
    random_seed : int, optional
        The result depends on nothing else; None means a fresh seed.
    false_alarm : float
        Probability that a correct kernel fails, for any `growth`.
    max_stages : int
        Largest number of stages.
    growth : float
        Each stage has this many times the draws of the one before.

    Returns
    -------
    SequentialTest
        With `passed` and the p-values of each stage; print it.

    Examples
    --------
    Test whether the mean of a generator is zero:

    >>> from scipy.stats import ttest_1samp
    >>> def off_by(shift):
    ...     return lambda n, rng: {"mean": ttest_1samp(rng.normal(shift, 1.0, n), 0.0).pvalue}
    >>> sequential_test(off_by(0.0), 1000).passed, sequential_test(off_by(0.1), 1000).passed
    (True, False)
    """
    require_callable("p_values", p_values)
    require_whole("max_stages", max_stages, 1)
    false_alarm = require_false_alarm(false_alarm)
    if not 1 <= growth < np.inf:
        raise InputError(f"growth must be a number of at least 1, got {growth!r}")
    n = require_whole("n", n, 1)
    rng = np.random.default_rng(require_seed(random_seed))
    level = false_alarm / max_stages
    width = level ** (1.0 / max_stages)
    stages: list[SequentialStage] = []
    for i in range(max_stages):
        fails_below = level * width**-i
        found = _require_p_values(p_values(ceil(n * growth**i), rng))
        stages.append(SequentialStage(ceil(n * growth**i), found, fails_below, fails_below + width))
        if not fails_below < stages[-1].adjusted <= fails_below + width:
            break
    return SequentialTest(tuple(stages), false_alarm)


def check_two_samples(
    kernel: Kernel,
    target: ExactTarget | AnyTarget,
    draw: Draw | None = None,
    *,
    n_chains: int = 10_000,
    steps: int = 1,
    statistics: Statistics | None = None,
    random_seed: int | None = 0,
    false_alarm: float = 1e-5,
) -> SequentialTest:
    """Compare exact draws with others that a kernel has moved, by Kolmogorov-Smirnov tests.

    `check_invariance` compares means; this compares whole distributions. The two samples are independent, so a kernel
    that does not move passes; the printed result then says that nothing was tested.

    Parameters
    ----------
    kernel : Kernel
        Anything with a method ``step(streams, state, evaluator)`` that returns a state and an info. It need not be
        reversible.
    target, draw
        As for `check_invariance`.
    n_chains : int
        Size of each sample at the first stage; it doubles from stage to stage.
    steps : int
        Number of steps that move the second sample.
    statistics : callable, optional
        Takes unconstrained positions ``(n, dim)`` and their exact potentials ``(n,)`` and returns a dict of columns
        ``(n,)``. By default the coordinates, centred and scaled, their squares, products of neighbours, and the
        potential.
    random_seed, false_alarm
        As for `sequential_test`.

    Returns
    -------
    SequentialTest

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> from leapwise.testing import gumbel
    >>> check_two_samples(HMC(0.9, 3, metric=UnitMetric()), gumbel(), n_chains=2000).passed
    True
    """
    require_kernel(kernel)
    require_whole("n_chains", n_chains, 100)
    require_whole("steps", steps, 1)
    exact = as_exact(target, draw)
    random_seed, watched = require_seed(random_seed), WatchedKernel(kernel)
    look = shapes(exact, random_seed) if statistics is None else statistics
    evaluator = Evaluator(exact.target)

    def p_values(n: int, rng: np.random.Generator) -> dict[str, float]:
        still, state = (start(exact, evaluator, rng, n) for _ in range(2))
        streams = SharedStream(rng, n)
        for _ in range(steps):
            state, _ = watched.step(streams, state, evaluator)
        old = statistics_of_draws(look, still.position, evaluator)
        new, lost = statistics_and_lost(look, state.position, evaluator)
        if lost.any():
            return dict.fromkeys(new, 0.0)
        return {name: float(ks_2samp(old[name], new[name], method="asymp").pvalue) for name in old}

    verdict = sequential_test(p_values, n_chains, random_seed=random_seed, false_alarm=false_alarm)
    return replace(verdict, moved=watched.moved)


def shapes(exact: ExactTarget, random_seed: int) -> Statistics:
    """Return the default statistics of tests that compare distributions, for which higher powers add nothing."""
    pilot = exact.positions(np.random.default_rng([random_seed, N_PILOT]), N_PILOT)
    moments = standardized(pilot)

    def look(position: np.ndarray, potential: np.ndarray) -> dict[str, np.ndarray]:
        found = moments(position, potential)
        return {name: column for name, column in found.items() if "^4" not in name and "<" not in name}

    return look


def _require_p_values(found: Mapping[str, float]) -> dict[str, float]:
    p_values = {str(name): float(p) for name, p in found.items()}
    if not p_values or not all(0 <= p <= 1 for p in p_values.values()):
        raise InputError(f"p_values must return a dict of numbers from 0 to 1, got {p_values}")
    return p_values


def check_ranks(
    kernel: Kernel,
    target: ExactTarget | AnyTarget,
    draw: Draw | None = None,
    *,
    n_chains: int = 4000,
    length: int = 8,
    statistics: Statistics | None = None,
    random_seed: int | None = 0,
    false_alarm: float = 1e-5,
) -> SequentialTest:
    """Run a reversible kernel in both directions from exact draws, and test whether the ranks of these are uniform.

    A kernel that does not move passes, because all ranks are ties; the printed result says that nothing was tested.

    Parameters
    ----------
    kernel : Kernel
        Anything with a method ``step(streams, state, evaluator)`` that returns a state and an info, and that should be
        reversible. Its chains must move independently of each other: a `Mixture`, in which one choice serves all
        chains, is refused.
    target, draw
        As for `check_invariance`.
    n_chains : int
        Number of ranks at the first stage; it doubles from stage to stage.
    length : int
        Number of states L that an exact draw is ranked among, itself included. With more states a small bias of each
        step adds up to more; the cost is twice that many steps.
    statistics : callable, optional
        As for `check_two_samples`.
    random_seed, false_alarm
        As for `sequential_test`.

    Returns
    -------
    SequentialTest
        With `passed` and the p-values of each stage; print it.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> from leapwise.testing import gumbel
    >>> check_ranks(HMC(0.9, 3, metric=UnitMetric()), gumbel(), n_chains=1000).passed
    True

    A kernel that accepts every proposal fails:

    >>> from leapwise import State
    >>> class Careless:
    ...     is_exact = True
    ...     def step(self, streams, state, evaluator):
    ...         wander = state.position + 0.3 * streams.normals(state.position.shape[1])
    ...         return State.from_evaluation(evaluator.value(wander)), None
    >>> check_ranks(Careless(), gumbel(), n_chains=1000).passed
    False
    """
    require_kernel(kernel)
    if isinstance(kernel, Mixture):
        raise InputError(
            "check_ranks cannot test a Mixture: one choice serves all its chains, so their ranks are not independent; "
            "check its kernels, or use check_invariance or check_two_samples"
        )
    random_seed, watched = require_seed(random_seed), WatchedKernel(kernel)
    length = require_whole("length", length, 2)
    require_whole("n_chains", n_chains, 10 * length)
    exact = as_exact(target, draw)
    look = shapes(exact, random_seed) if statistics is None else statistics

    def p_values(n: int, rng: np.random.Generator) -> dict[str, float]:
        ranks = exact_ranks(watched, exact, n, rng, length=length, statistics=look)
        return {name: _uniform(rank, length) for name, rank in ranks.items()}

    verdict = sequential_test(p_values, n_chains, random_seed=random_seed, false_alarm=false_alarm)
    return replace(verdict, moved=watched.moved)


def exact_ranks(
    kernel: Kernel,
    exact: ExactTarget,
    n_chains: int,
    rng: np.random.Generator,
    *,
    length: int,
    statistics: Statistics,
) -> dict[str, np.ndarray]:
    """Return ranks that are uniform on 0, ..., length - 1 if a kernel is reversible for a target.

    Parameters
    ----------
    kernel : Kernel
    exact : ExactTarget
    n_chains : int
        Number of ranks.
    rng : Generator
    length : int
        Number of states that each exact draw is ranked among, itself included.
    statistics : callable
        As for `check_two_samples`.

    Returns
    -------
    dict of str to ndarray of int, shape (n_chains,)
        Ranks of each statistic; all -1 if a chain was lost, that is, ended where there is no density or a statistic is
        not finite.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> from leapwise.testing import gaussian
    >>> rng = np.random.default_rng(1)
    >>> ranks = exact_ranks(
    ...     HMC(0.5, 3, metric=UnitMetric()), gaussian(), 1000, rng, length=4, statistics=lambda q, u: {"U": u}
    ... )
    >>> bool((np.bincount(ranks["U"], minlength=4) > 200).all())
    True
    """
    evaluator = Evaluator(exact.target)
    middle = start(exact, evaluator, rng, n_chains)
    known, watched = statistics_of_draws(statistics, middle.position, evaluator), WatchedKernel(kernel)
    less, same = ({name: np.zeros(n_chains, dtype=int) for name in known} for _ in range(2))
    n_before = rng.integers(length, size=n_chains)
    streams = SharedStream(rng, n_chains)
    for wanted in (n_before, length - 1 - n_before):
        state = middle
        for step in range(1, length):
            state, _ = watched.step(streams, state, evaluator)
            found, lost = statistics_and_lost(statistics, state.position, evaluator)
            if lost.any():
                return {name: np.full(n_chains, -1) for name in known}
            for name, column in found.items():
                less[name] += (column < known[name]) & (step <= wanted)
                same[name] += (column == known[name]) & (step <= wanted)
    return {name: less[name] + rng.integers(same[name] + 1) for name in known}


def _uniform(ranks: np.ndarray, length: int) -> float:
    """Return the p-value of ranks under the uniform distribution on 0, ..., length - 1."""
    if (ranks < 0).any():
        return 0.0
    return float(chisquare(np.bincount(ranks, minlength=length)).pvalue)
