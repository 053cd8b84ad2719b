"""Tests that hold anyone's kernel, target or surrogate to account.

Nothing here is needed to sample. `check_invariance` makes a step from exact draws of a target and asks whether they are
still draws of it; `check_ranks` and `check_two_samples` ask the same in two other ways; `check_balance` leaves nothing
to chance, on finitely many states. `ExactTarget`, and the functions that make one, are targets that can be drawn from
exactly. `LIES` and `BROKEN` are ways in which a surrogate can be wrong: none may bias a draw.
"""

from leapwise.testing.exact_targets import (
    ExactTarget,
    banana,
    exponential,
    gaussian,
    gumbel,
    mixture,
    student_t,
)
from leapwise.testing.finite import (
    Balance,
    check_balance,
    metropolis_matrix,
    surrogate_transition_matrix,
    trajectory_matrix,
)
from leapwise.testing.invariance import Invariance, check_invariance
from leapwise.testing.lies import BROKEN, LIES, Liar
from leapwise.testing.ranks import check_ranks, exact_ranks
from leapwise.testing.sequential import SequentialTest, check_two_samples, sequential_test

__all__ = [
    "BROKEN",
    "LIES",
    "Balance",
    "ExactTarget",
    "Invariance",
    "Liar",
    "SequentialTest",
    "banana",
    "check_balance",
    "check_invariance",
    "check_ranks",
    "check_two_samples",
    "exact_ranks",
    "exponential",
    "gaussian",
    "gumbel",
    "metropolis_matrix",
    "mixture",
    "sequential_test",
    "student_t",
    "surrogate_transition_matrix",
    "trajectory_matrix",
]
