"""The data files of the paper's experiments: find or download them, and check them.

A file is searched in the folder that the environment variable ``LEAPWISE_DATA`` names, then in the cache of earlier
downloads. If it is in neither, it is downloaded (with pooch, from the extra ``paper``). Its SHA-256 must always be the
one written here, so that an experiment never runs on other data.

Bank marketing, the PDE's observations and the curve of figure 1 are the authors' own files, from
github.com/chengzhang-uci/RNSHMC; a9a is the LIBSVM version of the UCI "adult" data.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.errors import DataError, InputError

FOLDER_VARIABLE = "LEAPWISE_DATA"
_AUTHORS = "https://raw.githubusercontent.com/chengzhang-uci/RNSHMC/master"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"


@dataclass(frozen=True)
class DataFile:
    """Where a file comes from, and the SHA-256 of its contents for each name it may have."""

    url: str
    checksums: dict[str, str]

    @property
    def download_name(self) -> str:
        """The name under which the download is saved."""
        return next(iter(self.checksums))


FILES = {
    "bank_marketing.mat": DataFile(
        f"{_AUTHORS}/LogisticRegression/Data/bankmarket.mat",
        {"bank_marketing.mat": "bb63ba987b9810d5651f2727d4f9e644ff68cee7f29531797c85103e4afd1378"},
    ),
    "a9a": DataFile(
        f"{_LIBSVM}/a9a",
        {
            "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            "a9a.gz": "b301f3e87350539f3ebc751d07b4691a8c66f0bf38c1d179c86bbf5e2d9623b2",
        },
    ),
    "elliptic_pde.mat": DataFile(
        f"{_AUTHORS}/ellipticPDE/Data/ePDE.mat",
        {"elliptic_pde.mat": "8825d2b078240e9e8e60a2be2e6d4c3adb887eea7a4078412398aeeaf99159ce"},
    ),
    "surrogate_fit_n10.mat": DataFile(
        f"{_AUTHORS}/SurrogateComp/Data/dataN10.mat",
        {"surrogate_fit_n10.mat": "fd3e79eac7b7b23104c6035911e97ad7d81ea0cd43c7e3e14f049729adc3b0ce"},
    ),
    "surrogate_fit_n20.mat": DataFile(
        f"{_AUTHORS}/SurrogateComp/Data/dataN20.mat",
        {"surrogate_fit_n20.mat": "b7771e313258a3dcb01493d6555f3614be060f70ea292ebfccf01ba34174c910"},
    ),
    "surrogate_fit_n40.mat": DataFile(
        f"{_AUTHORS}/SurrogateComp/Data/dataN40.mat",
        {"surrogate_fit_n40.mat": "19cbe8dc2c8466abdac9931ce18444dfd797e20459d14d964736f572e1e6e87f"},
    ),
}


def fetch(name: str) -> Path:
    """Return the path of a checked data file; download it if necessary.

    Parameters
    ----------
    name : str
        One of ``FILES``. For ``"a9a"`` the file may be plain text or ``a9a.gz``; `load_libsvm` reads both.

    Raises
    ------
    DataError
        If the file cannot be found or downloaded, or has other contents than expected.
    """
    if name not in FILES:
        raise InputError(f"there is no data file {name!r}; the known ones are {', '.join(FILES)}")
    return _find(name) or _download(name)


def load_mat(name: str) -> dict[str, np.ndarray]:
    """Return the variables of one of the MATLAB files, by name."""
    from scipy.io import loadmat

    contents = loadmat(fetch(name))
    return {key: value for key, value in contents.items() if not key.startswith("__")}


def load_libsvm(name: str, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features ``(n_rows, n_features)`` and labels ``(n_rows,)`` of a file in LIBSVM's text format."""
    path = fetch(name)
    text = path.read_bytes()
    return parse_libsvm(gzip.decompress(text) if path.suffix == ".gz" else text, n_features)


def parse_libsvm(text: bytes, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Read lines of ``label index:value index:value ...``, indices from 1.

    Examples
    --------
    >>> features, labels = parse_libsvm(b"-1 2:1\n+1 1:0.5 3:2\n", 3)
    >>> features
    array([[0. , 1. , 0. ],
           [0.5, 0. , 2. ]])
    >>> labels
    array([-1.,  1.])
    """
    characters = np.frombuffer(text, dtype=np.uint8)
    lines_before = np.cumsum(characters == ord("\n"))
    row = lines_before[characters == ord(":")]
    n_rows = int(lines_before[-1]) + (not text.endswith(b"\n"))
    numbers = np.fromstring(text.replace(b":", b" ").decode("ascii"), sep=" ")
    # A row of k entries takes 1 + 2k numbers: its label, then an index and a value for each.
    ends = np.cumsum(1 + 2 * np.bincount(row, minlength=n_rows))
    label_at = np.concatenate([[0], ends[:-1]])
    index, value = np.delete(numbers, label_at).reshape(-1, 2).T
    features = np.zeros((n_rows, n_features))
    features[row, index.astype(int) - 1] = value
    return features, numbers[label_at]


def _find(name: str) -> Path | None:
    """Search the user's folder; a file of the right name with other contents is an error."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    for file_name, expected in FILES[name].checksums.items():
        path = Path(folder) / file_name
        if path.is_file():
            got = hashlib.sha256(path.read_bytes()).hexdigest()
            if got != expected:
                raise DataError(
                    f"{path} is not the expected file: its SHA-256 is {got}, expected {expected}; "
                    "replace it, or remove it to have it downloaded"
                )
            return path
    return None


def _download(name: str) -> Path:
    """Fetch the file from the cache or from its origin, through pooch."""
    file = FILES[name]
    try:
        import pooch
    except ImportError as error:
        raise DataError(
            _missing(name, "pooch, which downloads it, is not installed (pip install 'leapwise[paper]')")
        ) from error
    cache: Any = pooch.os_cache("leapwise")
    expected = file.checksums[file.download_name]
    try:
        return Path(pooch.retrieve(file.url, f"sha256:{expected}", fname=file.download_name, path=cache))
    except ValueError as error:  # pooch raises this for a wrong checksum
        reason = f"the file that {file.url} sent is not the expected one (its SHA-256 is not {expected})"
        raise DataError(_missing(name, reason, cache)) from error
    except OSError as error:  # no network, no such page, disk full: the errors of requests are OSErrors too
        reason = f"downloading {file.url} failed ({type(error).__name__}: {error})"
        raise DataError(_missing(name, reason, cache)) from error


def _missing(name: str, reason: str, cache: Path | None = None) -> str:
    """Say where a file was searched, why it could not be downloaded, and what to do."""
    folder = os.environ.get(FOLDER_VARIABLE)
    searched = [f"{folder} (from {FOLDER_VARIABLE})"] if folder else []
    searched += [f"{cache} (the download cache)"] if cache is not None else []
    where = f"not in {' nor in '.join(searched)}" if searched else f"{FOLDER_VARIABLE} is not set"
    names = " or ".join(FILES[name].checksums)
    return (
        f"the data file {names} is missing: {where}, and {reason}; get it from {FILES[name].url}, save it as "
        f"{FILES[name].download_name} in a folder, and set {FOLDER_VARIABLE} to that folder"
    )
