"""The list of problems of the command line."""

from __future__ import annotations

import os

import pytest

import leapwise.problems
from leapwise.errors import InputError
from leapwise.problems import registry

NEEDS_DATA = {entry.name for entry in registry.listing() if entry.needs_data}


@pytest.mark.parametrize("name", sorted(set(registry.NAMES) - NEEDS_DATA))
def test_every_name_makes_its_problem(name, monkeypatch):
    monkeypatch.delenv("LEAPWISE_DATA", raising=False)
    check(name)


@pytest.mark.skipif(
    not os.environ.get("LEAPWISE_DATA"), reason="LEAPWISE_DATA does not name a folder with the data files"
)
@pytest.mark.parametrize("name", sorted(NEEDS_DATA))
def test_every_name_makes_its_problem_from_data(name):
    check(name)


def check(name: str) -> None:
    entry = next(entry for entry in registry.listing() if entry.name == name)
    problem = registry.get(name)
    assert problem.name == name
    assert problem.target.dim == entry.dim
    assert problem.target.has_gradient
    assert problem.description


def test_only_data_problems_are_marked_so():
    assert {"logistic-bank", "logistic-a9a"} == NEEDS_DATA


def test_a_misspelt_name_is_met_with_the_closest_and_the_known_names():
    with pytest.raises(InputError, match=r"did you mean 'logistic-bank'\?.*gaussian, banana"):
        registry.get("logistic-bnk")
    with pytest.raises(InputError, match=r"'qqq'; the known ones are gaussian"):
        registry.get("qqq")


def test_every_maker_is_public():
    for entry in registry.listing():
        function = entry.maker.split(":")[1]
        assert function in leapwise.problems.__all__
