"""The time that JAX spends on compiling, which the table shows separately."""

from __future__ import annotations

import time

import jax

_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class CompileClock:
    """Collects when JAX was tracing, lowering or compiling; nested times count once."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration: float, **_) -> None:
        if event in _EVENTS:
            now = time.perf_counter()
            self._spans.append((now - duration, now))

    def seconds(self, start: float, end: float) -> float:
        """Return the time spent between two readings of `time.perf_counter`."""
        total, reached = 0.0, start
        for low, high in sorted(self._spans):
            low, high = max(low, reached), min(high, end)
            if high > low:
                total, reached = total + high - low, high
        return total
