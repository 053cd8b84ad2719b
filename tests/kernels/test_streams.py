"""Random numbers: a chain's stream depends only on the seed and on the chain's number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest

from leapwise import SharedStream, Streams


def some_numbers(streams, steps=3):
    """Draw as a kernel does: uniforms, normals, uniforms."""
    drawn = [
        (streams.uniforms()[:, None], streams.normals(4), streams.uniforms()[:, None]) for _ in range(steps)
    ]
    return np.concatenate([np.concatenate(step, axis=1) for step in drawn], axis=1)


@pytest.mark.parametrize("n_chains", [1, 2, 7])
def test_a_chain_does_not_know_how_many_run_beside_it(n_chains):
    np.testing.assert_array_equal(some_numbers(Streams(5, n_chains)), some_numbers(Streams(5, 8))[:n_chains])


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others():
    np.testing.assert_array_equal(some_numbers(Streams(5, 3)), some_numbers(Streams(5, 3)))
    assert not np.intersect1d(some_numbers(Streams(5, 3)), some_numbers(Streams(6, 3))).size


def test_chains_share_no_numbers():
    numbers = some_numbers(Streams(5, 50))
    assert len(np.unique(numbers)) == numbers.size


def test_no_seed_is_a_fresh_seed():
    assert not np.intersect1d(some_numbers(Streams(None, 2)), some_numbers(Streams(None, 2))).size


def test_chains_are_independent():
    """Correlations between 40 chains over 2000 steps; the largest of 780 exceeds 5.4 sd with chance 5e-5."""
    streams = Streams(11, 40)
    uniforms = np.stack([streams.uniforms() for _ in range(2000)])
    correlation = np.corrcoef(uniforms, rowvar=False) - np.eye(40)
    assert np.abs(correlation).max() * np.sqrt(2000) < 5.4


@pytest.mark.parametrize("streams", [Streams(3, 6), SharedStream(np.random.default_rng(3), 6)])
def test_shapes(streams):
    assert streams.n_chains == 6
    assert streams.normals(4).shape == (6, 4)
    assert streams.uniforms().shape == (6,)
    assert streams.normals(1).dtype == streams.uniforms().dtype == np.float64


@pytest.mark.parametrize(
    "make",
    [lambda: Streams(2, 500), lambda: SharedStream(np.random.default_rng(2), 500)],
    ids=["own", "shared"],
)
def test_numbers_are_what_they_say(make):
    """Kolmogorov-Smirnov on 20 000 numbers; a false alarm has chance 1e-5."""
    streams = make()
    uniforms = np.concatenate([streams.uniforms() for _ in range(40)])
    assert ((uniforms >= 0) & (uniforms < 1)).all()
    assert kstest(uniforms, "uniform").pvalue > 1e-5
    assert kstest(streams.normals(40).ravel(), "norm").pvalue > 1e-5


def test_a_shared_stream_is_its_generator():
    stream, rng = SharedStream(np.random.default_rng(4), 10), np.random.default_rng(4)
    np.testing.assert_array_equal(stream.normals(3), rng.standard_normal((10, 3)))
    np.testing.assert_array_equal(stream.uniforms(), rng.random(10))
