"""What all tests of kernels share: exact draws to start from, a watched kernel, and statistics of where chains end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leapwise.checks import require_callable, require_whole
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import Kernel, State
from leapwise.kernels.streams import AnyStreams
from leapwise.targets import AnyTarget
from leapwise.testing.exact_targets import CUT, Draw, ExactTarget

#: Size of the pilot sample that centres and scales the default statistics. A guess: quantiles good to a few per cent.
N_PILOT = 1000

#: Takes positions ``(n, dim)`` and exact potentials ``(n,)``; returns named columns ``(n,)``.
Statistics = Callable[[np.ndarray, np.ndarray], Mapping[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class MomentStatistics:
    """Powers of each coordinate, an indicator of it, its product with the next one, and the potential.

    Parameters
    ----------
    centre, scale : ndarray of shape (dim,) or float
        Subtracted from positions, and then divided by.

    Examples
    --------
    >>> MomentStatistics()(np.array([[1.0, 2.0]]), np.array([2.5]))["q0 q1"]
    array([2.])
    """

    centre: np.ndarray | float = 0.0
    scale: np.ndarray | float = 1.0

    def __call__(self, position: np.ndarray, potential: np.ndarray) -> dict[str, np.ndarray]:
        """Return the statistics by name."""
        q = (position - self.centre) / self.scale
        square = q**2
        kinds = {"q{}": q, "q{}^2": square, "q{}^4": square**2, f"q{{}} < {CUT}": (q < CUT).astype(float)}
        columns = {name.format(i): kind[:, i] for name, kind in kinds.items() for i in range(q.shape[1])}
        columns |= {f"q{i} q{i + 1}": q[:, i] * q[:, i + 1] for i in range(q.shape[1] - 1)}
        return {**columns, "U": potential}


def standardized(pilot: np.ndarray) -> MomentStatistics:
    """Return moments about the median of a pilot sample ``(n, dim)``, in units of its spread."""
    low, middle, high = np.quantile(pilot, [0.16, 0.5, 0.84], axis=0)
    spread = (high - low) / 2.0
    return MomentStatistics(middle, np.where(spread > 0, spread, 1.0))


def columns(statistics: Statistics, position: np.ndarray, potential: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of each chain, checked."""
    found: Any = statistics(position, potential)
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"statistics must return a dict of named arrays, got {type(found).__name__}; "
            'for example lambda q, u: {"mean": q[:, 0], "potential": u}'
        )
    checked = {str(name): np.asarray(column, dtype=float) for name, column in found.items()}
    for name, column in checked.items():
        if column.shape != (len(position),):
            raise InputError(
                f"the statistic {name!r} must have shape {(len(position),)}, one number for each chain, "
                f"got {column.shape}"
            )
    return checked


def require_kernel(kernel: object) -> None:
    """Raise unless `kernel` has a method step."""
    if isinstance(kernel, type) or not callable(getattr(kernel, "step", None)):
        got = kernel.__name__ if isinstance(kernel, type) else type(kernel).__name__
        raise InputError(
            f"kernel must have a method step(streams, state, evaluator), got {got}; for a method that trains a "
            "surrogate, give the kernel of its draws, run.kernel"
        )


def require_seed(random_seed: object) -> int:
    """Return the seed given, or a fresh one for None."""
    if random_seed is None:
        return int(np.random.default_rng().integers(2**63))
    return require_whole("random_seed", random_seed, 0)


def require_false_alarm(false_alarm: object) -> float:
    """Return `false_alarm` if it is between 0 and 1."""
    if not isinstance(false_alarm, (float, np.floating)) or not 0 < false_alarm < 1:
        raise InputError(f"false_alarm must be a number between 0 and 1, got {false_alarm!r}")
    return float(false_alarm)


@dataclass(eq=False)
class WatchedKernel:
    """A kernel whose results are checked, with the share of chains that its steps have moved.

    The kernel gets copies, and copies of its results are kept. So it may write into its arrays, or use them again,
    without changing what it is compared with.
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
    """Return the target with its function for exact draws."""
    if isinstance(target, ExactTarget):
        if draw is not None:
            raise InputError("an ExactTarget has its own draw; leave draw out, or give its .target")
        return target
    if draw is None:
        raise InputError(
            "exact draws of the target are needed; give draw=, a function of a generator and n that returns n exact "
            "draws, or a target of leapwise.testing, which has one"
        )
    require_callable("draw", draw)
    return ExactTarget(target, draw)


def start(exact: ExactTarget, evaluator: Evaluator, rng: np.random.Generator, n_chains: int) -> State:
    """Return the state of chains at exact draws."""
    position = exact.positions(rng, n_chains)
    evaluate = evaluator.value_and_gradient if exact.target.has_gradient else evaluator.value
    state = State.from_evaluation(evaluate(position))
    outside = ~np.isfinite(state.potential)
    if outside.any():
        raise InputError(
            f"{int(outside.sum())} of {n_chains} draws lie where the target has no density; draw must return exact "
            "draws of it, inside its bounds"
        )
    return state


def statistics_and_lost(
    statistics: Statistics, position: np.ndarray, evaluator: Evaluator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the statistics at positions, and which chains are lost.

    A chain is lost if its position or a statistic is not finite, or if it has no density there. The potential that a
    kernel has stored is not trusted, but evaluated again.
    """
    potential = evaluator.value(position).potential
    lost = ~np.isfinite(potential) | ~np.isfinite(position).all(axis=1)
    with np.errstate(all="ignore"):
        found = columns(statistics, position, potential)
    return found, lost | ~np.all(np.isfinite([*found.values()]), axis=0)


def statistics_of_draws(
    statistics: Statistics, position: np.ndarray, evaluator: Evaluator
) -> dict[str, np.ndarray]:
    """Return the statistics of exact draws; raise if one is not finite."""
    found, _ = statistics_and_lost(statistics, position, evaluator)
    for name, column in found.items():
        n_bad = int((~np.isfinite(column)).sum())
        if n_bad:
            raise InputError(
                f"the statistic {name!r} is not finite at {n_bad} of {len(column)} exact draws; "
                "it gets unconstrained positions, and must be a finite number at each"
            )
    return found
