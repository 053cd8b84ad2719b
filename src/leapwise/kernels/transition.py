"""The surrogate transition: several HMC steps on the surrogate, then one exact value that accepts or rejects.

A draw is several inner steps on the surrogate alone, whose end is accepted on the discrepancy D = U - U~. `Auto` uses
this kernel. `leapwise.kernels.surrogate_hmc`, which the paper's methods use, instead makes one trajectory, and accepts
its end on the energy with the exact potential U.

`SurrogateTransition` is the kernel. `walk_on_surrogate` makes its inner steps, and an `InnerDynamics` says how an inner
trajectory moves: by leapfrog (`LeapfrogDynamics`), or by the exact flow of a normal distribution plus kicks
(`SplitDynamics`). With `Turns` some of the inner steps are made in other coordinates (`OtherDynamics`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import ask_surrogate, require_real, require_whole
from leapwise.dynamics import EuclideanMetric, PhasePoint, kinetic_energy, plain_leapfrog, split_flow
from leapwise.errors import InputError
from leapwise.execution import Evaluator
from leapwise.kernels.accept import metropolis, surrogate_transition
from leapwise.kernels.base import Info, KnownForce, State
from leapwise.kernels.coordinates import ChangedSurrogate, NonCentred
from leapwise.kernels.hmc import MAX_ENERGY_ERROR
from leapwise.kernels.jumps import Jumps
from leapwise.kernels.streams import AnyStreams
from leapwise.kernels.surrogate_hmc import EuclideanSurrogateKernel
from leapwise.kernels.trajectory import SurrogateForce, TrajectorySettings, is_number
from leapwise.surrogates import Fitted, Whitening
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate

#: Probability that a draw of a kernel with jumps includes one, half of it before the inner steps and half after. A
#: guess: with 1, two modes of equal weight would alternate; with less, chains change modes less often.
JUMP_PROBABILITY = 0.75


class InnerDynamics(Protocol):
    """How inner trajectories move. Points are in coordinates of its own."""

    def begin(self, state: State) -> PhasePoint:
        """Return the chains in these coordinates, at rest; not `complete` where the surrogate is not finite."""
        ...

    def trajectory(
        self, point: PhasePoint, normals: np.ndarray, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Return the ends of trajectories with the surrogate's potentials there, and the gain of kinetic energy.

        `normals` are the standard normals of the momenta. An abandoned trajectory is not `complete`, and its potential
        is NaN.
        """
        ...

    def finish(self, end: PhasePoint, moved: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and momenta; the positions of chains that have not moved are those of the state."""
        ...

    def known_force(self, point: PhasePoint) -> KnownForce:
        """Return what has been computed of the surrogate at these points."""
        ...

    def positions(self, point: PhasePoint) -> np.ndarray:
        """Return the points as positions ``(n, dim)``."""
        ...

    def move_to(
        self, point: PhasePoint, position: np.ndarray, valid: np.ndarray, potential: np.ndarray | None = None
    ) -> PhasePoint:
        """Return the points moved to positions, with potentials there, which may be given; NaN where not valid."""
        ...


@dataclass(frozen=True, eq=False)
class LeapfrogDynamics:
    """Leapfrog, in the coordinates of the state."""

    force: SurrogateForce
    metric: EuclideanMetric

    def begin(self, state: State) -> PhasePoint:
        """Return the chains at rest, with potentials and gradients."""
        known = state.known_force
        if known is None or known.surrogate is not self.force.surrogate:
            known = KnownForce(self.force.surrogate)
        gradient, potential = known.gradient, known.potential
        if gradient is None or potential is None:
            with np.errstate(all="ignore"):
                gradient, potential = (
                    self.force.gradient(state.position),
                    self.force.potential(state.position),
                )
        rest = np.zeros_like(state.position)
        return PhasePoint(state.position, rest, potential, gradient, np.isfinite(potential))

    def trajectory(
        self, point: PhasePoint, normals: np.ndarray, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Run leapfrog."""
        momentum = self.metric.momentum(normals)
        start = PhasePoint(point.position, momentum, point.potential, point.gradient, point.complete)
        end = plain_leapfrog(self.force.gradient, self.metric, start, step_size, n_steps)
        potential = _potentials_where(self.force.potential, end.position, end.complete)
        with np.errstate(all="ignore"):
            gained = kinetic_energy(self.metric, end.momentum) - kinetic_energy(self.metric, momentum)
        return PhasePoint(end.position, end.momentum, potential, end.gradient, end.complete), gained

    def finish(self, end: PhasePoint, moved: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and momenta."""
        return end.position, end.momentum

    def known_force(self, point: PhasePoint) -> KnownForce:
        """Return gradients and potentials."""
        return KnownForce(self.force.surrogate, point.gradient, point.potential)

    def positions(self, point: PhasePoint) -> np.ndarray:
        """Return positions."""
        return point.position

    def move_to(
        self, point: PhasePoint, position: np.ndarray, valid: np.ndarray, potential: np.ndarray | None = None
    ) -> PhasePoint:
        """Return the points at other positions, with potentials and gradients."""
        if potential is None:
            potential = _potentials_where(self.force.potential, position, valid)
        gradient = np.zeros_like(position)
        if valid.any():
            with np.errstate(all="ignore"):
                gradient[valid] = self.force.gradient(position[valid])
        return PhasePoint(position, point.momentum, potential, gradient, point.complete)


@dataclass(frozen=True, eq=False)
class SplitDynamics:
    """The split flow of `leapwise.dynamics.leapfrog`, in whitened coordinates.

    Parameters
    ----------
    surrogate : Fitted
    frame : Whitening
        The coordinates.
    compiled : CompiledSurrogate
        Potential and gradient of the surrogate as functions of these coordinates.
    """

    surrogate: Fitted
    frame: Whitening
    compiled: CompiledSurrogate

    def begin(self, state: State) -> PhasePoint:
        """Return the chains at rest, with potentials."""
        force = state.known_force
        with np.errstate(all="ignore"):
            white = self.frame.to_white(state.position)
        if force is None or force.surrogate is not self.surrogate or force.potential is None:
            with np.errstate(all="ignore"):
                potential = self._potential(white)
        else:
            potential = force.potential
        rest = np.zeros_like(white)
        return PhasePoint(white, rest, potential, rest, np.isfinite(potential))

    def trajectory(
        self, point: PhasePoint, normals: np.ndarray, step_size: np.ndarray, n_steps: np.ndarray
    ) -> tuple[PhasePoint, np.ndarray]:
        """Run the split flow."""
        position, momentum, complete = split_flow(self._gradient, point.position, normals, step_size, n_steps)
        complete &= point.complete
        potential = _potentials_where(self._potential, position, complete)
        with np.errstate(all="ignore"):
            gained = 0.5 * (np.vecdot(momentum, momentum) - np.vecdot(normals, normals))
        return PhasePoint(position, momentum, potential, point.gradient, complete), gained

    def finish(self, end: PhasePoint, moved: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and momenta in the coordinates of the state; unmoved chains keep theirs to the last bit."""
        with np.errstate(all="ignore"):
            position = self.frame.from_white(end.position)
            momentum = self.frame.gradient_from_white(end.momentum)
        return (position if moved.all() else np.where(moved[:, None], position, state.position)), momentum

    def known_force(self, point: PhasePoint) -> KnownForce:
        """Return potentials."""
        return KnownForce(self.surrogate, potential=point.potential)

    def positions(self, point: PhasePoint) -> np.ndarray:
        """Return positions in the coordinates of the state."""
        with np.errstate(all="ignore"):
            return self.frame.from_white(point.position)

    def move_to(
        self, point: PhasePoint, position: np.ndarray, valid: np.ndarray, potential: np.ndarray | None = None
    ) -> PhasePoint:
        """Return the points at other positions, with potentials."""
        with np.errstate(all="ignore"):
            white = self.frame.to_white(position)
        if potential is None:
            potential = _potentials_where(self._potential, white, valid)
        return PhasePoint(white, point.momentum, potential, point.gradient, point.complete)

    def _gradient(self, white: np.ndarray) -> np.ndarray:
        return ask_surrogate(self.surrogate, self.compiled.gradient, white.shape, "gradients", white)

    def _potential(self, white: np.ndarray) -> np.ndarray:
        return ask_surrogate(self.surrogate, self.compiled.potential, white.shape[:1], "potentials", white)


@dataclass(frozen=True, eq=False, kw_only=True)
class Turns(TrajectorySettings):
    """Inner steps in other coordinates, by turns with those in the coordinates of the kernel.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        Of the trajectories in the other coordinates, in units of the frame, as for `HMC`. One step size for all chains.
    coordinates : NonCentred
        The other coordinates.
    frame : Whitening
        Mean and factor of a normal distribution in the other coordinates. Trajectories follow its exact flow, plus
        kicks by the difference between the surrogate and it.
    probability : float
        Share of the inner steps that are made in the other coordinates.
    """

    coordinates: NonCentred
    frame: Whitening
    probability: float = 0.5

    common_length = True  # as for the kernel

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.coordinates, NonCentred) or not isinstance(self.frame, Whitening):
            raise InputError(
                "turns need coordinates=NonCentred(...) and frame=Whitening(mean, factor), "
                f"got {type(self.coordinates).__name__} and {type(self.frame).__name__}"
            )
        if not self.is_set or np.ndim(np.asarray(self.step_size)) > 0:
            raise InputError(
                "turns need one step_size, and n_steps or trajectory_length, in their coordinates"
            )
        if self.coordinates.n_columns > self.frame.mean.size:
            raise InputError(
                f"the frame of turns has {self.frame.mean.size} columns, but hierarchies have members or parents up to "
                f"column {self.coordinates.n_columns - 1}, counted from 0; give a frame of whole positions"
            )
        if not is_number(self.probability) or not 0 <= self.probability <= 1:
            raise InputError(
                f"probability of turns must be a number from 0 to 1, the same everywhere, got {self.probability!r}"
            )


@dataclass(frozen=True, eq=False)
class OtherDynamics:
    """Trajectories in other coordinates, from points and to points of the dynamics of the kernel.

    Between two inner steps all points are those of the kernel's dynamics, so a chain that is rejected stays where it is
    to the last bit.

    Parameters
    ----------
    coordinates : NonCentred
        The other coordinates.
    inside : SplitDynamics
        In these coordinates, with the potential U' of the surrogate there.
    """

    coordinates: NonCentred
    inside: SplitDynamics

    def trajectory(
        self,
        dynamics: InnerDynamics,
        point: PhasePoint,
        normals: np.ndarray,
        step_size: np.ndarray,
        n_steps: np.ndarray,
    ) -> tuple[PhasePoint, np.ndarray]:
        """Return the ends of trajectories as points of `dynamics`, and what is gained beside the potential.

        As by `InnerDynamics.trajectory`, potentials are U~, the surrogate's potentials by position. The energy in the
        other coordinates has U' = U~ - log J, so the gain is that of the kinetic energy, less that of log J. Momenta
        stay those of the last trajectory in the coordinates of `dynamics`.
        """
        with np.errstate(all="ignore"):
            position = dynamics.positions(point)
            before = self.coordinates.log_jacobian_at(position)
            white = self.inside.frame.to_white(self.coordinates.to(position))
        usable = point.complete & np.isfinite(white).all(axis=1)
        rest = np.zeros_like(white)
        start = PhasePoint(white, rest, point.potential, rest, usable)
        found, gained = self.inside.trajectory(start, normals, step_size, n_steps)
        with np.errstate(all="ignore"):
            position = self.coordinates.back(self.inside.positions(found))
            after = self.coordinates.log_jacobian_at(position)
            gained, potential = gained + before - after, found.potential + after
        complete = found.complete & np.isfinite(position).all(axis=1)
        end = dynamics.move_to(point, position, complete, np.where(complete, potential, np.nan))
        return replace(end, complete=complete), gained


def _potentials_where(
    function: Callable[[np.ndarray], np.ndarray], position: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Return the potentials of some rows, and NaN for the others."""
    with np.errstate(all="ignore"):
        if rows.all():
            return function(position)
        potential = np.full(len(position), np.nan)
        if rows.any():
            potential[rows] = function(position[rows])
    return potential


@dataclass(frozen=True, eq=False)
class SurrogateTransition(EuclideanSurrogateKernel):
    r"""Several HMC steps on a trained surrogate, then one exact value that accepts or rejects where they ended.

    **Invariant because** each inner step is HMC on the frozen surrogate :math:`\tilde U`, with its own Metropolis step
    and with lengths drawn independently of the state, so it is reversible for :math:`e^{-\tilde U}`; a power of a
    reversible kernel is reversible; and the rule `surrogate_transition` corrects any such kernel for the exact
    potential. A poor surrogate costs acceptance, not invariance.

    With `centre`, inner trajectories follow the split flow (`leapwise.dynamics.leapfrog`) instead of leapfrog. Both
    preserve volume and are reversible for any force that is a function of the position alone, so the same proof holds.

    With `jumps`, each draw of each chain includes a jump J on the surrogate before the inner steps P with probability
    3/8, after them with probability 3/8, and no jump otherwise. J is reversible for :math:`e^{-\tilde U}` (see
    `leapwise.kernels.jumps`), and the reversal of "first J, then P" is "first P, then J". The choice does not depend on
    the state, so :math:`\frac38 (J P + P J) + \frac14 P` is reversible. A jump that always came first would not be. (A
    jump before *and* after would be reversible too, but with two modes the second mostly undoes the first. With a jump
    in every draw, chains could alternate between two modes, and every second draw would see one mode only.)

    With `turns`, each inner step is made in other coordinates q' with a fixed probability w, and in those of the kernel
    otherwise. The step B in other coordinates is HMC for :math:`U'(q') = \tilde U(q(q')) - \log J`, where J is the
    stretch of volume by :math:`q' \mapsto q`. It is reversible for :math:`e^{-U'}`, which is the density of
    :math:`e^{-\tilde U}` in these coordinates, and reversibility does not depend on coordinates. So B is reversible for
    :math:`e^{-\tilde U}`, like the step A in the coordinates of the kernel, and :math:`w B + (1 - w) A` is too, because
    w does not depend on the state. A power of it is reversible: a sequence of independent choices is as likely as its
    reverse. One choice may serve all chains, as in `Mixture`. A fixed order such as "first A, then B" would not be
    reversible. With an order or a probability that depends on the state, or without J, :math:`e^{-\tilde U}` would not
    even be invariant.

    A chain that no inner step has moved needs no exact value. To reach all of the posterior, the surrogate must be
    finite wherever there is mass: chains never enter or leave a region where it is not.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        Of the inner trajectories, as for `HMC`.
    surrogate : Fitted
        A trained surrogate on unconstrained positions, as for `SurrogateHMC`.
    metric : EuclideanMetric
        Distribution of momenta.
    inner_steps : int
        Number of inner steps for one exact value. With 1 this is delayed acceptance.
    centre : array_like of shape (dim,), optional
        Mean of a normal distribution whose covariance is that of the metric. Inner trajectories then follow the exact
        flow of that normal, plus kicks by the difference between the surrogate and it. The closer the posterior is to
        that normal, the larger the steps may be.
    jumps : Jumps, optional
        Jumps between separate modes of the surrogate, or between components of one mode.
    turns : Turns, optional
        Inner steps in other coordinates, by turns with the ordinary ones.

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
    turns: Turns | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("inner_steps", self.inner_steps, 1)
        if self.centre is not None:
            centre = require_real(self.centre, "centre")
            if centre.ndim != 1:
                raise InputError(f"centre must be one position, got an array of shape {centre.shape}")
            object.__setattr__(self, "centre", centre)
            _frame(centre, self.metric)  # raises if they do not fit together
        if self.jumps is not None and not isinstance(self.jumps, Jumps):
            raise InputError(
                f"jumps must be Jumps(centres, factors), got {self.jumps!r}; leave it out for none"
            )
        if self.turns is not None and not isinstance(self.turns, Turns):
            raise InputError(
                f"turns must be Turns(step_size, coordinates=..., frame=...), got {self.turns!r}; leave it out for none"
            )

    @cached_property
    def _split_dynamics(self) -> SplitDynamics:
        assert self.surrogate is not None and self.centre is not None
        frame = _frame(np.asarray(self.centre), self.metric)
        return SplitDynamics(self.surrogate, frame, compile_surrogate(self.surrogate, frame))

    @cached_property
    def other_dynamics(self) -> OtherDynamics:
        """How trajectories move in the other coordinates of `turns`."""
        assert self.surrogate is not None and self.turns is not None
        coordinates, frame = self.turns.coordinates, self.turns.frame
        compiled = compile_surrogate(ChangedSurrogate(self.surrogate, coordinates), frame)  # type: ignore[arg-type]
        return OtherDynamics(coordinates, SplitDynamics(self.surrogate, frame, compiled))

    def inner_dynamics(self, evaluator: Evaluator) -> InnerDynamics:
        """Return how inner trajectories move."""
        if self.centre is None:
            return LeapfrogDynamics(self.force(evaluator), self.metric)
        return self._split_dynamics

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by several inner steps and at most one exact value."""
        dynamics = self.inner_dynamics(evaluator)
        start = dynamics.begin(state)
        state = replace(state, known_force=dynamics.known_force(start))
        end, walk = walk_on_surrogate(self, dynamics, streams, start)
        moved = (end.position != start.position).any(axis=1)
        position, momentum = dynamics.finish(end, moved, state)
        exact = np.array(state.potential)
        if moved.any():
            found = evaluator.value(position if moved.all() else position[moved])
            exact[moved], position = found.potential, found.into(position, moved)
        with np.errstate(invalid="ignore"):
            before, after = state.potential - start.potential, exact - end.potential  # discrepancies
            error = np.where(moved, after - before, np.nan)
        accepted, probability = surrogate_transition(before, after, streams.uniforms())
        accepted &= moved
        proposal = State(position, exact, known_force=dynamics.known_force(end))
        after_step = state.accept(accepted, proposal)
        return after_step, Info(
            accepted=accepted,
            acceptance_rate=np.where(moved, probability, 0.0),
            step_size=walk.step_size,
            n_steps=walk.n_steps,
            energy=np.where(accepted, exact, state.potential),
            energy_error=error,
            diverging=walk.abandoned | (moved & ~(error <= MAX_ENERGY_ERROR)),
            n_exact=moved.astype(int),
            proposal=position,
            proposal_momentum=momentum,
            discrepancy=np.where(moved, after, np.nan),
            inner_acceptance=walk.acceptance,
            proposal_potential=np.where(moved, exact, np.nan),
            mode=self._modes(after_step.position),
        )

    def _modes(self, position: np.ndarray) -> np.ndarray | None:
        """Return the mode of each position, counted from 1; None if there is only one mode."""
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
class InnerWalk:
    """The inner steps of each chain.

    Mean step size, total number of integrator steps, mean acceptance, and whether a trajectory was abandoned (all of
    them, if there are two kinds of coordinates).
    """

    step_size: np.ndarray
    n_steps: np.ndarray
    acceptance: np.ndarray
    abandoned: np.ndarray


def walk_on_surrogate(
    kernel: SurrogateTransition, dynamics: InnerDynamics, streams: AnyStreams, start: PhasePoint
) -> tuple[PhasePoint, InnerWalk]:
    """Move every chain by the inner steps of a kernel, without exact evaluations.

    Chains that are not `complete`, because the surrogate is not finite where they are, do not move.
    """
    point, abandoned = start, ~start.complete
    stuck = np.ones(len(abandoned), dtype=bool)
    sizes, counts, rates = [], [], []
    if kernel.jumps is not None:
        turn = streams.uniforms()
        point = _jump(kernel.jumps, dynamics, streams, point, turn < 0.5 * JUMP_PROBABILITY)
    for _ in range(kernel.inner_steps):
        if kernel.turns is None:
            step_size, n_steps = kernel.draw(streams)
            normals = streams.normals(point.position.shape[1])
            end, gained = dynamics.trajectory(point, normals, step_size, n_steps)
        else:
            end, gained, step_size, n_steps = _by_turns(kernel, kernel.turns, dynamics, streams, point)
        with np.errstate(all="ignore"):
            end_energy = end.potential + gained
        accepted, probability = metropolis(point.potential, end_energy, streams.uniforms())
        abandoned = abandoned | ~end.complete
        stuck &= ~end.complete
        point = _accept(point, end, accepted)
        sizes.append(step_size)
        counts.append(n_steps)
        rates.append(probability)
    if kernel.jumps is not None:
        point = _jump(kernel.jumps, dynamics, streams, point, turn >= 1.0 - 0.5 * JUMP_PROBABILITY)
    if (
        kernel.turns is not None
    ):  # where trajectories in one kind of coordinates fail, those in the other serve
        abandoned = stuck
    if len(sizes) == 1:
        return point, InnerWalk(sizes[0], counts[0], rates[0], abandoned)
    size, count, rate = (reduce(np.add, each) for each in (sizes, counts, rates))
    return point, InnerWalk(size / len(sizes), count, rate / len(sizes), abandoned)


def _by_turns(
    kernel: SurrogateTransition,
    turns: Turns,
    dynamics: InnerDynamics,
    streams: AnyStreams,
    point: PhasePoint,
) -> tuple[PhasePoint, np.ndarray, np.ndarray, np.ndarray]:
    """Return ends of trajectories in one kind of coordinates or the other, gains, step sizes and numbers of steps.

    The choice is common to all chains where their streams are, so mostly only one kind is computed. It does not depend
    on where chains are.
    """
    other = kernel.other_dynamics
    chosen = streams.common_uniforms() < turns.probability
    if chosen.all() or not chosen.any():
        step_size, n_steps = (turns if chosen.all() else kernel).draw(streams)
        normals = streams.normals(point.position.shape[1])
        if chosen.all():
            end, gained = other.trajectory(dynamics, point, normals, step_size, n_steps)
        else:
            end, gained = dynamics.trajectory(point, normals, step_size, n_steps)
        return end, gained, step_size, n_steps
    (size, count), (other_size, other_count) = kernel.draw(streams), turns.draw(streams)
    step_size, n_steps = np.where(chosen, other_size, size), np.where(chosen, other_count, count)
    normals, gained = streams.normals(point.position.shape[1]), np.empty(len(chosen))
    end = PhasePoint(*(each.copy() for each in _arrays(point)))
    for rows in (chosen, ~chosen):
        part = PhasePoint(*(each[rows] for each in _arrays(point)))
        settings = normals[rows], step_size[rows], n_steps[rows]
        found, gained[rows] = (
            other.trajectory(dynamics, part, *settings)
            if rows is chosen
            else dynamics.trajectory(part, *settings)
        )
        for whole, each in zip(_arrays(end), _arrays(found), strict=True):
            whole[rows] = each
    return end, gained, step_size, n_steps


def _arrays(point: PhasePoint) -> tuple[np.ndarray, ...]:
    return point.position, point.momentum, point.potential, point.gradient, point.complete


def _accept(point: PhasePoint, end: PhasePoint, accepted: np.ndarray) -> PhasePoint:
    """Return the ends of accepted trajectories and the old points elsewhere; `complete` does not change."""
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


def _jump(
    jumps: Jumps, dynamics: InnerDynamics, streams: AnyStreams, point: PhasePoint, chosen: np.ndarray
) -> PhasePoint:
    """Propose a jump for the chosen chains, and accept it on the surrogate's potential."""
    position, log_stretch, valid = jumps.propose(dynamics.positions(point), streams.uniforms())
    end = dynamics.move_to(point, position, valid & point.complete & chosen)
    accepted, _ = metropolis(point.potential, end.potential - log_stretch, streams.uniforms())
    return _accept(point, end, accepted)
