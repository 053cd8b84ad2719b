"""What `sample` was asked for: its checks before anything is evaluated, and a method's settings as plain values."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_whole
from leapwise.dynamics import DenseMetric, DiagonalMetric, EuclideanMetric
from leapwise.errors import BudgetError, InputError
from leapwise.kernels import Kernel
from leapwise.kernels.free_moves import FreeMoves
from leapwise.kernels.surrogate_hmc import SurrogateKernel
from leapwise.targets import AnyTarget, ForwardTarget, Target
from leapwise.warmup import ARNSHMC, Auto, Training, require_tuning_steps
from leapwise.warmup.start import read_init

#: Steps of warm-up by default: enough for three windows of a metric. Other HMC samplers take 500 to 1000.
DEFAULT_TUNE = 500
#: A larger array is stored as its shape. A dense metric of 200 parameters, the largest that is learned, still fits.
MOST_NUMBERS = 200 * 200
Method = Kernel | Training | Auto


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of `sample` that decide which draws are made."""

    target: AnyTarget
    method: Method
    chains: int
    draws: int
    tune: int | None
    seed: int
    init: ArrayLike | None
    max_evaluations: int | None
    precision: float | None = None

    @property
    def n_tune(self) -> int:
        """Steps of warm-up, for methods that make some."""
        return DEFAULT_TUNE if self.tune is None else int(self.tune)

    @property
    def planned_draws(self) -> int:
        """Draws of each chain that warm-up plans for: with a precision, as many as reach it if they are independent."""
        if self.precision is None:
            return int(self.draws)
        return min(int(self.draws), math.ceil(1.0 / (self.precision**2 * self.chains)))

    def check(self) -> None:
        """Raise `InputError`, or `BudgetError`, if anything is wrong; nothing is evaluated."""
        if not isinstance(self.target, (Target, ForwardTarget)):
            hint = (
                "pass problem.target"
                if hasattr(self.target, "target")
                else "wrap your function in Target(...)"
            )
            raise InputError(
                f"target must be a Target or ForwardTarget, got {type(self.target).__name__}; {hint}"
            )
        tune = DEFAULT_TUNE if self.tune is None else self.tune
        for name, value, least in (("draws", self.draws, 1), ("tune", tune, 0), ("chains", self.chains, 1)):
            require_whole(name, value, least)
        if self.max_evaluations is not None:
            require_whole("max_evaluations", self.max_evaluations, 1)
        if self.precision is not None:
            _require_precision(self.precision)
        _require_method(self.method, self.target)
        if not isinstance(self.method, Auto):
            require_tuning_steps(self.method, tune)
            self._require_budget()
        _require_size(self.method, self.chains, self.target.dim)
        if self.init is not None:
            read_init(self.init, self.target, self.chains)

    def _require_budget(self) -> None:
        least = self.chains * (self.n_tune + 1)
        if self.max_evaluations is not None and self.max_evaluations < least:
            raise BudgetError(
                f"max_evaluations={self.max_evaluations} is too small: {self.n_tune} steps of warm-up of {self.chains} "
                f"chains take at least {least} exact evaluations; allow more, take fewer steps (tune=), or leave "
                "method= out: the default divides a budget by itself"
            )


def _require_precision(precision: object) -> None:
    is_number = isinstance(precision, (int, float, np.integer, np.floating)) and not isinstance(
        precision, bool
    )
    if not is_number or not 0.0 < float(precision) < 1.0:  # type: ignore[arg-type]
        raise InputError(
            f"precision must be one number between 0 and 1, the largest standard error in standard deviations, got "
            f"{precision!r:.80}; give 0.03"
        )


def _require_method(method: Method, target: AnyTarget) -> None:
    """Raise unless the method is one, is exact, and can sample this target."""
    known = isinstance(method, (Training, Auto)) or callable(getattr(method, "step", None))
    if isinstance(method, type) or not known:
        got = f"the class {method.__name__}" if isinstance(method, type) else repr(method)
        raise InputError(
            f"method must be a method, for example Auto() or HMC(), got {got}; leave it out for the default"
        )
    name = type(method).__name__
    if not getattr(method, "is_exact", False) and not isinstance(method, ARNSHMC):
        raise InputError(
            f"{name} does not declare that it is exact; sample() takes exact kernels only (is_exact = True)"
        )
    if not target.has_gradient and needs_gradient(method):
        raise InputError(
            f"{name} needs the gradient of the log-density and the target has none; "
            "give Target(gradient=...) or ForwardTarget(vjp=...), or leave method= out: the default needs none"
        )
    if isinstance(method, SurrogateKernel) and not method.is_set:
        raise InputError(
            f"{name} needs step_size and n_steps (or trajectory_length), which warm-up does not tune; give both"
        )


def needs_gradient(method: Method) -> bool:
    """Whether a method needs exact gradients: all but `Auto` and kernels that have a trained surrogate."""
    return not isinstance(method, (SurrogateKernel, Auto))


def _require_size(method: Method, chains: int, dim: int) -> None:
    """Raise unless step sizes and metric have the size of this run."""
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
                f"the metric {type(metric).__name__} does not fit the target's {dim} parameters; "
                "make it from one variance for each parameter, or leave it out to have it learned"
            )


def read_seed(random_seed: Any) -> int:
    """Return the seed that was given, or a fresh one."""
    if random_seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
    return require_whole("random_seed", random_seed, 0)


def describe(method: Kernel | Training | Auto, kernel: Kernel | None = None) -> dict[str, Any]:
    """Return a method's name and settings as plain numbers, strings and lists.

    Parameters
    ----------
    method : Kernel, Training or Auto
        As the user gave it.
    kernel : Kernel, optional
        What warm-up made of it; its settings replace those of the method.

    Examples
    --------
    >>> from leapwise import HMC, UnitMetric
    >>> described = describe(HMC(0.1, 5, metric=UnitMetric()))
    >>> described["method"], described["step_size"], described["metric"]
    ('HMC', 0.1, 'UnitMetric')
    """
    described: dict[str, Any] = {"method": type(method).__name__}
    if isinstance(kernel, FreeMoves):
        described, kernel = described | {"free_moves": kernel.n_moves}, kernel.kernel
    for source in (method, kernel):
        settings: Any = source
        if is_dataclass(settings):
            found = {each.name: getattr(settings, each.name) for each in fields(settings)}
            if source is not method:
                found.pop("surrogate", None)  # the method's recipe says more than the weights
                described["kernel"] = type(source).__name__
            described |= {name: _plain(value) for name, value in found.items()}
    return described


def versions() -> dict[str, str]:
    """Return the versions of Python, this library and its numerical foundations."""
    packages = ("leapwise", "numpy", "scipy", "arviz-base", "arviz-stats")
    return {"python": platform.python_version()} | {package: _version(package) for package in packages}


def _version(package: str) -> str:
    """Return a package's version; "unknown" where packages are bundled without metadata."""
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
