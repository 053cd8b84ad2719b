"""Planted mistakes in HMC with exact gradients, most of which every kernel could make."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from mutations import MORE, OneStep, mistake

import leapwise.kernels.hmc
import leapwise.kernels.trajectory
from leapwise import HMC, DiagonalMetric, SharedStream, State, UnitMetric
from leapwise.dynamics import kinetic_energy, leapfrog
from leapwise.targets.transforms import Transform
from leapwise.testing import exponential, gumbel

KERNEL = HMC(0.9, 3, metric=UnitMetric())
ONE = OneStep("HMC", KERNEL, gumbel())
THREE = OneStep("HMC, three steps", HMC(0.7, 2, metric=UnitMetric()), gumbel(), steps=3)
LONG = OneStep("HMC, always four leapfrog steps", HMC(1.0, (4, 4), metric=UnitMetric()), gumbel(), MORE)
COARSE = OneStep("HMC, long leapfrog steps", HMC(1.7, 4, metric=UnitMetric()), gumbel())
SCALED = OneStep("HMC, diagonal metric", HMC(0.6, 3, metric=DiagonalMetric([1.6, 2.7])), gumbel())
BOUNDED = OneStep("HMC inside bounds", KERNEL, exponential())


@mistake("kinetic term missing", ONE)
def no_kinetic_term(patch):
    patch.setattr(leapwise.kernels.hmc, "kinetic_energy", lambda metric, momentum: np.zeros(len(momentum)))


@mistake("no decision at all", ONE)
def no_decision(patch):
    def nine_of_ten(energy, proposal_energy, uniforms):
        return uniforms < 0.9, np.full(len(uniforms), 0.9)

    patch.setattr(leapwise.kernels.hmc, "metropolis", nine_of_ten)


def forget(patch, name):
    """Keep what was known before a move."""
    accept = State.accept

    def forgetful(self, accepted, proposal):
        return replace(accept(self, accepted, proposal), **{name: getattr(self, name)})

    patch.setattr(State, "accept", forgetful)


@mistake("stale cached potential after acceptance", THREE)
def stale_potential(patch):
    forget(patch, "potential")


@mistake("stale cached gradient after acceptance", THREE)
def stale_gradient(patch):
    forget(patch, "gradient")


@mistake("number of steps dependent on the state", ONE)
def eager(patch):
    def shorter_on_the_right(force, metric, start, step_size, n_steps):
        return leapfrog(force, metric, start, step_size, np.where(start.position[:, 0] > 0.0, 1, 3))

    patch.setattr(leapwise.kernels.trajectory, "leapfrog", shorter_on_the_right)


@mistake("step size dependent on the state", ONE)
def careful(patch):
    def finer_on_the_left(force, metric, start, step_size, n_steps):
        step_size = np.where(start.position[:, 0] > 0.0, step_size, 0.5 * step_size)
        return leapfrog(force, metric, start, step_size, n_steps)

    patch.setattr(leapwise.kernels.trajectory, "leapfrog", finer_on_the_left)


@mistake("asymmetric energy abort", LONG)
def abort_relative_to_the_start(patch):
    def asymmetric(force, metric, start, step_size, n_steps):
        point, complete = start, start.complete
        before = start.potential + kinetic_energy(metric, start.momentum)
        for step in range(int(n_steps.max())):
            point, _ = leapfrog(force, metric, point, step_size, (n_steps > step).astype(int))
            rise = point.potential + kinetic_energy(metric, point.momentum) - before
            complete = complete & (rise <= 0.5)
        return replace(point, complete=complete), n_steps

    patch.setattr(leapwise.kernels.trajectory, "leapfrog", asymmetric)


@mistake("trajectory ended at its first turn", LONG)
def end_at_a_turn(patch):
    def straight(force, metric, start, step_size, n_steps):
        point, going = start, np.ones(len(n_steps), dtype=bool)
        for step in range(int(n_steps.max())):
            point, _ = leapfrog(force, metric, point, step_size, (going & (n_steps > step)).astype(int))
            going &= ((point.position - start.position) * point.momentum).sum(axis=1) > 0
        return point, n_steps

    patch.setattr(leapwise.kernels.trajectory, "leapfrog", straight)


@mistake("force dependent on momentum", LONG)
def drag(patch):
    """Neither reversible nor volume preserving, however exact the decision."""

    def dragged(force, metric, start, step_size, n_steps):
        dragging = replace(start, gradient=start.gradient + 0.2 * start.momentum)
        return leapfrog(force, metric, dragging, step_size, n_steps)

    patch.setattr(leapwise.kernels.trajectory, "leapfrog", dragged)


@mistake("momenta a tenth too large", SCALED)
def hot(patch):
    momentum = DiagonalMetric.momentum
    patch.setattr(DiagonalMetric, "momentum", lambda self, normals: 1.1 * momentum(self, normals))


@mistake("one random number for length and decision", COARSE)
def thrift(patch):
    uniforms, used = SharedStream.uniforms, []

    def every_number_twice(self):
        used.append(used[-1] if len(used) % 2 else uniforms(self))
        return used[-1]

    patch.setattr(SharedStream, "uniforms", every_number_twice)


@mistake("random stream started again at every step", THREE)
def deja_vu(patch):
    def same_again(self, dim):
        return np.random.default_rng(7).standard_normal((self.n_chains, dim))

    patch.setattr(SharedStream, "normals", same_again)


@mistake("Jacobian of the transform missing", BOUNDED)
def no_jacobian(patch):
    patch.setattr(Transform, "log_jacobian", lambda self, position: np.zeros(len(position)))


@dataclass(frozen=True, eq=False)
class Moving(State):
    """A state that keeps its momentum."""

    momentum: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Persistent:
    """HMC whose momenta are only partly drawn anew, so that they must be turned around after a rejection.

    No kernel of the library keeps momenta, so for them it does not matter. Where else it does, on the way back of a
    Riemannian step, has a mutation of its own.
    """

    inner: HMC
    share: float = 0.9

    def step(self, streams, state, evaluator):
        momentum = streams.normals(state.position.shape[1])
        if isinstance(state, Moving):
            momentum = self.share * state.momentum + np.sqrt(1.0 - self.share**2) * momentum
        new, info = self.inner.step(Drawn(streams, momentum), state, evaluator)
        kept = np.where(info.accepted[:, None], info.proposal_momentum, self.turned(momentum))
        return Moving(**vars(new), momentum=kept), info

    @staticmethod
    def turned(momentum):
        return -momentum


class Drawn:
    """Streams whose normal numbers have been drawn already."""

    def __init__(self, streams, normals):
        self.n_chains, self.uniforms = streams.n_chains, streams.uniforms
        self.normals = lambda dim: normals


PERSISTENT = OneStep("HMC that keeps its momentum, three steps", Persistent(KERNEL), gumbel(), steps=3)


@mistake("momentum not negated where it matters", PERSISTENT)
def not_turned(patch):
    patch.setattr(Persistent, "turned", staticmethod(lambda momentum: momentum))
