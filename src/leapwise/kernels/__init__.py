"""Markov kernels for a batch of chains. Each leaves the exact posterior invariant, as long as it does not change.

The proofs hold for a frozen kernel: its surrogate, metric and step size are fixed. Draws are kept only after warm-up
has frozen the kernel. The one exception is `ARNSHMC`, which switches to updated surrogates while draws are kept; its
results say how many draws are ``adaptive``, and that these are exact only in the limit.

A kernel is a frozen object with one method, ``step(streams, state, evaluator) -> state, info``:

- `State` holds what the next step needs, `Info` what a person wants to know about this one;
- random numbers come from `streams`, one stream for each chain;
- exact values and gradients come from the `evaluator`;
- only the functions of `leapwise.kernels.accept` decide whether a proposal is accepted.

The proof of invariance of each kernel is in the docstring of its class.

Notation: position q, momentum p, exact potential U, potential of the surrogate U~, discrepancy D = U - U~, mass matrix
M or metric G(q), kinetic energy K, energy H = U + K, step size epsilon.
"""

from leapwise.kernels.base import Info, Kernel, Mixture, State
from leapwise.kernels.hmc import HMC, RMHMC
from leapwise.kernels.jumps import Jumps
from leapwise.kernels.nuts import NUTS
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
