"""Checks of what `sample` is asked for, before anything is evaluated.

Settings and versions in a form that can be stored.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_flag, require_version, require_whole
from leapwise.dynamics import DenseMetric, DiagonalMetric, EuclideanMetric
from leapwise.errors import BudgetError, InputError
from leapwise.kernels import Kernel
from leapwise.kernels.surrogate_hmc import SurrogateKernel
from leapwise.targets import AnyTarget, ForwardTarget, Target
from leapwise.warmup import ARNSHMC, Auto, Training, require_tuning_steps
from leapwise.warmup.start import read_init

DEFAULT_TUNE = 500
Method = Kernel | Training | Auto


@dataclass(frozen=True, eq=False)
class Request:
    """What `sample` was asked for."""

    target: AnyTarget
    method: Method
    chains: int
    draws: int
    tune: int | None
    seed: int
    init: ArrayLike | None
    max_evaluations: int | None


def check_manner(progressbar: Any, version: Any) -> None:
    """Raise `InputError` if what does not touch the draws is nothing of its kind."""
    if progressbar is not None:
        require_flag("progressbar", progressbar)
    require_version(version)


def check_request(
    target: AnyTarget,
    draws: Any,
    tune: Any,
    chains: Any,
    random_seed: Any,
    method: Method,
    init: ArrayLike | None,
    max_evaluations: Any = None,
) -> int:
    """Raise `InputError` if anything is wrong; return the seed, a fresh one if none was given."""
    if not isinstance(target, (Target, ForwardTarget)):
        hint = "; pass problem.target" if hasattr(target, "target") else "; wrap your function in Target(...)"
        raise InputError(f"target must be a Target or ForwardTarget, got {type(target).__name__}{hint}")
    tune = DEFAULT_TUNE if tune is None else tune
    for name, value, least in (("draws", draws, 1), ("tune", tune, 0), ("chains", chains, 1)):
        require_whole(name, value, least)
    if max_evaluations is not None:
        require_whole("max_evaluations", max_evaluations, 1)
    known = isinstance(method, (Training, Auto)) or callable(getattr(method, "step", None))
    if isinstance(method, type) or not known:
        got = f"the class {method.__name__}" if isinstance(method, type) else repr(method)
        raise InputError(
            f"method must be such as Auto(), HMC(), RMHMC(metric=...) or RNSHMC(surrogate), got {got}"
        )
    if not getattr(method, "is_exact", False) and not isinstance(method, ARNSHMC):
        raise InputError(
            f"{type(method).__name__} does not declare itself exact; sample() takes exact kernels only"
        )
    if not target.has_gradient and needs_gradient(method):
        raise InputError(
            f"{type(method).__name__} needs the gradient of the log-density and the target has none; "
            "give Target(gradient=...) or ForwardTarget(vjp=...), or leave method= out: the default needs none"
        )
    if isinstance(method, SurrogateKernel) and not method.is_set:
        raise InputError(
            f"{type(method).__name__} needs step_size and n_steps (or trajectory_length), which nothing tunes; "
            "give both"
        )
    if not isinstance(method, Auto):
        require_tuning_steps(method, tune)
        least = chains * (tune + 1)
        if max_evaluations is not None and max_evaluations < least:
            raise BudgetError(
                f"{max_evaluations} exact evaluations are allowed, and {tune} steps of warm-up of {chains} chains take "
                f"{least} at the very least; allow more (max_evaluations=), take fewer steps (tune=), or leave method= "
                "out: the default divides a budget by itself"
            )
    _require_fit(method, chains, target.dim)
    if init is not None:
        read_init(init, target, chains)
    return _seed(random_seed)


def needs_gradient(method: Method) -> bool:
    """Whether a method takes exact gradients: all do, but for `Auto` and kernels that come with a trained surrogate."""
    return not isinstance(method, (SurrogateKernel, Auto))


def _require_fit(method: Method, chains: int, dim: int) -> None:
    """Raise unless the method's settings are of the size of this run."""
    step_size: Any = getattr(method, "step_size", None)
    shape = np.shape(step_size)
    if shape not in ((), (chains,)):
        raise InputError(
            f"step_size must be one number, or one for each of the {chains} chains, got shape {shape}; "
            "give one number, or change chains="
        )
    metric = getattr(method, "metric", None)
    if isinstance(metric, EuclideanMetric):
        try:
            fits = metric.velocity(np.zeros((1, dim))).shape == (1, dim)
        except ValueError:
            fits = False
        if not fits:
            raise InputError(
                f"the metric {type(metric).__name__} is not of the target's size, {dim} parameters; "
                "make it from one variance for each parameter, or leave it out to have it learnt"
            )


def _seed(random_seed: Any) -> int:
    if random_seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
    return require_whole("random_seed", random_seed, 0)


MOST_NUMBERS = 200 * 200  # a dense metric of the largest size that is learnt, but not somebody's data


def describe(method: Kernel | Training | Auto, kernel: Kernel | None = None) -> dict[str, Any]:
    """Return a method's name and settings as plain numbers, strings and lists.

    Parameters
    ----------
    method : Kernel, Training or Auto
        As it was given.
    kernel : Kernel, optional
        What became of it: settings that it has are taken from there.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> described = describe(HMC(0.1, 5, metric=UnitMetric()))
    >>> described["method"], described["step_size"], described["metric"]
    ('HMC', 0.1, 'UnitMetric')
    """
    described: dict[str, Any] = {"method": type(method).__name__}
    for source in (method, kernel):
        settings: Any = source
        if is_dataclass(settings):
            found = {each.name: getattr(settings, each.name) for each in fields(settings)}
            if source is not method:
                found.pop("surrogate", None)  # the recipe says more than its weights
                described["kernel"] = type(source).__name__
            described |= {name: _plain(value) for name, value in found.items()}
    return described


def versions() -> dict[str, str]:
    """Return the versions of Python, this library and its numerical foundations."""
    packages = ("leapwise", "numpy", "scipy", "arviz-base", "arviz-stats")
    return {"python": platform.python_version()} | {package: _version(package) for package in packages}


def _version(package: str) -> str:
    """Look a version up; where packages are bundled without their metadata, no run is lost for it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= MOST_NUMBERS else f"array of shape {value.shape}"
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if hasattr(value, "potential_and_gradient"):
        return type(value).__name__
    if hasattr(value, "fit"):
        return {
            "name": type(value).__name__,
            **{each.name: _plain(getattr(value, each.name)) for each in _fields(value)},
        }
    if isinstance(value, DiagonalMetric):
        return {"variance": _plain(value.variance)}
    if isinstance(value, DenseMetric):
        return {"covariance": _plain(value.covariance)}
    if _fields(value):
        return {each.name: _plain(getattr(value, each.name)) for each in _fields(value)}
    return getattr(value, "__name__", type(value).__name__)


def _fields(value: Any) -> tuple[Any, ...]:
    return fields(value) if is_dataclass(value) else ()
