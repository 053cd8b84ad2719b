"""Tests of exactness for any kernel, target or surrogate, also for those of users.

Nothing here is needed for sampling. `check_invariance` makes a step from exact draws of a target and tests whether the
results are draws of it. `check_ranks` and `check_two_samples` test the same in two other ways. `check_balance` checks
kernels on finitely many states, without randomness. `ExactTarget`, and the functions that make one, are targets with
exact draws. `LIES` and `BROKEN` are ways in which a surrogate can be wrong: none may bias a draw.
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
from leapwise.testing.sequential import (
    SequentialTest,
    check_ranks,
    check_two_samples,
    exact_ranks,
    sequential_test,
)

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
