r"""Figure 1: four surrogates of a parabola.

A full Gaussian process, FITC with 5 inducing points, and random networks of 5 RBF or 5 softplus nodes learn the
potential :math:`\frac12 x^2` of a standard normal from N = 10, 20 and 40 nested noisy observations (the authors' own).
Random surrogates are repeated and averaged. The paper's claim is that random networks generalise better from few
points. It is measured by the error inside the range of the data and outside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from leapwise.checks import require_whole
from leapwise.paper.cells import Cells
from leapwise.paper.figure import SURROGATE_COLOURS, open_picture
from leapwise.problems.datasets import load_mat
from leapwise.surrogates import FITC, GaussianProcess, RBFNetwork, SoftplusNetwork, Surrogate, TrainingSet

SIZES = (10, 20, 40)  # observations, as in the paper
SMALL = 5  # inducing points or hidden units, as in the paper
GRID = np.linspace(-4.0, 4.0, 161)  # where curves are compared and drawn
REPEATS, QUICK_REPEATS = 100, 10  # of random surrogates


@dataclass(frozen=True, eq=False)
class Figure1:
    """The numbers of figure 1.

    Attributes
    ----------
    data : dict of int to (ndarray, ndarray)
        The observations, by their number.
    curves : dict of (int, str) to ndarray
        The average surrogate on `GRID`, by number of observations and name.
    rows : list of dict
        For each curve, root mean square errors: of the average curve and of one surrogate (the median over repeats),
        inside the range of the data and outside it, up to 4.
    """

    data: dict[int, tuple[np.ndarray, np.ndarray]]
    curves: dict[tuple[int, str], np.ndarray]
    rows: list[dict[str, Any]]

    @property
    def caption(self) -> str:
        """The surrogates in the order of their errors outside the data, for the fewest and the most points."""
        said = []
        for size in (SIZES[0], SIZES[-1]):
            found = {
                row["surrogate"]: row["average_outside"] for row in self.rows if row["observations"] == size
            }
            errors = ", ".join(
                f"{name} {error:.2g}" for name, error in sorted(found.items(), key=lambda x: x[1])
            )
            said.append(f"with N = {size} it is {errors}")
        return (
            "All four fit the parabola where there are data. Outside, up to |x| = 4, the root mean square error of "
            f"the average curve differs: {'; '.join(said)}."
        )

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw one panel for each number of observations. Needs the extra ``plots``."""
        file, figure = open_picture(path)
        for panel, size in zip(figure.subplots(1, len(SIZES), sharey=True), SIZES, strict=True):
            panel.plot(GRID, 0.5 * GRID**2, color="black", linestyle=":", label=r"truth, $x^2/2$")
            for name, colour in SURROGATE_COLOURS.items():
                panel.plot(GRID, self.curves[size, name], color=colour, label=name)
            panel.plot(*self.data[size], "o", color="black", markersize=3.5, label="observations")
            panel.set(title=f"N = {size}", xlabel="x", xlim=(-4, 4), ylim=(-0.8, 8.5))
        figure.axes[0].set_ylabel("potential")
        figure.axes[0].legend(frameon=False, loc="upper center")
        figure.savefig(file, dpi=150)
        return file


def figure1(
    quick: bool = False, cells: Cells | None = None, *, repeats: int | None = None, seed: int = 0
) -> Figure1:
    """Fit the surrogates of figure 1.

    Parameters
    ----------
    quick : bool
        Make each random surrogate 10 times instead of 100.
    cells : Cells, optional
        Keeps finished fits.
    repeats : int, optional
        How often each random surrogate is made, if neither 10 nor 100.
    seed : int
        Seed of the random nodes.

    Examples
    --------
    >>> from leapwise.paper import figure1
    >>> figure1(quick=True).rows[0]["surrogate"]  # doctest: +SKIP
    'GP'
    """
    repeats = (QUICK_REPEATS if quick else REPEATS) if repeats is None else repeats
    require_whole("repeats", repeats, 1)
    cells = cells or Cells()
    cells.expect(len(SIZES))
    data, curves = {}, {}
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        settings = {"size": size, "repeats": repeats, "seed": seed}
        found = cells.get(f"fig1 · N = {size}", settings, partial(_fits, size, repeats, seed))
        data[size] = x, _ = found["x"], found["y"]
        inside = (x.min() <= GRID) & (x.max() >= GRID)
        for name in SURROGATE_COLOURS:
            curves[size, name] = found[name].mean(axis=0)
            rows.append({"observations": size, "surrogate": name, **_errors(found[name], inside)})
    return Figure1(data, curves, rows)


def _fits(size: int, repeats: int, seed: int) -> dict[str, np.ndarray]:
    """Return the observations, and the potentials of each surrogate's fits on `GRID`."""
    loaded = load_mat(f"surrogate_fit_n{size}.mat")
    x, y = loaded["X"].ravel(), loaded["Y"].ravel()
    training = TrainingSet(x[:, None], y)
    found = {"x": x, "y": y}
    for name, surrogate in _surrogates().items():
        rng = np.random.default_rng(seed)
        n = 1 if name == "GP" else repeats
        found[name] = np.array([surrogate.fit(training, rng).potential(GRID[:, None]) for _ in range(n)])
    return found


def _surrogates() -> dict[str, Surrogate]:
    return {
        "GP": GaussianProcess(use_gradients=False),
        "FITC": FITC(SMALL),
        "RBF": RBFNetwork(SMALL),
        "softplus": SoftplusNetwork(SMALL, gain=1.0),  # few nodes: each must bend
    }


def _errors(fits: np.ndarray, inside: np.ndarray) -> dict[str, float]:
    """Return root mean square errors of the average of the fits, and the median error of single fits."""
    wrong = fits - 0.5 * GRID**2
    average = {
        f"average_{where}": float(np.sqrt(np.mean(wrong[:, chosen].mean(axis=0) ** 2)))
        for where, chosen in (("inside", inside), ("outside", ~inside))
    }
    single = {
        f"single_{where}": float(np.median(np.sqrt(np.mean(wrong[:, chosen] ** 2, axis=1))))
        for where, chosen in (("inside", inside), ("outside", ~inside))
    }
    return average | single
