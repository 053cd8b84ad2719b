"""Rows of features with their targets, held to account."""

from __future__ import annotations

import numpy as np

from leapwise.checks import require_real
from leapwise.errors import InputError


def require_rows(features: object, targets: object) -> tuple[np.ndarray, np.ndarray]:
    """Return features ``(n, s)`` and targets ``(n,)`` or ``(n, m)`` as new float arrays, or raise `InputError`."""
    rows, values = require_real(features, "features"), require_real(targets, "targets")
    if rows.ndim != 2 or rows.shape[1] < 1:
        raise InputError(
            f"features must have shape (n, s) with s at least 1, got {rows.shape}; one row for each target"
        )
    if values.ndim not in (1, 2) or len(values) != len(rows) or 0 in values.shape[1:]:
        raise InputError(
            f"targets must have shape ({len(rows)},) or ({len(rows)}, m) to match the features, got {values.shape}"
        )
    return rows, values
