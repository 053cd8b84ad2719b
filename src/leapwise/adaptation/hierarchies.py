"""Where chains start on a hierarchy: a prior that names other parameters, such as Normal("mu", "tau").

Its density is unbounded where the spread of a group goes to 0, and there is no mass there. So a descent of the
posterior itself would end in the wrong place. The prior is exact and can be drawn from, so chains start from its draws
(`start_at_prior`). If outputs are emulated, they then follow descents of the likelihood with a bounded prior in place
of the hierarchy (`find_by_regular_outputs`).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from leapwise.adaptation.initialise import Start, find_by_outputs, prior_draws
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.selection import Candidates
from leapwise.execution import Evaluation
from leapwise.kernels import State
from leapwise.surrogates import TrainingSet, Whitening
from leapwise.surrogates.joint import JointPotential
from leapwise.surrogates.output_space import PriorPotential
from leapwise.targets import Transform
from leapwise.targets.forward import PriorAndLikelihood


def start_at_prior(record: EvaluationRecord, state: State, rng: np.random.Generator) -> Start:
    """Start at draws of the prior, chosen by the likelihood, without a descent, in the frame of the prior.

    A hierarchy has no mode worth finding: its density is unbounded where the spread of a group goes to 0, and there is
    no mass there. But draws of the prior, resampled with the likelihood as their weight, are nearly draws of the
    posterior. (Without replacement, by the largest of log-weights plus Gumbel noise, so that chains start apart.)
    """
    target, dim = record.evaluator.target, state.position.shape[1]
    prior = prior_draws(target, rng, record.settings.initialise.n_prior)
    record.evaluate(prior[: 2 * (dim + 1)])
    known = record.training()
    assert target.prior is not None
    with np.errstate(all="ignore"):
        log_weight = PriorPotential(target.prior, target.transform)(known.position)[0] - known.potential
    log_weight = np.where(np.isnan(log_weight), -np.inf, log_weight) + rng.gumbel(size=len(known))
    chosen = np.argsort(-log_weight, kind="stable")[: len(state.position)]
    return Start(known.position[np.resize(chosen, len(state.position))], _frame_of(prior))


def _frame_of(prior: np.ndarray) -> Whitening:
    """Return a frame of the widths of the prior's draws, by quartiles: its tails may be heavy."""
    low, middle, high = np.quantile(prior, [0.25, 0.5, 0.75], axis=0)
    return Whitening(middle, np.diag(np.where(high > low, (high - low) / 1.35, 1.0)))


@dataclass(frozen=True, eq=False)
class RegularJoint:
    """A likelihood with a normal prior of positions in place of a hierarchy, for descents.

    The normal has the medians and widths of the prior's draws. Its density is bounded, so that a descent ends where the
    data are fitted and the parameters of the prior are usual ones.
    """

    joint: PriorAndLikelihood
    transform: Transform
    frame: Whitening

    def log_density(self, parameters: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return log-densities of parameters and outputs, whose Jacobian makes the prior normal in positions."""
        position = self.transform.to_position(parameters)
        white = self.frame.to_white(position)
        log_prior = -0.5 * np.einsum("ij,ij->i", white, white) - self.transform.log_jacobian(position)
        hierarchy = self.joint.prior.log_density(parameters)
        return np.asarray(self.joint.log_density(parameters, outputs) - hierarchy + log_prior)

    def gradient(self, parameters: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return its gradients by parameters and by outputs."""
        position = self.transform.to_position(parameters)
        by_parameters, by_outputs = self.joint.gradient(parameters, outputs)
        zero, one = (self.transform.pull_back(position, np.full_like(position, each)) for each in (0.0, 1.0))
        normal = -self.frame.gradient_from_white(self.frame.to_white(position))
        slope = (normal - zero) / (one - zero)  # by parameters, less the slope of the log-Jacobian
        return by_parameters - self.joint.prior.gradient(parameters) + slope, by_outputs


class RegularRecord:
    """The evaluations of a record, with potentials of a `RegularJoint`; outputs are known, so it costs nothing."""

    gradient = False

    def __init__(self, record: EvaluationRecord, joint: RegularJoint) -> None:
        self.record, self.settings, self.evaluator = record, record.settings, record.evaluator
        self._potentials = JointPotential(joint, joint.transform)

    def __len__(self) -> int:
        return len(self.record)

    @property
    def evaluations(self) -> list[Evaluation]:
        """Those of the adaptation, in order."""
        return self.record.evaluations

    @property
    def lowest(self) -> float:
        """The lowest potential."""
        return float(self.training().potential.min())

    def sd(self, candidate: str) -> float:
        """Return sd(D) of a candidate: not known yet."""
        return np.inf

    def evaluate(self, position: np.ndarray) -> Evaluation:
        """Evaluate positions."""
        found = self.record.evaluate(position)
        return replace(found, potential=self.potential(found.position, found.outputs))

    def training(self) -> TrainingSet:
        """Return the training set."""
        known = self.record.training()
        potential = self.potential(known.position, known.outputs)
        known = known.rows(np.isfinite(potential))
        return replace(known, potential=potential[np.isfinite(potential)])

    def potential(self, position: np.ndarray, outputs: np.ndarray | None) -> np.ndarray:
        """Return potentials; infinite where there are no outputs."""
        if outputs is None:
            return np.full(len(position), np.inf)
        with np.errstate(all="ignore"):
            found = self._potentials.value(position, outputs)
        return np.where(np.isfinite(found), found, np.inf)


def find_by_regular_outputs(record: EvaluationRecord, state: State, rng: np.random.Generator) -> Start:
    """Find the typical set of a hierarchy: as `find_by_outputs`, with a normal prior in place of the hierarchy."""
    target: Any = copy(record.evaluator.target)
    prior = prior_draws(target, rng, record.settings.initialise.n_prior)
    target.joint = RegularJoint(target.joint, target.transform, _frame_of(prior))
    regular: Any = RegularRecord(record, target.joint)
    outputs = state.with_outputs(record.all_evaluations).outputs
    known = replace(state, potential=regular.potential(state.position, outputs))
    return find_by_outputs(regular, Candidates(target, regular, rng), known)
