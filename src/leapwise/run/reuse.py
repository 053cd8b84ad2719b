"""Evaluations of earlier runs as training data of this one, at no cost, and starts of chains among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike

import numpy as np

from leapwise.errors import InputError, LedgerMismatch
from leapwise.execution import Evaluation, Evaluator
from leapwise.execution.evaluator import require_unchanged
from leapwise.storage import Ledger, Row
from leapwise.targets import AnyTarget
from leapwise.targets.identity import differences, identify

#: At most this many evaluations are used, those with gradients first. A guess: with more, training takes longer than
#: the evaluations that it saves.
MAX_EVALUATIONS = 1000
#: Starts are moved by this share of the difference of two known positions, so that no two are the same. A guess.
_JITTER = 0.1


def read_evaluations(
    paths: Sequence[str | PathLike[str]], evaluator: Evaluator, version: str | None = None
) -> list[Evaluation]:
    """Return the evaluations in the ledgers of earlier runs of the same target.

    One recorded position of each ledger is evaluated again, and counted, to check that the target is the same.

    Raises
    ------
    LedgerMismatch
        If a ledger belongs to another target; it says what differs.
    """
    if isinstance(paths, (str, PathLike)):
        raise InputError(f"learn_from must be a list of ledgers, got {paths!r}; write learn_from=[{paths!r}]")
    target, rows = evaluator.target, list[Row]()
    for path in paths:
        with Ledger.read(path) as ledger:
            # A target with a gradient and the same one without are one target.
            changed = differences(ledger.header.fingerprint, identify(target, version), ignore=("gradient",))
            if changed:
                raise LedgerMismatch(
                    f"the ledger {ledger.path} belongs to another target: {'; '.join(changed)}; "
                    "leave it out of learn_from="
                )
            here = [row for row in ledger.rows() if row.status == "ok" and row.log_density > -np.inf]
        if here:
            require_unchanged(here, evaluator, str(path))
            rows += here
    return as_evaluations(_selected(rows), target)


def _selected(rows: list[Row]) -> list[Row]:
    """Return at most `MAX_EVALUATIONS` rows: the last ones with gradients, then evenly spaced ones without."""
    gradients, values = (
        [row for row in rows if (row.gradient is not None) == kind] for kind in (True, False)
    )
    room = max(MAX_EVALUATIONS - len(gradients), 0)
    spaced = np.unique(np.linspace(0, max(len(values) - 1, 0), min(room, len(values))).astype(int))
    return gradients[-MAX_EVALUATIONS:] + [values[i] for i in spaced]


def as_evaluations(rows: Iterable[Row], target: AnyTarget) -> list[Evaluation]:
    """Return rows as an evaluator would: one batch of those without gradients, one of those with."""
    found, transform = [], target.transform
    for kind in (False, True):
        group = [row for row in rows if (row.gradient is not None) == kind]
        if not group:
            continue
        position = np.stack([row.position for row in group])
        with np.errstate(all="ignore"):
            density = np.array([row.log_density for row in group])
            potential = -(density + transform.log_jacobian(position))
            slopes = np.stack([row.gradient for row in group]) if kind else None  # type: ignore[misc]
            gradient = None if slopes is None else -transform.pull_back(position, slopes)
        usable = np.isfinite(potential)
        if gradient is not None:
            usable &= np.isfinite(gradient).all(axis=1)
        outputs = _outputs(group)
        found.append(
            Evaluation(
                position[usable],
                potential[usable],
                None if gradient is None else gradient[usable],
                None if outputs is None else outputs[usable],
            )
        )
    return found


def starts(known: Sequence[Evaluation], n_chains: int, target: AnyTarget, seed: int) -> np.ndarray | None:
    """Return parameters to start chains from, near known positions of high density; None if there are few of them."""
    position = np.concatenate([each.position for each in known])
    potential = np.concatenate([each.potential for each in known])
    dim = position.shape[1]
    height = potential - potential.min(initial=np.inf)
    # Of a normal, U less its least value has mean d/2 and standard deviation sqrt(d/2); 2 more for few parameters.
    near = np.flatnonzero(height < 0.5 * dim + 3.0 * np.sqrt(0.5 * dim) + 2.0)
    if len(near) < max(2 * n_chains, 10):
        return None
    rng = np.random.default_rng(seed)
    first, second, third = (position[rng.choice(near, n_chains, replace=False)] for _ in range(3))
    return np.array(target.transform.to_parameters(first + _JITTER * (second - third)))


def _outputs(rows: Sequence[Row]) -> np.ndarray | None:
    width = next((len(row.outputs) for row in rows if row.outputs is not None), None)
    if width is None:
        return None
    return np.stack([np.full(width, np.nan) if row.outputs is None else row.outputs for row in rows])
