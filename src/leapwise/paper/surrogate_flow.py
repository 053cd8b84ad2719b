r"""Acceptance of the Hamiltonian flow that a surrogate induces, as figures 2 to 5 of the paper ask for it.

Exact HMC, with a step size that is chosen for a given acceptance, explores the posterior in several independent runs.
The accepted states of a run, with their potentials, train a surrogate, as in Algorithm 3. Then trajectories on the
surrogate begin at states of *other* runs and are decided by the exact energy. Such starts come from the posterior and
the surrogate has never seen them, so the mean probability of acceptance,

.. math:: \mathrm{E}_{q \sim \pi,\, p \sim N(0, I)} \min\big(1, e^{H(q, p) - H(\tilde\phi(q, p))}\big),

is that of a long chain, even where such a chain would hardly ever move.
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
from leapwise.paper.cells import source_hash
from leapwise.paper.experiments import finished
from leapwise.run import sample
from leapwise.surrogates import Fitted, TrainingSet
from leapwise.targets import AnyTarget

_SETTLING = 200  # steps of the self-tuned HMC that finds the posterior
_TUNING_STARTS = 256


@dataclass(frozen=True, eq=False)
class Explored:
    """What exact HMC found.

    Attributes
    ----------
    step_size : float
    n_steps : int
        Trajectories have 1 to so many steps.
    position : ndarray of shape (runs, size, dim)
        Accepted states of each run, in their order.
    potential : ndarray of shape (runs, size)
        Their exact potentials.
    """

    step_size: float
    n_steps: int
    position: np.ndarray
    potential: np.ndarray

    @classmethod
    def from_numbers(cls, numbers: Mapping[str, Any]) -> Explored:
        """Read what `numbers` gave."""
        return cls(
            float(numbers["step_size"]),
            int(numbers["n_steps"]),
            np.asarray(numbers["position"]),
            np.asarray(numbers["potential"]),
        )

    def numbers(self) -> dict[str, Any]:
        """Return all of it, to be kept on disk."""
        return dict(vars(self))

    def training(self, run: int, size: int) -> TrainingSet:
        """Return the first accepted states of one run: smaller training sets are part of larger ones."""
        return TrainingSet(self.position[run, :size], self.potential[run, :size])

    def starts(self, run: int, n: int, seed: int) -> np.ndarray:
        """Return positions ``(n, dim)`` drawn at random from what the other runs visited."""
        others = np.delete(self.position, run, axis=0).reshape(-1, self.position.shape[2])
        return others[np.random.default_rng(seed).permutation(len(others))[:n]]

    def flow_acceptance(
        self, target: AnyTarget, surrogate: Fitted, run: int, *, n_starts: int, repeats: int, seed: int
    ) -> float:
        """Return the acceptance of the flow of a surrogate that was trained on one run."""
        kernel = SurrogateHMC(self.step_size, self.n_steps, surrogate=surrogate)
        return acceptance(target, kernel, self.starts(run, n_starts, seed), repeats, seed)

    def exact_acceptance(self, target: AnyTarget, n_starts: int, repeats: int, seed: int) -> float:
        """Return the acceptance of exact HMC, with the starts and random numbers that surrogates have for `seed` + run.

        What is left of a difference between the two is the surrogate's, hardly chance.
        """
        kernel = HMC(self.step_size, self.n_steps, metric=UnitMetric())
        each = [
            acceptance(target, kernel, self.starts(run, n_starts, seed + run), repeats, seed + run)
            for run in range(len(self.position))
        ]
        return float(np.mean(each))


def code_of_flows() -> str:
    """Return what identifies this code among the settings of cells that are computed with it in other modules."""
    return source_hash(__name__)[:12]


def acceptance(target: AnyTarget, kernel: Kernel, starts: np.ndarray, repeats: int, seed: int) -> float:
    """Return the mean probability of acceptance of a few steps from each of the starts.

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
    """Return the step size with which exact HMC from these starts is accepted at the wanted rate.

    The same random numbers serve every trial, so that acceptance falls smoothly with the step size; it is bracketed
    by doubling, and the bracket is halved, on the scale of the logarithm, so many times.
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
    raise InputError(f"no step size is accepted at a rate of {wanted}; ask for one between 0 and 1")


def explore(
    target: AnyTarget, *, n_steps: int, size: int, runs: int, seed: int, wanted: float = 0.7
) -> Explored:
    """Run exact HMC, tuned for the wanted acceptance, until every run has accepted so many states.

    The runs begin where the self-tuned `HMC` has led them, which is not counted.

    Examples
    --------
    >>> from leapwise.problems import gaussian
    >>> found = explore(gaussian(3).target, n_steps=5, size=20, runs=2, seed=1)
    >>> found.position.shape, found.potential.shape
    ((2, 20, 3), (2, 20))
    """
    if runs < 2:
        raise InputError(f"runs must be at least 2, got {runs}; each is tried on what the others found")
    n = -(-_TUNING_STARTS // runs)
    settled = finished(
        sample(target, n, tune=_SETTLING, chains=runs, random_seed=seed, progressbar=False)
    ).draws
    step_size = step_size_for(wanted, target, settled.reshape(-1, target.dim), n_steps, seed=seed)
    draws, potentials, accepted = _draw(
        target, HMC(step_size, n_steps, metric=UnitMetric()), settled[:, -1], size, seed
    )
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
    """Draw until each chain has accepted `size` states; return draws, potentials, and which are newly accepted."""
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
