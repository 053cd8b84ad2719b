"""The built-in posteriors, each with what is known of its truth.

====================== =======================================================================================
`gaussian`             the paper's narrow Gaussian; exact mean and covariance
`banana`               a curved posterior of two parameters; mean and covariance by quadrature
`gumbel`               a skewed target; exact mean and covariance
`logistic`             logistic regression on your own data
`logistic_simulated`   the paper's 100,000 simulated rows, 50 coefficients
`logistic_bank`        bank marketing, 40,197 rows, 25 coefficients
`logistic_a9a`         a9a, 32,561 rows, projected to 60 coefficients
`elliptic_pde`         the diffusivity of an elliptic PDE, 20 parameters
====================== =======================================================================================

Each is a function that returns a `Problem`. `registry` knows them by the names of the command line, and `datasets`
finds or downloads the files that some of them need.
"""

from understudy.problems.banana import banana
from understudy.problems.elliptic import elliptic_pde
from understudy.problems.gaussian import gaussian
from understudy.problems.gumbel import gumbel
from understudy.problems.logistic import logistic, logistic_a9a, logistic_bank, logistic_simulated
from understudy.problems.logistic_model import LogisticRegression
from understudy.problems.problem import Problem

__all__ = [
    "LogisticRegression",
    "Problem",
    "banana",
    "elliptic_pde",
    "gaussian",
    "gumbel",
    "logistic",
    "logistic_a9a",
    "logistic_bank",
    "logistic_simulated",
]
