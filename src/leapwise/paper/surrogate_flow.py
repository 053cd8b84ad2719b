r"""Acceptance of the Hamiltonian flow of a surrogate, for figures 2 to 5 of the paper.

Exact HMC explores the posterior in several independent runs, with a step size that is chosen for a given acceptance.
The accepted states of a run, with their potentials, train a surrogate, as in Algorithm 3. Then trajectories on the
surrogate start at states of *other* runs and are accepted by the exact energy. These starts come from the posterior,
and the surrogate has never seen them. So the mean acceptance probability,

.. math:: \mathrm{E}_{q \sim \pi,\, p \sim N(0, I)} \min\big(1, e^{H(q, p) - H(\tilde\phi(q, p))}\big),

is that of a long chain, even if such a chain would hardly ever move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from leapwise.dynamics import UnitMetric
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import HMC, Kernel, State, SurrogateHMC
from leapwise.kernels.streams import SharedStream
from leapwise.paper.experiments import finished
from leapwise.run import sample
from leapwise.surrogates import Fitted, TrainingSet
from leapwise.targets import AnyTarget

_TUNE = 200  # warm-up of the run that finds the posterior
# Trajectories that choose the step size: the standard error of their mean acceptance is below 0.03.
_TUNING_STARTS = 256


@dataclass(frozen=True, eq=False)
class Explored:
    """The states that exact HMC has accepted.

    Attributes
    ----------
    step_size : float
    n_steps : int
        Largest number of steps of a trajectory; it is drawn from 1 to this.
    position : ndarray of shape (runs, size, dim)
        Accepted states of each run, in order.
    potential : ndarray of shape (runs, size)
        Their exact potentials.
    """

    step_size: float
    n_steps: int
    position: np.ndarray
    potential: np.ndarray

    @classmethod
    def from_numbers(cls, numbers: Mapping[str, Any]) -> Explored:
        """Make it from the dict that `numbers` returned."""
        return cls(
            float(numbers["step_size"]),
            int(numbers["n_steps"]),
            np.asarray(numbers["position"]),
            np.asarray(numbers["potential"]),
        )

    def numbers(self) -> dict[str, Any]:
        """Return all attributes as a dict, to be kept on disk."""
        return dict(vars(self))

    def training(self, run: int, size: int) -> TrainingSet:
        """Return the first accepted states of one run; smaller training sets are part of larger ones."""
        return TrainingSet(self.position[run, :size], self.potential[run, :size])

    def starts(self, run: int, n: int, seed: int) -> np.ndarray:
        """Return positions ``(n, dim)`` drawn at random from the states of the other runs."""
        others = np.delete(self.position, run, axis=0).reshape(-1, self.position.shape[2])
        return others[np.random.default_rng(seed).permutation(len(others))[:n]]

    def flow_acceptance(
        self, target: AnyTarget, surrogate: Fitted, run: int, *, n_starts: int, repeats: int, seed: int
    ) -> float:
        """Return the acceptance of the flow of a surrogate that was trained on the states of `run`."""
        kernel = SurrogateHMC(self.step_size, self.n_steps, surrogate=surrogate)
        return acceptance(target, kernel, self.starts(run, n_starts, seed), repeats, seed)

    def exact_acceptance(self, target: AnyTarget, n_starts: int, repeats: int, seed: int) -> float:
        """Return the acceptance of exact HMC, with the starts and random numbers that surrogates have for `seed` + run.

        So a difference between the two is due to the surrogate and hardly to chance.
        """
        kernel = HMC(self.step_size, self.n_steps, metric=UnitMetric())
        each = [
            acceptance(target, kernel, self.starts(run, n_starts, seed + run), repeats, seed + run)
            for run in range(len(self.position))
        ]
        return float(np.mean(each))


def acceptance(target: AnyTarget, kernel: Kernel, starts: np.ndarray, repeats: int, seed: int) -> float:
    """Return the mean acceptance probability of a few steps from each of the starts.

    Examples
    --------
    >>> from leapwise.problems import gaussian
    >>> rng = np.random.default_rng(0)
    >>> problem = gaussian(2)
    >>> starts = rng.multivariate_normal(problem.mean, problem.covariance, size=100)
    >>> kernel = HMC(0.01, 3, metric=UnitMetric())
    >>> acceptance(problem.target, kernel, starts, 1, seed=1) > 0.99
    True
    """
    evaluator = Evaluator(target)
    exact = not isinstance(kernel, SurrogateHMC)
    state = State.from_evaluation(evaluator.value_and_gradient(starts) if exact else evaluator.value(starts))
    streams = SharedStream(np.random.default_rng(seed), len(starts))
    rates = []
    for _ in range(repeats):
        state, info = kernel.step(streams, state, evaluator)
        rates.append(info.acceptance_rate.mean())
    return float(np.mean(rates))


def step_size_for(
    wanted: float, target: AnyTarget, starts: np.ndarray, n_steps: int, *, seed: int, halvings: int = 7
) -> float:
    """Return the step size at which exact HMC from these starts has the wanted acceptance.

    Every trial uses the same random numbers, so that acceptance falls smoothly with the step size. The step size is
    bracketed by doubling, and the bracket is halved on a logarithmic scale.
    """

    def rate(step_size: float) -> float:
        return acceptance(target, HMC(step_size, n_steps, metric=UnitMetric()), starts, 1, seed)

    low, high = _bracket(rate, wanted, 0.5 * float(starts.std(axis=0).min()))
    for _ in range(halvings):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if rate(middle) > wanted else (low, middle)
    return float(np.sqrt(low * high))


def _bracket(rate: Callable[[float], float], wanted: float, first: float) -> tuple[float, float]:
    step_size, too_small = first, rate(first) > wanted
    for _ in range(40):
        following = step_size * (2.0 if too_small else 0.5)
        if (rate(following) > wanted) != too_small:
            return min(step_size, following), max(step_size, following)
        step_size = following
    raise InputError(f"no step size has an acceptance of {wanted}; ask for one between 0 and 1")


def explore(
    target: AnyTarget, *, n_steps: int, size: int, runs: int, seed: int, wanted: float = 0.7
) -> Explored:
    """Run exact HMC, tuned for the wanted acceptance, until every run has accepted `size` states.

    The runs start at the last draws of `HMC()`, which tunes itself and is not counted.

    Examples
    --------
    >>> from leapwise.problems import gaussian
    >>> found = explore(gaussian(3).target, n_steps=5, size=20, runs=2, seed=1)
    >>> found.position.shape, found.potential.shape
    ((2, 20, 3), (2, 20))
    """
    if runs < 2:
        raise InputError(
            f"runs must be at least 2, got {runs}; each surrogate is tested on states of other runs"
        )
    n = -(-_TUNING_STARTS // runs)
    first = finished(
        sample(target, n, tune=_TUNE, chains=runs, method=HMC(), random_seed=seed, progressbar=False)
    ).draws
    step_size = step_size_for(wanted, target, first.reshape(-1, target.dim), n_steps, seed=seed)
    kernel = HMC(step_size, n_steps, metric=UnitMetric())
    draws, potentials, accepted = _draw(target, kernel, first[:, -1], size, seed)
    rows = [np.flatnonzero(each)[:size] for each in accepted]
    return Explored(
        step_size,
        n_steps,
        np.stack([one[chosen] for one, chosen in zip(draws, rows, strict=True)]),
        np.stack([one[chosen] for one, chosen in zip(potentials, rows, strict=True)]),
    )


def _draw(
    target: AnyTarget, kernel: Kernel, init: np.ndarray, size: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw until each chain has accepted `size` states; return draws, potentials, and which draws were accepted."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    n_accepted, part = 0, 0
    while n_accepted < size:
        part += 1
        run = finished(
            sample(
                target,
                20 + int(1.5 * (size - n_accepted)),
                tune=0,
                chains=len(init),
                method=kernel,
                init=init,
                random_seed=seed + part,
                progressbar=False,
            )
        ).posterior
        parts.append((run.draws, -run.stats["lp"], run.stats["accepted"]))
        init = run.draws[:, -1]
        n_accepted = int(sum(each[2].sum(axis=1) for each in parts).min())
    draws, potentials, accepted = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    return draws, potentials, accepted
