"""Target.from_factory: a target of the same kind, pickled as the function that makes it."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from leapwise import ForwardTarget, GaussianLikelihood, NormalPrior, Target
from leapwise.errors import InputError

_SHARED = Target(lambda x: -0.5 * x @ x, dim=3)


def make_shared():
    return _SHARED


def make_forward():
    lock = threading.Lock()

    def forward(x):
        with lock:
            return x**2

    return ForwardTarget(forward, GaussianLikelihood([1.0], sd=0.1), NormalPrior(0.0, 1.0, dim=1))


def make_factory():
    return Target.from_factory(make_shared)


def test_it_is_what_was_made():
    built = []

    def make():
        built.append(1)
        return Target(lambda x: -0.5 * float(x @ x), dim=2, names=["a", "b"], bounds=[(0, 5), None])

    target = Target.from_factory(make)
    assert isinstance(target, Target)
    assert (target.dim, target.names) == (2, ("a", "b"))
    assert target.transform.lower[0] == 0.0
    assert target.evaluate(np.ones((1, 2)), gradient=False).log_density[0] == -1.0
    assert len(built) == 1


def test_pickled_it_is_the_function():
    target = Target.from_factory(make_forward)
    assert isinstance(target, ForwardTarget)
    pickled = pickle.dumps(target)
    assert len(pickled) < 200
    copy = pickle.loads(pickled)
    assert isinstance(copy, ForwardTarget)
    expected = target.evaluate(np.full((1, 1), 0.3), gradient=False)
    found = copy.evaluate(np.full((1, 1), 0.3), gradient=False)
    assert found.log_density == expected.log_density and found.outputs == expected.outputs


def test_what_make_returns_is_left_as_it_is():
    target = Target.from_factory(make_shared)
    assert target is not _SHARED and type(_SHARED) is Target
    assert type(Target.from_factory(make_factory)).__mro__.count(type(target).__mro__[1]) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [(3, "make must be a function"), (lambda: 3, "must return a Target or a ForwardTarget, got int")],
)
def test_no_factory(make, words):
    with pytest.raises(InputError, match=words):
        Target.from_factory(make)
