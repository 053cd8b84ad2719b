"""Planted mistakes in the kernels that follow a surrogate."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
from gumbel_surrogates import JUMPS, Fair, Flattened
from mutations import MORE, OneStep, mistake
from mutations_hmc import forget

import leapwise.kernels.trajectory
import leapwise.kernels.transition
from leapwise import SurrogateHMC, SurrogateTransition, Target, Whitening
from leapwise.dynamics import plain_leapfrog, split_flow
from leapwise.kernels.base import State
from leapwise.kernels.coordinates import Hierarchy, NonCentred
from leapwise.kernels.jumps import Jumps
from leapwise.kernels.trajectory import SurrogateForce
from leapwise.kernels.transition import SplitDynamics, Turns
from leapwise.testing import ExactTarget, gumbel

KERNEL = SurrogateHMC(0.5, 3, surrogate=Fair())
FIXED = SurrogateHMC(0.5, (3, 3), surrogate=Fair())
TRANSITION = SurrogateTransition(0.9, (3, 3), surrogate=Fair(), inner_steps=3)
ONE = OneStep("SurrogateHMC", KERNEL, gumbel())
THREE = OneStep("SurrogateHMC, three steps", KERNEL, gumbel(), steps=3)
LONG = OneStep("SurrogateHMC, always three leapfrog steps", FIXED, gumbel())
MANY = OneStep("SurrogateTransition", TRANSITION, gumbel())
SPLIT = SurrogateTransition(0.9, (2, 2), surrogate=Fair(), inner_steps=2, centre=[0.5, 0.5])
SPLIT_STEP = OneStep("SurrogateTransition, split flow", SPLIT, gumbel())
JUMPING = OneStep(
    "SurrogateTransition, jumping", replace(TRANSITION, inner_steps=1, jumps=JUMPS), gumbel(), MORE
)
JUMPING_FLAT = OneStep(
    "SurrogateTransition, jumping on a poor surrogate",
    SurrogateTransition(0.4, (2, 2), surrogate=Flattened(), inner_steps=1, jumps=JUMPS),
    gumbel(),
    n_chains=MORE,
)
MANY_TWICE = OneStep("SurrogateTransition, two steps", TRANSITION, gumbel(), steps=2)


class Funnel:
    """Location N(0.3, 1), logarithm of the scale a Gumbel variable, and two members; or a surrogate of it.

    As a surrogate the members have another scale, and the whole is flatter.
    """

    def __init__(self, wrong: float = 0.0):
        self.wrong = wrong

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def potential_and_gradient(self, position):
        location, s, members = position[:, 0] - 0.3, position[:, 1], position[:, 2:]
        shrunk = 1.0 - self.wrong
        with np.errstate(all="ignore"):
            inverse, tail = np.exp(-shrunk * s)[:, None], np.exp(s)
            z = (members - position[:, :1]) * inverse
            height = 0.5 * location**2 + tail - s + 0.5 * (z**2).sum(axis=1) + 2 * shrunk * s
            slopes = [location - (z * inverse).sum(axis=1), tail - 1 - shrunk * ((z**2).sum(axis=1) - 2)]
        return shrunk * height, shrunk * np.column_stack([*slopes, z * inverse])


def draw_funnel(rng, n):
    location, s = 0.3 + rng.standard_normal(n), -rng.gumbel(size=n)
    return np.column_stack(
        [location, s, location[:, None] + np.exp(s)[:, None] * rng.standard_normal((n, 2))]
    )


FUNNEL = ExactTarget(
    Target(lambda x: -Funnel().potential(x), dim=4, vectorized=True), draw_funnel, name="funnel"
)
TURNS = Turns(
    0.6,
    (2, 2),
    coordinates=NonCentred(Hierarchy([2, 3], scales=1, locations=0)),
    frame=Whitening(np.array([0.3, -0.5, 0.0, 0.0]), np.eye(4)),
)
BY_TURNS = SurrogateTransition(0.5, (2, 2), surrogate=Funnel(0.2), inner_steps=2, turns=TURNS)
TURNED = OneStep("SurrogateTransition by turns", BY_TURNS, FUNNEL)


@mistake("accept on the surrogate's energy", ONE)
def cheap(patch):
    begin, finish = SurrogateForce.begin, SurrogateForce.finish

    def cheap_begin(self, state):
        return begin(self, replace(state, potential=self.potential(state.position)))

    def cheap_finish(self, *arguments):
        proposal, discrepancy = finish(self, *arguments)
        return replace(proposal, potential=proposal.potential - discrepancy), discrepancy

    patch.setattr(SurrogateForce, "begin", cheap_begin)
    patch.setattr(SurrogateForce, "finish", cheap_finish)


@mistake("surrogate swapped mid-trajectory", LONG)
def swap(patch):
    calls = []

    def fickle(self, position):
        calls.append(None)
        return (1.0 if len(calls) % 3 else 2.0) * self.compiled.gradient(position)

    patch.setattr(SurrogateForce, "gradient", fickle)


@mistake("surrogate's force dependent on momentum", ONE)
def drag(patch):
    def dragged(gradient, metric, start, step_size, n_steps):
        end = plain_leapfrog(gradient, metric, start, step_size, n_steps)
        return replace(end, momentum=0.8 * end.momentum)

    patch.setattr(leapwise.kernels.trajectory, "plain_leapfrog", dragged)


@mistake("refit on the trajectory's own start", LONG)
def refit(patch):
    """Each surrogate is corrected at the start of the trajectory by a hill of the missing height and width one."""
    begin, gradient, learned = SurrogateForce.begin, SurrogateForce.gradient, {}

    def learn(self, state):
        learned["where"] = state.position
        learned["what"] = state.potential - self.potential(state.position)
        return begin(self, state)

    def refitted(self, position):
        away = position - learned["where"]
        hill = learned["what"] * np.exp(-0.5 * (away**2).sum(axis=1))
        return gradient(self, position) - hill[:, None] * away

    patch.setattr(SurrogateForce, "begin", learn)
    patch.setattr(SurrogateForce, "gradient", refitted)


@mistake("surrogate's gradient remembered from before the last move", THREE)
def stale_force(patch):
    forget(patch, "known_force")


@mistake("surrogate transition accepted without the exact value", MANY)
def no_correction(patch):
    def always(discrepancy, proposal_discrepancy, uniforms):
        return np.ones(len(uniforms), dtype=bool), np.ones(len(uniforms))

    patch.setattr(leapwise.kernels.transition, "surrogate_transition", always)


@mistake("discrepancies of the surrogate transition swapped", MANY)
def swapped(patch):
    decide = leapwise.kernels.transition.surrogate_transition
    patch.setattr(
        leapwise.kernels.transition,
        "surrogate_transition",
        lambda here, there, uniforms: decide(there, here, uniforms),
    )


@mistake("inner kernel without its Metropolis step", MANY)
def no_inner_decision(patch):
    def always(energy, proposal_energy, uniforms):
        finite = np.isfinite(proposal_energy)
        return finite, finite.astype(float)

    patch.setattr(leapwise.kernels.transition, "metropolis", always)


@mistake("split flow that does not read the same backwards", SPLIT_STEP)
def lopsided(patch):
    """A whole rotation before each kick and none after it."""

    def turn(q, p, cosine, sine):
        return cosine * q + sine * p, cosine * p - sine * q

    def late(gradient, position, momentum, step_size, n_steps):
        half = np.cos(0.5 * step_size)[:, None], np.sin(0.5 * step_size)[:, None]
        q, p, complete = split_flow(gradient, *turn(position, momentum, *half), step_size, n_steps)
        return *turn(q, p, half[0], -half[1]), complete

    patch.setattr(leapwise.kernels.transition, "split_flow", late)


@mistake("momentum of a split flow forgotten in its decision", SPLIT_STEP)
def weightless(patch):
    trajectory = SplitDynamics.trajectory

    def light(self, *arguments):
        end, gained = trajectory(self, *arguments)
        return end, np.zeros_like(gained)

    patch.setattr(SplitDynamics, "trajectory", light)


def other_jumps(patch, change):
    """Change what jumps propose: where they lead, how volume is stretched, which count."""
    propose = Jumps.propose
    patch.setattr(
        Jumps, "propose", lambda self, position, uniforms: change(*propose(self, position, uniforms))
    )


@mistake("volume of a jump forgotten", JUMPING)
def shrunk(patch):
    other_jumps(patch, lambda end, stretch, counts: (end, np.zeros_like(stretch), counts))


@mistake("jump that nothing leads back from", JUMPING)
def one_way(patch):
    other_jumps(patch, lambda end, stretch, counts: (end, stretch, np.ones_like(counts)))


def other_turns(patch, chosen):
    """Change which chains jump before the inner steps; the others jump after them."""
    jump, early = leapwise.kernels.transition._jump, []

    def turned(jumps, dynamics, streams, point, now):
        if early:
            return jump(jumps, dynamics, streams, point, ~early.pop())
        early.append(chosen(dynamics.positions(point)))
        return jump(jumps, dynamics, streams, point, early[0])

    patch.setattr(leapwise.kernels.transition, "_jump", turned)


@mistake("jump always before the inner steps", JUMPING_FLAT)
def unbalanced(patch):
    other_turns(patch, lambda position: np.ones(len(position), dtype=bool))


@mistake("where a chain is decides when it jumps", JUMPING_FLAT)
def at_will(patch):
    other_turns(patch, lambda position: position[:, 1] > 0.5)


@mistake("surrogate's potential remembered from before the last move", MANY_TWICE)
def stale_prediction(patch):
    accept = State.accept

    def forgetful(self, accepted, proposal):
        new = accept(self, accepted, proposal)
        stale = new.known_force._replace(potential=self.known_force.potential)
        return replace(new, known_force=stale)

    patch.setattr(State, "accept", forgetful)


@mistake("stretch of volume by other coordinates forgotten", TURNED)
def no_jacobian(patch):
    patch.setattr(NonCentred, "log_jacobian_at", lambda self, position: np.zeros(len(position)))


def other_probability(patch, probability):
    """Change the probability of an inner step in other coordinates to a function of the position."""
    by_turns = leapwise.kernels.transition._by_turns

    def changed(kernel, turns, dynamics, streams, point):
        turns = copy.copy(turns)
        object.__setattr__(turns, "probability", probability(dynamics.positions(point)))
        return by_turns(kernel, turns, dynamics, streams, point)

    patch.setattr(leapwise.kernels.transition, "_by_turns", changed)


@mistake("where a chain is decides its coordinates", TURNED)
def at_home(patch):
    other_probability(patch, lambda position: np.where(position[:, 1] < -0.5, 0.9, 0.1))
