"""The record of some chains' steps, and how parts of it are joined."""

from __future__ import annotations

import numpy as np

from leapwise import State
from leapwise.kernels import Info
from leapwise.run.recorder import Recorder, beside, joined

CHAINS, DIM = 3, 2


def step(rng, **extra):
    state = State(rng.normal(size=(CHAINS, DIM)), rng.normal(size=CHAINS), rng.normal(size=(CHAINS, DIM)))
    info = Info(
        accepted=rng.random(CHAINS) < 0.5,
        acceptance_rate=rng.random(CHAINS),
        step_size=rng.random(CHAINS),
        n_steps=rng.integers(1, 9, CHAINS),
        energy=rng.normal(size=CHAINS),
        energy_error=rng.normal(size=CHAINS),
        diverging=rng.random(CHAINS) < 0.5,
        n_exact=rng.integers(1, 9, CHAINS),
        proposal=state.position,
        proposal_momentum=state.position,
        **extra,
    )
    return state, info


def filled(steps, n_steps):
    recorder = Recorder(CHAINS, n_steps, DIM)
    for each in steps:
        assert not recorder.is_full
        recorder.add(*each)
    return recorder


def test_it_keeps_what_it_was_given(rng):
    steps = [step(rng) for _ in range(5)]
    recorder = filled(steps, 5)
    assert recorder.is_full
    block = recorder.block()
    for i, (state, info) in enumerate(steps):
        np.testing.assert_array_equal(block.positions[:, i], state.position)
        np.testing.assert_array_equal(block.stats["lp"][:, i], -state.potential)
        for name in set(block.stats) - {"lp"}:
            np.testing.assert_array_equal(block.stats[name][:, i], getattr(info, name))
    assert block.stats["diverging"].dtype == bool
    assert block.stats["n_steps"].dtype.kind == "i"
    assert "n_metrics" not in block.stats


def test_one_that_is_not_full_has_what_there_is(rng):
    block = filled([step(rng) for _ in range(2)], 100).block()
    assert block.positions.shape == (CHAINS, 2, DIM) and block.n_steps == 2
    assert {values.shape for values in block.stats.values()} == {(CHAINS, 2)}
    assert block.positions.base is None, "the room for the other steps is given back"


def test_an_empty_one_is_one_too():
    assert Recorder(CHAINS, 10, DIM).block().positions.shape == (CHAINS, 0, DIM)


def test_statistics_of_some_kernels_are_absent_in_the_steps_of_others(rng):
    discrepancy = rng.normal(size=CHAINS)
    recorder = filled([step(rng), step(rng, discrepancy=discrepancy, part=np.ones(CHAINS, int))], 2)
    block = recorder.block()
    np.testing.assert_array_equal(block.stats["discrepancy"][:, 1], discrepancy)
    assert np.isnan(block.stats["discrepancy"][:, 0]).all() and not block.stats["part"][:, 0].any()
    recorder.empty()
    recorder.add(*step(rng))
    assert np.isnan(recorder.block().stats["discrepancy"]).all(), "nothing of earlier steps shows through"


def test_parts_joined_are_the_whole(rng):
    steps = [step(rng, **({"discrepancy": rng.normal(size=CHAINS)} if i > 2 else {})) for i in range(6)]
    whole = filled(steps, 6).block()
    parts = joined([filled(part, 3).block() for part in (steps[:3], steps[3:5], steps[5:])])
    np.testing.assert_array_equal(parts.positions, whole.positions)
    assert parts.stats.keys() == whole.stats.keys()
    for name, values in whole.stats.items():
        np.testing.assert_array_equal(parts.stats[name], values)
        assert parts.stats[name].dtype == values.dtype


def test_chains_side_by_side_have_as_many_steps_as_all_of_them(rng):
    long, short = (filled([step(rng) for _ in range(n)], 6).block() for n in (6, 4))
    both = beside([long, short])
    assert both.positions.shape == (2 * CHAINS, 4, DIM)
    np.testing.assert_array_equal(both.positions[:CHAINS], long.positions[:, :4])
    np.testing.assert_array_equal(both.stats["lp"][CHAINS:], short.stats["lp"])
