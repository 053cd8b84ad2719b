"""Markov transitions of a batch of chains, each leaving the exact posterior invariant.

A kernel is one frozen object with ``step(streams, state, evaluator) -> state, info``. *State* is what the next step
needs, *Info* is what a person wants to know; random numbers come from *streams*, one for each chain; exact
evaluations come from the evaluator; and only `correction` says accept.
"""

from leapwise.kernels.hmc import HMC
from leapwise.kernels.jumps import Jumps
from leapwise.kernels.mixture import Mixture
from leapwise.kernels.nuts import NUTS
from leapwise.kernels.rmhmc import RMHMC
from leapwise.kernels.state import Info, Kernel, State
from leapwise.kernels.streams import SharedStream, Streams
from leapwise.kernels.surrogate_hmc import SurrogateHMC, SurrogateRMHMC
from leapwise.kernels.transition import SurrogateTransition

__all__ = [
    "HMC",
    "NUTS",
    "RMHMC",
    "Info",
    "Jumps",
    "Kernel",
    "Mixture",
    "SharedStream",
    "State",
    "Streams",
    "SurrogateHMC",
    "SurrogateRMHMC",
    "SurrogateTransition",
]
