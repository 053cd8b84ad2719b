"""Evaluations, failed attempts and checkpoints as records of plain values, each with a checksum.

The checksum is BLAKE2b with 128 bits. That of an evaluation covers its place, every number (as eight bytes) and every
text and array (after their lengths, so that no two different rows give the same bytes). It detects damage. It does not
detect a forger who writes a false row together with its checksum.

A checkpoint is a named set of arrays with JSON beside them. Its part 0 is JSON: the names, dtypes and shapes of the
arrays, and the caller's own data. Each array is a further part. All parts of a checkpoint carry the same random mark,
so that parts of two checkpoints cannot mix.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from leapwise.errors import LedgerError

#: A place is one integer, the sequence above the index, so that one index of SQLite finds rows and orders them. Both
#: limits are far beyond any run, and together below the 63 bits of SQLite's integers.
INDEX_BITS = 40
MAX_SEQUENCES = 1 << 20
MAX_INDEX = 1 << INDEX_BITS
#: Messages of failures are cut to this many characters: enough for the end of a traceback.
MAX_TEXT = 2000
STATUSES = ("ok", "rejected")
ROW_COLUMNS = (
    "place, phase, chain, step, status, log_density, seconds, attempts, message, digest, "
    "position, gradient, outputs"
)
FAILURE_COLUMNS = "place, attempt, message, seconds, digest, position"
#: The dtypes of arrays in a checkpoint.
DTYPES = ("<f8", "<i8", "|b1")
#: Limits of a checkpoint, far above what a run writes; they bound what a forged file can ask for.
MAX_PARTS = 10_000
MAX_NAME = 200
MAX_NDIM = 16
MAX_JSON = 1 << 26

_FLOAT = np.dtype("<f8")
_ROW = struct.Struct("<qqqddqqqqqqq")
_FAILURE = struct.Struct("<qqdqq")

CheckpointRecord = tuple[str, int, bytes, bytes]


class Bad(ValueError):
    """A record is not what was written; never leaves this package."""


@dataclass(frozen=True, eq=False)
class Row:
    """One exact evaluation, after all its attempts.

    Attributes
    ----------
    sequence, index : int
        Its place: which sequence of evaluations, and its number in it from 0.
    phase : str
        Phase of the run, for people; so are `chain` (-1 if several move together) and `step`.
    position : ndarray of shape (dim,)
        Unconstrained.
    log_density : float
        In the target's own parameters; may be -inf, never NaN.
    gradient : ndarray of shape (dim,) or None
        Gradient of the log-density, if it was asked for.
    outputs : ndarray of shape (m,) or None
        Outputs of the forward model, if there is one and it was run.
    seconds : float
        Time inside the model, all attempts together.
    status : {"ok", "rejected"}
        Rejected: every attempt failed, and the user has declared such positions outside the support.
    attempts : int
        Number of attempts.
    message : str
        Message of the last failure, if any.
    """

    sequence: int
    index: int
    phase: str
    chain: int
    step: int
    position: np.ndarray
    log_density: float
    gradient: np.ndarray | None = None
    outputs: np.ndarray | None = None
    seconds: float = 0.0
    status: str = "ok"
    attempts: int = 1
    message: str = ""


@dataclass(frozen=True, eq=False)
class Failure:
    """One attempt that failed.

    Attributes
    ----------
    sequence, index : int
        Place of the evaluation.
    attempt : int
        Which of its attempts, from 1.
    position : ndarray of shape (dim,)
        Where.
    message : str
        What happened.
    seconds : float
        Time inside the model.
    """

    sequence: int
    index: int
    attempt: int
    position: np.ndarray
    message: str
    seconds: float


def place_of(sequence: int, index: int) -> int:
    """Return the key of a place; sequences come one after another."""
    if not (0 <= sequence < MAX_SEQUENCES and 0 <= index < MAX_INDEX):
        raise LedgerError(
            f"a place is a sequence below {MAX_SEQUENCES} and an index below {MAX_INDEX}, got {sequence} and {index}; "
            "count both from 0"
        )
    return (int(sequence) << INDEX_BITS) | int(index)


def encode_row(row: Row, dim: int) -> tuple[Any, ...]:
    """Return a row as values for `ROW_COLUMNS`, or raise if it is not one that may be recorded."""
    place = place_of(row.sequence, row.index)
    density, seconds = float(row.log_density), float(row.seconds)
    position = _vector(row.position, dim, "position")
    gradient = None if row.gradient is None else _vector(row.gradient, dim, "gradient")
    outputs = None if row.outputs is None else _vector(row.outputs, None, "outputs")
    if not _is_finite(row.position):
        raise LedgerError(f"a recorded position must be finite, got {row.position}; do not evaluate there")
    if not density < math.inf or (row.status == "rejected" and density != -math.inf):
        raise LedgerError(
            f"a log-density of {density} cannot be recorded as {row.status!r}; "
            "record a rejected position as -inf"
        )
    if row.status not in STATUSES or not 0 <= seconds < math.inf or row.attempts < 1:
        raise LedgerError(
            f"a recorded row must have a status of {STATUSES}, finite seconds and at least one attempt, "
            f"got {row.status!r}, {seconds} and {row.attempts}; retry or reject it first"
        )
    phase, status, message = _text(row.phase), row.status, _text(row.message)
    chain, step, attempts = int(row.chain), int(row.step), int(row.attempts)
    try:
        digest = _row_digest(
            (place, chain, step, density, seconds, attempts),
            (phase.encode(), status.encode(), message.encode(), position, gradient, outputs),
        )
    except struct.error as error:
        raise LedgerError(
            f"chain, step and attempts must be numbers of 64 bits, got {chain}, {step} and {attempts}; count from 0"
        ) from error
    numbers = place, phase, chain, step, status, density, seconds, attempts, message, digest
    return *numbers, position, gradient, outputs


def decode_row(record: tuple[Any, ...], dim: int) -> Row:
    """Return the row that a record holds, or raise `Bad`; strings come as bytes."""
    place, phase, chain, step, status, density, seconds, attempts, message, digest = record[:10]
    position, gradient, outputs = record[10:]
    parts = (phase, status, message, position, gradient, outputs)
    if not (
        type(place) is type(chain) is type(step) is type(attempts) is int
        and type(density) is type(seconds) is float
        and type(phase) is type(status) is type(message) is type(position) is bytes
        and (gradient is None or type(gradient) is bytes)
        and (outputs is None or type(outputs) is bytes)
    ):
        raise Bad("a value of the wrong type")
    if digest != _row_digest((place, chain, step, density, seconds, attempts), parts):
        raise Bad("a checksum that does not match")
    # A forged row can have a right checksum and still hold values that were never written.
    where = _array(position, dim)
    if not (0 <= place < MAX_SEQUENCES << INDEX_BITS and density < math.inf and 0 <= seconds < math.inf):
        raise Bad("an impossible value")
    if not (_is_finite(where) and attempts >= 1 and status in (b"ok", b"rejected")):
        raise Bad("an impossible value")
    if status == b"rejected" and density != -math.inf:
        raise Bad("a rejection with a density")
    # The constructor of a frozen dataclass is slow, and there may be millions of rows.
    row = object.__new__(Row)
    row.__dict__.update(
        sequence=place >> INDEX_BITS,
        index=place & (MAX_INDEX - 1),
        phase=_word(phase),
        chain=chain,
        step=step,
        position=where,
        log_density=density,
        gradient=None if gradient is None else _array(gradient, dim),
        outputs=None if outputs is None else _array(outputs, None),
        seconds=seconds,
        status=status.decode(),
        attempts=attempts,
        message=_word(message),
    )
    return row


def encode_failure(failure: Failure, dim: int) -> tuple[Any, ...]:
    """Return a failed attempt as values for `FAILURE_COLUMNS`."""
    place, attempt = place_of(failure.sequence, failure.index), int(failure.attempt)
    position, message, seconds = (
        _vector(failure.position, dim, "position"),
        _text(failure.message),
        float(failure.seconds),
    )
    if not 0 <= seconds < math.inf or attempt < 1:
        raise LedgerError(
            f"an attempt counts from 1 and takes finite seconds, got {attempt} and {seconds}; correct them"
        )
    return (
        place,
        attempt,
        message,
        seconds,
        _failure_digest(place, attempt, seconds, message.encode(), position),
        position,
    )


def decode_failure(record: tuple[Any, ...], dim: int) -> Failure:
    """Return the failed attempt that a record holds, or raise `Bad`."""
    place, attempt, message, seconds, digest, position = record
    if not (
        type(place) is type(attempt) is int
        and type(seconds) is float
        and type(message) is type(position) is bytes
        and digest == _failure_digest(place, attempt, seconds, message, position)
    ):
        raise Bad("a checksum that does not match")
    if not (0 <= place < MAX_SEQUENCES << INDEX_BITS and 0 <= seconds < math.inf and attempt >= 1):
        raise Bad("an impossible value")
    return Failure(
        place >> INDEX_BITS, place & (MAX_INDEX - 1), attempt, _array(position, dim), _word(message), seconds
    )


def digest_of(body: bytes, kind: bytes) -> bytes:
    """Return the checksum of bytes; `kind` (at most 16 bytes) makes those of headers, rows and parts differ."""
    return blake2b(body, digest_size=16, person=kind).digest()


def _row_digest(numbers: tuple[Any, ...], parts: tuple[bytes | None, ...]) -> bytes:
    lengths = [-1 if part is None else len(part) for part in parts]
    body = b"".join([_ROW.pack(*numbers, *lengths), *filter(None, parts)])
    return digest_of(body, b"row")


def _failure_digest(place: int, attempt: int, seconds: float, message: bytes, position: bytes) -> bytes:
    body = _FAILURE.pack(place, attempt, seconds, len(message), len(position)) + message + position
    return digest_of(body, b"failure")


def _vector(values: np.ndarray, size: int | None, what: str) -> bytes:
    """Return an array as little-endian bytes."""
    if type(values) is np.ndarray and values.dtype == _FLOAT and values.shape == (size or len(values),):
        return values.tobytes()
    array = np.asarray(values)
    if array.dtype != np.float64 or array.ndim != 1 or (size is not None and array.size != size):
        expected = "" if size is None else f" {size}"
        raise LedgerError(
            f"{what} of a recorded row must be{expected} float64 numbers in one axis, "
            f"got {array.dtype} of shape {array.shape}; hand over one row"
        )
    return array.astype("<f8", copy=False).tobytes()


def _is_finite(position: np.ndarray) -> bool:
    """Return whether all entries are finite; for a few entries Python is faster than NumPy."""
    if len(position) <= 64:
        return all(map(math.isfinite, position.tolist()))
    return bool(np.isfinite(position).all())


def _array(data: bytes, size: int | None) -> np.ndarray:
    if len(data) % 8 or (size is not None and len(data) != 8 * size):
        raise Bad("an array of the wrong size")
    return np.frombuffer(data, dtype=_FLOAT)


def _text(text: str) -> str:
    """Return text that SQLite can hold, of limited length."""
    if text.isascii() and len(text) <= MAX_TEXT:
        return text
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
    return cut.encode("utf-8", "replace").decode()


def _word(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Bad("text that is not UTF-8") from error


def encode_checkpoint(
    name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], max_bytes: int
) -> list[CheckpointRecord]:
    """Return records ``(name, part, body, digest)``."""
    require_name(name)
    if len(arrays) >= MAX_PARTS:
        raise LedgerError(f"a checkpoint holds fewer than {MAX_PARTS} arrays, got {len(arrays)}; stack some")
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
                f"a checkpoint holds arrays of float64, int64 and bool under names, got {type(array).__name__} "
                f"of {dtype} under {key!r:.80}; convert it"
            )
        body = array.astype(dtype, copy=False).tobytes()
        # SQLite's limit is for the whole record, which is a little longer than the array.
        if len(body) > max_bytes - 1024:
            raise LedgerError(
                f"an array of a checkpoint takes at most {max_bytes - 1024} bytes, got {len(body)} in {key!r:.80}; "
                "split it"
            )
        contents.append([key, dtype, list(array.shape)])
        bodies.append(body)
    text = to_json({"mark": mark, "arrays": contents, "meta": dict(meta)}, "the JSON of a checkpoint")
    bodies.insert(0, text.encode())
    return [(name, part, body, _digest(name, part, mark, body)) for part, body in enumerate(bodies)]


def decode_checkpoint(
    name: str, records: Sequence[tuple[Any, ...]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return what records ``(part, body, digest)``, in order, hold; raise `Bad` if anything is wrong."""
    if not records or any(type(body) is not bytes for _, body, _ in records):
        raise Bad("a part of the wrong type")
    contents = from_json(records[0][1])
    if type(contents) is not dict or contents.keys() != {"mark", "arrays", "meta"}:
        raise Bad("a checkpoint without contents")
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
        key, array = _checkpoint_array(entry, body)
        if key in arrays:
            raise Bad("two arrays of one name")
        arrays[key] = array
    return arrays, meta


