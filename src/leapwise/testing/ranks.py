r"""The exact rank test of reversible kernels (Gandy and Scott 2020, Algorithm 2).

Let M be uniform on :math:`\{1, \ldots, L\}` and :math:`x_M` an exact draw of :math:`\pi`. Run a kernel from it in both
directions: forwards to :math:`x_{M+1}, \ldots, x_L` and, with the *same* kernel, backwards to
:math:`x_{M-1}, \ldots, x_1`. If the kernel is reversible for :math:`\pi`, then :math:`x_1, \ldots, x_L` is a stationary
chain for every M, so it does not depend on where it began. So the rank of :math:`f(x_M)` among all
:math:`f(x_1), \ldots, f(x_L)`, with ties broken at random, is exactly uniform, for any statistic f, any L, and however
slowly the chain moves. Many such ranks are compared with the uniform distribution by a chi-squared test, as a
sequential test (`leapwise.testing.sequential`).

A kernel that leaves :math:`\pi` invariant without being reversible may fail this test.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.stats import chisquare

from leapwise.checks import require_whole
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import Kernel, Mixture, SharedStream
from leapwise.targets import AnyTarget
from leapwise.testing.exact_targets import Draw, ExactTarget
from leapwise.testing.harness import (
    Statistics,
    WatchedKernel,
    as_exact,
    require_kernel,
    require_seed,
    start,
    statistics_and_lost,
    statistics_of_draws,
)
from leapwise.testing.sequential import SequentialTest, sequential_test, shapes


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
