"""A built-in posterior with everything that is known about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from leapwise.dynamics.metrics import RiemannianMetric
from leapwise.targets import ForwardTarget, Target


@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior to test and compare samplers on.

    Attributes
    ----------
    name : str
        Its name on the command line.
    description : str
        One sentence.
    target : Target or ForwardTarget
        The target to sample.
    metric : RiemannianMetric or None
        Its Fisher metric for `RMHMC`, if it has one.
    mean, covariance : ndarray or None
        Exact moments of the posterior, if they are known.
    draw : callable or None
        ``draw(rng, n)`` returns n independent exact draws ``(n, dim)``, if there is a way to make them.
    true_parameters : ndarray or None
        The parameters that the data were simulated from, if the data are simulated.
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
