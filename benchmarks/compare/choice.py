"""Choose the faster form of the potential for peers: in JAX, or ours in NumPy.

Three ways of calling it are timed: for one point and for four at once within a compiled loop (NumPyro and
BlackJAX), and for one point from Python (nutpie).
"""

from __future__ import annotations

import itertools
import time
from statistics import median

import jax
import jax.numpy as jnp

from .cases import Case
from .exact import Exact, check_agreement, has_jax

WAYS = ("loop-1", "loop-4", "call-1")
_CALLS, _REPEATS = 10, 7


def choose(case: Case) -> dict:
    """Return the faster form for each way of calling, and the times in milliseconds per call."""
    if case.kind != "gradient":
        return {"forms": {}, "milliseconds": {}, "difference": None}
    if not has_jax(case):
        return {"forms": dict.fromkeys(WAYS, "numpy"), "milliseconds": {}, "difference": None}
    difference = check_agreement(case)
    forms = {form: Exact(case, form) for form in ("jax", "numpy")}
    found: dict[str, dict[str, list[float]]] = {way: {form: [] for form in forms} for way in WAYS}
    calls = {way: {form: _prepared(exact, way) for form, exact in forms.items()} for way in WAYS}
    for _ in range(_REPEATS):  # in turns, so that other load affects both
        for way in WAYS:
            for form in forms:
                started = time.perf_counter()
                calls[way][form]()
                found[way][form].append(1e3 * (time.perf_counter() - started) / _CALLS)
    milliseconds = {way: {form: median(times) for form, times in found[way].items()} for way in WAYS}
    best = {way: min(times, key=lambda form: times[form]) for way, times in milliseconds.items()}
    return {"forms": best, "milliseconds": milliseconds, "difference": difference}


def _prepared(exact: Exact, way: str):
    """Return a compiled function without arguments that makes ten calls, each at a new point."""
    n = int(way[-1])
    start = 0.3 * exact.starts(0, n)
    shifts = itertools.count()
    if way.startswith("call"):
        function = exact.one_point()

        def run():
            for _ in range(_CALLS):
                function(start[0] * (1.0 + 1e-6 * next(shifts)))
    else:
        each = jax.vmap(jax.value_and_grad(exact.log_density()))

        def step(position, _):
            value, gradient = each(position)
            return position + 1e-9 * gradient / (1.0 + jnp.abs(gradient).max()), value

        loop = jax.jit(lambda position: jax.lax.scan(step, position, length=_CALLS)[0])

        def run():
            loop(start * (1.0 + 1e-6 * next(shifts))).block_until_ready()

    run()  # compiles
    return run
