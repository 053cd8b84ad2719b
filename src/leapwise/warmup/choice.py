"""Which warm-up a method needs."""

from __future__ import annotations

from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels import HMC, NUTS, RMHMC, Kernel, State, Streams, SurrogateRMHMC
from leapwise.warmup.learning import Exploration, check_metric_at
from leapwise.warmup.methods import RNSHMC, RNSRMHMC, Training
from leapwise.warmup.schedule import SETTLE, HMCWarmup, NoWarmup, RMHMCWarmup, Warmup
from leapwise.warmup.trajectories import TrajectoryWarmup


def warmup_for(
    method: Kernel | Training, n_steps: int, evaluator: Evaluator, streams: Streams, state: State
) -> Warmup:
    """Return the warm-up that a method needs; it may spend a few gradients on a first step size."""
    if isinstance(method, (RNSHMC, RNSRMHMC)):
        return Exploration(method, n_steps, evaluator, streams, state)
    if isinstance(method, NUTS) or (isinstance(method, HMC) and is_free(method)):
        return TrajectoryWarmup(method, n_steps, evaluator, streams, state)
    if isinstance(method, HMC):
        return HMCWarmup(method, n_steps, evaluator, streams, state)
    if isinstance(method, RMHMC):
        return RMHMCWarmup(method, n_metrics=check_metric_at(state, method))
    assert not isinstance(method, Training)
    warmup = NoWarmup(method)
    if isinstance(method, SurrogateRMHMC):
        warmup.n_metrics = check_metric_at(state, method)
    return warmup


def is_free(method: HMC) -> bool:
    """Whether nothing is said of its trajectories: neither their steps nor their length."""
    return method.step_size is None and method.n_steps is None and method.trajectory_length is None


def require_tuning_steps(method: Kernel | Training, n_steps: int) -> None:
    """Raise if a method that has something to learn is given too few steps to learn it."""
    if isinstance(method, (RNSHMC, RNSRMHMC)):
        skip = n_steps // 5 if method.skip is None else method.skip
        if n_steps <= skip:
            raise InputError(
                f"tune must leave steps to collect training data from, got tune={n_steps} of which {skip} are "
                "skipped; use a larger tune, or a smaller skip"
            )
        require_tuning_steps(method.exploration, n_steps)
        return
    if isinstance(method, (HMC, NUTS)):
        learns = not method.is_set or method.metric in ("diagonal", "dense")
    else:
        learns = isinstance(method, RMHMC) and method.step_size is None
    if learns and n_steps < 2 * SETTLE:
        raise InputError(
            f"tune must be at least {2 * SETTLE} steps to learn the method's settings, got {n_steps}; "
            "use tune=500, or give the method its step_size and n_steps"
        )
