r"""Figure 1: four surrogates of a parabola.

The potential :math:`\frac12 x^2` of a standard normal is learnt from N = 10, 20 and 40 nested noisy observations (the
authors' own) by a full Gaussian process, FITC with 5 inducing points, and random networks of 5 RBF or 5 softplus
nodes. What is random is repeated and averaged. The paper's claim, that random networks generalise better from few
points, becomes a number: the error inside the range of the data and outside it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from understudy.checks import require_whole
from understudy.problems.datasets import load_mat
from understudy.results.plots import require_picture
from understudy.surrogates import FITC, GaussianProcess, RBFNetwork, SoftplusNetwork, Surrogate, TrainingSet

SIZES = (10, 20, 40)
SMALL = 5  # inducing points or hidden units
GRID = np.linspace(-4.0, 4.0, 161)
COLOURS = {"GP": "#0072b2", "FITC": "#e69f00", "RBF": "#009e73", "softplus": "#d55e00"}  # Okabe and Ito


@dataclass(frozen=True, eq=False)
class Figure1:
    """The numbers of figure 1.

    Attributes
    ----------
    data : dict of int to (ndarray, ndarray)
        The observations, by their number.
    curves : dict of (int, str) to ndarray
        The average surrogate on `GRID`, by number of observations and name.
    errors : list of dict
        For each of them, root mean square errors: of the average curve and of one surrogate (the median over repeats),
        inside the range of the data and outside it, up to 4.
    """

    data: dict[int, tuple[np.ndarray, np.ndarray]]
    curves: dict[tuple[int, str], np.ndarray]
    errors: list[dict[str, float | int | str]]

    def save_table(self, path: str | PathLike[str]) -> Path:
        """Write the errors as CSV."""
        file = Path(path)
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(self.errors[0]))
            writer.writeheader()
            writer.writerows(self.errors)
        return file

    def draw(self, path: str | PathLike[str]) -> Path:
        """Draw one panel for each number of observations. Needs the extra ``plots``."""
        file = require_picture(path)
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4), layout="constrained")
        for panel, size in zip(figure.subplots(1, len(SIZES), sharey=True), SIZES, strict=True):
            panel.plot(GRID, 0.5 * GRID**2, color="black", linestyle=":", label=r"truth, $x^2/2$")
            for name, colour in COLOURS.items():
                panel.plot(GRID, self.curves[size, name], color=colour, label=name)
            panel.plot(*self.data[size], "o", color="black", markersize=3.5, label="observations")
            panel.set(title=f"N = {size}", xlabel="x", xlim=(-4, 4), ylim=(-0.8, 8.5))
        figure.axes[0].set_ylabel("potential")
        figure.axes[0].legend(frameon=False, loc="upper center")
        figure.savefig(file, dpi=150)
        return file


def figure1(repeats: int = 100, seed: int = 0) -> Figure1:
    """Fit the surrogates of figure 1.

    Parameters
    ----------
    repeats : int
        How often each random surrogate is made.
    seed : int
        Of their random nodes.

    Examples
    --------
    >>> from understudy.paper import figure1
    >>> figure1(repeats=5).errors[0]["surrogate"]  # doctest: +SKIP
    'GP'
    """
    require_whole("repeats", repeats, 1)
    data, curves = {}, {}
    errors: list[dict[str, float | int | str]] = []
    for size in SIZES:
        loaded = load_mat(f"surrogate_fit_n{size}.mat")
        data[size] = x, y = loaded["X"].ravel(), loaded["Y"].ravel()
        training = TrainingSet(x[:, None], y)
        inside = (x.min() <= GRID) & (x.max() >= GRID)
        for name, surrogate in _surrogates().items():
            rng = np.random.default_rng(seed)
            n = 1 if name == "GP" else repeats
            fits = np.array([surrogate.fit(training, rng).potential(GRID[:, None]) for _ in range(n)])
            curves[size, name] = fits.mean(axis=0)
            errors.append({"observations": size, "surrogate": name, **_errors(fits, inside)})
    return Figure1(data, curves, errors)


def _surrogates() -> dict[str, Surrogate]:
    return {
        "GP": GaussianProcess(use_gradients=False),
        "FITC": FITC(SMALL),
        "RBF": RBFNetwork(SMALL),
        "softplus": SoftplusNetwork(SMALL),
    }


def _errors(fits: np.ndarray, inside: np.ndarray) -> dict[str, float]:
    """Root mean square errors of the average of the fits, and the median of those of single ones."""
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
