"""A mixture of kernels: each step is made by one of them, by lot."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from leapwise.checks import require_real
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.state import Info, Kernel, State
from leapwise.kernels.streams import AnyStreams


@dataclass(frozen=True, eq=False)
class Mixture:
    r"""One of several kernels at each step, chosen by lot.

    Invariant because: every kernel leaves the posterior :math:`\pi` invariant, the weights :math:`w_i` do not depend on
    the state, and so :math:`\pi \sum_i w_i P_i = \sum_i w_i \pi P_i = \pi`; it is reversible if all of them are. One
    lot serves all chains of a step, which makes the same marginal law for each.

    Parameters
    ----------
    kernels : sequence of kernels
        Each exact.
    weights : array_like
        How often each is taken; they are divided by their sum.

    Examples
    --------
    >>> from leapwise import HMC, Evaluator, Streams, Target, UnitMetric
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2))
    >>> state = State.from_evaluation(evaluator.value_and_gradient(np.zeros((4, 2))))
    >>> short, long = HMC(0.5, 1, metric=UnitMetric()), HMC(0.5, (8, 8), metric=UnitMetric())
    >>> state, info = Mixture((short, long), [0.1, 0.9]).step(Streams(1, 4), state, evaluator)
    >>> info.part
    array([1, 1, 1, 1])
    """

    kernels: tuple[Kernel, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        kernels = tuple(self.kernels)
        weights = require_real(self.weights, "weights")
        if not kernels or weights.shape != (len(kernels),):
            raise InputError(
                f"a mixture needs as many weights as kernels, at least one, got {len(kernels)} kernels and weights of "
                f"shape {weights.shape}; give one weight for each kernel"
            )
        if not (weights >= 0).all() or not weights.sum() > 0:
            raise InputError(f"weights must be at least 0, and one of them more, got {weights.tolist()}")
        for kernel in kernels:
            if isinstance(kernel, type) or not callable(getattr(kernel, "step", None)):
                raise InputError(f"a mixture is of kernels such as HMC(0.1, 10, metric=...), got {kernel!r}")
        object.__setattr__(self, "kernels", kernels)
        object.__setattr__(self, "weights", tuple((weights / weights.sum()).tolist()))

    @property
    def is_exact(self) -> bool:
        """Whether all of its kernels are."""
        return all(kernel.is_exact for kernel in self.kernels)

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Draw a lot, and let that kernel move every chain."""
        lot = float(streams.common_uniforms()[0])
        part = min(int(np.searchsorted(np.cumsum(self.weights), lot, side="right")), len(self.kernels) - 1)
        state, info = self.kernels[part].step(streams, state, evaluator)
        return state, replace(info, part=np.full(streams.n_chains, part))