def require_name(name: str) -> None:
    """Raise unless `name` can be the name of a checkpoint."""
    if type(name) is not str or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise LedgerError(
            f"the name of a checkpoint must be 1 to {MAX_NAME} printable characters, got {name!r:.80}; "
            "choose a short one"
        )


def _checkpoint_array(entry: Any, body: bytes) -> tuple[str, np.ndarray]:
    if type(entry) is not list or len(entry) != 3:
        raise Bad("an array without a description")
    key, dtype, shape = entry
    if type(key) is not str or type(dtype) is not str or dtype not in DTYPES:
        raise Bad("an array of a dtype that is not stored")
    if type(shape) is not list or len(shape) > MAX_NDIM or not all(type(n) is int and n >= 0 for n in shape):
        raise Bad("an array without a shape")
    # Python's integers do not overflow: a shape that does not fit its bytes is refused before an array is made.
    kind = np.dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(body):
        raise Bad("an array whose size is not that of its shape")
    flat = np.frombuffer(body, dtype=kind)
    if dtype == "|b1" and np.frombuffer(body, dtype=np.uint8).max(initial=0) > 1:
        raise Bad("bools that are neither 0 nor 1")
    try:
        return key, flat.reshape(shape).astype(kind.newbyteorder("="), copy=True)
    except ValueError as error:  # no bytes at all, but sides that are too long for NumPy
        raise Bad("an array of an impossible shape") from error


def _digest(name: str, part: int, mark: str, body: bytes) -> bytes:
    front = f"{len(name.encode('utf-8', 'replace'))}:{name}:{part}:{mark}:".encode("utf-8", "replace")
    return digest_of(front + body, b"checkpoint")


def to_json(value: Any, what: str) -> str:
    """Return a value as JSON, or raise `LedgerError` if that is not possible."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise LedgerError(
            f"{what} must be something that JSON can hold ({error}); give plain numbers, strings, lists and dicts"
        ) from error
    if len(text) > MAX_JSON:
        raise LedgerError(
            f"{what} must take at most {MAX_JSON} bytes, got {len(text)}; put numbers into arrays"
        )
    return text


def from_json(text: bytes) -> Any:
    """Return the plain values that JSON holds, or raise `Bad`."""
    if len(text) > MAX_JSON:
        raise Bad("too much JSON")
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Bad("text that is not JSON") from error
