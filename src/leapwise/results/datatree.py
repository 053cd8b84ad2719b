"""A run as an ArviZ `DataTree` and as a netCDF file, and back; values in the form that JSON and netCDF can hold."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leapwise.errors import InputError, MissingExtraError
from leapwise.results.estimates import Estimates, Evidence, Precision
from leapwise.results.estimating import of_parameters
from leapwise.results.predictive import predictive_groups
from leapwise.targets.variables import Variable, split

if TYPE_CHECKING:
    from xarray import DataTree

    from leapwise.results.run import Record, Run, SurrogateReport


#: Groups with one entry for each draw whose outputs were kept.
OF_DRAWS = ("predictions", "posterior_predictive", "log_likelihood")


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


def to_datatree(run: Run, predictive: bool | None = None) -> DataTree:
    """Return a run in ArviZ's schema; the same call works with old and new versions of arviz-base.

    Parameters
    ----------
    run : Run
    predictive : bool, optional
        As for `leapwise.results.predictive.predictive_groups`.
    """
    from arviz_base import from_dict  # slow to import: it brings xarray and pandas

    groups = {"posterior": _variables(run.variables, run.draws), "sample_stats": run.posterior.stats}
    if run.warmup.draws.shape[1]:
        groups["warmup_posterior"] = _variables(run.variables, run.warmup.draws)
        groups["warmup_sample_stats"] = run.warmup.stats
    of_outputs = {
        group: {_variable(name): values for name, values in found.items()}
        for group, found in predictive_groups(run, predictive).items()
    }
    groups = {name: variables for name, variables in (groups | of_outputs).items() if variables}
    attrs = attributes(run)
    shaped = (*run.variables, *run.output_variables)
    dims = {_variable(each.name): list(each.dims) for each in shaped if each.dims}

    def converted(groups: dict[str, Any], dims: dict[str, list[str]]) -> DataTree:
        found: DataTree = from_dict(
            groups,
            sample_dims=["chain", "draw"],
            save_warmup=True,  # arviz-base's own default drops the warm-up
            check_conventions=False,  # having more chains than draws is allowed here
            coords=run.coords,
            dims=dims,
            pred_coords=run.coords,  # of the group predictions
            pred_dims=dims,
            attrs={name: attrs for name in groups},
        )
        return found

    tree = converted(groups, dims)
    # Where data are missing the log-likelihoods of the others are in a row, with a dim of its own.
    in_a_row = {
        _variable(each.name): [f"{_variable(each.name)}_observed"]
        for each in run.output_variables
        if groups.get("log_likelihood", {}).get(_variable(each.name), np.empty((0, 0))).shape[2:]
        != each.shape
    }
    if in_a_row and "log_likelihood" in groups:
        group = {"log_likelihood": groups["log_likelihood"]}
        tree["log_likelihood"] = converted(group, dims | in_a_row)["log_likelihood"]
    if run.posterior.every > 1:  # outputs of some of the draws only
        for name in set(OF_DRAWS) & set(of_outputs):
            data = tree[name].dataset
            tree[name].dataset = data.assign_coords(draw=run.posterior.every * np.arange(data.sizes["draw"]))
    if run.surrogate is not None:
        tree["surrogate"] = surrogate_group(run.surrogate)
    if (estimates := of_parameters(run)) is not None:
        tree["estimates"] = estimates_group(estimates, run)
    return tree


def estimates_group(estimates: Estimates, run: Run) -> DataTree:
    """Return the estimates of all parameters: one variable for each, with an axis of statistics; and the evidence."""
    from xarray import Dataset, DataTree

    def dims(each: Variable) -> list[str]:
        return list(each.dims or (f"{_variable(each.name)}_dim_{i}" for i in range(len(each.shape))))

    arrays = estimates.to_arrays()
    found = {_variable(each.name): (["statistic", *dims(each)], arrays[each.name]) for each in run.variables}
    attrs = {
        "sharpened": int(estimates.is_sharpened),  # netCDF has no booleans
        "reason": estimates.reason,
        "cross_fitted": int(estimates.cross_fitted),
        "seconds": estimates.seconds,
    }
    if run.kernel is not None or run.stored_evidence is not None:
        with suppress(InputError):  # it is not known
            evidence = run.log_evidence()
            attrs |= {"log_evidence": evidence.value, "log_evidence_error": evidence.error}
            attrs["log_evidence_is_normalised"] = int(evidence.is_normalised)
    labels = {
        dim: values for dim, values in run.coords.items() if any(dim in each for each, _ in found.values())
    }
    return DataTree(Dataset(found, coords={"statistic": estimates.statistics(), **labels}, attrs=attrs))


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
        "names": json.dumps(run.names),
        "variables": json.dumps([asdict(each) for each in run.variables]),
        "output_variables": json.dumps([asdict(each) for each in run.output_variables]),
        "target": json.dumps(None if run.target is None else plain(asdict(run.target))),
        "precision": json.dumps(None if run.precision is None else plain(run.precision._asdict())),
        "failures": json.dumps(None if run.failures is None else run.failures.tolist()),
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
    require_netcdf_libraries()
    return require_writable(file)


def require_netcdf_libraries() -> None:
    """Raise unless netCDF files can be written and read."""
    if find_spec("h5netcdf") is None or find_spec("h5py") is None:
        raise MissingExtraError(
            "saving needs h5netcdf and h5py, which are not installed; pip install 'leapwise[netcdf]'"
        )


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


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of the `Run` that a netCDF file holds, as `save` wrote it, with dicts for its records."""
    require_netcdf_libraries()
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"path must be the name of a file, got {type(path).__name__}; give a string or a Path"
        )
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}; give one that run.save() wrote")
    try:
        return _read(path)
    except InputError:
        raise
    except Exception as error:  # damaged files make the libraries raise errors of many kinds
        words = " ".join(str(error).split())
        raise InputError(f"cannot read {path}: {words}; give a file that run.save() wrote") from error


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    from xarray import open_datatree

    with open_datatree(path, engine="h5netcdf") as opened:
        tree = opened.load()
    attrs = tree["posterior"].attrs if "posterior" in tree else {}
    if not {"variables", "output_variables"} <= set(attrs):
        raise InputError(
            f"{path} was not written by run.save(), or by an earlier version; open it with xarray"
        )
    variables, layout = (_read_variables(attrs[name]) for name in ("variables", "output_variables"))
    names, failures = json.loads(attrs["names"]), json.loads(attrs["failures"])
    draws, stats = _read_record(tree, "", variables)
    warmup_draws, warmup_stats = _read_record(tree, "warmup_", variables)
    if warmup_draws is None:
        warmup_draws = draws[:, :0]
    groups = {
        name: {str(key): each.to_numpy() for key, each in tree[name].data_vars.items()}
        for name in (*OF_DRAWS, "observed_data", "constant_data")
        if name in tree
    }
    outputs, every = None, 0
    if "predictions" in groups:
        parts = [groups["predictions"][_variable(each.name)] for each in layout]
        outputs = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)
        which = tree["predictions"]["draw"].to_numpy()
        every = int(which[1] - which[0]) if len(which) > 1 else 1
    dims = {dim for each in (*variables, *layout) for dim in each.dims or ()}
    coords = {
        dim: _labels(group.coords[dim].to_numpy())
        for group in tree.children.values()
        for dim in dims & set(map(str, group.coords))
    }
    return {
        "names": names if isinstance(names, str) else tuple(names),
        "variables": variables,
        "coords": coords,
        "groups": groups,
        "loaded_outputs": layout,
        "posterior": {
            **{"draws": draws, "stats": stats, "cost": _read_cost(attrs, "")},
            **{"outputs": outputs, "every": every},
        },
        "warmup": {"draws": warmup_draws, "stats": warmup_stats, "cost": _read_cost(attrs, "warmup_")},
        "settings": json.loads(attrs["settings"]),
        "seed": int(attrs["random_seed"]) if "random_seed" in attrs else None,
        "versions": json.loads(attrs["versions"]),
        "complete": bool(attrs["complete"]),
        "n_adaptive": int(attrs["n_adaptive"]),
        "surrogate": _read_surrogate(tree["surrogate"]) if "surrogate" in tree else None,
        **(_read_estimates(tree["estimates"], variables) if "estimates" in tree else {}),
        "failures": None if failures is None else np.array(failures).reshape(-1, draws.shape[2]),
        "target": _numbers(json.loads(attrs["target"])),
        "precision": _read_precision(json.loads(attrs["precision"])),
    }


