"""Named sets of arrays as records: plain bytes with a dtype and a shape from a short list, and JSON beside them.

Part 0 of a snapshot is JSON: what the arrays are called, their dtypes and shapes, and the caller's own words. Each
array is a part of its own. All parts carry the mark of the call that wrote them, so that parts of two do not mix.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leapwise.errors import LedgerError
from leapwise.storage.header import from_json, to_json
from leapwise.storage.rows import Bad, digest_of

DTYPES = ("<f8", "<i8", "|b1")
MAX_PARTS = 10_000
MAX_NAME = 200
MAX_NDIM = 16

Record = tuple[str, int, bytes, bytes]


def encode_snapshot(
    name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], max_bytes: int
) -> list[Record]:
    """Return records ``(name, part, body, digest)``."""
    require_name(name)
    if len(arrays) >= MAX_PARTS:
        raise LedgerError(f"a snapshot holds less than {MAX_PARTS} arrays, got {len(arrays)}; stack some")
    mark = os.urandom(8).hex()
    contents, bodies = [], []
    for key, array in arrays.items():
        dtype = np.asarray(array).dtype.newbyteorder("<").str
        if (
            type(key) is not str
            or type(array) is not np.ndarray
            or dtype not in DTYPES
            or array.ndim > MAX_NDIM
        ):
            raise LedgerError(
                f"a snapshot holds arrays of float64, int64 and bool under names, got {type(array).__name__} "
                f"of {dtype} under {key!r:.80}; convert it"
            )
        body = array.astype(dtype, copy=False).tobytes()
        # SQLite's own limit is for the whole record.
        if len(body) > max_bytes - 1024:
            raise LedgerError(
                f"an array of a snapshot takes at most {max_bytes - 1024} bytes, got {len(body)} in {key!r:.80}; "
                "split it"
            )
        contents.append([key, dtype, list(array.shape)])
        bodies.append(body)
    text = to_json({"mark": mark, "arrays": contents, "meta": dict(meta)}, "the meta of a snapshot")
    bodies.insert(0, text.encode())
    return [(name, part, body, _digest(name, part, mark, body)) for part, body in enumerate(bodies)]


def decode_snapshot(
    name: str, records: Sequence[tuple[Any, ...]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what records ``(part, body, digest)``, in order, hold; raise `Bad` if anything is wrong."""
    if not records or any(type(body) is not bytes for _, body, _ in records):
        raise Bad("a part of the wrong type")
    contents = from_json(records[0][1])
    if type(contents) is not dict or contents.keys() != {"mark", "arrays", "meta"}:
        raise Bad("a snapshot without contents")
    mark, entries, meta = contents["mark"], contents["arrays"], contents["meta"]
    if type(mark) is not str or type(entries) is not list or type(meta) is not dict:
        raise Bad("contents of the wrong type")
    if len(entries) != len(records) - 1:
        raise Bad(f"{len(records) - 1} arrays instead of {len(entries)}")
    for expected, (part, body, digest) in enumerate(records):
        if type(part) is not int or part != expected or digest != _digest(name, part, mark, body):
            raise Bad("a checksum that does not match")
    arrays = {}
    for entry, (_, body, _) in zip(entries, records[1:], strict=True):
        key, array = _array(entry, body)
        if key in arrays:
            raise Bad("two arrays of one name")
        arrays[key] = array
    return arrays, meta


def require_name(name: str) -> None:
    """Raise unless something can be the name of a snapshot."""
    if type(name) is not str or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise LedgerError(
            f"the name of a snapshot is 1 to {MAX_NAME} printable characters, got {name!r:.80}; choose a short one"
        )


def _array(entry: Any, body: bytes) -> tuple[str, np.ndarray]:
    if type(entry) is not list or len(entry) != 3:
        raise Bad("an array without a description")
    key, dtype, shape = entry
    if type(key) is not str or type(dtype) is not str or dtype not in DTYPES:
        raise Bad("an array of a kind that is not stored")
    if type(shape) is not list or len(shape) > MAX_NDIM or not all(type(n) is int and n >= 0 for n in shape):
        raise Bad("an array without a shape")
    # Python's integers do not overflow: a shape that does not fit its bytes is refused before there is an array.
    kind = np.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(body):
        raise Bad("an array whose size is not that of its shape")
    flat = np.frombuffer(body, dtype=kind)
    if dtype == "|b1" and np.frombuffer(body, dtype=np.uint8).max(initial=0) > 1:
        raise Bad("an array of bools that are none")
    try:
        return key, flat.reshape(shape).astype(kind.newbyteorder("="), copy=True)
    except ValueError as error:  # no bytes at all, but sides that NumPy cannot count
        raise Bad("an array whose shape cannot be") from error


def _digest(name: str, part: int, mark: str, body: bytes) -> bytes:
    front = f"{len(name.encode('utf-8', 'replace'))}:{name}:{part}:{mark}:".encode("utf-8", "replace")
    return digest_of(front + body, b"snapshot")
