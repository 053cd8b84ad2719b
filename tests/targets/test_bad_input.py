"""Bad input, at construction or at the first evaluation, gives one typed sentence."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest

from leapwise import Evaluator, ForwardTarget, GaussianLikelihood, NormalPrior, Target, UniformPrior
from leapwise.errors import EvaluationError, InputError, OutputError
from leapwise.execution import engine_for

LIKELIHOOD = GaussianLikelihood([0.0, 1.0], sd=1.0)
PRIOR = NormalPrior(0.0, 1.0, dim=2)


def value(x):
    return -0.5 * (x**2).sum(axis=-1)


def score(x):
    return -x


def at_first(target, gradient=False):
    evaluator = Evaluator(target)
    return (evaluator.value_and_gradient if gradient else evaluator.value)(np.ones((2, 2)))


def slowly(target):
    return Evaluator(target, engine=engine_for(target, timeout=0.01)).value(np.ones((1, 2)))


def fail(x):
    raise ConnectionError("the solver is down")


@dataclass
class NoDim:
    """A density of unknown dimension."""

    def log_density(self, points):
        return value(points)

    def gradient(self, points):
        return score(points)


CONSTRUCTION = {
    "no function": (lambda: Target(3.0, dim=2), "log_density must be a function, got float"),
    "the result, not the function": (lambda: Target(value(np.ones(2)), dim=2), "not its result"),
    "gradient is an array": (
        lambda: Target(value, np.zeros(2), dim=2),
        "gradient must be a function, got ndarray",
    ),
    "pair is a string": (
        lambda: Target(value, value_and_gradient="both", dim=2),
        "must be a function, got str",
    ),
    "two gradients": (lambda: Target(value, score, value_and_gradient=score, dim=2), "in one way only"),
    "gradient and flag": (lambda: Target(value, score, returns_gradient=True, dim=2), "in one way only"),
    "flag is a function": (
        lambda: Target(value, returns_gradient=score, dim=2),
        "returns_gradient must be True",
    ),
    "vectorized is a word": (
        lambda: Target(value, dim=2, vectorized="no"),
        "vectorized must be True or False",
    ),
    "dim zero": (lambda: Target(value, dim=0), "dim must be a positive integer, got 0"),
    "dim negative": (lambda: Target(value, dim=-3), "dim must be a positive integer, got -3"),
    "dim a float": (lambda: Target(value, dim=2.0), "dim must be a positive integer, got 2.0"),
    "dim a flag": (lambda: Target(value, dim=True), "dim must be a positive integer, got True"),
    "dim missing": (lambda: Target(value, dim=None), "dim must be a positive integer, got None"),
    "too few names": (lambda: Target(value, dim=2, names=["a"]), "each of the 2 parameters, got 1"),
    "names repeated": (lambda: Target(value, dim=2, names=["a", "a"]), "different strings"),
    "names alike in a DataTree": (
        lambda: Target(value, dim=2, names=["a/b", "a_b"]),
        r"differ in more than / and _, got \['a/b', 'a_b'\]; rename one",
    ),
    "names are numbers": (lambda: Target(value, dim=2, names=[1, 2]), "must be strings, .* in quotes"),
    "an empty name": (lambda: Target(value, dim=2, names=["a", ""]), "different strings"),
    "names in no order": (lambda: Target(value, dim=2, names={"a", "b"}), "got set; list them in order"),
    "one name as a number": (lambda: Target(value, dim=2, names=7), "names must be a string or a list"),
    "a name of the results": (lambda: Target(value, dim=2, names=["a", "chain"]), r"\['chain'\]"),
    "inverted bounds": (lambda: Target(value, dim=2, bounds=(1, 0)), "lower < upper"),
    "NaN bounds": (lambda: Target(value, dim=2, bounds=[(0, 1), (np.nan, 1)]), "for parameter 1"),
    "too many bounds": (lambda: Target(value, dim=2, bounds=[(0, 1)] * 3), "each of the 2 parameters, got 3"),
    "bounds a word": (lambda: Target(value, dim=2, bounds="positive"), "use None where there is no bound"),
    "a likelihood that is a class": (
        lambda: ForwardTarget(score, GaussianLikelihood, PRIOR),
        "likelihood must have the methods .* got the class GaussianLikelihood",
    ),
    "a likelihood that is a function": (lambda: ForwardTarget(score, value, PRIOR), "got function"),
    "a prior that is None": (
        lambda: ForwardTarget(score, LIKELIHOOD, None),
        "prior must have .* got NoneType",
    ),
    "forward is data": (lambda: ForwardTarget(np.ones(2), LIKELIHOOD, PRIOR), "forward must be a function"),
    "vjp is a matrix": (
        lambda: ForwardTarget(score, LIKELIHOOD, PRIOR, vjp=np.eye(2)),
        "vjp must be a function",
    ),
    "jacobian is a matrix": (
        lambda: ForwardTarget(score, LIKELIHOOD, PRIOR, jacobian=np.eye(2)),
        "jacobian must be a function",
    ),
    "vjp and jacobian": (
        lambda: ForwardTarget(score, LIKELIHOOD, PRIOR, vjp=score, jacobian=score),
        "give one",
    ),
    "dim unknown": (lambda: ForwardTarget(score, LIKELIHOOD, NoDim()), "give dim="),
    "dim against the prior": (
        lambda: ForwardTarget(score, LIKELIHOOD, PRIOR, dim=3),
        "does not match the prior's 2",
    ),
    "forward with a worded flag": (
        lambda: ForwardTarget(score, LIKELIHOOD, PRIOR, vectorized=1),
        "vectorized must",
    ),
    "negative sd": (lambda: GaussianLikelihood([0.0], sd=-0.1), "sd must be positive, got -0.1"),
    "inverted uniform": (lambda: UniformPrior(1, 0, dim=2), "lower < upper"),
    "not a target": (lambda: Evaluator(value), r"got function; wrap a function as Target\(log_density"),
    "a class for a target": (lambda: Evaluator(Target), "target must be a Target"),
    "unknown rule": (
        lambda: Evaluator(Target(value, dim=2), on_failure="ignore"),
        "'raise' or 'reject', got 'ignore'",
    ),
    "negative retries": (
        lambda: Evaluator(Target(value, dim=2), retries=-1),
        "retries must be a whole number",
    ),
    "half a retry": (lambda: Evaluator(Target(value, dim=2), retries=0.5), "retries must be a whole number"),
    "no gradient to ask for": (lambda: at_first(Target(value, dim=2), True), r"Target\(gradient=...\)"),
}
FIRST_EVALUATION = {
    "nothing back": (
        lambda: at_first(Target(lambda x: None, dim=2)),
        OutputError,
        "return statement missing",
    ),
    "a vector back": (
        lambda: at_first(Target(lambda x: -(x**2), dim=2)),
        OutputError,
        r"got shape \(2,\); sum over",
    ),
    "complex back": (lambda: at_first(Target(lambda x: 1j, dim=2)), OutputError, "dtype complex128"),
    "object back": (lambda: at_first(Target(lambda x: {}, dim=2)), OutputError, "got dict of dtype object"),
    "text back": (lambda: at_first(Target(lambda x: "low", dim=2)), OutputError, "got str"),
    "a truth back": (lambda: at_first(Target(lambda x: True, dim=2)), OutputError, "got bool; convert"),
    "scalar for a batch": (
        lambda: at_first(Target(lambda x: -1.0, dim=2, vectorized=True)),
        OutputError,
        "one number for each row",
    ),
    "sum over the wrong axis": (
        lambda: at_first(Target(lambda x: -(x**2).sum(axis=0), dim=2, vectorized=True)),
        OutputError,
        "one number for each row",
    ),
    "a wide gradient": (
        lambda: at_first(Target(value, lambda x: np.ones(5), dim=2), True),
        OutputError,
        r"gradient must return shape \(2,\), got \(5,\)",
    ),
    "a pair expected": (
        lambda: at_first(Target(value, returns_gradient=True, dim=2)),
        OutputError,
        r"must return \(log_density, gradient\), got float64",
    ),
    "too few outputs": (
        lambda: at_first(ForwardTarget(lambda x: x[:1], LIKELIHOOD, PRIOR)),
        OutputError,
        r"forward must return shape \(2,\), got \(1,\); return one output for each of the 2 data",
    ),
    "complex": (
        lambda: at_first(Target(lambda x: np.complex128(1j), dim=2)),
        OutputError,
        "must return real numbers, got complex128; convert",
    ),
    "vectorized, but returns one number": (
        lambda: at_first(Target(lambda x: -0.5 * (x**2).sum(), dim=2, vectorized=True)),
        OutputError,
        r"\(\d,\), .* got shape \(\) \(it was given positions of shape \(\d, 2\)\); return one number",
    ),
    "vectorized, but raises": (
        lambda: at_first(Target(fail, dim=2, vectorized=True)),
        EvaluationError,
        r"the solver is down at .*; since vectorized=True, it was given positions of shape \(n, 2\); ",
    ),
    "too slow": (
        lambda: slowly(Target(lambda x: time.sleep(0.2), dim=2)),
        EvaluationError,
        r"^the evaluation took longer than the 0.01 s allowed at parameters [^;]*; allow more \(timeout=\), fix [^;]*$",
    ),
    "NaN": (
        lambda: at_first(Target(lambda x: np.nan, dim=2)),
        EvaluationError,
        "returned a log-density of nan",
    ),
    "+inf": (
        lambda: at_first(Target(lambda x: np.inf, dim=2)),
        EvaluationError,
        "returned a log-density of inf",
    ),
    "an exception": (
        lambda: at_first(Target(fail, dim=2)),
        EvaluationError,
        "ConnectionError: the solver is down",
    ),
    "too many arguments": (
        lambda: at_first(Target(lambda a, b: 0.0, dim=2)),
        EvaluationError,
        "raised TypeError",
    ),
    "NaN gradient": (
        lambda: at_first(Target(value, lambda x: x * np.nan, dim=2), True),
        EvaluationError,
        "gradient that is not finite",
    ),
    "NaN outputs": (
        lambda: at_first(ForwardTarget(lambda x: np.array([1.0, np.nan]), LIKELIHOOD, PRIOR)),
        EvaluationError,
        r"the forward model returned nan in its output y\[1\] at parameters .*; let it raise an error",
    ),
}
TABLE = [(name, act, InputError, words) for name, (act, words) in CONSTRUCTION.items()]
TABLE += [(name, *row) for name, row in FIRST_EVALUATION.items()]


@pytest.mark.parametrize(("act", "error", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_input_gives_one_helpful_sentence(act, error, words):
    with pytest.raises(error, match=words) as caught:
        act()
    message = str(caught.value)
    assert caught.type is error
    assert "\n" not in message
    assert 20 < len(message) < 350
    assert not message.endswith(".")
