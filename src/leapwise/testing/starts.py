"""What tests of kernels begin and end with: exact draws, and a look at where they went.

What is looked at before and after a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leapwise.checks import require_callable, require_whole
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import Kernel, State
from leapwise.kernels.streams import AnyStreams
from leapwise.targets import AnyTarget
from leapwise.testing.exact_targets import Draw, ExactTarget
from leapwise.testing.statistics import Statistics, columns


def require_kernel(kernel: object) -> None:
    """Raise unless `kernel` can step."""
    if isinstance(kernel, type) or not callable(getattr(kernel, "step", None)):
        got = kernel.__name__ if isinstance(kernel, type) else type(kernel).__name__
        raise InputError(
            f"kernel must have a method step(streams, state, evaluator), got {got}; of a method that trains a "
            "surrogate give the kernel that it ends with, run.kernel"
        )


def require_seed(random_seed: object) -> int:
    """Return a seed: the one given, or a fresh one for None."""
    if random_seed is None:
        return int(np.random.default_rng().integers(2**63))
    return require_whole("random_seed", random_seed, 0)


def require_false_alarm(false_alarm: object) -> float:
    """Return `false_alarm` if it is a probability of neither none nor all."""
    if not isinstance(false_alarm, (float, np.floating)) or not 0 < false_alarm < 1:
        raise InputError(f"false_alarm must be a number between 0 and 1, got {false_alarm!r}")
    return float(false_alarm)


@dataclass(eq=False)
class WatchedKernel:
    """A kernel, held to what a step must return, and what share of chains its steps have moved.

    It is given copies, and copies are kept of what it returns: a kernel may write into its arrays, or use them again,
    without touching what it is compared with.
    """

    kernel: Kernel
    n_steps: int = 0
    moved: float = 0.0

    is_exact = True

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Any]:
        """Move every chain once."""
        found: Any = self.kernel.step(streams, _copied(state), evaluator)
        if not _is_step(found, state.position.shape):
            raise InputError(
                f"step must return (State, info) with positions of shape {state.position.shape} and potentials of "
                f"shape {state.potential.shape}, got {_described(found)}; move every chain, and return "
                "State.from_evaluation(...) or state.accept(...), and an info or None"
            )
        new = _copied(found[0])
        share = float((new.position != state.position).any(axis=1).mean())
        self.moved = (self.n_steps * self.moved + share) / (self.n_steps + 1)
        self.n_steps += 1
        return new, found[1]


def _copied(state: State) -> State:
    gradient = None if state.gradient is None else state.gradient.copy()
    return replace(state, position=state.position.copy(), potential=state.potential.copy(), gradient=gradient)


def _is_step(found: Any, shape: tuple[int, ...]) -> bool:
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], State):
        return False
    new = found[0]
    wanted = [(new.position, shape), (new.potential, shape[:1])]
    if new.gradient is not None:
        wanted.append((new.gradient, shape))
    return all(
        isinstance(each, np.ndarray) and each.dtype.kind in "fiu" and each.shape == right
        for each, right in wanted
    )


def _described(found: Any) -> str:
    if not isinstance(found, tuple):
        return f"{type(found).__name__} alone"
    if len(found) != 2 or not isinstance(found[0], State):
        return f"({', '.join(type(each).__name__ for each in found)})"
    parts = {"position": found[0].position, "potential": found[0].potential, "gradient": found[0].gradient}
    return ", ".join(
        f"{name} {each.dtype} {each.shape}"
        if isinstance(each, np.ndarray)
        else f"{name} {type(each).__name__}"
        for name, each in parts.items()
    )


def as_exact(target: ExactTarget | AnyTarget, draw: Draw | None) -> ExactTarget:
    """Return the target with its draws, however they were given."""
    if isinstance(target, ExactTarget):
        if draw is not None:
            raise InputError("an ExactTarget has its own draw; leave draw out, or give its .target")
        return target
    if draw is None:
        raise InputError(
            "a target alone cannot be drawn from; give draw=, a function of a generator and n that returns n exact "
            "draws, or a target of leapwise.testing, which comes with one"
        )
    require_callable("draw", draw)
    return ExactTarget(target, draw)


def start(exact: ExactTarget, evaluator: Evaluator, rng: np.random.Generator, n_chains: int) -> State:
    """Return chains at exact draws."""
    position = exact.positions(rng, n_chains)
    ask = evaluator.value_and_gradient if exact.target.has_gradient else evaluator.value
    state = State.from_evaluation(ask(position))
    nowhere = ~np.isfinite(state.potential)
    if nowhere.any():
        raise InputError(
            f"{int(nowhere.sum())} of {n_chains} draws lie where the target has no density; draw must return exact "
            "draws of it, inside its bounds"
        )
    return state


def statistics_and_lost(
    statistics: Statistics, position: np.ndarray, evaluator: Evaluator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the statistics of positions, and which are lost: not finite, in any statistic too, or without density.

    What a kernel remembers as the potential is not trusted: it is evaluated anew.
    """
    potential = evaluator.value(position).potential
    lost = ~np.isfinite(potential) | ~np.isfinite(position).all(axis=1)
    with np.errstate(all="ignore"):
        found = columns(statistics, position, potential)
    return found, lost | ~np.all(np.isfinite([*found.values()]), axis=0)


def statistics_of_draws(
    statistics: Statistics, position: np.ndarray, evaluator: Evaluator
) -> dict[str, np.ndarray]:
    """Return the statistics of exact draws; where one is not finite it can tell nothing."""
    found, _ = statistics_and_lost(statistics, position, evaluator)
    for name, column in found.items():
        n_bad = int((~np.isfinite(column)).sum())
        if n_bad:
            raise InputError(
                f"the statistic {name!r} is not finite at {n_bad} of {len(column)} exact draws; "
                "it is given unconstrained positions, and must be a finite number at each"
            )
    return found
