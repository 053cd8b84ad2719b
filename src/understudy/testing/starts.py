"""What tests of kernels begin and end with: exact draws, and a look at where they went."""

from __future__ import annotations

import numpy as np

from understudy.checks import require_callable
from understudy.errors import InputError
from understudy.kernels import State
from understudy.targets import AnyTarget, Evaluator
from understudy.testing.exact_targets import Draw, ExactTarget
from understudy.testing.statistics import Statistics, columns


def require_kernel(kernel: object) -> None:
    """Raise unless `kernel` can step."""
    if isinstance(kernel, type) or not callable(getattr(kernel, "step", None)):
        got = kernel.__name__ if isinstance(kernel, type) else type(kernel).__name__
        raise InputError(
            f"kernel must have a method step(streams, state, evaluator), got {got}; of a method that trains a "
            "surrogate give the kernel that it ends with, run.kernel"
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
            "draws, or a target of understudy.testing, which comes with one"
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


def looked_at(
    statistics: Statistics, position: np.ndarray, evaluator: Evaluator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the statistics of positions, and which are lost: not finite, or without density.

    What a kernel remembers as the potential is not trusted: it is evaluated anew.
    """
    potential = evaluator.value(position).potential
    lost = ~np.isfinite(potential) | ~np.isfinite(position).all(axis=1)
    with np.errstate(all="ignore"):
        return columns(statistics, position, potential), lost
