"""The posteriors of the comparison, and the forms in which they are offered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import leapwise as lw
from leapwise.problems import Problem, registry
from leapwise.problems.elliptic import elliptic_pde


@dataclass(frozen=True)
class Case:
    """One posterior in one form.

    `kind` is "gradient", or "values" if methods get no gradient. `like` is a case of the same shape whose best settings
    are used, to save the search. `paper` is its name among the experiments of the paper. `is_slow` says that an
    evaluation takes long enough for worker processes to help.
    """

    name: str
    title: str
    maker: Callable[[], Problem]
    kind: str = "gradient"
    like: str | None = None
    paper: str | None = None
    is_slow: bool = False

    def problem(self) -> Problem:
        return self.maker()

    def target(self):
        target = self.problem().target
        return target if self.kind == "gradient" else without_gradient(target)


def without_gradient(target):
    """Return the same target without its gradient: outputs only, or values only."""
    if isinstance(target, lw.ForwardTarget):
        return lw.ForwardTarget(
            target.forward, target.likelihood, target.prior, names=target.names, vectorized=target.vectorized
        )
    return scalar(target)


def scalar(target):
    """Return the same target as a bare log-density, with neither outputs nor gradient."""

    def log_density(parameters):
        return target.evaluate(parameters, gradient=False).log_density

    return lw.Target(log_density, dim=target.dim, names=target.names, vectorized=True)


def _named(name: str, title: str, **settings) -> Case:
    return Case(name, title, partial(registry.get, name), **settings)


CASES = {
    case.name: case
    for case in (
        _named("logistic-simulated", "logistic, simulated (d=50, 100,000 rows)", paper="simulated"),
        _named("logistic-bank", "logistic, bank marketing (d=25, 40,197 rows)", paper="bank"),
        _named("logistic-a9a", "logistic, a9a (d=60, 32,561 rows)", paper="a9a"),
        _named("elliptic-pde", "elliptic PDE, 30 x 30 (d=20)", paper="elliptic"),
        Case(
            "elliptic-pde-120",
            "elliptic PDE, 120 x 120 (d=20)",
            partial(elliptic_pde, 120),
            like="elliptic-pde",
            paper="elliptic",
            is_slow=True,
        ),
        Case(
            "elliptic-pde-outputs",
            "elliptic PDE, 30 x 30, outputs without gradient (d=20)",
            elliptic_pde,
            kind="values",
        ),
        _named("fitzhugh-nagumo", "FitzHugh-Nagumo ODE (d=6)"),
        Case(
            "fitzhugh-nagumo-outputs",
            "FitzHugh-Nagumo ODE, outputs without gradient (d=6)",
            partial(registry.get, "fitzhugh-nagumo"),
            kind="values",
        ),
        _named("banana", "banana (d=2)"),
        _named("eight-schools", "eight schools, non-centred (d=10)"),
        _named("funnel", "funnel (d=6)"),
        _named("poisson-gp", "Poisson counts on a Gaussian process (d=22)"),
        _named("student-t", "Student t, 5 degrees of freedom (d=20)"),
        _named("lobes", "two lobes that touch (d=2)"),
    )
}

#: The cases that `make bench` runs; the others run on request.
STANDARD = tuple(name for name in CASES if name not in ("poisson-gp", "student-t", "lobes"))
