"""What identifies a target is the same wherever it is made, and each thing that changes is named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from leapwise import ForwardTarget, GaussianLikelihood, NormalPrior, Target, UniformPrior
from leapwise.errors import InputError
from leapwise.targets.identity import differences, identify

DATA = np.linspace(0.1, 2.0, 7)
NAMES = ("a", "b", "c")
COVARIANCE = 0.3 * np.eye(7) + 0.1


def forward(x):
    return np.full(7, x.sum())


def make(
    data=DATA,
    sd=0.1,
    prior=None,
    names=NAMES,
    bounds=((0, 1), (0, None), None),
    dim=3,
    likelihood=None,
    covariance=None,
    jacobian=None,
    vectorized=False,
):
    noise = {"sd": sd} if covariance is None else {"covariance": covariance}
    likelihood = GaussianLikelihood(data, **noise) if likelihood is None else likelihood
    prior = NormalPrior(0.0, [1.0, 2.0, 3.0][:dim] + [4.0] * (dim - 3)) if prior is None else prior
    return ForwardTarget(
        forward, likelihood, prior, names=names, bounds=bounds, jacobian=jacobian, vectorized=vectorized
    )


def log_density(x):
    return -0.5 * x @ x


class Laplace:
    """A user's likelihood, which holds something that changes with every call."""

    def __init__(self):
        self.room = np.random.default_rng().standard_normal(3)

    def log_density(self, points):
        return -np.abs(points).sum(axis=1)

    def gradient(self, points):
        return -np.sign(points)


class Huber(Laplace):
    pass


@dataclass(frozen=True)
class Student(Laplace):
    df: float
    data: np.ndarray
    hook: object = print


