r"""Crest: where a curved ridge would go on beyond the outermost draws of the surrogate.

A thin banana leaves every straight line: a step along it, however well aimed, ends where there is no mass, and says
nothing of the mass that lies round the bend. So the surrogate's own ridge is traced inwards from its end, where it
is known: at two places a short step back, each brought to the bottom of the valley across. The parabola through the
three tells how it bends, and half of that bend is continued outwards. It costs no exact value to know where to look.
"""

from __future__ import annotations

import numpy as np

from leapwise.surrogates import Fitted, Whitening

#: Newton steps to the bottom of a valley, the longest of them, and the least curvature they reckon with.
N_NEWTON, LONGEST, LEAST_CURVATURE = 4, 1.0, 0.2
#: Differences of curvature that do not count.
ALIKE = 0.1
#: Length of steps back, as a share of the step ahead: short enough not to come round the bend.
BACK = 0.25
#: Share of the bend that is continued: parabolas get straighter outwards, circles do not.
DAMPED = 0.5
#: A continuation so many times as far from the straight line as the step is long has gone astray.
ASTRAY = 2.0


def along_ridge(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, length: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bottom of the valley at positions, and where it would go on from there, away from the middle.

    Parameters
    ----------
    surrogate : Fitted
    frame : Whitening
        Whose coordinates all positions are in.
    white : ndarray of shape (n, dim)
    length : ndarray of shape (n, 1)
        How far to go on.

    Returns
    -------
    tuple of ndarray
        Each of shape ``(n, dim)``; not finite where the surrogate is not.
    """
    with np.errstate(all="ignore"):
        bottom = descend_across(surrogate, frame, white, softest(surrogate, frame, white))
        direction = softest(surrogate, frame, bottom)
        back = BACK * length
        # How far the valley is from the straight line, one and two steps back: a s + b s^2.
        once = descend_across(surrogate, frame, bottom - back * direction, direction)
        once = once - bottom + back * direction
        twice = descend_across(surrogate, frame, bottom - 2.0 * back * direction, direction)
        twice = twice - bottom + 2.0 * back * direction
        a, b = (twice - 4.0 * once) / (2.0 * back), (twice - 2.0 * once) / (2.0 * back**2)
        bend = DAMPED * (length * a + length**2 * b)
        straight = ~(np.linalg.norm(bend, axis=1, keepdims=True) < ASTRAY * length)
        return bottom, bottom + length * direction + np.where(straight, 0.0, bend)


def softest(surrogate: Fitted, frame: Whitening, white: np.ndarray) -> np.ndarray:
    """Return unit vectors of the frame along which the surrogate bends least, away from the middle.

    Where it bends alike in all directions it is rounding that would tell: there it is straight away from the middle.
    """
    outwards = white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-300)
    bent = _hessian(surrogate, frame, white) - ALIKE * outwards[:, :, None] * outwards[:, None, :]
    direction = np.linalg.eigh(bent)[1][:, :, 0]
    inwards = (direction * white).sum(axis=1) < 0
    return np.where(inwards[:, None], -direction, direction)


def _hessian(surrogate: Fitted, frame: Whitening, white: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        hessian = frame.factor.T @ surrogate.hessian(frame.from_white(white)) @ frame.factor
    return np.where(np.isfinite(hessian).all(axis=(1, 2))[:, None, None], hessian, 0.0)


def across_hessian(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return Hessians of the surrogate in the planes across a direction, ``(n, dim, dim)``; 0 along it."""
    across = np.eye(white.shape[1]) - direction[:, :, None] * direction[:, None, :]
    return np.asarray(across @ _hessian(surrogate, frame, white) @ across)


def descend_across(
    surrogate: Fitted, frame: Whitening, white: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return the lowest positions in the planes across a direction, by a few Newton steps of moderate length."""
    across = np.eye(white.shape[1]) - direction[:, :, None] * direction[:, None, :]
    for _ in range(N_NEWTON):
        gradient = frame.gradient_to_white(surrogate.potential_and_gradient(frame.from_white(white))[1])
        values, vectors = np.linalg.eigh(across_hessian(surrogate, frame, white, direction))
        slope = ((across @ gradient[:, :, None]).transpose(0, 2, 1) @ vectors)[:, 0]
        step = (vectors @ (slope / np.maximum(np.abs(values), LEAST_CURVATURE))[:, :, None])[:, :, 0]
        size = np.linalg.norm(step, axis=1, keepdims=True)
        white = white - step * np.minimum(1.0, LONGEST / np.maximum(size, 1e-300))
    return white
