"""The built-in posteriors, each with the exact moments or true parameters that are known of it.

====================== =======================================================================================
`gaussian`             the paper's narrow Gaussian; exact mean and covariance
`banana`               a curved posterior of two parameters; mean and covariance by quadrature
`gumbel`               a skewed target; exact mean and covariance
`lobes`                two normals that touch; exact moments and draws
`student_t`            heavy tails, 20 parameters; exact moments and draws
`funnel`               Neal's funnel, 6 parameters; exact moments and draws
`eight_schools`        the hierarchical model, non-centred, 10 parameters; moments by quadrature, exact draws
`poisson_gp`           counts on a latent Gaussian process with unknown scales, 22 parameters
`logistic`             logistic regression on your own data
`logistic_simulated`   the paper's 100,000 simulated rows, 50 coefficients
`logistic_bank`        bank marketing, 40,197 rows, 25 coefficients
`logistic_a9a`         a9a, 32,561 rows, projected to 60 coefficients
`elliptic_pde`         the diffusivity of an elliptic PDE, 20 parameters
`fitzhugh_nagumo`      a model of a nerve cell: 6 parameters of an ODE from observations of both its states
====================== =======================================================================================

Each is a function that returns a `Problem`. The module `registry` lists them by the names that the command line uses.
The module `datasets` finds or downloads the files that some of them need.
"""

from leapwise.problems.elliptic import elliptic_pde
from leapwise.problems.fitzhugh_nagumo import fitzhugh_nagumo
from leapwise.problems.hierarchies import eight_schools, poisson_gp
from leapwise.problems.logistic import (
    LogisticRegression,
    logistic,
    logistic_a9a,
    logistic_bank,
    logistic_simulated,
)
from leapwise.problems.registry import Problem
from leapwise.problems.shapes import banana, funnel, gaussian, gumbel, lobes, student_t

__all__ = [
    "LogisticRegression",
    "Problem",
    "banana",
    "eight_schools",
    "elliptic_pde",
    "fitzhugh_nagumo",
    "funnel",
    "gaussian",
    "gumbel",
    "lobes",
    "logistic",
    "logistic_a9a",
    "logistic_bank",
    "logistic_simulated",
    "poisson_gp",
    "student_t",
]
