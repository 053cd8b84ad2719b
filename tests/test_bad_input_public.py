"""Bad input to the public functions: one typed sentence that says what, got and remedy, and nothing spent on it.

Each row of the table is an act, given a model that remembers where it was evaluated; the error; the offending value as
the message shows it; and words of which the remedy has at least one. Where only a returned value can tell, one
position may be evaluated (and retried).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import leapwise as lw
from leapwise.cli.load import load_problem
from leapwise.errors import EvaluationError, InputError, LeapwiseError, OutputError, StartError
from leapwise.problems import registry
from leapwise.problems.shapes import gaussian

LIKELIHOOD = lw.GaussianLikelihood([0.0, 1.0], sd=1.0)
PRIOR = lw.NormalPrior(0.0, 1.0, dim=2)


class Model:
    """A standard normal of two parameters that remembers where it was evaluated."""

    def __init__(self):
        self.points = set()

    def value(self, x):
        self.points.add(tuple(np.ravel(x)))
        return -0.5 * (x**2).sum(axis=-1)

    def score(self, x):
        return -x

    def target(self, **settings):
        return lw.Target(self.value, self.score, dim=2, **settings)

    def returning(self, returned, **settings):
        """A target that returns something else; its calls are counted all the same."""

        def log_density(x):
            self.value(x)
            return returned(x) if callable(returned) else returned

        return lw.Target(log_density, self.score, dim=2, **settings)

    def sample(self, target=None, **settings):
        defaults = {"draws": 5, "tune": 20, "random_seed": 1, "init": [0.5, 0.25]}
        return lw.sample(self.target() if target is None else target, **(defaults | settings))


def fail(x):
    raise ConnectionError("the solver is down")


TARGETS = {
    "log-density is a number": (lambda m: lw.Target(3.0, dim=2), InputError, "float", ["function itself"]),
    "gradient is an array": (
        lambda m: lw.Target(m.value, np.zeros(2), dim=2),
        InputError,
        "ndarray",
        ["function itself"],
    ),
    "dim is zero": (lambda m: lw.Target(m.value, dim=0), InputError, "got 0", ["number of parameters"]),
    "dim is a float": (lambda m: lw.Target(m.value, dim=2.0), InputError, "2.0", ["number of parameters"]),
    "bounds inverted": (lambda m: m.target(bounds=(5, 1)), InputError, "(5, 1)", ["swap"]),
    "too many bounds": (lambda m: m.target(bounds=[(0, 1)] * 3), InputError, "got 3", ["one pair per"]),
    "bounds are a word": (lambda m: m.target(bounds="positive"), InputError, "'positive'", ["None where"]),
    "a bound that is unknown": (lambda m: m.target(bounds=(0, np.nan)), InputError, "nan", ["None"]),
    "bounds outside the prior": (
        lambda m: lw.ForwardTarget(m.value, LIKELIHOOD, lw.UniformPrior([0, 0], [1, 1]), bounds=(5, 6)),
        InputError,
        "(5, 6)",
        ["change one of them"],
    ),
    "prior and likelihood swapped": (
        lambda m: lw.ForwardTarget(m.value, PRIOR, LIKELIHOOD),
        InputError,
        "GaussianLikelihood",
        ["likelihood first"],
    ),
    "names that are numbers": (lambda m: m.target(names=[1, 2]), InputError, "[1, 2]", ["quotes"]),
    "too few names": (lambda m: m.target(names=["a"]), InputError, "got 1", ["single string"]),
    "names repeated": (lambda m: m.target(names=["a", "a"]), InputError, "['a', 'a']", ["rename"]),
    "the gradient twice": (
        lambda m: m.target(value_and_gradient=m.value),
        InputError,
        "value_and_gradient=",
        ["one way only"],
    ),
    "data are not numbers": (
        lambda m: lw.GaussianLikelihood(["a"], sd=1.0),
        InputError,
        "'a'",
        ["float array"],
    ),
    "all data are missing": (
        lambda m: lw.GaussianLikelihood([np.nan, np.nan], sd=1.0),
        InputError,
        "only NaN",
        ["give observations"],
    ),
    "negative sd": (lambda m: lw.GaussianLikelihood([0.0], sd=-0.1), InputError, "-0.1", ["sign"]),
    "no sd and no covariance": (lambda m: lw.GaussianLikelihood([0.0]), InputError, "sd", ["exactly one"]),
    "covariance not positive definite": (
        lambda m: lw.GaussianLikelihood([0.0, 0.0], covariance=[[1, 2], [2, 1]]),
        InputError,
        "not",
        ["diagonal"],
    ),
    "uniform prior inverted": (lambda m: lw.UniformPrior(3, 2, dim=2), InputError, "3 and 2", ["swap"]),
    "prior of unknown size": (lambda m: lw.NormalPrior(0.0, 1.0), InputError, "[]", ["give dim="]),
    "likelihood is a class": (
        lambda m: lw.ForwardTarget(m.score, lw.GaussianLikelihood, PRIOR),
        InputError,
        "class GaussianLikelihood",
        ["give data in a GaussianLikelihood"],
    ),
    "dim against the prior": (
        lambda m: lw.ForwardTarget(m.score, LIKELIHOOD, PRIOR, dim=3),
        InputError,
        "dim=3",
        ["drop dim="],
    ),
}
METHODS = {
    "negative step size": (lambda m: lw.HMC(-0.1, 5), InputError, "-0.1", ["positive"]),
    "step size is a word": (lambda m: lw.HMC("small", 5), InputError, "'small'", ["float"]),
    "no steps": (lambda m: lw.HMC(0.1, 0), InputError, "got 0", ["positive whole number"]),
    "half a step": (lambda m: lw.HMC(0.1, 2.5), InputError, "2.5", ["positive whole number"]),
    "steps from more to fewer": (lambda m: lw.HMC(0.1, (5, 2)), InputError, "(5, 2)", ["smallest, largest"]),
    "steps and time": (
        lambda m: lw.HMC(0.1, 5, trajectory_length=1.0),
        InputError,
        "n_steps or trajectory_length",
        ["not both"],
    ),
    "unknown metric": (lambda m: lw.HMC(metric="full"), InputError, "'full'", ["'dense'"]),
    "target acceptance of 80": (
        lambda m: lw.HMC(target_acceptance=80),
        InputError,
        "80",
        ["between 0 and 1"],
    ),
    "no Riemannian metric": (lambda m: lw.RMHMC(0.1, 5), InputError, "None", ["problem.metric"]),
    "a Euclidean metric for RMHMC": (
        lambda m: lw.RMHMC(0.1, 5, metric=lw.UnitMetric()),
        InputError,
        "UnitMetric",
        ["problem.metric"],
    ),
    "variance is not positive": (
        lambda m: lw.DiagonalMetric([1.0, 0.0]),
        InputError,
        "0 at index 1",
        ["units"],
    ),
    "variance is a matrix": (
        lambda m: lw.DiagonalMetric(np.eye(2)),
        InputError,
        "2 dimensions",
        ["each parameter"],
    ),
    "covariance is not square": (lambda m: lw.DenseMetric(np.ones((2, 3))), InputError, "(2, 3)", ["square"]),
    "covariance is not symmetric": (
        lambda m: lw.DenseMetric([[1.0, 0.5], [0.1, 1.0]]),
        InputError,
        "symmetric",
        ["check how it was computed"],
    ),
}
SAMPLE = {
    "progress as a word": (lambda m: m.sample(progressbar="yes"), InputError, "str", ["True or False"]),
    "version as a number": (lambda m: m.sample(version=3), InputError, "3", ["string of your own"]),
    "a function for a target": (lambda m: m.sample(m.value), InputError, "method", ["wrap your function"]),
    "a problem for a target": (lambda m: m.sample(gaussian()), InputError, "Problem", ["problem.target"]),
    "no gradient": (
        lambda m: m.sample(lw.Target(m.value, dim=2), method=lw.HMC()),
        InputError,
        "HMC",
        ["gradient=..."],
    ),
    "no draws": (lambda m: m.sample(draws=0), InputError, "got 0", ["at least 1"]),
    "draws as text": (lambda m: m.sample(draws="100"), InputError, "'100'", ["whole number"]),
    "too little warm-up": (
        lambda m: m.sample(tune=5, method=lw.HMC()),
        InputError,
        "got 5",
        ["tune=500"],
    ),
    "no budget": (lambda m: m.sample(max_evaluations=0), InputError, "got 0", ["at least 1"]),
    "half an evaluation": (lambda m: m.sample(max_evaluations=99.5), InputError, "99.5", ["whole number"]),
    "a trained surrogate's class": (lambda m: lw.Auto(lw.QuadraticNetwork), InputError, "class", ["recipe"]),
    "a word for a surrogate": (lambda m: lw.Auto("network"), InputError, "'network'", ["leave it out"]),
    "no chains": (lambda m: m.sample(chains=0), InputError, "got 0", ["at least 1"]),
    "negative seed": (lambda m: m.sample(random_seed=-1), InputError, "-1", ["at least 0"]),
    "a generator for a seed": (
        lambda m: m.sample(random_seed=np.random.default_rng(1)),
        InputError,
        "Generator",
        ["whole number"],
    ),
    "unknown method": (lambda m: m.sample(method="nuts"), InputError, "'nuts'", ["Auto() or HMC()"]),
    "a class for a method": (lambda m: m.sample(method=lw.HMC), InputError, "class HMC", ["HMC()"]),
    "unknown rule for failures": (
        lambda m: m.sample(on_failure="ignore"),
        InputError,
        "'ignore'",
        ["'reject'"],
    ),
    "negative retries": (lambda m: m.sample(retries=-1), InputError, "-1", ["at least 0"]),
    "step sizes for other chains": (
        lambda m: m.sample(method=lw.HMC([0.1, 0.2], 5)),
        InputError,
        "(2,)",
        ["each of the 4 chains"],
    ),
    "a metric of another size": (
        lambda m: m.sample(method=lw.HMC(metric=lw.DenseMetric(np.eye(3)))),
        InputError,
        "DenseMetric",
        ["each parameter"],
    ),
    "init of the wrong length": (lambda m: m.sample(init=[1.0]), InputError, "(1,)", ["each parameter"]),
    "init as text": (lambda m: m.sample(init=["a", "b"]), InputError, "['a', 'b']", ["each parameter"]),
    "NaN init": (lambda m: m.sample(init=[0.0, np.nan]), StartError, "nan for parameter 1", ["a number"]),
    "init outside the bounds": (
        lambda m: m.sample(m.target(bounds=(0, 1)), init=[0.5, 7.5]),
        StartError,
        "7.5 for parameter 1",
        ["inside"],
    ),
    "an unknown problem": (lambda m: registry.get("gausian"), InputError, "'gausian'", ["did you mean"]),
}
ONE_EVALUATION = {
    "-inf start": (
        lambda m: m.sample(m.returning(-np.inf)),
        StartError,
        "[0.5 , 0.25]",
        ["where the log-density is finite"],
    ),
    "NaN start": (lambda m: m.sample(m.returning(np.nan)), EvaluationError, "nan", ["return -inf"]),
    "exception in the model": (
        lambda m: m.sample(m.returning(fail)),
        EvaluationError,
        "ConnectionError: the solver is down",
        ["fix the model"],
    ),
    "nothing back": (lambda m: m.sample(m.returning(None)), OutputError, "NoneType", ["return statement"]),
    "a vector back": (lambda m: m.sample(m.returning(lambda x: -x)), OutputError, "(2,)", ["sum over"]),
    "complex back": (lambda m: m.sample(m.returning(1j)), OutputError, "complex128", ["convert"]),
    "object back": (lambda m: m.sample(m.returning({})), OutputError, "dict", ["convert"]),
    "text back": (lambda m: m.sample(m.returning("low")), OutputError, "str", ["convert"]),
    "a wide gradient": (
        lambda m: m.sample(lw.Target(m.value, lambda x: np.ones(5), dim=2)),
        OutputError,
        "(5,)",
        ["one entry"],
    ),
    "a pair expected": (
        lambda m: m.sample(lw.Target(m.value, dim=2, returns_gradient=True)),
        OutputError,
        "float64",
        ["as a tuple"],
    ),
    "a pair unannounced": (
        lambda m: m.sample(lw.Target(lambda x: (m.value(x), x), dim=2), tune=60),
        OutputError,
        "a tuple of 2",
        ["returns_gradient=True"],
    ),
    "too few outputs": (
        lambda m: m.sample(
            lw.ForwardTarget(
                m.value, LIKELIHOOD, PRIOR, jacobian=lambda x: (np.atleast_1d(m.value(x)), np.eye(2))
            ),
            method=lw.HMC(),
        ),
        OutputError,
        "(1,)",
        ["one output for each of the 2 data"],
    ),
    "too few outputs of the model alone": (
        lambda m: m.sample(lw.ForwardTarget(lambda x: np.atleast_1d(m.value(x)), LIKELIHOOD, PRIOR), tune=60),
        OutputError,
        "(1,)",
        ["one output for each of the 2 data"],
    ),
}
FILES = {
    "missing file": ("nowhere.py:target", None, "nowhere.py", ["check its name"]),
    "missing name": (
        "model.py:posterior",
        "target = lw.Target(len, dim=2)",
        "'posterior'",
        ["it has target"],
    ),
    "no name": ("model.py", "target = lw.Target(len, dim=2)", "model.py", [":NAME"]),
    "no target in it": ("model.py:prior", "x = 1", "'prior'", ["leapwise.Target"]),
    "not a target": ("model.py:x", "x = 3.5", "float", ["leapwise.Target"]),
    "not valid Python": ("model.py:target", "target = (", "line 2", ["not valid Python"]),
    "fails when run": ("model.py:target", "1 / 0", "ZeroDivisionError at line 2", ["fix it"]),
    "a bad target in it": (
        "model.py:target",
        "target = lw.Target(len, dim=0)",
        "got 0",
        ["number of parameters"],
    ),
}
TABLE = {**TARGETS, **METHODS, **SAMPLE, **ONE_EVALUATION}


def assert_helpful(error, value, remedies):
    message = str(error)
    assert isinstance(error, LeapwiseError)
    assert value in message
    assert any(words in message for words in remedies), message
    assert "\n" not in message
    assert 20 < len(message) < 400
    assert not message.endswith(".")
    assert not re.search(r"\b(\w+) \1\b", message), "a word twice"


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_gives_one_helpful_sentence_and_wastes_nothing(name):
    act, error, value, remedies = TABLE[name]
    model = Model()
    with pytest.raises(error) as caught:
        act(model)
    assert caught.type is error
    assert_helpful(caught.value, value, remedies)
    assert len(model.points) <= (name in ONE_EVALUATION)


@pytest.mark.parametrize("name", FILES)
def test_bad_files_give_one_helpful_sentence(name, tmp_path, monkeypatch):
    what, code, value, remedies = FILES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    if code is not None:
        Path("model.py").write_text(f"import leapwise as lw\n{code}\n")
    with pytest.raises(InputError) as caught:
        load_problem(what)
    assert_helpful(caught.value, value, remedies)


def test_the_table_is_long_enough():
    assert len(TABLE) + len(FILES) >= 60


def test_good_input_does_not_raise():
    """The acts fail for their own reasons: the same with good input works."""
    model = Model()
    assert model.sample().draws.shape == (4, 5, 2)
    assert model.points
