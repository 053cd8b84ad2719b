"""Markov transitions of a batch of chains, each leaving the exact posterior invariant.

A kernel is one frozen object with ``step(streams, state, evaluator) -> state, info``. *State* is what the next step
needs, *Info* is what a person wants to know; random numbers come from *streams*, one for each chain; exact
evaluations come from the evaluator; and only `correction` says accept.
"""

from understudy.kernels.hmc import HMC
from understudy.kernels.leaps import Leaps
from understudy.kernels.mixture import Mixture
from understudy.kernels.nuts import NUTS
from understudy.kernels.rmhmc import RMHMC
from understudy.kernels.state import Info, Kernel, State
from understudy.kernels.streams import SharedStream, Streams
from understudy.kernels.surrogate_hmc import SurrogateHMC, SurrogateRMHMC
from understudy.kernels.transition import SurrogateTransition

__all__ = [
    "HMC",
    "NUTS",
    "RMHMC",
    "Info",
    "Kernel",
    "Leaps",
    "Mixture",
    "SharedStream",
    "State",
    "Streams",
    "SurrogateHMC",
    "SurrogateRMHMC",
    "SurrogateTransition",
]
