"""What a built-in problem is, and the list of them by name, for the command line.

A `Problem` contains a target, ``problem.target``, which is what `sample` takes, and beside it what is known of its
posterior. A problem is only made when it is asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from leapwise.dynamics.metrics import RiemannianMetric
from leapwise.errors import InputError
from leapwise.targets import ForwardTarget, Target


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior to test and compare samplers on: a target, and what is known of it.

    Attributes
    ----------
    name : str
        Its name on the command line.
    description : str
        One sentence.
    target : Target or ForwardTarget
        The target to sample.
    metric : RiemannianMetric or None
        Its Fisher metric for `RMHMC`, if it has one.
    mean, covariance : ndarray or None
        Exact moments of the posterior, if they are known.
    draw : callable or None
        ``draw(rng, n)`` returns n independent exact draws ``(n, dim)``, if there is a way to make them.
    true_parameters : ndarray or None
        The parameters that the data were simulated from, if the data are simulated.
    settings : dict
        The paper's settings: ``{"hmc": (step_size, n_steps), "rmhmc": (step_size, n_steps)}``.
    """

    name: str
    description: str
    target: Target | ForwardTarget
    metric: RiemannianMetric | None = None
    mean: np.ndarray | None = None
    covariance: np.ndarray | None = None
    draw: Callable[[np.random.Generator, int], np.ndarray] | None = None
    true_parameters: np.ndarray | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ListedProblem:
    """One line of the list of problems.

    Attributes
    ----------
    name : str
    dim : int
        Number of parameters.
    description : str
        What it is, in a few words.
    maker : str
        The function that makes it, as ``module:function``.
    needs_data : bool
        Whether it reads a data file, which is downloaded the first time.
    """

    name: str
    dim: int
    description: str
    maker: str
    needs_data: bool = False

    def make(self) -> Problem:
        """Import the module and make the problem with its standard settings."""
        module, function = self.maker.split(":")
        maker: Callable[[], Problem] = getattr(import_module(f"leapwise.problems.{module}"), function)
        return maker()


_PROBLEMS = (
    ListedProblem("gaussian", 32, "narrow Gaussian, ten times as wide along (1, ..., 1)", "shapes:gaussian"),
    ListedProblem("banana", 2, "banana: the data see one combination of two parameters", "shapes:banana"),
    ListedProblem("gumbel", 2, "skewed: correlated Gumbel variables", "shapes:gumbel"),
    ListedProblem("lobes", 2, "two normals that touch, 60 % of the mass in one", "shapes:lobes"),
    ListedProblem("student-t", 20, "heavy tails: Student t with 5 degrees of freedom", "shapes:student_t"),
    ListedProblem("funnel", 6, "funnel: one parameter is the log-variance of the others", "shapes:funnel"),
    ListedProblem(
        "eight-schools", 10, "hierarchical: eight schools, non-centred", "hierarchies:eight_schools"
    ),
    ListedProblem(
        "poisson-gp", 22, "hierarchical: counts on a latent Gaussian process", "hierarchies:poisson_gp"
    ),
    ListedProblem(
        "logistic-simulated", 50, "logistic regression, 100,000 simulated rows", "logistic:logistic_simulated"
    ),
    ListedProblem(
        "logistic-bank",
        25,
        "logistic regression, bank marketing, 40,197 rows",
        "logistic:logistic_bank",
        needs_data=True,
    ),
    ListedProblem(
        "logistic-a9a",
        60,
        "logistic regression, a9a projected to 60 dimensions, 32,561 rows",
        "logistic:logistic_a9a",
        needs_data=True,
    ),
    ListedProblem(
        "elliptic-pde", 20, "diffusivity of an elliptic PDE from 121 pressures", "elliptic:elliptic_pde"
    ),
    ListedProblem(
        "fitzhugh-nagumo",
        6,
        "ODE of a nerve cell from 2 x 40 observations",
        "fitzhugh_nagumo:fitzhugh_nagumo",
    ),
)
_BY_NAME = {listed.name: listed for listed in _PROBLEMS}

NAMES = tuple(_BY_NAME)


def listing() -> tuple[ListedProblem, ...]:
    """Return all problems, in the order in which to show them."""
    return _PROBLEMS


def get(name: str) -> Problem:
    """Make the built-in problem called `name`.

    Examples
    --------
    >>> get("banana").target.dim
    2
    """
    if name in _BY_NAME:
        return _BY_NAME[name].make()
    close = difflib.get_close_matches(str(name), NAMES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise InputError(f"there is no built-in problem {name!r}; {hint}the known ones are {', '.join(NAMES)}")
