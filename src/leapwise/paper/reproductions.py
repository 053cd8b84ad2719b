"""Every reproduced table, figure and check: by name, what it offers, its colours, and how its files are written.

`get` finds one by its name on the command line. A module is only imported when its result is asked for.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from leapwise.errors import InputError
from leapwise.results.datatree import require_writable
from leapwise.results.plots import require_picture


@dataclass(frozen=True)
class Reproduction:
    """One table, figure or check.

    Attributes
    ----------
    name : str
    title : str
        What it shows, in a few words.
    maker : str
        The function that computes it, as ``module:function``; it takes ``quick=`` and ``cells=``.
    """

    name: str
    title: str
    maker: str

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, function = self.maker.split(":")
        found: Callable[..., Any] = getattr(import_module(f"leapwise.paper.{module}"), function)
        return found


_REPRODUCTIONS = (
    Reproduction("table1", "four samplers on four posteriors", "table1:table1"),
    Reproduction("fig1", "four surrogates of a parabola", "figures1_2:figure1"),
    Reproduction("fig2", "force and trajectories of a surrogate on the banana", "figures1_2:figure2"),
    Reproduction("fig3", "surrogates of a 32-dimensional Gaussian against training size", "figure3:figure3"),
    Reproduction("fig4", "acceptance over dimension and hidden units", "figures4_5:figure4"),
    Reproduction("fig5", "acceptance over training size and hidden units", "figures4_5:figure5"),
    Reproduction("fig6", "marginals of HMC and RNS-HMC", "figure6:figure6"),
    Reproduction("fig7", "acceptance of ARNS-HMC while it learns", "figures7_8:figure7"),
    Reproduction("fig8", "error of the mean against running time", "figures7_8:figure8"),
    Reproduction(
        "agreement", "draws of the surrogate methods compared with exact HMC", "figure6:agreement_check"
    ),
)
_BY_NAME = {each.name: each for each in _REPRODUCTIONS}

NAMES = tuple(_BY_NAME)


def get(name: str) -> Reproduction:
    """Return the table, figure or check called `name`.

    Examples
    --------
    >>> get("fig1").title
    'four surrogates of a parabola'
    """
    if name not in _BY_NAME:
        raise InputError(f"there is no experiment {name!r}; the known ones are {', '.join(NAMES)}")
    return _BY_NAME[name]


#: The colours of Okabe and Ito, which colour-blind readers can distinguish.
OKABE_ITO = {
    "black": "#000000",
    "orange": "#e69f00",
    "sky": "#56b4e9",
    "green": "#009e73",
    "yellow": "#f0e442",
    "blue": "#0072b2",
    "vermillion": "#d55e00",
    "purple": "#cc79a7",
}

#: One colour for each method, the same in every figure.
METHOD_COLOURS = {
    "hmc": OKABE_ITO["black"],
    "rmhmc": OKABE_ITO["purple"],
    "rns-hmc": OKABE_ITO["blue"],
    "rns-rmhmc": OKABE_ITO["orange"],
    "arns-hmc": OKABE_ITO["vermillion"],
}

#: One colour for each surrogate, the same in every figure.
SURROGATE_COLOURS = {
    "GP": OKABE_ITO["blue"],
    "FITC": OKABE_ITO["orange"],
    "RBF": OKABE_ITO["green"],
    "softplus": OKABE_ITO["vermillion"],
}


@runtime_checkable
class Figure(Protocol):
    """A reproduced figure: its numbers, its result in words, and its picture.

    Attributes
    ----------
    rows : list of dict
        The numbers, one dict for each line of the CSV file; all have the same keys.
    caption : str
        One or two sentences that state the result.
    """

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The numbers."""
        ...

    @property
    def caption(self) -> str:
        """The result in words."""
        ...

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw the picture. Needs the extra ``plots``."""
        ...


def save_table(rows: list[dict[str, Any]], path: str | PathLike[str]) -> Path:
    """Write rows as CSV; the folder is made if it is missing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_table([{"N": 10, "error": 0.5}], Path(folder) / "table.csv").read_text().splitlines()
    ['N,error', '10,0.5']
    """
    file = require_writable(path)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file


def open_picture(path: str | PathLike[str], width: float = 12.0, height: float = 4.0) -> tuple[Path, Any]:
    """Return the file and an empty matplotlib figure for it; width and height are in inches.

    Finish with ``figure.savefig(file, dpi=150)``. Pyplot is not used, so the user's figures and backend do not change.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    file = require_picture(path)
    from matplotlib.figure import Figure

    return file, Figure(figsize=(width, height), layout="constrained")
