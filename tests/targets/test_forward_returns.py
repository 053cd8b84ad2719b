"""What a forward model, a likelihood or a prior may not return, refused with one sentence at the first run."""

from __future__ import annotations

import numpy as np
import pytest

from leapwise import Evaluator, ForwardTarget, GaussianLikelihood, NormalPrior
from leapwise.errors import OutputError

DIM, M = 3, 4
MIX = np.arange(12.0).reshape(M, DIM)
LIKELIHOOD = GaussianLikelihood(np.zeros(M), sd=1.0)
PRIOR = NormalPrior(0.0, 1.0, dim=DIM)


def forward(x):
    return x @ MIX.T


def jacobian(x):
    return forward(x), MIX


def vjp(x):
    return forward(x), lambda cotangent: cotangent @ MIX


def make(**options):
    given = {"forward": forward, "likelihood": LIKELIHOOD, "prior": PRIOR, **options}
    return ForwardTarget(given.pop("forward"), given.pop("likelihood"), given.pop("prior"), **given)


class Fixed:
    """A density that returns what it is given."""

    def __init__(self, value=None, gradient=None, dim=None):
        self.value, self.slope, self.dim = value, gradient, dim

    def log_density(self, points):
        return np.zeros(len(points)) if self.value is None else self.value

    def gradient(self, points):
        return np.zeros_like(points) if self.slope is None else self.slope


WRONG = {
    "None": ({"forward": lambda x: None}, "forward must return real numbers.*return statement missing"),
    "too few": ({"forward": lambda x: np.ones(2)}, r"forward must return shape \(4,\), got \(2,\)"),
    "a table": (
        {"forward": lambda x: np.ones((2, 2))},
        r"forward must return shape \(4,\), got \(2, 2\); reshape",
    ),
    "a number": ({"forward": lambda x: 1.0}, r"forward must return shape \(4,\), got \(\)"),
    "complex": ({"forward": lambda x: np.ones(M) * 1j}, "forward must return real numbers"),
    "no batch": ({"forward": lambda x: np.ones(M), "vectorized": True}, r"shape \(2, 4\), got \(4,\)"),
    "scalar likelihood": ({"likelihood": Fixed(1.0)}, r"likelihood.log_density must return shape \(1,\)"),
    "wide likelihood": ({"likelihood": Fixed(np.ones((1, 2)))}, "likelihood.log_density must return shape"),
    "complex likelihood": ({"likelihood": Fixed(np.ones(1) * 1j)}, "likelihood.log_density must return real"),
    "scalar prior": ({"prior": Fixed(1.0, dim=DIM)}, r"prior.log_density must return shape \(1,\)"),
    "no prior": ({"prior": Fixed("flat", dim=DIM)}, "prior.log_density must return real numbers, got str"),
}
WRONG_DERIVATIVES = {
    "vjp not a pair": ({"vjp": forward}, r"vjp must return \(outputs, pull_back\), got ndarray"),
    "vjp with a matrix": ({"vjp": jacobian}, "with a function as pull_back, got ndarray; give jacobian="),
    "jacobian not a pair": (
        {"jacobian": lambda x: jacobian(x)[1]},
        r"jacobian must return \(outputs, jacobian\)",
    ),
    "jacobian with a function": ({"jacobian": vjp}, "jacobian must return real numbers, got function"),
    "jacobian transposed": (
        {"jacobian": lambda x: (forward(x), jacobian(x)[1].T)},
        r"jacobian must have shape \(4, 3\), outputs, parameters; got \(3, 4\); transpose",
    ),
    "one jacobian for a batch": (
        {"jacobian": lambda x: (forward(x), MIX), "vectorized": True},
        r"jacobian must have shape \(2, 4, 3\), points, outputs, parameters; got \(4, 3\)",
    ),
    "jacobian complex": ({"jacobian": lambda x: (forward(x), 1j * MIX)}, "jacobian must return real numbers"),
    "wrong outputs": (
        {"vjp": lambda x: (np.ones(9), None)},
        r"vjp, for its outputs, must return shape \(4,\), got \(9,\)",
    ),
    "two gradients": ({"vjp": lambda x: (forward(x), lambda c: (x, x))}, "pull_back must return shape"),
    "narrow pull-back": (
        {"vjp": lambda x: (forward(x), lambda c: x[:2])},
        r"pull_back must return shape \(3,\)",
    ),
    "no pull-back": ({"vjp": lambda x: (forward(x), lambda c: None)}, "pull_back must return real numbers"),
    "likelihood gradient": (
        {"likelihood": Fixed(None, 1.0), "vjp": vjp},
        "likelihood.gradient must return shape",
    ),
    "prior gradient": (
        {"prior": Fixed(None, np.ones(2), DIM), "vjp": vjp},
        "prior.gradient must return shape",
    ),
}


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_result_is_refused_at_the_first_run(options, words):
    seen = []

    def model(x):
        seen.append(x)
        return options.get("forward", forward)(x)

    evaluator = Evaluator(make(**{**options, "forward": model}))
    with pytest.raises(OutputError, match=words):
        evaluator.value(np.zeros((2, DIM)))
    assert len(seen) == (0 if "prior" in options else 1), "a wrong prior must not cost a run of the model"


@pytest.mark.parametrize(("options", "words"), WRONG_DERIVATIVES.values(), ids=list(WRONG_DERIVATIVES))
def test_a_wrong_derivative_is_refused_at_the_first_run(options, words):
    with pytest.raises(OutputError, match=words):
        Evaluator(make(**options)).value_and_gradient(np.zeros((2, DIM)))
