"""Random numbers: one independent stream for each chain.

Chain `i` draws from the `i`-th child of ``SeedSequence(seed)``, for any number of chains. So the draws of a chain
depend on the seed alone, and not on how many chains run beside it.
"""

from __future__ import annotations

import copy
from typing import Protocol

import numpy as np

#: Spawn key of the stream that all chains share: the largest 32-bit number, which is no chain's index.
SHARED = 2**32 - 1


class AnyStreams(Protocol):
    """The source of random numbers of a kernel: one number, or one row, for each chain."""

    n_chains: int

    def normals(self, dim: int) -> np.ndarray:
        """Return standard normals, ``(chains, dim)``."""
        ...

    def uniforms(self) -> np.ndarray:
        """Return uniform numbers on [0, 1), ``(chains,)``."""
        ...

    def common_uniforms(self) -> np.ndarray:
        """Return uniform numbers that may be the same for all chains, ``(chains,)``."""
        ...


class Streams:
    """One generator for each chain.

    Parameters
    ----------
    seed : int or None
        Seed of all streams.
    n_chains : int
        Number of chains.

    Attributes
    ----------
    generators : list of Generator
        One for each chain.
    shared : Generator
        For what the chains have in common, such as a surrogate.

    Examples
    --------
    The second of two chains draws the same numbers as the second of five:

    >>> bool((Streams(1, 2).normals(3)[1] == Streams(1, 5).normals(3)[1]).all())
    True
    """

    def __init__(self, seed: int | None, n_chains: int) -> None:
        sequence = np.random.SeedSequence(seed)
        self.generators = [np.random.default_rng(child) for child in sequence.spawn(n_chains)]
        self.shared = np.random.default_rng(np.random.SeedSequence(sequence.entropy, spawn_key=(SHARED,)))
        self.n_chains = n_chains

    def normals(self, dim: int) -> np.ndarray:
        """Return standard normals, ``(chains, dim)``."""
        found = np.empty((self.n_chains, dim))
        for generator, row in zip(self.generators, found, strict=True):
            generator.standard_normal(out=row)
        return found

    def uniforms(self) -> np.ndarray:
        """Return uniform numbers on [0, 1), ``(chains,)``."""
        return np.array([generator.random() for generator in self.generators])

    def common_uniforms(self) -> np.ndarray:
        """Return one uniform number for all chains, the same for any number of chains."""
        return np.full(self.n_chains, self.shared.random())

    def for_chain(self, chain: int) -> Streams:
        """Return copies of the streams that one chain uses, to move it alone with the same numbers."""
        alone = object.__new__(Streams)
        alone.generators = [copy.deepcopy(self.generators[chain])]
        alone.shared = copy.deepcopy(self.shared)
        alone.n_chains = 1
        return alone


class SharedStream:
    """One generator for all chains, to move very many of them at once.

    Parameters
    ----------
    rng : Generator
        Source of the numbers.
    n_chains : int
        Number of chains that share it.

    Examples
    --------
    >>> SharedStream(np.random.default_rng(0), 1_000_000).uniforms().shape
    (1000000,)
    """

    def __init__(self, rng: np.random.Generator, n_chains: int) -> None:
        self.rng = rng
        self.n_chains = n_chains

    def normals(self, dim: int) -> np.ndarray:
        """Return standard normals, ``(chains, dim)``."""
        return self.rng.standard_normal((self.n_chains, dim))

    def uniforms(self) -> np.ndarray:
        """Return uniform numbers on [0, 1), ``(chains,)``."""
        return self.rng.random(self.n_chains)

    common_uniforms = uniforms


# Constants of SplitMix64 (Steele, Lea and Flood, 2014): the increment, and the shifts and factors of its mixing
# function.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIXING = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
LAST_SHIFT = np.uint64(31)
#: Shift that leaves the upper 53 bits of 64, which is what a double can hold.
TO_53_BITS = np.uint64(11)


class CounterStream:
    """As many random numbers as each chain needs within one step, from a single number of its own stream.

    The number of choices in a NUTS step differs between chains, but `Streams` draws for all chains at once: a chain
    that has finished would use up numbers because others have not. So each chain draws one number, which seeds a
    generator whose k-th number can be computed directly: SplitMix64, which passes the BigCrush tests. Seeds have 53
    bits and a step needs few numbers, so the numbers of different steps are independent for all practical purposes.

    Parameters
    ----------
    seeds : ndarray of shape (chains,)
        Uniform numbers on [0, 1) from the chains' streams.

    Examples
    --------
    >>> numbers = CounterStream(np.array([0.25, 0.5]))
    >>> bool((numbers.uniforms(np.array([3, 7]))[1:] == numbers.take(np.array([1])).uniforms(np.array([7]))).all())
    True
    """

    def __init__(self, seeds: np.ndarray) -> None:
        self._seeds = mixed((seeds * 2.0**53).astype(np.uint64))

    def uniforms(self, which: np.ndarray) -> np.ndarray:
        """Return for each chain its uniform number on [0, 1) with the index `which`, counted from 1."""
        return (self._bits(which) >> TO_53_BITS) * 2.0**-53

    def coins(self, which: np.ndarray) -> np.ndarray:
        """Return for each chain its coin, 0 or 1, with the index `which` (below 64); independent of the uniforms."""
        return ((self._bits(np.zeros(1)) >> which.astype(np.uint64)) & np.uint64(1)).astype(np.int64)

    def take(self, rows: np.ndarray) -> CounterStream:
        """Return the numbers of some chains, given by index or mask."""
        some = object.__new__(CounterStream)
        some._seeds = self._seeds[rows]
        return some

    def _bits(self, which: np.ndarray) -> np.ndarray:
        return mixed(self._seeds + which.astype(np.uint64) * GOLDEN)


def mixed(bits: np.ndarray) -> np.ndarray:
    """Return SplitMix64's one-to-one mixing of 64-bit numbers."""
    for shift, factor in MIXING:
        bits = (bits ^ (bits >> shift)) * factor
    return bits ^ (bits >> LAST_SHIFT)
