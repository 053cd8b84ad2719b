"""The folder of data and reference draws, and the zipped JSON in it."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "LEAPWISE_POSTERIORDB"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "posteriordb"


def folder() -> Path:
    """Return the folder of data and draws; raise FileNotFoundError if there is none."""
    path = Path(os.environ.get(VARIABLE, _BESIDE))
    if not path.is_dir():
        raise FileNotFoundError(
            f"no folder of posteriordb at {path}; set {VARIABLE} to one that holds NAME.draws.json.zip and "
            "DATA.data.json.zip"
        )
    return path


def read_data(name: str) -> dict[str, Any]:
    """Return the data of a posterior, such as ``"garch-garch11"``; lists become arrays."""
    content = _read(f"{name.split('-')[0]}.data.json.zip")
    return {key: np.array(value) if isinstance(value, list) else value for key, value in content.items()}


def read_draws(name: str, columns: tuple[str, ...]) -> np.ndarray:
    """Return the reference draws ``(chains, draws, columns)``, on the scale on which they are stored."""
    chains = _read(f"{name}.draws.json.zip")
    return np.array([[chain[column] for column in columns] for chain in chains]).swapaxes(1, 2)


def _read(file: str) -> Any:
    path = folder() / file
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} has no {file}")
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))
