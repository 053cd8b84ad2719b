"""Which surrogates are tried, and which of them plays.

The quadratic is first: it costs next to nothing to train and is all that many posteriors need. Hidden nodes join once
it proves too plain, a Gaussian process once they do too, or all at once where there are few parameters and they cost as
little. A forward model is emulated by its outputs, which needs no gradient. Each is trained on all that is known
whenever that has grown by a fifth, and judged by what it predicted of positions it had not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from leapwise.adaptation.record import EvaluationRecord
from leapwise.surrogates import (
    Fitted,
    GaussianProcess,
    OutputSurrogate,
    QuadraticNetwork,
    Surrogate,
    TrainingSet,
    Whitening,
)
from leapwise.surrogates.gp import FittedProcess
from leapwise.surrogates.outputs import FittedOutputs
from leapwise.surrogates.quadratic import FittedQuadratic
from leapwise.targets import AnyTarget

#: sd(D) of the others from which on hidden nodes are worth their training, and from which on a process is.
TOO_PLAIN, STILL_POOR = 0.05, 0.2
#: Up to how many parameters all candidates are tried from the start.
FEW_PARAMETERS = 6
N_HIDDEN = 300
PLAIN = "quadratic"
#: Rows of a process, of which each value is one and each gradient dim. If it cannot hold so many evaluations for each
#: parameter it is not tried.
MOST_ROWS, ENOUGH = 3200, 5
#: Rows that its hyperparameters are learnt from: to learn them takes dozens of factors of so many rows.
LEARNT_FROM = 700
#: Another candidate plays only if it is so much better, and none but a quadratic with this sd(D), which costs the
#: least and has no tails to go wrong.
CLEARLY, GOOD_ENOUGH = 0.95, 0.02
#: A ridge is chosen anew once so many times as much is known.
STEADY = 1.5


@dataclass
class Candidates:
    """All surrogates in training, and the one that plays.

    Parameters
    ----------
    target : AnyTarget
        Tells whether there are outputs to emulate.
    record : EvaluationRecord
        What there is to learn from, and the scores.
    rng : Generator
        Draws hidden nodes, and so on.
    recipe : Surrogate, optional
        The only candidate, if it is given.

    Attributes
    ----------
    fitted : dict of str to Fitted
    playing : str
        The name of the one in use.
    """

    target: AnyTarget
    record: EvaluationRecord
    rng: np.random.Generator
    recipe: Surrogate | None = None
    fitted: dict[str, Fitted] = field(default_factory=dict)
    playing: str = ""
    n_known: int = 0
    _process: GaussianProcess = field(
        default_factory=lambda: GaussianProcess("rational_quadratic", trend="radial", max_rows=LEARNT_FROM)
    )
    _n_learnt: int = 0
    _ridges: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def surrogate(self) -> Fitted:
        """The one that plays."""
        return self.fitted[self.playing]

    @property
    def sd(self) -> float:
        """sd(D) of the one that plays."""
        return self.record.sd(self.playing)

    def predict(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Return what each candidate says of positions."""
        with np.errstate(all="ignore"):
            return {name: fitted.potential(position) for name, fitted in self.fitted.items()}

    def choose(self) -> None:
        """Let the best of them play."""
        if PLAIN in self.fitted and self.record.sd(PLAIN) < GOOD_ENOUGH:
            self.playing = PLAIN
            return
        gains = {name: self.record.gain(name, self.playing) for name in self.fitted if name != self.playing}
        best = min(gains, key=lambda name: gains[name], default=self.playing)
        if gains.get(best, np.inf) < CLEARLY:
            self.playing = best

    def train(self, frame: Whitening) -> None:
        """Train all candidates on all that is known."""
        training = self.record.training()
        self.fitted = self._fit_all(self._recipes(frame), training)
        self.n_known = len(self.record)
        if self.playing not in self.fitted:
            self.playing = next(iter(self.fitted))

    @property
    def can_train(self) -> bool:
        """Whether there is more than one position with mass to learn from; outputs are learnt from anywhere."""
        return self.target.emulates_outputs or len(self.record.training().select()) > 1

    @property
    def is_due(self) -> bool:
        """Whether enough has been learnt since the last training for another."""
        return len(self.record) >= 1.2 * self.n_known

    @property
    def _most(self) -> int:
        """How many evaluations a process is given at most."""
        return MOST_ROWS // (1 + self.target.dim * self.record.gradient)

    def _recipes(self, frame: Whitening) -> dict[str, Surrogate]:
        if self.recipe is not None:
            return {type(self.recipe).__name__: self.recipe}
        if self.target.emulates_outputs:
            return self._emulators(frame)
        found: dict[str, Surrogate] = {PLAIN: QuadraticNetwork(whitening=frame)}
        few, stages = self.target.dim <= FEW_PARAMETERS, self.record.settings.stages
        if (few or self._is_worth("network", TOO_PLAIN)) and stages.hidden_units:
            found["network"] = QuadraticNetwork(N_HIDDEN, radial=True, whitening=frame)
        large = self._most >= ENOUGH * (self.target.dim + 1)
        if large and (few or self._needs_process) and stages.gaussian_process:
            found["process"] = replace(self._process, whitening=frame)
        return found

    @property
    def _needs_process(self) -> bool:
        """Whether there is one already, or hidden nodes have had their chance: it costs far more to train."""
        judged = np.isfinite(self.record.sd("network"))
        return "process" in self.fitted or (judged and self._is_worth("process", STILL_POOR))

    def _is_worth(self, name: str, limit: float) -> bool:
        """Whether a candidate is in training already, or all that are have proved worse than a limit."""
        scores = [self.record.sd(each) for each in self.fitted]
        return name in self.fitted or (len(scores) > 0 and limit < min(scores) < np.inf)

    def _emulators(self, frame: Whitening) -> dict[str, Surrogate]:
        emulator = replace(OutputSurrogate.of(self.target), whitening=frame)  # type: ignore[arg-type]
        found: dict[str, Surrogate] = {"outputs": emulator}
        if self._is_worth("outputs network", TOO_PLAIN) and self.record.settings.stages.hidden_units:
            found["outputs network"] = replace(emulator, n_hidden=N_HIDDEN)
        return found

    def _fit_all(self, recipes: dict[str, Surrogate], training: TrainingSet) -> dict[str, Fitted]:
        """Train all that can be trained; a target may be beyond what one of several can put into numbers."""
        found: dict[str, Fitted] = {}
        for name, recipe in recipes.items():
            try:
                found[name] = self._fit(recipe, training, next(iter(found.values()), None))
            except (ArithmeticError, ValueError) as error:
                if len(recipes) == 1 or not is_beyond_numbers(error):
                    raise
        return found

    def _fit(self, recipe: Surrogate, training: TrainingSet, plain: Fitted | None) -> Fitted:
        if isinstance(recipe, QuadraticNetwork):
            return self._fit_network(recipe, training, plain)
        if isinstance(recipe, OutputSurrogate) and isinstance(plain, FittedOutputs):
            return recipe.fit(training, self.rng, plain)
        if not isinstance(recipe, GaussianProcess):
            return recipe.fit(training, self.rng)
        known = training.select()
        known = known.rows(np.arange(len(known)) >= len(known) - self._most)
        if len(known) >= 1.5 * self._n_learnt:
            recipe = replace(recipe, hyperparameters=None)
        found = recipe.fit(known, self.rng)
        assert isinstance(found, FittedProcess)
        if recipe.hyperparameters is None:
            self._process, self._n_learnt = replace(recipe, hyperparameters=found.hyperparameters), len(known)
        return found

    def _fit_network(
        self, recipe: QuadraticNetwork, training: TrainingSet, plain: Fitted | None
    ) -> FittedQuadratic:
        """Train one, with the ridge of last time unless much more is known: to choose it takes most of the time."""
        ridge, known = self._ridges.get(recipe.n_hidden, (None, 0))
        if recipe.ridge is None and len(training) < STEADY * known:
            recipe = replace(recipe, ridge=ridge)
        found = recipe.fit(training, self.rng, plain if isinstance(plain, FittedQuadratic) else None)
        if recipe.ridge is None:
            self._ridges[recipe.n_hidden] = found.ridge, len(training)
        return found


def is_beyond_numbers(error: Exception) -> bool:
    """Whether linear algebra gave up on numbers that are too large, or too far apart."""
    told = str(error)
    gave_up = "infs or NaNs" in told or "positive definite" in told
    return isinstance(error, (ArithmeticError, np.linalg.LinAlgError)) or gave_up
