from collections.abc import Callable

import numpy as np
import pytest

from leapwise.results import Cost, Record, Run, SurrogateReport


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
    about = {"settings": {"method": "hmc", "step_size": 0.25}, "seed": 7, "versions": {"leapwise": "9.9"}}
    return Run(names, posterior, warmup, **(about | settings))


def _stats(rng: np.random.Generator, chains: int, draws: int) -> dict[str, np.ndarray]:
    return {
        "lp": rng.normal(size=(chains, draws)),
        "acceptance_rate": rng.uniform(0.7, 1.0, size=(chains, draws)),
        "diverging": np.zeros((chains, draws), bool),
        "n_steps": np.full((chains, draws), 3),
    }


def make_report(**changes: object) -> SurrogateReport:
    """What warm-up says of a good surrogate, unless told otherwise."""
    history = np.array([[30, np.inf], [60, 0.5], [90, 0.2]])
    usual = {
        "kind": "quadratic",
        "sd": 0.2,
        "usual": 0.01,
        "surprises": 0.0,
        "exact_share": 0.0,
        "reason": "",
    }
    return SurrogateReport(**(usual | {"history": history, "fingerprint": "abc"} | changes))


def make_surrogate_run(
    *,
    sd: float = 0.2,
    report: SurrogateReport | None = None,
    part: np.ndarray | None = None,
    **changes: object,
) -> Run:
    """A self-tuned run of independent draws, whose surrogate is normally wrong by `sd`."""
    rng = np.random.default_rng(2)
    shape = (4, int(changes.get("draws", 500)))
    exact = rng.gamma(1.5, size=shape)
    stats = {
        "discrepancy": rng.normal(0.0, sd, shape),
        "proposal_potential": exact,
        "inner_acceptance": np.full(shape, 0.9),
        "accepted": rng.random(shape) < 0.9,
        "n_exact": np.ones(shape, int),
    }
    if part is not None:
        stats["part"] = part
        stats["discrepancy"] = np.where(part == 1, np.nan, stats["discrepancy"])
    stats |= changes.pop("stats", {})
    return make_run(stats=stats, tune=0, surrogate=report or make_report(), **changes)


@pytest.fixture(name="make_surrogate_run")
def _make_surrogate_run() -> Callable[..., Run]:
    return make_surrogate_run


@pytest.fixture(name="make_report")
def _make_report() -> Callable[..., SurrogateReport]:
    return make_report


@pytest.fixture(name="make_run")
def _make_run() -> Callable[..., Run]:
    return make_run
