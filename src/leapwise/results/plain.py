"""Plain values: what JSON and netCDF attributes can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Turn arrays into lists, NumPy numbers into Python's, and what is not finite into None.

    Examples
    --------
    >>> plain({"step_size": np.float64(0.5), "rhat": np.array([1.0, np.nan])})
    {'step_size': 0.5, 'rhat': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)
