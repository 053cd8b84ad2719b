"""Draw the inferred diffusivity field."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.errors import InputError
from leapwise.problems.elliptic.problem import EllipticProblem
from leapwise.results.plots import require_picture

_RESOLUTION = 121  # points along each side: smooth for modes of length scale 0.2


def plot_field(problem: EllipticProblem, draws: ArrayLike, path: str | PathLike[str]) -> Path:
    """Draw mean and standard deviation of the log-diffusivity, beside the truth if it is known.

    Truth and mean share one colour scale, white at zero. Dots mark the points where the pressure was observed.

    Parameters
    ----------
    problem : EllipticProblem
        From `elliptic_pde`.
    draws : array_like of shape (..., dim)
        Draws of the mode weights, of any number of chains.
    path : path-like
        File to write; its ending gives the format. Missing folders are made.

    Returns
    -------
    Path
        The file that was written.
    """
    if not isinstance(problem, EllipticProblem):
        raise InputError(f"plot_field draws the field of elliptic_pde(), got {type(problem).__name__}")
    mean, sd, truth, x = _fields(problem, draws)
    file = require_picture(path)
    from matplotlib.figure import Figure

    panels = [] if truth is None else [("true log-diffusivity", truth)]
    panels.append(("posterior mean", mean))
    figure = Figure(figsize=(3.6 * (len(panels) + 1) + 1.2, 3.9), layout="constrained")
    axes = figure.subplots(1, len(panels) + 1, sharex=True, sharey=True)
    limit = max(float(np.abs(field).max()) for _, field in panels) or 1.0
    for axis, (title, field) in zip(axes, panels, strict=False):
        image = _panel(axis, x, field, title, problem, cmap="PuOr_r", vmin=-limit, vmax=limit)
        _contours(axis, x, field, np.linspace(-limit, limit, 11), "0.3")
    figure.colorbar(image, ax=axes[: len(panels)], shrink=0.85, pad=0.02)
    image = _panel(axes[-1], x, sd, "posterior sd", problem, cmap="cividis", vmin=0.0, vmax=float(sd.max()))
    _contours(axes[-1], x, sd, np.linspace(0.0, sd.max(), 13), "0.9")
    figure.colorbar(image, ax=axes[-1], shrink=0.85, pad=0.04)
    axes[0].set_ylabel("$x_2$")
    figure.savefig(file, dpi=150)
    return file


def _fields(
    problem: EllipticProblem, draws: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray]:
    """Return mean, standard deviation and truth of the log-diffusivity on a fine grid, and the grid."""
    modes = problem.model.modes
    weights = np.asarray(draws, dtype=float)
    if weights.ndim < 2 or weights.shape[-1] != modes.n_modes or weights[..., 0].size < 2:
        raise InputError(
            f"draws must have shape (..., {modes.n_modes}) and hold at least two, got {weights.shape}; "
            "pass the draws of theta"
        )
    weights = weights.reshape(-1, modes.n_modes)
    x = np.linspace(0.0, 1.0, _RESOLUTION)
    field = modes.on_grid(x, x)
    # The field is linear in its weights, so its moments follow from theirs.
    basis = field.basis().reshape(modes.n_modes, -1)
    covariance = np.atleast_2d(np.cov(weights, rowvar=False))
    variance = np.einsum("kg,kg->g", basis, covariance @ basis).reshape(_RESOLUTION, _RESOLUTION)
    truth = None if problem.true_parameters is None else field(problem.true_parameters)
    return field(weights.mean(axis=0)), np.sqrt(np.maximum(variance, 0.0)), truth, x


def _panel(
    axis: Any, x: np.ndarray, field: np.ndarray, title: str, problem: EllipticProblem, **colours: Any
) -> Any:
    image = axis.imshow(field.T, origin="lower", extent=(0, 1, 0, 1), interpolation="bilinear", **colours)
    observed = problem.model.observed
    first, second = np.meshgrid(observed, observed, indexing="ij")
    axis.plot(first.ravel(), second.ravel(), "o", ms=2.6, mfc="white", mec="black", mew=0.5, clip_on=False)
    axis.set(title=title, xlabel="$x_1$", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axis.set_xticklabels(("0", "0.5", "1"))
    axis.set_yticklabels(("0", "0.5", "1"))
    return image


def _contours(axis: Any, x: np.ndarray, field: np.ndarray, levels: np.ndarray, colour: str) -> None:
    inside = levels[(levels > field.min()) & (levels < field.max())]
    if inside.size:  # a flat field has no lines, and matplotlib would warn
        axis.contour(x, x, field.T, levels=inside, colors=colour, linewidths=0.5)