CHANGES = {
    "data": (make(data=DATA + 1e-6), ["data changed"]),
    "number of data": (make(data=[1.0, 2.0]), ["data changed from 7 values to 2 values"]),
    "noise level": (make(sd=0.2), ["noise sd changed from 0.1 to 0.2"]),
    "noise levels": (make(sd=np.linspace(0.1, 0.2, 7)), ["noise sd changed from 0.1 to 7 values"]),
    "bounds": (
        make(bounds=((0, 2), (0, None), (None, 5))),
        [
            "bounds of 'a' changed from (0, 1) to (0, 2)",
            "bounds of 'c' changed from (None, None) to (None, 5)",
        ],
    ),
    "prior": (make(prior=NormalPrior(0.0, [1.0, 2.5, 3.0])), ["prior sd of 'b' changed from 2 to 2.5"]),
    "kind of prior": (
        make(prior=UniformPrior(0.0, 1.0, dim=3)),
        [
            "bounds of 'b' changed from (0, None) to (0, 1)",
            "bounds of 'c' changed from (None, None) to (0, 1)",
            "prior changed from NormalPrior to UniformPrior",
        ],
    ),
    "order of parameters": (
        make(names=("c", "b", "a"), bounds=((0, 1), (0, None), None)),
        ["names changed from ['a', 'b', 'c'] to ['c', 'b', 'a']"],
    ),
    "dimension": (
        make(dim=4, names=("a", "b", "c", "d"), bounds=((0, 1), (0, None), None, None)),
        [
            "dim changed from 3 to 4",
            "names changed from ['a', 'b', 'c'] to ['a', 'b', 'c', 'd']",
            "bounds changed from [[0.0, 1.0], [0.0, None], [None, None]] to "
            "[[0.0, 1.0], [0.0, None], [None, None], [None, None]]",
            "prior mean changed from [0.0, 0.0, 0.0] to [0.0, 0.0, 0.0, 0.0]",
            "prior sd changed from [1.0, 2.0, 3.0] to [1.0, 2.0, 3.0, 4.0]",
        ],
    ),
    "one name": (make(names="x"), ["names changed from ['a', 'b', 'c'] to 'x'"]),
    "kind of target": (
        Target(log_density, dim=3, names=NAMES, bounds=[(0, 1), (0, None), None]),
        ["kind changed from 'forward' to 'log-density'"],
    ),
    "kind of likelihood": (
        make(likelihood=Laplace()),
        ["likelihood changed from GaussianLikelihood to Laplace"],
    ),
    "gradient": (
        make(jacobian=lambda x: (forward(x), np.ones((7, 3)))),
        ["gradient changed from False to True"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_named(name):
    then, (changed, phrases) = identify(make()), CHANGES[name]
    assert differences(then, identify(changed)) == phrases
    assert len(differences(identify(changed), then)) == len(phrases)


def test_versions_are_named():
    then, now = identify(make(), "1"), identify(make(), "2")
    assert differences(then, now) == ["version changed from '1' to '2'"]
    assert differences(identify(make()), now) == ["version changed from None to '2'"]
    assert differences(now, identify(make())) == ["version changed from '2' to None"]


@pytest.mark.parametrize("version", [1, b"1", ["1"]])
def test_versions_are_strings(version):
    with pytest.raises(InputError, match="version must be a string"):
        identify(make(), version)


def test_the_same_is_the_same():
    for target in (make, lambda: Target(log_density, dim=2), lambda: make(covariance=COVARIANCE)):
        assert differences(identify(target()), identify(target())) == []
    assert differences(identify(make()), identify(make(vectorized=True))) == []


def test_a_target_from_a_factory_is_the_one_it_makes():
    assert differences(identify(make()), identify(Target.from_factory(make))) == []


def test_topics_can_be_ignored():
    then, now = identify(make()), identify(CHANGES["gradient"][0])
    assert differences(then, now, ignore=("gradient",)) == []


def test_correlated_noise():
    then = identify(make(covariance=COVARIANCE))
    other = COVARIANCE.copy()
    other[0, 3] = other[3, 0] = 0.1001
    assert differences(then, identify(make(covariance=other))) == ["noise correlations changed"]
    assert differences(then, identify(make(sd=np.sqrt(0.4)))) == [
        "noise correlations changed from 7 values to None"
    ]
    assert differences(then, identify(make(covariance=4 * COVARIANCE))) == [
        "noise sd changed from 0.632455532034 to 1.26491106407"
    ]


def test_everything_at_once_is_told_apart():
    now = make(data=DATA * 2, sd=0.3, names=("a", "b", "z"), bounds=None, prior=NormalPrior(1.0, 1.0, dim=3))
    found = differences(identify(make(), "x"), identify(now, "y"))
    assert len(found) == 11
    assert {"data changed", "version changed from 'x' to 'y'", "noise sd changed from 0.1 to 0.3"} <= set(
        found
    )


def test_many_changes_of_a_kind_are_cut_short():
    wide = [Target(log_density, dim=50, bounds=(0, upper)) for upper in (1, 2)]
    found = differences(*map(identify, wide))
    assert len(found) == 6
    assert found[0] == "bounds of 'x[0]' changed from (0, 1) to (0, 2)"
    assert found[-1] == "and bounds of 45 more parameters"


def test_the_last_digits_of_data_do_not_matter():
    """Data that a model made differ by rounding on another machine."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = rng.standard_normal(100) * 10.0 ** rng.integers(-9, 9, size=100)
        nearly = data * (1.0 + 4e-16 * rng.integers(-2, 3, size=100))
        assert differences(identify(make(data=data)), identify(make(data=nearly))) == []
        changed = data.copy()
        changed[rng.integers(100)] *= 1.0 + 1e-8
        assert differences(identify(make(data=data)), identify(make(data=changed))) == ["data changed"]
    powers = 2.0 ** np.arange(-9.0, 9.0)  # where the exponent changes with the last digit
    between = 0.75 + 0.5**31  # where numbers are rounded up or down
    for data in (powers, between * powers):
        below = np.nextafter(data, 0.0)
        assert differences(identify(make(data=data)), identify(make(data=below))) == []


def test_what_a_users_object_holds_counts_only_if_it_cannot_change():
    assert differences(identify(make(likelihood=Laplace())), identify(make(likelihood=Laplace()))) == []
    assert differences(identify(make(likelihood=Laplace())), identify(make(likelihood=Huber()))) == [
        "likelihood changed from Laplace to Huber"
    ]
    then = identify(make(likelihood=Student(3.0, DATA)))
    assert differences(then, identify(make(likelihood=Student(3.0, DATA, repr)))) == []
    assert differences(then, identify(make(likelihood=Student(4.0, DATA + 1)))) == [
        "likelihood data changed",
        "likelihood df changed from 3 to 4",
    ]


def test_another_process_finds_the_same(tmp_path):
    script = """
import json, numpy as np
from leapwise import ForwardTarget, GaussianLikelihood, NormalPrior
from leapwise.targets.identity import identify
likelihood = GaussianLikelihood(np.linspace(0.1, 2.0, 7), covariance=0.3 * np.eye(7) + 0.1)
target = ForwardTarget(lambda x: x, likelihood, NormalPrior(0.0, [1.0, 2.0, 3.0]), names=["a", "b", "c"])
print(json.dumps(identify(target, "v")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(done.stdout) == identify(make(covariance=COVARIANCE, bounds=None), "v")


HOSTILE = {
    "nothing": {},
    "no JSON": dict.fromkeys(identify(make()), "{"),
    "numbers": dict.fromkeys(identify(make()), 5),
    "null": dict.fromkeys(identify(make()), "null"),
    "lists": dict.fromkeys(identify(make()), "[[[1]]]"),
    "words": dict.fromkeys(identify(make()), '"' + "x" * 10_000 + '"'),
    "deep": dict.fromkeys(identify(make()), "[" * 100_000 + "]" * 100_000),
    "deep, but readable": dict.fromkeys(identify(make()), "[" * 400 + "]" * 400),
    "huge numbers": dict.fromkeys(identify(make()), "1" + "0" * 400),
    "not numbers": dict.fromkeys(identify(make()), "NaN"),
    "objects": dict.fromkeys(identify(make()), '{"shape": ["a"], "hashes": 5, "class": []}'),
    "too few bounds": identify(make()) | {"bounds": "[[0, 1]]"},
    "odd bounds": identify(make()) | {"bounds": '[[0], "a", {}]'},
    "a huge dimension": identify(make(names="x")) | {"dim": "1000000000000"},
    "names of numbers": identify(make()) | {"names": "[1, 2, 3]"},
    "hashes of words": identify(make()) | {"data": '{"shape": [7], "hashes": "abc"}'},
    "an odd prior": identify(make()) | {"prior": '{"class": "NormalPrior", "mean": 3, "sd": [1]}'},
    "an odd likelihood": identify(make()) | {"likelihood": "[]"},
    "an odd noise": identify(make()) | {"noise": "[]"},
    "more": identify(make()) | {"colour": '"blue"'},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_record_differs_and_does_not_raise(name):
    found = differences(HOSTILE[name], identify(make()))
    assert found and all(isinstance(phrase, str) and len(phrase) <= 300 for phrase in found)
