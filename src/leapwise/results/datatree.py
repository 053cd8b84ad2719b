"""A run as an ArviZ `DataTree` and as a netCDF file, and values in the form that JSON and netCDF can hold."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leapwise.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from xarray import DataTree

    from leapwise.results.run import Record, Run, SurrogateReport


def plain(value: Any) -> Any:
    """Turn arrays into lists, NumPy numbers into Python numbers, and values that are not finite into None.

    Examples
    --------
    >>> plain({"step_size": np.float64(0.5), "rhat": np.array([1.0, np.nan])})
    {'step_size': 0.5, 'rhat': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)


def to_datatree(run: Run) -> DataTree:
    """Return a run in ArviZ's schema; the same call works with old and new versions of arviz-base."""
    from arviz_base import from_dict  # slow to import: it brings xarray and pandas

    groups = {"posterior": _variables(run.names, run.draws), "sample_stats": run.posterior.stats}
    if run.warmup.draws.shape[1]:
        groups["warmup_posterior"] = _variables(run.names, run.warmup.draws)
        groups["warmup_sample_stats"] = run.warmup.stats
    groups = {name: variables for name, variables in groups.items() if variables}
    attrs = attributes(run)
    tree: DataTree = from_dict(
        groups,
        sample_dims=["chain", "draw"],
        save_warmup=True,  # arviz-base's own default drops the warm-up
        check_conventions=False,  # having more chains than draws is allowed here
        attrs={name: attrs for name in groups},
    )
    if run.surrogate is not None:
        tree["surrogate"] = surrogate_group(run.surrogate)
    return tree


def surrogate_group(report: SurrogateReport) -> DataTree:
    """Return a surrogate's report: the rounds of warm-up as variables, the rest as attributes."""
    from xarray import Dataset, DataTree

    n_exact, sd = np.asarray(report.history, dtype=float).reshape(-1, 2).T
    rounds = {"n_exact": ("round", n_exact.astype(int)), "discrepancy_sd": ("round", sd)}
    single = {each.name: getattr(report, each.name) for each in fields(report) if each.name != "history"}
    single["has_gradient"] = int(report.has_gradient)  # netCDF has no booleans
    return DataTree(Dataset(rounds, coords={"round": np.arange(len(sd))}, attrs=single))


def attributes(run: Run) -> dict[str, Any]:
    """Return method, settings, cost and versions in values that netCDF can hold."""
    found = {
        "inference_library": "leapwise",
        "inference_library_version": run.versions.get("leapwise", ""),
        "sampling_time": run.posterior.cost.seconds,
        "tuning_time": run.warmup.cost.seconds,
        "tuning_steps": run.warmup.draws.shape[1],
        "exact": int(run.exact),
        "adaptive": int(run.n_adaptive > 0),
        "n_adaptive": run.n_adaptive,
        "complete": int(run.complete),
        "settings": json.dumps(plain(run.settings)),
        "versions": json.dumps(plain(run.versions)),
        **_cost("", run.posterior),
        **_cost("warmup_", run.warmup),
    }
    if run.seed is not None:
        found["random_seed"] = str(run.seed)  # may have more than the 64 bits of netCDF's integers
    return found


def save(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run to a netCDF file."""
    file = require_netcdf(path)
    # Written under another name and then moved: a full disk does not destroy an older file, and a program that has
    # the older one open does not prevent writing.
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        to_datatree(run).to_netcdf(partial, engine="h5netcdf")
        os.replace(partial, file)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}; choose another path") from error
    finally:
        partial.unlink(missing_ok=True)
    return file


def require_netcdf(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a netCDF file can be written there: its name ends in .nc, and the libraries are installed."""
    file = Path(path)
    if file.suffix != ".nc" and not file.is_dir():
        raise InputError(
            f"draws are saved as netCDF, so the name of the file must end in .nc, got {str(file)!r}; "
            f"give {str(file.with_suffix('.nc') if file.name else 'run.nc')!r}"
        )
    if find_spec("h5netcdf") is None or find_spec("h5py") is None:
        raise MissingExtraError(
            "saving needs h5netcdf and h5py, which are not installed; pip install 'leapwise[netcdf]'"
        )
    return require_writable(file)


def require_writable(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a file can be written there; its folder is made if it is missing."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{file} is a folder; give the name of a file in it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {file.parent}: {error.strerror}; choose another path"
        ) from error
    if not os.access(file.parent, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        raise InputError(f"cannot write {file}: permission denied; choose another path")
    return file


def _variables(names: str | tuple[str, ...], draws: np.ndarray) -> dict[str, np.ndarray]:
    if isinstance(names, str):
        return {_variable(names): draws}
    return {_variable(name): draws[:, :, i] for i, name in enumerate(names)}


def _variable(name: str) -> str:
    """Return a name that a `DataTree` accepts: no path separator, and not the name of a dimension."""
    name = name.replace("/", "_")
    return f"{name}_" if name in ("chain", "draw") else name


def _cost(prefix: str, record: Record) -> dict[str, float]:
    found = asdict(record.cost) | {"in_parallel": int(record.cost.in_parallel)}  # netCDF has no booleans
    return {prefix + name: value for name, value in found.items() if name != "seconds"}
