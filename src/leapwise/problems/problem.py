"""A built-in posterior, and what is known of its truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from leapwise.dynamics.metrics import RiemannianMetric
from leapwise.targets import ForwardTarget, Target


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior to try things on.

    Attributes
    ----------
    name : str
        What the command line calls it.
    description : str
        One sentence.
    target : Target or ForwardTarget
        What is sampled.
    metric : RiemannianMetric or None
        Its Fisher metric, where there is one, for `RMHMC`.
    mean, covariance : ndarray or None
        Exact moments of the posterior, where they are known.
    draw : callable or None
        ``draw(rng, n)`` makes n independent exact draws ``(n, dim)``, where that can be done.
    true_parameters : ndarray or None
        What the data were made from, where they were simulated.
    settings : dict
        The paper's settings: ``{"hmc": (step_size, n_steps), "rmhmc": (step_size, n_steps)}``.
    """

    name: str
    description: str
    target: Target | ForwardTarget
    metric: RiemannianMetric | None = None
    mean: np.ndarray | None = None
    covariance: np.ndarray | None = None
    draw: Callable[[np.random.Generator, int], np.ndarray] | None = None
    true_parameters: np.ndarray | None = None
    settings: dict[str, Any] = field(default_factory=dict)
