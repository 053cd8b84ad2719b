"""Models that fail in the ways that models do. Each is nested, so that cloudpickle sends its code."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

from leapwise import Target

OK, RAISE, UNPICKLABLE, EXIT, HANG, DIE, NAN = 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0


def moody():
    """Return a target whose first parameter says what it does, and whose second goes into the value."""

    def log_density(x):
        what = x[0]
        if what == RAISE:
            raise KeyError("as asked")
        if what == UNPICKLABLE:
            raise ValueError("as asked", threading.Lock())
        if what == EXIT:
            sys.exit(7)
        if what == HANG:
            time.sleep(60)
        if what == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.nan if what == NAN else -0.5 * x[1] ** 2

    return Target(log_density, lambda x: -x, dim=2)


def sums(vectorized=True):
    """Return a target whose value depends, in its last bits, on how many rows are multiplied together."""
    matrix = np.random.default_rng(5).standard_normal((40, 40))

    def log_density(x):
        return -np.sum((x @ matrix) ** 2, axis=-1)

    return Target(log_density, dim=40, vectorized=vectorized)


def sleepy(seconds=0.02):
    """Return a target that sleeps for a while that its parameters alone decide."""

    def log_density(x):
        time.sleep(seconds * (0.5 + abs(x[0]) % 1.0))
        return -0.5 * float(x @ x)

    return Target(log_density, dim=2)


def dies_once(folder):
    """Return a target whose process is killed at the first attempt at each row, and only then."""

    def log_density(x):
        try:
            open(os.path.join(folder, f"{x[1]}"), "x").close()
        except FileExistsError:
            return -0.5 * x[1] ** 2
        os.kill(os.getpid(), signal.SIGKILL)

    return Target(log_density, dim=2)


def counted(folder):
    """Return a function that builds a target that cannot be pickled, and leaves a file for each building."""

    def make():
        lock = threading.Lock()
        open(os.path.join(folder, f"{os.getpid()}-{time.monotonic_ns()}"), "x").close()

        def log_density(x):
            with lock:
                return -0.5 * float(x @ x)

        return Target(log_density, dim=2, names=["a", "b"], bounds=[(0, 5), None])

    return make


def rows(*whats):
    """Return a row for each, told apart by their second parameter."""
    return np.array([[what, float(i)] for i, what in enumerate(whats)])


def gather(engine, parameters, **options):
    """Return the attempts by their row, each there exactly once."""
    found = {}
    for attempt in engine.evaluate(parameters, **{"gradient": False, **options}):
        for row in attempt.rows:
            assert int(row) not in found
            found[int(row)] = attempt
    assert sorted(found) == list(range(len(parameters)))
    return [found[i] for i in range(len(parameters))]


def values(engine, parameters, **options):
    """Return the log-density of each row, none of which may have failed."""
    found = gather(engine, parameters, **options)
    for attempt in found:
        if attempt.error is not None:
            raise attempt.error
    return np.array(
        [attempt.values.log_density[list(attempt.rows).index(i)] for i, attempt in enumerate(found)]
    )
