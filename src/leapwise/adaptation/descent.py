"""Trust regions on emulated outputs: the step of a descent to where a forward model fits its data.

Outputs are emulated from what is known near the lowest position of a descent. The minimum of the emulated potential
within a radius is where it goes next; the radius grows where that was predicted and shrinks where it was not. All but
the emulator is exact: likelihood and prior are as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from leapwise.adaptation.record import EvaluationRecord
from leapwise.surrogates import Fitted, OutputSurrogate, TrainingSet, Whitening
from leapwise.targets import AnyTarget

#: Positions are looked at so far out of the prior's draws, in units of their spread, and so many times as far as the
#: lowest one: models need not work further out.
REACH, FURTHER = 3.5, 1.5
#: Descents end at gains below this.
GAIN = 0.5


@dataclass
class Descent:
    """A trust region around the lowest position of one chain.

    Attributes
    ----------
    position : ndarray of shape (dim,)
    potential : float
        Exact.
    radius : float
        In units of the frame.
    curvature : ndarray of shape (dim, dim) or None
        Of the emulated potential at the position, in the frame.
    settled : bool
        Whether there is nothing more to gain.
    """

    position: np.ndarray
    potential: float
    radius: float
    curvature: np.ndarray | None = None
    settled: bool = False


@dataclass
class Region:
    """What descents have in common.

    Parameters
    ----------
    record : EvaluationRecord
    target : ForwardTarget
    frame : Whitening
        Of the prior.
    rng : Generator
    """

    record: EvaluationRecord
    target: AnyTarget
    frame: Whitening
    rng: np.random.Generator

    def propose(self, descent: Descent, known: TrainingSet) -> tuple[np.ndarray, float] | None:
        """Return where to go on from what is known, and the gain that is predicted; None if there is next to none.

        The descent has then settled, if the emulator knows where it is, or its radius shrinks.
        """
        around = Whitening(descent.position, descent.radius * self.frame.factor)
        # All of it is of use: the emulator is not to leave out what lies high.
        height = float(known.potential.min()) + known.typical_height
        known = replace(known, potential=np.minimum(known.potential, height))
        recipe = replace(OutputSurrogate.of(self.target), whitening=around)  # type: ignore[arg-type]
        emulated = recipe.fit(known, self.rng)
        descent.curvature = (
            self.frame.factor.T @ emulated.hessian(descent.position[None])[0] @ self.frame.factor
        )
        end = self._minimum(emulated, around)
        before, after = emulated.potential(np.stack([descent.position, end]))
        gain = float(before - after)
        if not gain > GAIN:
            descent.settled = abs(before - descent.potential) < 1.0
            descent.radius *= 0.4
            return None
        return end, gain

    def judge(self, descent: Descent, end: np.ndarray, gain: float, potential: float) -> None:
        """Go to the end of a step if it is lower, and choose the radius by how much of the gain came true."""
        far = np.abs(self.frame.vector_to_white(end - descent.position)).max() > 0.8 * descent.radius
        ratio = (descent.potential - potential) / gain
        if potential < descent.potential:
            descent.position, descent.potential = end, potential
        if ratio < 0.25:
            descent.radius *= 0.4
        elif ratio > 0.7 and far:
            descent.radius *= 2.5

    def _minimum(self, emulated: Fitted, around: Whitening) -> np.ndarray:
        """Return the minimum inside the trust region."""
        size = np.diag(around.factor) / np.diag(self.frame.factor)
        centre, reach = self.frame.to_white(around.mean[None])[0], self.reach
        low, high = np.clip((-reach - centre) / size, -1.0, 0.0), np.clip((reach - centre) / size, 0.0, 1.0)
        return minimum(emulated, around, around.mean, list(zip(low, high, strict=True)))

    @property
    def reach(self) -> float:
        """How far out positions are looked at."""
        known = self.record.training()
        lowest = self.frame.to_white(known.position[[int(known.potential.argmin())]])
        return max(REACH, FURTHER * float(np.abs(lowest).max()))

    def within(self, white: np.ndarray) -> np.ndarray:
        """Return positions in the frame, not further out than the reach."""
        return np.clip(white, -self.reach, self.reach)


def minimum(
    surrogate: Fitted,
    frame: Whitening,
    position: np.ndarray,
    bounds: list[tuple[float, float]] | None = None,
    iterations: int = 200,
) -> np.ndarray:
    """Return a minimum of the surrogate near a position, within bounds in the frame."""
    from scipy.optimize import minimize  # slow to import

    def height(white: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            potential, gradient = surrogate.potential_and_gradient(frame.from_white(white[None]))
        if not (np.isfinite(potential).all() and np.isfinite(gradient).all()):
            return 1e100, np.zeros_like(white)
        return float(potential[0]), frame.gradient_to_white(gradient)[0]

    start = frame.to_white(position[None])[0]
    found = minimize(
        height, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations}
    )
    return frame.from_white(found.x[None])[0]
