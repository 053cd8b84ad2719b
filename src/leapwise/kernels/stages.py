"""Where inner steps on a surrogate take place: among positions, or in coordinates that swing about a centre.

A stage moves chains by one trajectory without a decision, and knows what height and what kinetic energy are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from leapwise.checks import ask_surrogate
from leapwise.dynamics import EuclideanMetric, PhasePoint, glide, kinetic_energy, swing
from leapwise.kernels.guides import SurrogateGuide
from leapwise.kernels.state import KnownForce, State
from leapwise.surrogates import Fitted, Whitening
from leapwise.surrogates.fast import Fast


class Stage(Protocol):
    """What `inner_walk` moves chains on."""

    def enter(self, state: State) -> PhasePoint:
        """Return the chains on this stage, at rest; not `complete` where the surrogate is not finite."""
        ...

    def go(
        self, point: PhasePoint, normals: np.ndarray, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Return where trajectories end that begin with these normals, with potentials; and kinetic energies gained.

        Where one was given up, it is not `complete` and its potential is NaN.
        """
        ...

    def leave(self, end: PhasePoint, moved: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return positions, those of the state where not moved, and momenta."""
        ...

    def known(self, point: PhasePoint) -> KnownForce:
        """Return what is known of the surrogate at points of this stage."""
        ...

    def places(self, point: PhasePoint) -> np.ndarray:
        """Return points as positions ``(n, dim)``."""
        ...

    def put(self, point: PhasePoint, position: np.ndarray, counts: np.ndarray) -> PhasePoint:
        """Return the points put to positions, with potentials; NaN where that does not count."""
        ...


@dataclass(frozen=True, eq=False)
class Straight:
    """Positions themselves, along which leapfrog leads.

    Parameters
    ----------
    guide : SurrogateGuide
    metric : EuclideanMetric
    """

    guide: SurrogateGuide
    metric: EuclideanMetric

    def enter(self, state: State) -> PhasePoint:
        """Ask for potentials and gradients, if they are not known from the last step."""
        force = state.known_force
        if (
            force is None
            or force.surrogate is not self.guide.surrogate
            or force.potential is None
            or force.gradient is None
        ):
            with np.errstate(all="ignore"):
                gradient, potential = self.guide.slope(state.position), self.guide.height(state.position)
        else:
            gradient, potential = force.gradient, force.potential
        rest = np.zeros_like(state.position)
        return PhasePoint(state.position, rest, potential, gradient, np.isfinite(potential))

    def go(
        self, point: PhasePoint, normals: np.ndarray, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Follow leapfrog."""
        momentum = self.metric.momentum(normals)
        start = PhasePoint(point.position, momentum, point.potential, point.gradient, point.complete)
        end = glide(self.guide.slope, self.metric, start, step_size, n_steps)
        potential = heights(self.guide.height, end.position, end.complete)
        with np.errstate(all="ignore"):
            gained = kinetic_energy(self.metric, end.momentum) - kinetic_energy(self.metric, momentum)
        return PhasePoint(end.position, end.momentum, potential, end.gradient, end.complete), gained

    def leave(self, end: PhasePoint, moved: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return what there is."""
        return end.position, end.momentum

    def known(self, point: PhasePoint) -> KnownForce:
        """Return gradients and potentials."""
        return KnownForce(self.guide.surrogate, point.gradient, point.potential)

    def places(self, point: PhasePoint) -> np.ndarray:
        """Return what there is."""
        return point.position

    def put(self, point: PhasePoint, position: np.ndarray, counts: np.ndarray) -> PhasePoint:
        """Ask for potentials and gradients."""
        potential = heights(self.guide.height, position, counts)
        gradient = np.zeros_like(position)
        if counts.any():
            with np.errstate(all="ignore"):
                gradient[counts] = self.guide.slope(position[counts])
        return PhasePoint(position, point.momentum, potential, gradient, point.complete)


@dataclass(frozen=True, eq=False)
class Swinging:
    """Coordinates in a frame, in which chains swing about the origin (see `leapwise.dynamics.swing`).

    Parameters
    ----------
    surrogate : Fitted
    frame : Whitening
    fast : Fast
        Potential and gradient of the surrogate, as functions of coordinates in the frame.
    """

    surrogate: Fitted
    frame: Whitening
    fast: Fast

    def enter(self, state: State) -> PhasePoint:
        """Ask for potentials, if they are not known from the last step."""
        force = state.known_force
        with np.errstate(all="ignore"):
            white = self.frame.to_white(state.position)
        if force is None or force.surrogate is not self.surrogate or force.potential is None:
            with np.errstate(all="ignore"):
                potential = self._height(white)
        else:
            potential = force.potential
        rest = np.zeros_like(white)
        return PhasePoint(white, rest, potential, rest, np.isfinite(potential))

    def go(
        self, point: PhasePoint, normals: np.ndarray, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Swing; chains that are not `complete` only seem to."""
        position, momentum, complete = swing(self._slope, point.position, normals, step_size, n_steps)
        complete &= point.complete
        potential = heights(self._height, position, complete)
        with np.errstate(all="ignore"):
            gained = 0.5 * (np.vecdot(momentum, momentum) - np.vecdot(normals, normals))
        return PhasePoint(position, momentum, potential, point.gradient, complete), gained

    def leave(self, end: PhasePoint, moved: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and momenta in the coordinates of the state; those that did not move, to the last bit."""
        with np.errstate(all="ignore"):
            position = self.frame.from_white(end.position)
            momentum = self.frame.gradient_from_white(end.momentum)
        return (position if moved.all() else np.where(moved[:, None], position, state.position)), momentum

    def known(self, point: PhasePoint) -> KnownForce:
        """Return potentials."""
        return KnownForce(self.surrogate, potential=point.potential)

    def places(self, point: PhasePoint) -> np.ndarray:
        """Return positions from coordinates in the frame."""
        with np.errstate(all="ignore"):
            return self.frame.from_white(point.position)

    def put(self, point: PhasePoint, position: np.ndarray, counts: np.ndarray) -> PhasePoint:
        """Ask for potentials."""
        with np.errstate(all="ignore"):
            white = self.frame.to_white(position)
        potential = heights(self._height, white, counts)
        return PhasePoint(white, point.momentum, potential, point.gradient, point.complete)

    def _slope(self, white: np.ndarray) -> np.ndarray:
        return ask_surrogate(self.surrogate, self.fast.gradient, white.shape, "gradients", white)

    def _height(self, white: np.ndarray) -> np.ndarray:
        return ask_surrogate(self.surrogate, self.fast.potential, white.shape[:1], "potentials", white)


def heights(
    height: Callable[[np.ndarray], np.ndarray], position: np.ndarray, complete: np.ndarray
) -> np.ndarray:
    """Return potentials where trajectories were completed, NaN elsewhere."""
    with np.errstate(all="ignore"):
        if complete.all():
            return height(position)
        potential = np.full(len(position), np.nan)
        if complete.any():
            potential[complete] = height(position[complete])
    return potential
