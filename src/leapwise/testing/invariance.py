r"""The strongest test of a kernel: one step from exact draws must give exact draws.

Let :math:`x` be drawn exactly from the target :math:`\pi`, and let :math:`x'` be one step of the kernel later. If the
kernel leaves :math:`\pi` invariant then :math:`x' \sim \pi` too, so every statistic :math:`f` has the same mean before
and after. No convergence is needed, and very many chains can be moved at once. Each f has two z-scores.

**Of its change.** :math:`Z = \sum_i d_i / \sqrt{\sum_i d_i^2}` with :math:`d_i = f(x_i') - f(x_i)`. Both values are of
one chain, so what they have in common cancels. If the kernel is also reversible, :math:`(x, x')` has the distribution
of :math:`(x', x)`, the signs of the :math:`d_i` are independent and fair whatever their sizes, and for *any* number of
chains and any tails of f (Bentkus and Dzindzalieta, Bernoulli 21, 2015)

.. math:: P(|Z| \ge t) \le 2 c\, P(N(0, 1) \ge t), \qquad c = \tfrac14 / P(N(0, 1) \ge \sqrt 2) = 3.178.

**Against its exact value**, where :math:`E_\pi f` is known: :math:`Z = \sqrt n\, (\overline{f(x')} - E_\pi f) / s`.
This also tests the exact draws themselves, but relies on the central limit theorem: skewness :math:`\gamma` multiplies
the tail probability at t by about :math:`\exp(\gamma t^3 / (3 \sqrt n))`. It is used only where that is below e, and so
below c.

**Threshold.** By Bonferroni, all :math:`m` z-scores of a correct kernel stay below t except with the stated false-alarm
probability, if :math:`2 c\, m\, P(N(0, 1) \ge t)` equals that probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from leapwise.checks import require_flag, require_whole
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import Kernel, SharedStream
from leapwise.targets import AnyTarget
from leapwise.testing.exact_targets import Draw, ExactTarget
from leapwise.testing.harness import (
    N_PILOT,
    MomentStatistics,
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

#: The constant c of the module docstring.
RADEMACHER = 0.25 / ndtr(-np.sqrt(2.0))


@dataclass(frozen=True, eq=False)
class Invariance:
    """Result of `check_invariance`.

    Attributes
    ----------
    change : dict of str to float
        z-score of the change of each statistic.
    exact : dict of str to float
        z-score of each statistic after the step against its exact value, where that is known and not too skewed.
    threshold : float
        No \\|z\\| of a correct kernel exceeds it, except with probability `false_alarm`.
    false_alarm : float
    n_chains, steps : int
    acceptance : float
        Share of chains moved by a step.
    n_lost : int
        Chains that ended where there is no density, or where a statistic is not finite. There must be none.
    may_stay : bool
        Whether it may pass if no chain has moved.
    """

    change: Mapping[str, float]
    exact: Mapping[str, float]
    threshold: float
    false_alarm: float
    n_chains: int
    steps: int
    acceptance: float
    n_lost: int = 0
    may_stay: bool = False

    @property
    def largest(self) -> float:
        """The largest \\|z\\|; infinite if a chain is lost."""
        return np.inf if self.n_lost else max(map(abs, (*self.change.values(), *self.exact.values())))

    @property
    def worst(self) -> str:
        """Name of the statistic with the largest \\|z\\|."""
        if self.n_lost:
            return "lost chains"
        return max((abs(z), name) for each in (self.change, self.exact) for name, z in each.items())[1]

    @property
    def passed(self) -> bool:
        """Whether the largest \\|z\\| is below the threshold, and at least one chain has moved."""
        return self.largest < self.threshold and not self._untested

    @property
    def _untested(self) -> bool:
        return self.largest < self.threshold and not self.acceptance and not self.may_stay

    def __repr__(self) -> str:
        if self._untested:
            return "Invariance(NOTHING WAS TESTED: no chain moved)"
        verdict = "passed" if self.passed else "FAILED"
        return f"Invariance({verdict}: largest |z| {self.largest:.2f} ({self.worst}), threshold {self.threshold:.2f})"

    def __str__(self) -> str:
        heading = "invariant, as far as can be seen" if self.passed else "NOT INVARIANT"
        if self._untested:
            heading = "NOTHING WAS TESTED: no chain moved"
        lines = [
            f"{heading}: largest |z| {self.largest:.2f}, of {self.worst}; threshold {self.threshold:.2f} "
            f"(false alarms: {self.false_alarm:.1g})",
            f"{self.n_chains} chains, {self.steps} step{'s' if self.steps > 1 else ''}, "
            f"{self.acceptance:.1%} of them moved" + ("" if self.acceptance else ": nothing was tested"),
        ]
        if self.n_lost:
            lines.append(f"{self.n_lost} chains ended where there is no density, or too far out to tell")
        width = max(map(len, self.change), default=0)
        lines.append(f"  {'statistic':<{max(width, 9)}}  z of change  z against exact value")
        for name, z in self.change.items():
            exact = f"{self.exact[name]:>22.2f}" if name in self.exact else ""
            lines.append(f"  {name:<{max(width, 9)}}  {z:>11.2f}{exact}".rstrip())
        return "\n".join(lines)


def check_invariance(
    kernel: Kernel,
    target: ExactTarget | AnyTarget,
    draw: Draw | None = None,
    *,
    n_chains: int = 100_000,
    steps: int = 1,
    statistics: Statistics | None = None,
    random_seed: int | None = 0,
    false_alarm: float = 1e-5,
    may_stay: bool = False,
) -> Invariance:
    """Step a kernel from exact draws of a target, and test whether the results are draws of it.

    Parameters
    ----------
    kernel : Kernel
        Anything with a method ``step(streams, state, evaluator)`` that returns a state and an info, which may be
        None.
    target : ExactTarget, Target or ForwardTarget
        The target that it should leave invariant. Vectorised targets are much faster.
    draw : callable, optional
        For a target that is not an `ExactTarget`: takes a generator and n and returns n exact draws ``(n, dim)`` of the
        parameters, inside their bounds if there are any.
    n_chains : int
        Number of chains n; a bias of b standard deviations gives a z-score of about b times the root of n.
    steps : int
        Steps of each chain; with two or more, what the kernel stores in its state is tested too.
    statistics : callable, optional
        Takes unconstrained positions ``(n, dim)`` and their exact potentials ``(n,)`` and returns a dict of columns
        ``(n,)``. By default q, q^2, q^4, an indicator and the cross products of the coordinates, and the potential;
        the coordinates are centred and scaled first unless the target knows exact values.
    random_seed : int, optional
        The result depends on nothing else; None means a fresh seed.
    false_alarm : float
        Probability that a correct reversible kernel fails.
    may_stay : bool
        Whether a kernel that moves no chain may pass. Nothing is tested then, so by default it fails.

    Returns
    -------
    Invariance
        With `passed`, `largest`, `threshold` and a z-score for each statistic; print it.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> from leapwise.testing import check_invariance, gumbel
    >>> verdict = check_invariance(HMC(0.9, 3, metric=UnitMetric()), gumbel(), n_chains=10_000)
    >>> verdict.passed, round(verdict.threshold, 1)
    (True, 5.2)

    A kernel that accepts every proposal fails:

    >>> from dataclasses import dataclass
    >>> from leapwise import State
    >>> class Careless:
    ...     is_exact = True
    ...     def step(self, streams, state, evaluator):
    ...         wander = state.position + 0.3 * streams.normals(state.position.shape[1])
    ...         return State.from_evaluation(evaluator.value(wander)), None
    >>> check_invariance(Careless(), gumbel(), n_chains=10_000).passed
    False
    """
    require_kernel(kernel)
    require_whole("n_chains", n_chains, 100)
    require_whole("steps", steps, 1)
    may_stay = require_flag("may_stay", may_stay)
    false_alarm = require_false_alarm(false_alarm)
    exact = as_exact(target, draw)
    rng = np.random.default_rng(require_seed(random_seed))
    if statistics is None:
        statistics = MomentStatistics() if exact.expected else standardized(exact.positions(rng, N_PILOT))
    evaluator = Evaluator(exact.target)
    state = begun = start(exact, evaluator, rng, n_chains)
    old = statistics_of_draws(statistics, begun.position, Evaluator(exact.target))
    _require_known(exact, old)
    streams, watched = SharedStream(rng, n_chains), WatchedKernel(kernel)
    for _ in range(steps):
        state, _ = watched.step(streams, state, evaluator)
    new, lost = statistics_and_lost(statistics, state.position, Evaluator(exact.target))
    kept = ~lost
    known = [name for name in new if name in exact.expected]
    threshold = float(-ndtri(false_alarm / (2.0 * RADEMACHER * (len(new) + len(known)))))
    scores = {name: _z_exact(new[name][kept], exact.expected[name], threshold) for name in known}
    return Invariance(
        change={name: _z_change(new[name][kept] - old[name][kept]) for name in new},
        exact={name: z for name, z in scores.items() if z is not None},
        threshold=threshold,
        false_alarm=false_alarm,
        n_chains=n_chains,
        steps=steps,
        acceptance=watched.moved,
        n_lost=int(lost.sum()),
        may_stay=may_stay,
    )


def _require_known(exact: ExactTarget, found: Mapping[str, np.ndarray]) -> None:
    """Raise if an exact value belongs to none of the statistics."""
    default = MomentStatistics()(np.zeros((1, exact.target.dim)), np.zeros(1))
    unknown = [name for name in exact.expected if name not in found and name not in default]
    if unknown:
        raise InputError(
            f"expected has exact values of {unknown}, but there is no such statistic; the statistics are {list(found)}"
        )


def _z_change(change: np.ndarray) -> float:
    largest = np.abs(change).max(initial=0.0)
    if largest == 0.0:  # no chain has changed it
        return 0.0
    change = change / largest  # so that squares cannot overflow
    return float(change.sum() / np.sqrt((change**2).sum()))


def _z_exact(values: np.ndarray, expected: float, threshold: float) -> float | None:
    """Return the z-score, or None if the values are too skewed for the threshold."""
    scale = max(abs(expected), np.abs(values).max(initial=0.0), 1e-300)
    error = (values - expected) / scale
    deviation = error - error.mean()
    spread = float(np.sqrt((deviation**2).mean()))
    skewed = threshold**3 * abs(float((deviation**3).mean())) > 3.0 * np.sqrt(len(values)) * spread**3
    return None if skewed or not spread > 0 else float(np.sqrt(len(values)) * error.mean() / spread)
