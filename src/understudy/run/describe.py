"""Settings and versions in a form that can be stored."""

from __future__ import annotations

import platform
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from understudy.dynamics import DenseMetric, DiagonalMetric
from understudy.kernels import Kernel

MOST_NUMBERS = 200 * 200  # a dense metric of the largest size that is learnt, but not somebody's data


def describe(kernel: Kernel) -> dict[str, Any]:
    """Return a kernel's name and settings as plain numbers, strings and lists.

    Examples
    --------
    >>> from understudy import HMC, UnitMetric
    >>> described = describe(HMC(0.1, 5, metric=UnitMetric()))
    >>> described["method"], described["step_size"], described["metric"]
    ('HMC', 0.1, 'UnitMetric')
    """
    described: dict[str, Any] = {"method": type(kernel).__name__}
    settings: Any = kernel
    if is_dataclass(settings):
        described |= {each.name: _plain(getattr(settings, each.name)) for each in fields(settings)}
    return described


def versions() -> dict[str, str]:
    """Return the versions of Python, this library and its numerical foundations."""
    packages = ("understudy", "numpy", "scipy", "arviz-base", "arviz-stats")
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
    if isinstance(value, DiagonalMetric):
        return {"variance": _plain(value.variance)}
    if isinstance(value, DenseMetric):
        return {"covariance": _plain(value.covariance)}
    if is_dataclass(value) and fields(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return type(value).__name__
