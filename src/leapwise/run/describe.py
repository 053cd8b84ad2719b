"""Settings and versions in a form that can be stored."""

from __future__ import annotations

import platform
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from leapwise.dynamics import DenseMetric, DiagonalMetric
from leapwise.kernels import Kernel
from leapwise.warmup import Auto, Training

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
