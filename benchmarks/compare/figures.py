"""The figures of the table, from draws and cost."""

from __future__ import annotations

import numpy as np
from arviz_stats.base import array_stats

from leapwise.estimates import Columns
from leapwise.estimates import figures as estimated

from .outcome import Outcome

#: Largest standard error of a mean or a standard deviation, in standard deviations, that is to be reached: that of the
#: mean of 1000 independent draws.
PRECISION = 1000**-0.5


def figures(outcome: Outcome, exact_mean: np.ndarray | None = None) -> dict:
    """Return the figures of the table, and a few more.

    Effective draws are the smallest over the parameters: rank-normalised bulk ESS of means, and of squares (about the
    mean). A gradient counts as one evaluation. Seconds to 1000 effective draws are all seconds, warm-up included,
    times 1000 over effective draws. Evaluations to the precision are those of warm-up, and as many of the draws as
    bring the errors of all means and standard deviations to `PRECISION`; seconds are taken to be in proportion.
    """
    means, squares = _effective(outcome) if outcome.ess is None else outcome.ess
    ess, ess_squares = float(np.min(means)), float(np.min(squares))
    n_exact = outcome.n_values + outcome.n_gradients
    n_warmup = outcome.notes.get("warm-up evaluations", 0)
    error = estimated(Columns(outcome.draws, []), [], ()).largest_error()
    times = 1.0 if outcome.is_precise else (error / PRECISION) ** 2
    n_precise = n_warmup + times * (n_exact - n_warmup)
    return {
        "values": outcome.n_values,
        "gradients": outcome.n_gradients,
        "seconds": outcome.seconds,
        "warmup_seconds": outcome.warmup_seconds,
        "compile_seconds": outcome.compile_seconds,
        "ess": ess,
        "ess_squares": ess_squares,
        "rhat": _rhat(outcome.draws),
        "per_evaluation": ess / n_exact,
        "per_evaluation_squares": ess_squares / n_exact,
        "seconds_to_1000": 1000.0 * outcome.seconds / ess,
        "seconds_to_1000_squares": 1000.0 * outcome.seconds / ess_squares,
        "evaluations_to_precision": n_precise,
        "seconds_to_precision": outcome.seconds * n_precise / n_exact,
        "mean": outcome.draws.mean(axis=(0, 1)).tolist(),
        "sd": outcome.draws.std(axis=(0, 1)).tolist(),
        "z_of_mean": None if exact_mean is None else _z(outcome.draws, means, exact_mean),
        "notes": outcome.notes,
    }


def _effective(outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    by_parameter = np.moveaxis(outcome.draws, 2, 0)
    squares = (by_parameter - by_parameter.mean(axis=(1, 2), keepdims=True)) ** 2
    # A chain that never moved causes a division by zero.
    with np.errstate(divide="ignore", invalid="ignore"):
        found = [np.atleast_1d(array_stats.ess(each, method="bulk")) for each in (by_parameter, squares)]
    # NaN counts as one effective draw, so that ratios are finite.
    return tuple(np.maximum(np.nan_to_num(each, nan=1.0), 1.0) for each in found)


def _rhat(draws: np.ndarray) -> float | None:
    """Return the largest R-hat; None for one chain."""
    if len(draws) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(array_stats.rhat(np.moveaxis(draws, 2, 0), method="rank")))


def _z(draws: np.ndarray, ess: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest distance of a mean from its exact value, in standard errors."""
    error = draws.std(axis=(0, 1)) / np.sqrt(ess)
    return float(np.max(np.abs(draws.mean(axis=(0, 1)) - exact) / error))
