"""Planted mistakes in NUTS: how trees grow, when they end, and which leaf is chosen."""

from __future__ import annotations

import numpy as np
from mutations import MORE, OneStep, mistake

import leapwise.kernels.nuts
from leapwise import NUTS, DiagonalMetric, UnitMetric
from leapwise.kernels.accept import progressive
from leapwise.kernels.nuts import GRADIENT, Trees, turns
from leapwise.kernels.streams import CounterStream
from leapwise.testing import gumbel

ONE = OneStep("NUTS", NUTS(0.9, metric=UnitMetric()), gumbel(), MORE)
COARSE = OneStep("NUTS, long leapfrog steps", NUTS(1.5, metric=UnitMetric()), gumbel())
FINE = OneStep("NUTS, short leapfrog steps", NUTS(0.3, metric=UnitMetric()), gumbel())
MANY = OneStep("NUTS, short leapfrog steps, more chains", NUTS(0.3, metric=UnitMetric()), gumbel(), MORE)
SCALED = OneStep("NUTS, diagonal metric", NUTS(0.6, metric=DiagonalMetric([1.6, 2.7])), gumbel())
THREE = OneStep("NUTS, three steps", NUTS(0.9, metric=UnitMetric()), gumbel(), steps=3)


@mistake("NUTS: sub-trees of a doubling not tested", FINE)
def only_whole_trees(patch):
    """From one half of a tree growth would have stopped earlier than from the other."""
    tested = Trees._subtrees_turn

    def blind(self, last, momentum, velocity):
        return np.zeros_like(tested(self, last, momentum, velocity))

    patch.setattr(Trees, "_subtrees_turn", blind)


@mistake("NUTS: sub-trees tested in one direction of time only", FINE)
def one_eyed(patch):
    tested = Trees._subtrees_turn

    def half_blind(self, last, momentum, velocity):
        return tested(self, last, momentum, velocity) & (self.forward == 1)

    patch.setattr(Trees, "_subtrees_turn", half_blind)


@mistake("NUTS: a U-turn seen from the first leaf only", FINE)
def from_the_start(patch):
    """The first leaf of a doubling is the last of the same sub-tree seen from the other side."""
    patch.setattr(leapwise.kernels.nuts, "turns", lambda first, last, momenta: turns(first, first, momenta))


@mistake("NUTS: a doubling that turned is taken nevertheless", FINE)
def keeps_what_is_refused(patch):
    finish = Trees._finish

    def generous(self, ended, diverging, left):
        rows = np.flatnonzero(ended & ~diverging)
        taken = rows[progressive(self.new_log_weight[rows], self.log_weight[rows], np.full(len(rows), 0.5))]
        self.chosen[taken], self.chosen_energies[taken] = self.new[taken], self.new_energies[taken]
        finish(self, ended, diverging, left)

    patch.setattr(Trees, "_finish", generous)


@mistake("NUTS: weights that ignore the energy", COARSE)
def all_alike(patch):
    weigh = Trees._weigh

    def level(self, log_weight, potential, energy):
        weigh(self, np.where(log_weight > -np.inf, 0.0, log_weight), potential, energy)

    patch.setattr(Trees, "_weigh", level)


@mistake("NUTS: later leaves of a doubling preferred", MANY)
def biased_inside(patch):
    """What is right between trees, weight over that of the others, is wrong between leaves."""

    def eager(log_weight, log_other, uniforms):
        with np.errstate(all="ignore"):
            others = log_other + np.log1p(-np.exp(np.minimum(0.0, log_weight - log_other)))
        inside = log_other >= log_weight  # a sum that includes it, or the weight of a heavier tree
        return progressive(log_weight, np.where(inside, others, log_other), uniforms)

    weigh = Trees._weigh

    def preferring(self, *arguments):
        patch.setattr(leapwise.kernels.nuts, "progressive", eager)
        weigh(self, *arguments)
        patch.setattr(leapwise.kernels.nuts, "progressive", progressive)

    patch.setattr(Trees, "_weigh", preferring)


@mistake("NUTS: every doubling taken", COARSE)
def always_on(patch):
    join = Trees._join

    def pushing(self, rows):
        self.log_weight[rows] = -np.inf
        return join(self, rows)

    patch.setattr(Trees, "_join", pushing)


@mistake("NUTS: always forwards", ONE)
def one_way(patch):
    patch.setattr(CounterStream, "coins", lambda self, which: np.ones(len(which), dtype=np.int64))


@mistake("NUTS: one number for all choices of a tree", FINE)
def thrift(patch):
    uniforms = CounterStream.uniforms
    patch.setattr(CounterStream, "uniforms", lambda self, which: uniforms(self, np.ones_like(which)))


@mistake("NUTS: momenta a tenth too large", SCALED)
def hot(patch):
    momentum = DiagonalMetric.momentum
    patch.setattr(DiagonalMetric, "momentum", lambda self, normals: 1.1 * momentum(self, normals))


@mistake("NUTS: kinetic energy missing from the weights", ONE)
def no_kinetic_energy(patch):
    weigh = Trees._weigh

    def still(self, log_weight, potential, energy):
        weigh(self, self.chosen_energies[:, 0] - potential, potential, energy)

    patch.setattr(Trees, "_weigh", still)


@mistake("NUTS: gradient of another leaf kept", THREE)
def stale(patch):
    result = Trees.result

    def mixed_up(self, state, step_size, unknown):
        self.found.chosen[:, GRADIENT] = state.gradient
        return result(self, state, step_size, unknown)

    patch.setattr(Trees, "result", mixed_up)


@mistake("NUTS: divergence relative to the start", COARSE)
def relative(patch):
    """With a limit that matters, on the rise of the energy from where the tree began."""
    patch.setattr(Trees, "_diverge", lambda self, energy: ~(energy - self.energy <= 0.3))
