"""Planted mistakes in the moves of parameters that the forward model does not see.

The model sees a alone; the standard deviation of the noise and an offset are free. Exact draws are drawn from the prior
and kept in proportion to the likelihood, which the lower bound of the noise bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from mutations import OneStep, mistake

import leapwise.kernels.free_moves
from leapwise import (
    ForwardTarget,
    GaussianLikelihood,
    HalfNormal,
    Normal,
    Prior,
    SharedStream,
    State,
    SurrogateTransition,
)
from leapwise.dynamics import plain_leapfrog
from leapwise.kernels import Kernel
from leapwise.kernels.free_moves import Conditional, FreeMoves
from leapwise.surrogates.joint import JointPotential
from leapwise.testing import ExactTarget

DATA, LOWEST_NOISE = np.array([0.8, 0.1, 1.9]), 0.3


def outputs(inputs):
    a = inputs[:, 0]
    return np.stack([np.sin(a), a**2 / 2.0, np.exp(0.5 * a)], axis=1)


TARGET = ForwardTarget(
    outputs,
    GaussianLikelihood(DATA, sd="sigma", offset="b"),
    Prior(a=Normal(0.5, 0.8), sigma=HalfNormal(0.5), b=Normal(0.2, 0.5)),
    bounds=[None, (LOWEST_NOISE, None), None],
    inputs=["a"],
    vectorized=True,
)


def draw(rng, n):
    """Draw exactly from the posterior, by rejection: the likelihood is at most the lowest noise to the power -3."""
    kept, size = [], 0
    while size < n:
        sigma = np.abs(0.5 * rng.standard_normal(100_000))
        sigma = sigma[sigma > LOWEST_NOISE]
        a = 0.5 + 0.8 * rng.standard_normal(sigma.size)
        b = 0.2 + 0.5 * rng.standard_normal(sigma.size)
        misfit = ((outputs(a[:, None]) + b[:, None] - DATA) ** 2).sum(axis=1)
        likelihood = (LOWEST_NOISE / sigma) ** len(DATA) * np.exp(-0.5 * misfit / sigma**2)
        kept.append(np.stack([a, sigma, b], axis=1)[rng.random(sigma.size) < likelihood])
        size += len(kept[-1])
    return np.concatenate(kept)[:n]


class Rough:
    """A surrogate that knows no more than roughly where the posterior is."""

    centre, width = np.array([0.8, -1.4, -0.3]), np.array([0.7, 1.0, 0.5])

    def potential(self, position):
        return self.potential_and_gradient(position)[0]

    def potential_and_gradient(self, position):
        z = (position - self.centre) / self.width
        return 0.5 * (z**2).sum(axis=1), z / self.width


@dataclass(frozen=True, eq=False)
class InGroups:
    """Kernels, one after the other, for few chains at a time: each is compared with its group to find its outputs."""

    kernels: tuple[Kernel, ...]
    size: int = 250

    is_exact = True

    def step(self, streams, state, evaluator):
        ends = []
        for first in range(0, streams.n_chains, self.size):
            rows = slice(first, first + self.size)
            group = State(state.position[rows], state.potential[rows], outputs=state.outputs[rows])
            few = SharedStream(streams.rng, len(group.position))
            for kernel in self.kernels:
                group, _ = kernel.step(few, group, evaluator)
            ends.append(group)
        position, potential = (
            np.concatenate([getattr(each, name) for each in ends]) for name in ("position", "potential")
        )
        return State(position, potential), None


JOINT = JointPotential(TARGET.joint, TARGET.transform)
EXACT = ExactTarget(TARGET, draw, "noise and offset")
INNER = SurrogateTransition(0.8, 3, surrogate=Rough(), inner_steps=1)
KERNEL = FreeMoves(INNER, JOINT, [1, 2], 0.9, (1, 3), n_moves=2, scales=[0.9, 0.4])
ONE = OneStep("FreeMoves", InGroups((KERNEL,)), EXACT)
SHORT = SurrogateTransition(0.3, (1, 1), surrogate=Rough(), inner_steps=1)
TWO = OneStep("FreeMoves, then a short step of another kernel", InGroups((KERNEL, SHORT)), EXACT)


@mistake("an input of the model moved as if it were free", ONE)
def greedy(patch):
    step = FreeMoves.step

    def all_of_them(self, streams, state, evaluator):
        return step(replace(self, free=[0, 1, 2], scales=[0.5, 0.9, 0.4]), streams, state, evaluator)

    patch.setattr(FreeMoves, "_require_free", lambda *arguments: None)
    patch.setattr(FreeMoves, "step", all_of_them)


def other_values(patch, change):
    """Change the potential that free moves are accepted with, by a function of positions."""
    value = Conditional.value
    patch.setattr(Conditional, "value", lambda self, point: value(self, point) + change(self.filled(point)))


@mistake("free move accepted without the prior", ONE)
def no_prior(patch):
    other_values(patch, lambda q: TARGET.prior.log_density(TARGET.transform.to_parameters(q)))


@mistake("free move accepted without the Jacobian", ONE)
def no_jacobian(patch):
    other_values(patch, TARGET.transform.log_jacobian)


@mistake("free move given the outputs from before the inner step", ONE)
def stale_outputs(patch):
    patch.setattr(
        State, "with_outputs", lambda self, evaluations, before: replace(self, outputs=before.outputs)
    )


@mistake("step size of a free move by the state", ONE)
def state_dependent_step(patch):
    def by_noise(gradient, metric, start, step_size, n_steps):
        step_size = step_size * np.clip(np.exp(0.5 * (start.position[:, 0] + 1.4)), 0.2, 1.5)
        return plain_leapfrog(gradient, metric, start, step_size, n_steps)

    patch.setattr(leapwise.kernels.free_moves, "plain_leapfrog", by_noise)


@mistake("free moves only of chains whose proposal was accepted", ONE)
def only_after_acceptance(patch):
    found = State.with_outputs
    patch.setattr(State, "with_outputs", lambda self, evaluations, before: found(self, evaluations))


@mistake("free move without its Metropolis step", ONE)
def always(patch):
    def accept(energy, proposal_energy, uniforms):
        finite = np.isfinite(proposal_energy)
        return finite, finite.astype(float)

    patch.setattr(leapwise.kernels.free_moves, "metropolis", accept)


@mistake("potential remembered from before the free moves", TWO)
def stale_potential(patch):
    move_freely = FreeMoves._move_freely

    def stale(self, streams, state):
        return replace(move_freely(self, streams, state), potential=state.potential)

    patch.setattr(FreeMoves, "_move_freely", stale)
