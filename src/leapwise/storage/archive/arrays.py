"""Arrays and random generators as plain arrays and numbers, and back.

An array comes back with the layout that it had: BLAS sums rows and columns in different orders, and the last bit of a
draw must not depend on whether a run was resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from leapwise.errors import ArchiveError

_DTYPES = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_))
_BIT_GENERATORS: dict[str, Callable[[Any], np.random.BitGenerator]] = {
    "PCG64": np.random.PCG64,
    "PCG64DXSM": np.random.PCG64DXSM,
}


def flatten(array: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Return an array in C order, and how to lay it out again.

    Examples
    --------
    >>> stored, layout = flatten(np.asfortranarray(np.eye(2, 3)))
    >>> stored.shape, layout
    ((3, 2), {'axes': [1, 0], 'writeable': True})
    """
    if type(array) is not np.ndarray or array.dtype not in _DTYPES:
        raise ArchiveError(
            f"only arrays of float64, int64 and bool can be stored, got {type(array).__name__} of {array.dtype}; "
            "convert it"
        )
    axes = _axes(array)
    # `ascontiguousarray` would turn a single number into a row.
    stored = np.asarray(array.transpose(axes), order="C")
    return stored, {"axes": axes, "writeable": bool(array.flags.writeable)}


def restore(stored: object, layout: dict[str, Any]) -> np.ndarray:
    """Return a new array, laid out as it was."""
    axes, writeable = layout.get("axes"), layout.get("writeable")
    if type(stored) is not np.ndarray or stored.dtype not in _DTYPES or not isinstance(writeable, bool):
        raise ArchiveError(
            "an archive must hold arrays of float64, int64 and bool, got something else; "
            "it is damaged: replay the run"
        )
    if not isinstance(axes, list) or sorted(axes) != list(range(stored.ndim)):
        raise ArchiveError(
            f"the axes of a stored array of {stored.ndim} dimensions must be these in some order, got {axes!r:.80}; "
            "the archive is damaged: replay the run"
        )
    array = np.array(stored, order="C").transpose(np.argsort(axes))
    array.flags.writeable = writeable
    return array


def _axes(array: np.ndarray) -> list[int]:
    """Return the axes of an array in the order of memory, the slowest first."""
    if array.flags.c_contiguous:
        return list(range(array.ndim))
    if array.flags.f_contiguous:
        return list(range(array.ndim))[::-1]
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return all that a generator's future depends on, as numbers, strings and lists."""
    bits = generator.bit_generator
    sequence = bits.seed_seq
    name = type(bits).__name__
    if name not in _BIT_GENERATORS or type(sequence) is not np.random.SeedSequence:
        raise ArchiveError(
            f"only generators of kind {' or '.join(_BIT_GENERATORS)} can be stored, got {name}; "
            "use numpy.random.default_rng"
        )
    seed: dict[str, Any] = dict(sequence.state)
    entropy = seed["entropy"]
    return {
        "bits": name,
        "state": bits.state,
        "entropy": entropy if isinstance(entropy, int) else [int(each) for each in np.ravel(entropy)],
        "spawn_key": [int(each) for each in seed["spawn_key"]],
        "pool_size": int(seed["pool_size"]),
        "n_children_spawned": int(seed["n_children_spawned"]),
    }


def make_generator(stored: dict[str, Any]) -> np.random.Generator:
    """Return a generator that goes on where another was.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> again = make_generator(generator_state(rng))
    >>> rng.random() == again.random()
    True
    """
    name = stored["bits"]
    if name not in _BIT_GENERATORS:
        raise ArchiveError(
            f"no generator of kind {name!r:.80} is known; the archive is damaged: replay the run"
        )
    sequence = np.random.SeedSequence(
        stored["entropy"],
        spawn_key=tuple(stored["spawn_key"]),
        pool_size=min(stored["pool_size"], 1024),
        n_children_spawned=stored["n_children_spawned"],
    )
    bits = _BIT_GENERATORS[name](sequence)
    bits.state = stored["state"]
    return np.random.Generator(bits)
