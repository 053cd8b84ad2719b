"""What is asked of potentials and matrices on finitely many states."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from leapwise.errors import InputError


def require_potential(potential: ArrayLike, n: int) -> np.ndarray:
    """Return potentials of n states: numbers, or infinite where there is no mass."""
    given = np.asarray(potential, dtype=float)
    if given.shape != (n,) or not np.isfinite(given).any():
        raise InputError(
            f"potential must hold one number for each of the {n} states, some of them finite, got shape {given.shape}"
        )
    if np.isnan(given).any() or (given == -np.inf).any():
        raise InputError("potential must not be NaN or -inf anywhere; give inf for a state without mass")
    return given


def mass_of(potential: ArrayLike, n: int) -> np.ndarray:
    """Return the probabilities of n states."""
    given = require_potential(potential, n)
    mass = np.exp(given.min() - given)
    return np.asarray(mass / mass.sum())


def require_stochastic(value: ArrayLike, name: str, tolerance: float = 1e-12) -> np.ndarray:
    """Return a square matrix whose rows are probabilities."""
    matrix = np.asarray(value, dtype=float)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if (
        not square
        or not (matrix >= -tolerance).all()
        or not (np.abs(matrix.sum(axis=1) - 1.0) <= tolerance).all()
    ):
        raise InputError(
            f"{name} must be a square matrix whose rows are probabilities, got shape {matrix.shape}; "
            "divide each row by its sum"
        )
    return matrix
