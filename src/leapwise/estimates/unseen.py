"""What the draws do not show: three parts of the squared standard error of a sharpened mean.

- Regions beyond the outermost draws, which are 1 / n of the posterior on average. There f is taken to be as far from
  its mean as at the farthest of the draws with large potentials (an indicator: as at any draw), and the surrogate to be
  wrong.
- Regions where w is clearly larger than at all draws, as proposals or points of the surrogate have shown: the same,
  with the share of these proposals or points.
- Tails of the surrogate that no draw has reached yet. A surrogate that is too flat has much mass there, with large w.
  The draws then show neither the mean of the corrected series nor its variance. There w is taken to go on as it rises
  towards the outermost draws, and what this adds to the variance and to the mean counts as error. Where w does not
  rise it adds next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from leapwise.estimates.series import Columns, Part

#: The outermost draws. Their mean weight says how w rises with the distance. A guess: fewer would be noisy.
_OUTERMOST = 10
#: Share of the draws whose potentials are large. A guess: where few parameters matter, the farthest draws are among
#: these; among many parameters each of these draws is as far from the mean of any one of them as most draws are.
_LARGE = 0.02
#: The surrogate's mass beyond all draws in some direction is that of one draw on average, and more than t draws with a
#: probability of e^-t. It is refused if that is less than e^-8 in all directions together, and what is beyond the first
#: number counts as a region that no draw shows.
_USUAL_BEYOND, _MOST_BEYOND = 5.0, 8.0


def regions(columns: Columns, parts: Sequence[Part]) -> np.ndarray:
    """Return what regions that no draw shows add to the squared error of each mean ``(k,)``."""
    draws = columns.draws
    n, centre = draws.shape[0] * draws.shape[1], draws.mean(axis=(0, 1))
    is_indicator = ((draws == 0.0) | (draws == 1.0)).all(axis=(0, 1))
    outermost = [np.where(is_indicator, np.square(np.abs(centre - 0.5) + 0.5), 0.0)]
    for part in parts:
        away = np.square(draws[part.chains] - centre).reshape(-1, draws.shape[2])
        outer = min(_OUTERMOST, len(away))
        large = min(max(outer, int(_LARGE * len(away))), len(away))
        away = away[np.argpartition(part.predicted.ravel(), -large)[-large:]]
        outermost.append(np.partition(away, -outer, axis=0)[-outer:].mean(axis=0))
    shown = max(part.unseen for part in parts)
    return np.asarray(np.max(outermost, axis=0) * (1.0 / n**2 + shown**2))


def mass_beyond(part: Part, draws: np.ndarray, points: np.ndarray) -> float:
    """Return the largest share of the surrogate's mass that is beyond all draws, above or below in a column.

    Parameters
    ----------
    part : Part
    draws : ndarray of shape (chains, draws, k)
        Values at all draws.
    points : ndarray of shape (sets, n, k)
        Values at the points of the surrogate.
    """
    lowest, highest = draws.min(axis=(0, 1)), draws.max(axis=(0, 1))
    shares = [part.points.expectation(each)[0].max() for each in (points < lowest, points > highest)]
    far = part.points.weights[part.points.potential > part.predicted.max()].sum()
    return float(max(*shares, far))


def unusual(share: float, effective: float, n_columns: int) -> tuple[float, bool]:
    """Return how much of such a share of mass is not chance, and whether it is so much that the surrogate is wrong.

    Parameters
    ----------
    share : float
        What `mass_beyond` returns.
    effective : float
        Number of effective draws.
    n_columns : int
        There are so many columns, each with two directions.
    """
    most = _MOST_BEYOND + np.log(2 * n_columns + 1)
    return max(0.0, share - _USUAL_BEYOND / effective), bool(share * effective > most)


class Beyond(NamedTuple):
    """Points of a part's surrogate that are farther out than all draws: above, below, or by their potential.

    Attributes
    ----------
    part : int
        Which part.
    direction : int
        0 for above, 1 for below, 2 for the potential.
    where : tuple of ndarray
        Indices of sets, points and columns.
    mass : ndarray
        Probability of each under the surrogate.
    weight : ndarray
        w there, if it goes on as it rises towards the outermost draws.
    """

    part: int
    direction: int
    where: tuple[np.ndarray, ...]
    mass: np.ndarray
    weight: np.ndarray


def beyond_draws(columns: Columns, parts: Sequence[Part]) -> list[Beyond]:
    """Return the points in tails that no draw has reached; log w is taken to be linear in the distance there."""
    found, k = [], columns.draws.shape[2]
    controls = columns.draws if columns.controls is None else columns.controls
    centre = controls.mean(axis=(0, 1))
    for which, (part, points) in enumerate(zip(parts, columns.points, strict=True)):
        here = controls[part.chains].reshape(-1, k) - centre
        middle = part.predicted.mean()
        distances = (
            (here, points - centre),
            (-here, centre - points),
            (part.predicted.reshape(-1, 1) - middle, (part.points.potential - middle)[:, :, None]),
        )
        log_weight = part.log_weights.ravel()
        usual, outer = log_weight.mean(), min(_OUTERMOST, len(here))
        for direction, (draws, others) in enumerate(distances):
            is_beyond = (others > draws.max(axis=0)) & (part.points.weights > 0.0)[:, :, None]
            where = np.nonzero(np.broadcast_to(is_beyond, (*is_beyond.shape[:2], k)))
            outermost = np.argpartition(draws, -outer, axis=0)[-outer:]
            with np.errstate(all="ignore"):
                rise = (log_weight[outermost].mean(axis=0) - usual) / np.take_along_axis(
                    draws, outermost, axis=0
                ).mean(axis=0)
                column = where[2] if draws.shape[1] == k else np.zeros_like(where[2])
                weight = np.exp(usual + rise[column] * others[where[0], where[1], column])
            found.append(Beyond(which, direction, where, part.points.weights[where[:2]], weight))
    return found


def tails(columns: Columns, parts: Sequence[Part], beyond: Sequence[Beyond], beta: np.ndarray) -> np.ndarray:
    """Return what the tails of the surrogate beyond all draws add to the squared error of each mean ``(k,)``.

    The posterior's density is that of the surrogate over w there, and z - E f = (f - E f) (1 - beta w). The sums over
    the points are what the tail adds to the mean of z, and to its variance.
    """
    n_chains, n_draws, k = columns.draws.shape
    centre = (columns.draws if columns.controls is None else columns.controls).mean(axis=(0, 1))
    means, variances = np.zeros((2, 3, k))  # of each direction
    for each in beyond:
        part, column = parts[each.part], each.where[2]
        share = len(part.chains) / n_chains
        away = columns.points[each.part][each.where] - centre[column]
        with np.errstate(all="ignore"):
            lost = away * (1.0 - beta[part.chains].mean(axis=0)[column] * each.weight)
            mass = share * each.mass / each.weight
            means[each.direction] += np.bincount(column, mass * lost, k)
            variances[each.direction] += np.bincount(column, mass * np.square(lost), k)
    return np.asarray(np.sum(np.square(means) + variances / (n_chains * n_draws), axis=0))
