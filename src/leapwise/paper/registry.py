"""The tables, figures and checks that can be reproduced, by the names of the command line.

A module is only imported when its result is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from leapwise.errors import InputError


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
    Reproduction("fig1", "four surrogates of a parabola", "figure1:figure1"),
    Reproduction("fig2", "force and trajectories of a surrogate on the banana", "figure2:figure2"),
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
