"""Select: which surrogates are trained, and which one is used.

The quadratic comes first: it costs next to nothing to train and suffices for many posteriors. Hidden units join once it
is not good enough, a Gaussian process once they are not either; with few parameters all are trained at once, since they
cost little there. A forward model is emulated by its outputs, which needs no gradient. All candidates are trained on
all data whenever these have grown by a fifth, and judged by their predictions at positions outside the training data.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from leapwise.adaptation.record import EvaluationRecord
from leapwise.surrogates import (
    Fitted,
    GaussianProcess,
    QuadraticNetwork,
    Surrogate,
    TrainingSet,
    Whitening,
)
from leapwise.surrogates.gp import FittedProcess
from leapwise.surrogates.joint import (
    FittedJoint,
    WithPrior,
    marginal,
    surrogate_of_outputs,
    without_prior,
)
from leapwise.surrogates.output_space import PriorPotential
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.quadratic import FittedQuadratic
from leapwise.targets import AnyTarget

#: The candidate that is taken in any case once it is good enough.
PLAIN = "quadratic"


@dataclass
class Candidates:
    """All surrogates in training, and the one in use.

    Parameters
    ----------
    target : AnyTarget
        Says whether there are outputs to emulate.
    record : EvaluationRecord
        The training data, the comparisons, and the settings.
    rng : Generator
        Draws hidden units and so on.
    recipe : Surrogate, optional
        The only candidate, if it is given.

    Attributes
    ----------
    fitted : dict of str to Fitted
    chosen : str
        The name of the one in use.
    n_known : int
        Evaluations that were known at the last training.
    """

    target: AnyTarget
    record: EvaluationRecord
    rng: np.random.Generator
    recipe: Surrogate | None = None
    fitted: dict[str, Fitted] = field(default_factory=dict)
    chosen: str = ""
    n_known: int = 0
    _hyperparameters: object = None
    _n_learned: int = 0
    _ridges: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def surrogate(self) -> Fitted:
        """The one in use."""
        return self.fitted[self.chosen]

    @property
    def sd(self) -> float:
        """sd(D) of the one in use."""
        return self.record.sd(self.chosen)

    def predict(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Return the potentials that each candidate predicts."""
        with np.errstate(all="ignore"):
            return {name: fitted.potential(position) for name, fitted in self.fitted.items()}

    def choose(self) -> None:
        """Use the best of them, if it is clearly better."""
        settings = self.record.settings.selection
        if PLAIN in self.fitted and self.record.sd(PLAIN) < settings.good_enough:
            self.chosen = PLAIN
            return
        sds = {
            name: self.record.relative_sd(name, self.chosen) for name in self.fitted if name != self.chosen
        }
        best = min(sds, key=lambda name: sds[name], default=self.chosen)
        if sds.get(best, np.inf) < settings.clearly:
            self.chosen = best

    def train(self, frame: Whitening) -> None:
        """Train all candidates on all data."""
        training, prior = self.record.training(), self._prior
        if prior is None:
            self.fitted = self._fit_all(self._recipes(frame), training)
        else:  # only the likelihood is learned, as a function of what it sees
            seen = self.target.inputs
            found = self._fit_all(
                self._recipes(marginal(frame, seen)), without_prior(training.select(), prior, seen)
            )
            self.fitted = {name: WithPrior(each, prior, seen) for name, each in found.items()}
        self.n_known = len(self.record)
        if self.chosen not in self.fitted:
            self.chosen = next(iter(self.fitted))

    @property
    def _prior(self) -> PriorPotential | None:
        """The potential of a log-density's exact prior, if it has one."""
        prior = None if self.target.emulates_outputs else self.target.prior
        return None if prior is None else PriorPotential(prior, self.target.transform)

    @property
    def can_train(self) -> bool:
        """Whether there is more than one position with mass to train on; outputs are trained on anywhere."""
        return self.target.emulates_outputs or len(self.record.training().select()) > 1

    @property
    def is_due(self) -> bool:
        """Whether there are enough new data for another training."""
        return len(self.record) >= self.record.settings.selection.retrain * self.n_known

    @property
    def _most(self) -> int:
        """How many evaluations a process is given at most: more once it has proved good, since then they pay."""
        settings, poor = self.record.settings.selection, self.record.settings.stopping.poor
        rows = settings.max_rows if self.record.sd("process") < poor else settings.few_rows
        return rows // (1 + self.target.dim * self.record.gradient)

    def _recipes(self, frame: Whitening) -> dict[str, Surrogate]:
        settings, stages = self.record.settings.selection, self.record.settings.stages
        if self.recipe is not None:
            return {type(self.recipe).__name__: self.recipe}
        if self.target.emulates_outputs:
            return self._emulators(frame)
        quadratic = QuadraticNetwork(whitening=frame)
        if self._prior is not None:  # a likelihood may be flat, or nearly, where the prior falls off
            quadratic = replace(quadratic, must_grow=False)
        found: dict[str, Surrogate] = {PLAIN: quadratic}
        few = self.target.dim <= settings.few_parameters
        if (few or self._is_worth("network", settings.too_plain)) and stages.hidden_units:
            found["network"] = replace(quadratic, n_hidden=settings.n_hidden, radial=True)
        large = self._most >= settings.enough * (self.target.dim + 1)
        if large and (few or self._needs_process) and stages.gaussian_process:
            found["process"] = GaussianProcess(
                "rational_quadratic",
                trend="radial",
                max_rows=settings.learned_from,
                hyperparameters=self._hyperparameters,  # type: ignore[arg-type]
                whitening=frame,
            )
        return found

    def _emulators(self, frame: Whitening) -> dict[str, Surrogate]:
        settings = self.record.settings
        emulator = replace(surrogate_of_outputs(self.target), whitening=frame)
        found: dict[str, Surrogate] = {"outputs": emulator}
        if self._is_worth("outputs network", settings.selection.too_plain) and settings.stages.hidden_units:
            found["outputs network"] = replace(emulator, n_hidden=settings.selection.n_hidden)
        return found

    @property
    def _needs_process(self) -> bool:
        """Whether there is one already, or hidden units have had their chance: it costs far more to train."""
        judged = np.isfinite(self.record.sd("network"))
        limit = self.record.settings.selection.still_poor
        return "process" in self.fitted or (judged and self._is_worth("process", limit))

    def _is_worth(self, name: str, limit: float) -> bool:
        """Return whether a candidate is in training already, or all that are have proved worse than a limit."""
        scores = [self.record.sd(each) for each in self.fitted]
        return name in self.fitted or (len(scores) > 0 and limit < min(scores) < np.inf)

    def _fit_all(self, recipes: dict[str, Surrogate], training: TrainingSet) -> dict[str, Fitted]:
        """Train all that can be trained; the numbers of a target may be too extreme for some of several."""
        found: dict[str, Fitted] = {}
        for name, recipe in recipes.items():
            try:
                found[name] = self._fit(recipe, training, next(iter(found.values()), None))
            except (ArithmeticError, ValueError) as error:
                if len(recipes) == 1 or not is_numerical(error):
                    raise
        return found

    def _fit(self, recipe: Any, training: TrainingSet, plain: Fitted | None) -> Fitted:
        if isinstance(recipe, QuadraticNetwork):
            return self._fit_network(recipe, training, plain)
        if isinstance(plain, (FittedOutputs, FittedJoint)):
            return recipe.fit(training, self.rng, plain)
        if not isinstance(recipe, GaussianProcess):
            return recipe.fit(training, self.rng)
        known = training.select()
        known = known.rows(np.arange(len(known)) >= len(known) - self._most)
        if len(known) >= self.record.settings.selection.relearn * self._n_learned:
            recipe = replace(recipe, hyperparameters=None)
        found = recipe.fit(known, self.rng)
        assert isinstance(found, FittedProcess)
        if recipe.hyperparameters is None:
            self._hyperparameters, self._n_learned = found.hyperparameters, len(known)
        return found

    def _fit_network(
        self, recipe: QuadraticNetwork, training: TrainingSet, plain: Fitted | None
    ) -> FittedQuadratic:
        """Train one; the last ridge strength is kept unless there are many new data, since choosing it takes long."""
        ridge, known = self._ridges.get(recipe.n_hidden, (None, 0))
        if recipe.ridge is None and len(training) < self.record.settings.selection.steady * known:
            recipe = replace(recipe, ridge=ridge)
        found = recipe.fit(training, self.rng, plain if isinstance(plain, FittedQuadratic) else None)
        if recipe.ridge is None:
            self._ridges[recipe.n_hidden] = found.ridge, len(training)
        return found


def is_numerical(error: Exception) -> bool:
    """Return whether linear algebra failed on numbers that are too large, or too far apart."""
    message = str(error)
    failed = "infs or NaNs" in message or "positive definite" in message
    return isinstance(error, (ArithmeticError, np.linalg.LinAlgError)) or failed