def _labels(found: np.ndarray) -> list[Any]:
    """Return labels as a list; dates stay dates."""
    return list(found) if found.dtype.kind in "Mm" else list(found.tolist())


def _read_variables(written: str) -> tuple[Variable, ...]:
    return tuple(
        Variable(each["name"], tuple(each["shape"]), None if each["dims"] is None else tuple(each["dims"]))
        for each in json.loads(written)
    )


def _read_record(
    tree: Any, prefix: str, variables: tuple[Variable, ...]
) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the draws ``(chains, draws, dim)`` of a phase, None if it has none, and its statistics."""
    group, stats = f"{prefix}posterior", f"{prefix}sample_stats"
    if group not in tree:
        return None, {}
    parts = [tree[group][_variable(each.name)].to_numpy() for each in variables]
    draws = np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)
    found = tree[stats].data_vars.items() if stats in tree else ()
    return draws, {str(name): each.to_numpy() for name, each in found}


def _read_cost(attrs: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    """Return the fields of a `Cost`."""
    names = {name.removeprefix(prefix): name for name in attrs if name.startswith(f"{prefix}n_")}
    names |= {name: prefix + name for name in ("value_seconds", "gradient_seconds", "in_parallel")}
    found = {name: attrs[key] for name, key in names.items()}
    found["in_parallel"] = bool(found["in_parallel"])
    found["seconds"] = attrs["tuning_time" if prefix else "sampling_time"]
    return {
        name: int(value) if name.startswith("n_") else value if isinstance(value, bool) else float(value)
        for name, value in found.items()
        if name != "n_adaptive"
    }


def _read_surrogate(group: Any) -> dict[str, Any]:
    """Return the fields of a `SurrogateReport`."""
    history = np.stack([group["n_exact"].to_numpy(), group["discrepancy_sd"].to_numpy()], axis=1)
    found = {
        str(name): each.item() if isinstance(each, np.generic) else each for name, each in group.attrs.items()
    }
    return found | {"history": history.astype(float), "has_gradient": bool(found["has_gradient"])}


def _read_estimates(group: Any, variables: tuple[Variable, ...]) -> dict[str, Any]:
    """Return the estimates and the evidence that `estimates_group` wrote."""
    arrays = {each.name: group[_variable(each.name)].to_numpy() for each in variables}
    about, evidence = group.attrs, None
    estimates = Estimates.from_arrays(
        variables,
        arrays,
        reason=str(about["reason"]),
        cross_fitted=bool(about["cross_fitted"]),
        seconds=float(about["seconds"]),
    )
    if "log_evidence" in about:
        evidence = Evidence(
            float(about["log_evidence"]),
            float(about["log_evidence_error"]),
            bool(about["log_evidence_is_normalised"]),
        )
    return {"stored_estimates": estimates, "stored_evidence": evidence}


def _read_precision(found: dict[str, float | None] | None) -> Precision | None:
    """Return a precision; JSON has None for one that is not known."""
    if found is None or found["asked"] is None:
        return None
    return Precision(found["asked"], np.inf if found["reached"] is None else found["reached"])


def _numbers(report: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a report with NaN where JSON had to hold None."""
    return (
        None if report is None else {name: np.nan if each is None else each for name, each in report.items()}
    )


def _variables(variables: Sequence[Variable], draws: np.ndarray) -> dict[str, np.ndarray]:
    return {_variable(name): each for name, each in split(variables, draws).items()}


def _variable(name: str) -> str:
    """Return a name that a `DataTree` accepts: no path separator, and not the name of a dimension."""
    name = name.replace("/", "_")
    return f"{name}_" if name in ("chain", "draw") else name


def _cost(prefix: str, record: Record) -> dict[str, float]:
    found = asdict(record.cost) | {"in_parallel": int(record.cost.in_parallel)}  # netCDF has no booleans
    return {prefix + name: value for name, value in found.items() if name != "seconds"}
