"""Live objects that an archive keeps by name, and their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

_DEEPEST = 8
#: Of a target, which is no dataclass.
_CHEAP_PARTS = ("likelihood", "prior", "transform")


def live(references: Mapping[str, object]) -> dict[str, Any]:
    """Return the references, and their parts by paths such as "target.likelihood" or "kernel.kernels.0.surrogate".

    Numbers, words and containers have no path: they are told apart by their value, not by where they are.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> list(live({"method": HMC(metric=UnitMetric())}))
    ['method', 'method.metric']
    """
    found: dict[str, Any] = {}
    waiting: list[tuple[str, object, tuple[int, ...]]] = [
        (name, each, ()) for name, each in references.items()
    ]
    for path, value, above in waiting:  # which grows on the way
        if not _is_plain(value):
            found[path] = value
        if id(value) not in above and len(above) < _DEEPEST:
            waiting.extend((f"{path}.{name}", part, (*above, id(value))) for name, part in _parts(value))
    return found


def _is_plain(value: object) -> bool:
    kinds = (bool, int, float, str, tuple, list, dict)
    return value is None or type(value) in kinds or isinstance(value, np.generic)


def _parts(value: Any) -> Iterable[tuple[object, object]]:
    if type(value) in (tuple, list):
        return enumerate(value)
    if _is_plain(value) or isinstance(value, (type, np.ndarray)):
        return ()
    names = [each.name for each in fields(value)] if is_dataclass(value) else _CHEAP_PARTS
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
