"""Kernels, surrogates, states and random generators as arrays and JSON, and back to the last bit; no pickle.

An archive is a table of *entries*, each an array, a number, a list or an object, and refers to entries only that come
before it. So there are no cycles and nothing nested, reading is one loop, and what was one object in two places is one
object again. Reading runs nothing that the file names: classes come from `leapwise.storage.archive.classes`, everything
else is data. What is not ours (a user's metric, a target's likelihood) is kept by name and taken from the live objects,
the *references*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from leapwise.errors import ArchiveError
from leapwise.storage.archive.read import FORMAT, Reader
from leapwise.storage.archive.write import Writer


def pack(
    value: object, references: Mapping[str, object] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Turn objects of a run into arrays and what JSON can hold.

    Parameters
    ----------
    value : object
        A kernel, surrogate, metric, state, training set, record, streams or generator; or lists, tuples and
        dictionaries of such things.
    references : mapping of str to object, optional
        Live objects that are kept by name instead, with all parts that are dataclasses or arrays, and the likelihood,
        prior and transform of a target. Give the same ones, made again, to `unpack`.

    Returns
    -------
    arrays : dict of str to ndarray
        In C order, of float64, int64 or bool; they may share memory with the value.
    meta : dict
        The rest, for JSON.

    Raises
    ------
    ArchiveError
        If there is something that is not this library's own and not among the references.

    Examples
    --------
    >>> from leapwise import HMC, DenseMetric
    >>> kernel = HMC(0.1, 10, metric=DenseMetric([[2.0, 1.0], [1.0, 3.0]]))
    >>> arrays, meta = pack({"kernel": kernel, "rng": np.random.default_rng(1)})
    >>> again = unpack(arrays, meta)
    >>> again["kernel"].step_size, again["rng"].random() == np.random.default_rng(1).random()
    (0.1, True)
    """
    packer = Writer(dict(references or {}))
    root = packer.slot(value, 0)
    return packer.arrays, {"format": FORMAT, "entries": packer.entries, "root": root}


def unpack(
    arrays: Mapping[str, np.ndarray], meta: object, references: Mapping[str, object] | None = None
) -> Any:
    """Return what `pack` was given.

    Parameters
    ----------
    arrays, meta
        As `pack` returned them.
    references : mapping of str to object, optional
        The live objects that were kept by name.

    Raises
    ------
    ArchiveError
        If the archive is damaged, forged, of another version, or needs a reference that is not given.
    """
    try:
        return Reader(arrays, dict(references or {})).read(meta)
    except ArchiveError:
        raise
    except Exception as error:  # what damage does to the parts of an object cannot be foreseen
        raise ArchiveError(
            f"an archive cannot be read ({type(error).__name__}: {error!s:.200}); it is damaged, or was written by "
            "another version: replay the run instead"
        ) from error
