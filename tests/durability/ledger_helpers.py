"""Ledgers to test with, and how to compare their rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np

from leapwise.storage import Failure, Header, Ledger, Row

DIM = 3


def header(dim=DIM, **changes):
    given = {
        "library_version": "0.1.0",
        "dim": dim,
        "names": tuple(f"x[{i}]" for i in range(dim)),
        "settings": {"draws": 10},
        "seed": 1,
        "fingerprint": {"version": "1"},
    }
    return Header(**{**given, **changes})


def make_row(sequence, index, dim=DIM, **changes):
    """Return a row whose numbers depend on its place alone."""
    rng = np.random.default_rng([sequence, index])
    given = {
        "sequence": sequence,
        "index": index,
        "phase": "warm-up" if index < 10 else "draws",
        "chain": sequence - 1,
        "step": index,
        "position": rng.normal(size=dim),
        "log_density": float(rng.normal()),
        "gradient": rng.normal(size=dim) if index % 2 else None,
        "outputs": rng.normal(size=4) if index % 3 else None,
        "seconds": 1e-3 * float(rng.uniform()),
        "attempts": 1 + index % 2,
        "message": "it failed once: π" if index % 2 else "",
    }
    return Row(**{**given, **changes})


def bits(row):
    """Return all of a row, so that rows compare equal only if every bit is the same."""
    return tuple(
        value.tobytes()
        if isinstance(value, np.ndarray)
        else value.hex()
        if isinstance(value, float)
        else value
        for value in vars(row).values()
    )


def fill(path, n_sequences=3, n=40, **options):
    """Make a ledger with rows, failures and checkpoints, and close it; return all its rows by place."""
    with Ledger.open(path, header(**options)) as ledger:
        rows = write(ledger, n_sequences, n, **options)
    return rows


def write(ledger, n_sequences=3, n=40, dim=DIM):
    rows = {}
    for index in range(n):
        batch = [make_row(sequence, index, dim) for sequence in range(n_sequences)]
        rows.update({(row.sequence, row.index): bits(row) for row in batch})
        ledger.append(batch)
    ledger.append_failure(Failure(1, 3, 1, np.ones(dim), "it failed", 0.5))
    ledger.save("kernel", {"mean": np.arange(300.0), "mask": np.array([True, False])}, {"step_size": 0.1})
    ledger.save("draws/0", {"draws": np.ones((20, dim))}, {})
    return rows


def raw(path):
    """Open a ledger's file with plain SQLite, for a ``with`` (a connection's own does not close it)."""
    return closing(sqlite3.connect(path, isolation_level=None))
