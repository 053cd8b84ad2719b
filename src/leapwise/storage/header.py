"""What a ledger is of: the library, the settings, the seed and the target that made it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from leapwise.errors import LedgerError
from leapwise.storage.rows import Bad, digest_of

FORMAT_VERSION = 1
MAX_DIM = 1_000_000
MAX_JSON = 1 << 26


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Header:
    """What a ledger is of.

    Attributes
    ----------
    library_version : str
        Of the library that made it.
    dim : int
        How many parameters the target has.
    names : tuple of str
        Theirs.
    settings : dict
        Of the run, as JSON can hold them.
    seed : int, list, str or None
        As JSON can hold it.
    fingerprint : dict of str to str
        What identifies the target.
    format_version : int
        Of the file.
    created : str
        When, in ISO 8601.

    Examples
    --------
    >>> Header("0.1.0", 2, ("a", "b"), {"draws": 10}, 1, {"version": "2"}, created="2026-01-01T00:00:00+00:00").names
    ('a', 'b')
    """

    library_version: str
    dim: int
    names: tuple[str, ...]
    settings: dict[str, Any]
    seed: Any
    fingerprint: dict[str, str]
    format_version: int = FORMAT_VERSION
    created: str = field(default_factory=_now)


def encode_header(header: Header) -> tuple[str, bytes]:
    """Return a header as JSON and its checksum."""
    text = to_json(asdict(header), "the header of a ledger")
    try:
        _checked(json.loads(text))
    except Bad as error:
        raise LedgerError(f"the header of a ledger has {error}; give what `Header` describes") from error
    return text, digest_of(text.encode(), b"header")


def decode_header(text: Any, digest: Any) -> Header:
    """Return the header that a record holds, or raise `Bad`."""
    if type(text) is not bytes or digest != digest_of(text, b"header"):
        raise Bad("a header that does not match its checksum")
    return _checked(from_json(text))


def to_json(value: Any, what: str) -> str:
    """Return JSON, or raise `LedgerError` if it cannot be had."""
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
    """Return what JSON says, or raise `Bad`; nothing but plain values can come of it."""
    if len(text) > MAX_JSON:
        raise Bad("JSON without end")
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Bad("text that is not JSON") from error


def _checked(found: Any) -> Header:
    kinds = {
        "library_version": str,
        "dim": int,
        "names": list,
        "settings": dict,
        "seed": object,
        "fingerprint": dict,
        "format_version": int,
        "created": str,
    }
    if type(found) is not dict or found.keys() != kinds.keys():
        raise Bad("other entries than a header")
    for name, kind in kinds.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise Bad(f"{name} of the wrong type")
    if not 1 <= found["dim"] <= MAX_DIM:
        raise Bad(f"a dimension of {found['dim']}")
    if len(found["names"]) != found["dim"] or not all(type(name) is str for name in found["names"]):
        raise Bad("names that do not match the dimension")
    if not all(type(value) is str for value in found["fingerprint"].values()):
        raise Bad("a fingerprint that is not of strings")
    return Header(**{**found, "names": tuple(found["names"])})
