"""The surrogate transition: many steps on the surrogate, one exact value.

Where inner steps on a surrogate take place: among positions, or in coordinates that swing about a centre.

A stage moves chains by one trajectory without a decision, and knows what height and what kinetic energy are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import ask_surrogate, require_real, require_whole
from leapwise.dynamics import EuclideanMetric, PhasePoint, glide, kinetic_energy, swing
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.accept import metropolis, surrogate_transition
from leapwise.kernels.hmc import MAX_ENERGY_ERROR
from leapwise.kernels.jumps import Jumps
from leapwise.kernels.state import Info, KnownForce, State
from leapwise.kernels.streams import AnyStreams
from leapwise.kernels.surrogate_hmc import EuclideanGuided
from leapwise.kernels.trajectory import SurrogateGuide
from leapwise.surrogates import Fitted, Whitening
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate


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
    """Coordinates in a frame, in which chains swing about the origin (see `leapwise.dynamics.split`).

    Parameters
    ----------
    surrogate : Fitted
    frame : Whitening
    compiled : CompiledSurrogate
        Potential and gradient of the surrogate, as functions of coordinates in the frame.
    """

    surrogate: Fitted
    frame: Whitening
    compiled: CompiledSurrogate

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
        return ask_surrogate(self.surrogate, self.compiled.gradient, white.shape, "gradients", white)

    def _height(self, white: np.ndarray) -> np.ndarray:
        return ask_surrogate(self.surrogate, self.compiled.potential, white.shape[:1], "potentials", white)


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


#: How often a chain that can jump is made to try, before or after the inner steps.
JUMPED = 0.75


@dataclass(frozen=True, eq=False)
class SurrogateTransition(EuclideanGuided):
    r"""Several HMC steps on a trained surrogate, then one exact value that decides on where they led.

    Invariant because: each inner step is HMC on the frozen surrogate :math:`\tilde U`, with its own Metropolis step and
    with lengths drawn anew and independently of the state, so it is reversible for :math:`e^{-\tilde U}`; a power of a
    reversible kernel is reversible; and `surrogate_transition` corrects any such kernel for the exact potential. A poor
    surrogate costs acceptance, not invariance.

    With a `centre` inner trajectories swing about it (`leapwise.dynamics.split`) instead of following leapfrog: both
    preserve volume and are reversible for any force that is a function of the position alone, so the same proof holds.

    With `jumps`, a jump L on the surrogate comes before the inner steps P or after them, with probability 3/8 each, or
    not at all, as is drawn for each chain and draw. L is reversible for :math:`e^{-\tilde U}` (see
    `leapwise.kernels.jumps`); run backwards, first L then P is first P then L; and since what is drawn knows nothing
    of the state, :math:`\frac38 (L P + P L) + \frac14 P` is the same both ways. A jump that always came first would not
    be. (One before and one after would do too, but where there are two modes the second mostly undoes the first. At
    most one changes sides oftener, so that draws tell the shares of modes better; were it always one, draws could
    alternate, and every second of them tell of one side alone.)

    Chains that no inner step has moved cost no exact value. To reach all of the posterior, the surrogate must be finite
    wherever there is mass: chains never enter or leave a region where it is not.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        Of the inner trajectories, as for `HMC`.
    surrogate : Fitted
        A trained surrogate, of positions without bounds, as for `SurrogateHMC`.
    metric : EuclideanMetric
        Distribution of momenta.
    inner_steps : int
        Number of inner steps for one exact value; with one it is delayed acceptance.
    centre : array_like of shape (dim,), optional
        Centre of a normal distribution with the covariance of the metric, which inner trajectories then follow exactly,
        deflected by what the surrogate differs from it by. The nearer the posterior is to that normal, the longer steps
        may be.
    jumps : Jumps, optional
        Between separate modes of the surrogate, or parts of one.

    Examples
    --------
    >>> from leapwise import Evaluator, QuadraticNetwork, State, Streams, Target, TrainingSet
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((20, 2))
    >>> quadratic = QuadraticNetwork().fit(TrainingSet(x, 0.5 * (x**2).sum(axis=1)), rng)
    >>> evaluator = Evaluator(Target(lambda x: -0.5 * x @ x, dim=2))
    >>> state = State.from_evaluation(evaluator.value(np.zeros((4, 2))))
    >>> kernel = SurrogateTransition(0.5, 4, surrogate=quadratic, inner_steps=3)
    >>> state, info = kernel.step(Streams(1, 4), state, evaluator)
    >>> bool(info.accepted.all()), evaluator.counts.n_values
    (True, 8)
    """

    inner_steps: int = 3
    centre: ArrayLike | None = None
    jumps: Jumps | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("inner_steps", self.inner_steps, 1)
        if self.centre is not None:
            centre = require_real(self.centre, "centre")
            if centre.ndim != 1:
                raise InputError(f"centre must be one position, got an array of shape {centre.shape}")
            object.__setattr__(self, "centre", centre)
            _frame(centre, self.metric)  # says so now if they do not fit
        if self.jumps is not None and not isinstance(self.jumps, Jumps):
            raise InputError(
                f"jumps must be Jumps(centres, factors), got {self.jumps!r}; leave it out for none"
            )

    @cached_property
    def _swinging(self) -> Swinging:
        """Where inner steps take place that swing about the centre."""
        assert self.surrogate is not None and self.centre is not None
        frame = _frame(np.asarray(self.centre), self.metric)
        return Swinging(self.surrogate, frame, compile_surrogate(self.surrogate, frame))

    def stage(self, evaluator: Evaluator) -> Stage:
        """Return where inner steps take place."""
        return Straight(self.guide(evaluator), self.metric) if self.centre is None else self._swinging

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by several inner steps and at most one exact value."""
        stage = self.stage(evaluator)
        start = stage.enter(state)
        state = replace(state, known_force=stage.known(start))
        end, walk = inner_walk(self, stage, streams, start)
        moved = (end.position != start.position).any(axis=1)
        position, momentum = stage.leave(end, moved, state)
        exact = np.array(state.potential)
        if moved.any():
            found = evaluator.value(position if moved.all() else position[moved])
            exact[moved], position = found.potential, found.into(position, moved)
        with np.errstate(invalid="ignore"):
            before, after = state.potential - start.potential, exact - end.potential
            error = np.where(moved, after - before, np.nan)
        accepted, probability = surrogate_transition(before, after, streams.uniforms())
        accepted &= moved
        proposal = State(position, exact, known_force=stage.known(end))
        after_step = state.accept(accepted, proposal)
        return after_step, Info(
            accepted=accepted,
            acceptance_rate=np.where(moved, probability, 0.0),
            step_size=walk.step_size,
            n_steps=walk.n_steps,
            energy=np.where(accepted, exact, state.potential),
            energy_error=error,
            diverging=walk.lost | (moved & ~(error <= MAX_ENERGY_ERROR)),
            n_exact=moved.astype(int),
            proposal=position,
            proposal_momentum=momentum,
            discrepancy=np.where(moved, after, np.nan),
            inner_acceptance=walk.acceptance,
            proposal_potential=np.where(moved, exact, np.nan),
            mode=self._modes(after_step.position),
        )

    def _modes(self, position: np.ndarray) -> np.ndarray | None:
        """Return in which mode each position is, from 1; None where there is but one."""
        jumps = self.jumps
        return None if jumps is None or jumps.n_modes == 1 else 1 + jumps.modes(position)


