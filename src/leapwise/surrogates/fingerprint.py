"""A hash of all that a trained surrogate consists of."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def fingerprint(fitted: object) -> str:
    """Return a hash of all arrays and numbers in a trained surrogate: the same as long as nothing in it changes.

    Examples
    --------
    >>> from leapwise.surrogates import QuadraticNetwork, TrainingSet
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((20, 2))
    >>> fitted = QuadraticNetwork().fit(TrainingSet(x, (x**2).sum(axis=1)), rng)
    >>> before = fingerprint(fitted)
    >>> fitted.potential(x).shape, fingerprint(fitted) == before
    ((20,), True)
    >>> fingerprint(fitted.update(TrainingSet(x + 1.0, ((x + 1.0) ** 2).sum(axis=1)))) == before
    False
    """
    digest = hashlib.sha256()
    _feed(digest, fitted)
    return digest.hexdigest()[:16]


def _feed(digest: Any, value: object) -> None:
    digest.update(type(value).__name__.encode())
    if isinstance(value, np.ndarray):
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, (bool, int, float, str, np.generic)) or value is None:
        digest.update(repr(value).encode())
    elif isinstance(value, (tuple, list)):
        for each in value:
            _feed(digest, each)
    elif is_dataclass(value):
        for field in fields(value):
            _feed(digest, getattr(value, field.name))
    elif type(value).__module__.startswith("leapwise."):  # others may count or remember, which is no change
        for name, each in sorted(vars(value).items()):
            digest.update(name.encode())
            _feed(digest, each)
