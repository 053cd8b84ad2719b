"""The checks find mistakes: each planted mistake is caught, and without it the same check passes.

The checks are those of the quick tier. A correct kernel fails one with probability 1e-7; a mistake must exceed the
limit by a factor of two.
"""

from __future__ import annotations

import mutations_free
import mutations_hmc
import mutations_inputs
import mutations_nuts
import mutations_riemannian
import mutations_surrogate
import pytest
from mutations import CLEARLY, FALSE_ALARM, PLANTED

PLANTERS = (
    mutations_hmc,
    mutations_nuts,
    mutations_surrogate,
    mutations_riemannian,
    mutations_inputs,
    mutations_free,
)
LOOKS = {mutation.look.name: mutation.look for mutation in PLANTED.values()}


def test_each_look_has_a_name_of_its_own():
    assert len(LOOKS) == len({id(mutation.look) for mutation in PLANTED.values()})
    assert {mutation.plant.__module__ for mutation in PLANTED.values()} == {
        each.__name__ for each in PLANTERS
    }


@pytest.mark.parametrize("name", LOOKS)
def test_without_a_mistake_there_is_nothing_to_see(name, record_property):
    record_property("false_alarm", FALSE_ALARM)
    assert LOOKS[name]().ratio < 1.0


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_is_caught(name, monkeypatch, record_property):
    record_property("mutation", name)
    PLANTED[name].plant(monkeypatch)
    finding = PLANTED[name].look()
    record_property("caught_by", finding.words)
    assert finding.ratio >= CLEARLY, finding.words