def _frame(centre: np.ndarray, metric: EuclideanMetric) -> Whitening:
    """Return coordinates about a centre in which the covariance of a metric is the identity."""
    try:
        return Whitening.from_factor(centre, np.linalg.cholesky(metric.velocity(np.eye(centre.size))))
    except ValueError as error:  # LinAlgError is one
        raise InputError(
            f"centre must fit the metric, whose velocities of {centre.size} unit momenta must be a covariance "
            f"({error}); give DenseMetric(covariance) of the same dimension"
        ) from error


@dataclass(frozen=True, eq=False)
class Walk:
    """What the inner steps of each chain were like: mean step size and acceptance, all leapfrog steps, any given up."""

    step_size: np.ndarray
    n_steps: np.ndarray
    acceptance: np.ndarray
    lost: np.ndarray


def inner_walk(
    kernel: SurrogateTransition, stage: Stage, streams: AnyStreams, start: PhasePoint
) -> tuple[PhasePoint, Walk]:
    """Move every chain by the inner steps of a kernel, at no exact cost.

    Chains that are not `complete`, because the surrogate is not finite where they are, stay.
    """
    point, lost = start, ~start.complete
    sizes, counts, rates = [], [], []
    if kernel.jumps is not None:
        turn = streams.uniforms()
        point = _jumped(kernel.jumps, stage, streams, point, turn < 0.5 * JUMPED)
    for _ in range(kernel.inner_steps):
        step_size, n_steps = kernel.draw(streams)
        end, gained = stage.go(point, streams.normals(point.position.shape[1]), step_size, n_steps)
        with np.errstate(all="ignore"):
            risen = end.potential + gained
        accepted, probability = metropolis(point.potential, risen, streams.uniforms())
        lost = lost | ~end.complete
        point = _taken(point, end, accepted)
        sizes.append(step_size)
        counts.append(n_steps)
        rates.append(probability)
    if kernel.jumps is not None:
        point = _jumped(kernel.jumps, stage, streams, point, turn >= 1.0 - 0.5 * JUMPED)
    if len(sizes) == 1:
        return point, Walk(sizes[0], counts[0], rates[0], lost)
    size, count, rate = (reduce(np.add, each) for each in (sizes, counts, rates))
    return point, Walk(size / len(sizes), count, rate / len(sizes), lost)


def _taken(point: PhasePoint, end: PhasePoint, accepted: np.ndarray) -> PhasePoint:
    """Return the points, those that were accepted at their ends; which are `complete` does not change."""
    if accepted.all():
        return replace(end, complete=point.complete)
    if not accepted.any():
        return point
    rows = accepted[:, None]
    return PhasePoint(
        np.where(rows, end.position, point.position),
        np.where(rows, end.momentum, point.momentum),
        np.where(accepted, end.potential, point.potential),
        np.where(rows, end.gradient, point.gradient),
        point.complete,
    )


def _jumped(
    jumps: Jumps, stage: Stage, streams: AnyStreams, point: PhasePoint, now: np.ndarray
) -> PhasePoint:
    """Return the points, some of those whose turn is now after a jump to another place."""
    position, stretch, counts = jumps.propose(stage.places(point), streams.uniforms())
    end = stage.put(point, position, counts & point.complete & now)
    accepted, _ = metropolis(point.potential, end.potential - stretch, streams.uniforms())
    return _taken(point, end, accepted)
