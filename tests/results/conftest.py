from collections.abc import Callable

import numpy as np
import pytest

from understudy.results import Cost, Record, Run


def make_run(
    *,
    chains: int = 4,
    draws: int = 500,
    tune: int = 100,
    dim: int = 3,
    names: str | tuple[str, ...] = "x",
    values: np.ndarray | None = None,
    stats: dict[str, np.ndarray] | None = None,
    **settings: object,
) -> Run:
    """A run of independent draws, healthy unless told otherwise."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(chains, draws, dim)) if values is None else values
    posterior_stats = _stats(rng, *values.shape[:2]) | (stats or {})
    posterior = Record(
        values, posterior_stats, Cost(n_values=10, n_gradients=6000, gradient_seconds=3.0, seconds=4.0)
    )
    warmup = Record(
        rng.normal(size=(len(values), tune, values.shape[2])),
        _stats(rng, len(values), tune),
        Cost(n_values=4, n_gradients=1000, gradient_seconds=0.5, seconds=1.0),
    )
    about = {"settings": {"method": "hmc", "step_size": 0.25}, "seed": 7, "versions": {"understudy": "9.9"}}
    return Run(names, posterior, warmup, **(about | settings))


def _stats(rng: np.random.Generator, chains: int, draws: int) -> dict[str, np.ndarray]:
    return {
        "lp": rng.normal(size=(chains, draws)),
        "acceptance_rate": rng.uniform(0.7, 1.0, size=(chains, draws)),
        "diverging": np.zeros((chains, draws), bool),
        "n_steps": np.full((chains, draws), 3),
    }


@pytest.fixture(name="make_run")
def _make_run() -> Callable[..., Run]:
    return make_run
