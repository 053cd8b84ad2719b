"""Random numbers: one independent stream for each chain.

Chain `i` draws from the `i`-th child of ``SeedSequence(seed)``, whatever the number of chains beside it. So the
draws of a chain depend on the seed alone.
"""

from __future__ import annotations

import copy
from typing import Protocol

import numpy as np

SHARED = 2**32 - 1  # the number of a child that no chain has


class AnyStreams(Protocol):
    """Where kernels get their randomness: a number, or a row, for each chain."""

    n_chains: int

    def normals(self, dim: int) -> np.ndarray:
        """Standard normals, ``(chains, dim)``."""
        ...

    def uniforms(self) -> np.ndarray:
        """Uniform numbers on [0, 1), ``(chains,)``."""
        ...

    def common_uniforms(self) -> np.ndarray:
        """Uniform numbers that chains may have in common, ``(chains,)``."""
        ...


class Streams:
    """One generator for each chain.

    Parameters
    ----------
    seed : int or None
        Seed of all streams.
    n_chains : int
        How many.

    Attributes
    ----------
    generators : list of Generator
        One for each chain.
    shared : Generator
        For what the chains have in common, such as a surrogate.

    Examples
    --------
    The second of two chains draws what the second of five draws:

    >>> bool((Streams(1, 2).normals(3)[1] == Streams(1, 5).normals(3)[1]).all())
    True
    """

    def __init__(self, seed: int | None, n_chains: int) -> None:
        sequence = np.random.SeedSequence(seed)
        self.generators = [np.random.default_rng(child) for child in sequence.spawn(n_chains)]
        self.shared = np.random.default_rng(np.random.SeedSequence(sequence.entropy, spawn_key=(SHARED,)))
        self.n_chains = n_chains

    def normals(self, dim: int) -> np.ndarray:
        """Standard normals, ``(chains, dim)``."""
        found = np.empty((self.n_chains, dim))
        for generator, row in zip(self.generators, found, strict=True):
            generator.standard_normal(out=row)
        return found

    def uniforms(self) -> np.ndarray:
        """Uniform numbers on [0, 1), ``(chains,)``."""
        return np.array([generator.random() for generator in self.generators])

    def of(self, chain: int) -> Streams:
        """Return the streams of one chain, to move it alone: what chains have in common is the same for each."""
        alone = object.__new__(Streams)
        alone.generators = [copy.deepcopy(self.generators[chain])]
        alone.shared = copy.deepcopy(self.shared)
        alone.n_chains = 1
        return alone

    def common_uniforms(self) -> np.ndarray:
        """One uniform number for all chains, whatever their number."""
        return np.full(self.n_chains, self.shared.random())


class SharedStream:
    """One generator for all chains, to move very many of them at once.

    Parameters
    ----------
    rng : Generator
        Where the numbers come from.
    n_chains : int
        How many chains share it.

    Examples
    --------
    >>> SharedStream(np.random.default_rng(0), 1_000_000).uniforms().shape
    (1000000,)
    """

    def __init__(self, rng: np.random.Generator, n_chains: int) -> None:
        self.rng = rng
        self.n_chains = n_chains

    def normals(self, dim: int) -> np.ndarray:
        """Standard normals, ``(chains, dim)``."""
        return self.rng.standard_normal((self.n_chains, dim))

    def uniforms(self) -> np.ndarray:
        """Uniform numbers on [0, 1), ``(chains,)``."""
        return self.rng.random(self.n_chains)

    common_uniforms = uniforms


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIXING = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
LAST_SHIFT, TO_53_BITS = np.uint64(31), np.uint64(11)


class Numbers:
    """As many random numbers as each chain needs within one step, from one number of its stream.

    How many choices there are in a step may depend on the chain, and the streams can only be asked all at once: a chain
    that has none left to make would draw because others have. So each chain draws one number, the seed of a generator
    that can be asked for its k-th number at once: SplitMix64 (Steele, Lea and Flood, 2014), which passes BigCrush.
    Seeds have 53 bits and a step asks for few numbers, so those of different steps are as good as independent.

    Parameters
    ----------
    seeds : ndarray of shape (chains,)
        Uniform numbers on [0, 1), of the chains' streams.

    Examples
    --------
    >>> numbers = Numbers(np.array([0.25, 0.5]))
    >>> bool((numbers.uniforms(np.array([3, 7]))[1:] == numbers.of(np.array([1])).uniforms(np.array([7]))).all())
    True
    """

    def __init__(self, seeds: np.ndarray) -> None:
        self._begun = mixed((seeds * 2.0**53).astype(np.uint64))

    def uniforms(self, which: np.ndarray) -> np.ndarray:
        """Uniform numbers on [0, 1): of each chain the one that it asks for, a positive number."""
        return (self._bits(which) >> TO_53_BITS) * 2.0**-53

    def coins(self, which: np.ndarray) -> np.ndarray:
        """Of each chain the coin, 0 or 1, that it asks for, of 64; independent of its uniform numbers."""
        return ((self._bits(np.zeros(1)) >> which.astype(np.uint64)) & np.uint64(1)).astype(np.int64)

    def of(self, rows: np.ndarray) -> Numbers:
        """Return those of some chains, by index or mask."""
        some = object.__new__(Numbers)
        some._begun = self._begun[rows]
        return some

    def _bits(self, which: np.ndarray) -> np.ndarray:
        return mixed(self._begun + which.astype(np.uint64) * GOLDEN)


def mixed(bits: np.ndarray) -> np.ndarray:
    """Return SplitMix64's mixture of the bits of whole numbers, one to one."""
    for shift, factor in MIXING:
        bits = (bits ^ (bits >> shift)) * factor
    return bits ^ (bits >> LAST_SHIFT)
