"""A mixture of kernels: each step is made by one of them, chosen at random."""

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
    r"""One of several kernels at each step, chosen at random.

    **Invariant because** every kernel :math:`P_i` leaves the posterior :math:`\pi` invariant and the weights
    :math:`w_i` do not depend on the state, so :math:`\pi \sum_i w_i P_i = \sum_i w_i \pi P_i = \pi`. It is reversible
    if all of them are. One choice serves all chains of a step; the law of each single chain is the same as with choices
    of its own.

    Parameters
    ----------
    kernels : sequence of kernels
        Exact kernels.
    weights : array_like
        Relative frequency of each kernel; they are divided by their sum.

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
        """Whether all of its kernels are exact."""
        return all(kernel.is_exact for kernel in self.kernels)

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Choose a kernel, and let it move every chain."""
        uniform = float(streams.common_uniforms()[0])
        index = int(np.searchsorted(np.cumsum(self.weights), uniform, side="right"))
        part = min(index, len(self.kernels) - 1)  # rounding may leave the sum of the weights below 1
        state, info = self.kernels[part].step(streams, state, evaluator)
        return state, replace(info, part=np.full(streams.n_chains, part))
