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
