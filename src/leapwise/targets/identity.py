"""What identifies a target, as words that can be stored, and in what two of them differ.

Known are its dimension, names, bounds, whether it has a gradient, a version that the user may give and, of a
`ForwardTarget`, the data, the noise and the parameters of the prior. Of a user's own likelihood or prior it is the name
of the class, and the fields of a frozen dataclass. Not looked at are a user's functions and other objects: their code
differs between versions of Python, and arrays that they hold may be room to work in, which changes with every call.
What changes there is found by evaluating a recorded position again, or told by the version.

Whether a target takes many points at once is not part of it: that changes how it is asked, not what it answers.

Numbers are compared to nine digits, since data that a model made may differ in the last ones on another machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from leapwise.checks import require_version
from leapwise.targets.densities import GaussianLikelihood, NormalPrior, UniformPrior
from leapwise.targets.identity_differences import differing
from leapwise.targets.target import AnyTarget

_BITS = 2.0**30  # nine digits
#: Of which arrays all numbers are kept, of our own priors: one a parameter.
_OWN_PRIORS: dict[type, tuple[str, ...]] = {NormalPrior: ("mean", "sd"), UniformPrior: ("lower", "upper")}


def identify(target: AnyTarget, version: str | None = None) -> dict[str, str]:
    """Return what identifies a target, by topic; each is JSON.

    Parameters
    ----------
    target : Target or ForwardTarget
    version : str, optional
        Of the user's model: to be changed with it.

    Examples
    --------
    >>> from leapwise import Target
    >>> identity = identify(Target(lambda x: -x @ x, dim=2, names=["a", "b"], bounds=[(0, None), None]), "v1")
    >>> identity["names"], identity["bounds"], identity["version"]
    ('["a", "b"]', '[[0.0, null], [null, null]]', '"v1"')
    """
    require_version(version)
    found: dict[str, Any] = {
        "kind": "forward" if _is_forward(target) else "log-density",
        "dim": int(target.dim),
        "names": target.names if isinstance(target.names, str) else list(target.names),
        "bounds": np.stack([target.transform.lower, target.transform.upper], axis=1),
        "gradient": bool(target.has_gradient),
        "version": version,
    }
    if _is_forward(target):
        found |= _of_likelihood(target.likelihood) | {"prior": _of_density(target.prior)}  # type: ignore[attr-defined]
    return {topic: json.dumps(_plain(value), allow_nan=False) for topic, value in found.items()}


def differences(
    recorded: Mapping[str, str], now: Mapping[str, str], *, ignore: Collection[str] = ()
) -> list[str]:
    """Return in what a target differs from the one recorded, one phrase for each thing; none if it is the same.

    Parameters
    ----------
    recorded, now : mapping of str to str
        As `identify` returned them, then and now.
    ignore : collection of str
        Topics that do not matter, such as "gradient" for those who want to learn from the values.

    Examples
    --------
    >>> from leapwise import Target
    >>> then = Target(lambda x: -x @ x, dim=2, names=["a", "b"])
    >>> now = Target(lambda x: -x @ x, dim=2, names=["b", "a"], bounds=[(0, 1), None])
    >>> differences(identify(then), identify(now))
    ["parameters 'a' and 'b' have changed places", "bounds of 'b' were none, are (0, 1)"]
    """
    then, here = (
        {topic: _read(value) for topic, value in each.items() if topic not in ignore}
        for each in (recorded, now)
    )
    return differing(then, here)


def _read(value: object) -> Any:
    """Return what a topic holds; what is no JSON is itself, and differs from all that is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _is_forward(target: AnyTarget) -> bool:
    return hasattr(target, "likelihood") and hasattr(target, "prior")


def _of_likelihood(likelihood: Any) -> dict[str, Any]:
    """Return class, data and noise."""
    if type(likelihood) is not GaussianLikelihood:
        return {"likelihood": _of_density(likelihood)}
    noise = {"sd": _summary(likelihood.sd)}
    if likelihood._factor is not None:
        noise["correlations"] = _digest(_correlations(likelihood))
    return {"likelihood": {"class": "GaussianLikelihood"}, "data": _digest(likelihood.data), "noise": noise}


def _correlations(likelihood: GaussianLikelihood) -> np.ndarray:
    """Return the correlations of the noise times a fixed vector, ``(m,)``.

    They are known through a factor, whose last digits differ between machines, so they are rounded.
    """
    assert likelihood._factor is not None
    fixed = np.arange(1, likelihood.data.size + 1) * 0.6180339887498949 % 1.0
    product = likelihood._factor @ (likelihood._factor.T @ (fixed / likelihood.sd)) / likelihood.sd
    return np.asarray(product.round(8))


def _of_density(density: Any) -> dict[str, Any]:
    """Return the class of a likelihood or prior, and what it holds if that cannot change."""
    kind = type(density)
    found: dict[str, Any] = {"class": kind.__name__}
    if kind in _OWN_PRIORS:
        return found | {name: getattr(density, name) for name in _OWN_PRIORS[kind]}
    if is_dataclass(density) and kind.__dataclass_params__.frozen:
        parts = {each.name: getattr(density, each.name) for each in fields(density)}
        found |= {name: _summary(value) for name, value in parts.items() if _is_data(value)}
    return found


def _is_data(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    return value is None or isinstance(value, (bool, int, float, str, np.bool_, np.integer, np.floating))


def _summary(value: Any) -> Any:
    """Return an array as one number if all are the same, else as a digest; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    same = value.size and (value == value.flat[0]).all()
    return value.flat[0] if same else _digest(value)


def _digest(array: np.ndarray) -> dict[str, Any]:
    """Return the shape of an array and hashes of its numbers, rounded to nine digits in two ways.

    Numbers that differ in the last digit only may be rounded apart in one way, but hardly ever in both.
    """
    mantissa, exponent = np.frexp(np.asarray(array, dtype="<f8"))
    ways = (np.ldexp(np.floor(mantissa * _BITS + shift) / _BITS, exponent) + 0.0 for shift in (0.5, 0.0))
    hashes = [hashlib.blake2b(way.astype("<f8").tobytes(), digest_size=8).hexdigest() for way in ways]
    return {"shape": list(np.shape(array)), "hashes": hashes}


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it: what is not finite is None, which bounds have where there is none."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
