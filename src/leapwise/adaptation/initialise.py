r"""Find the typical set: where the mass is, and how wide it is.

**Log-densities** (`find`). The chain that starts lowest descends (`leapwise.adaptation.minimise`), along exact
gradients or along differences. The curvature at its end gives the frame, and a test of that end: with the gradient g
and the Hessian H there, a quadratic would still fall by :math:`\tfrac12 g^T H^{-1} g`. If that is much, the descent
continues in the frame, so that neither scales nor correlations slow it down. The other chains descend in this frame for
a few steps; one that is still far up is put on the line to the lowest point, at the distance of the typical set. Draws
from the normal distribution of the frame complete the first training set.

With values alone two of the other chains descend to their end, and a lower position that is known from anywhere is
descended from too: the first descent may have ended in a local minimum.

**Forward models** (`find_by_outputs`). The model is run at draws from the prior. Then each chain repeatedly goes to the
minimum of the potential with emulated outputs, no further than a radius that grows with success, and moves a little at
random there, so that all chains add different data. One emulator for the whole prior is poor where the posterior is a
hundred times narrower or has several modes. So trust regions follow: outputs are emulated from the evaluations within
the region, with a few more evaluations where a direction has not been looked at, and the minimum inside is evaluated.
The region grows where that was predicted and shrinks where it was not. One descent may end in a local minimum: others
follow from the next lowest chains until two are equally low, and from fresh draws of the prior as long as nothing fits
the data. If noise is unknown, all chains descend, since with much noise any position fits. Chains that are still far up
then start again around the ends of descents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from leapwise.adaptation.minimise import (
    DifferenceGradient,
    ExactGradient,
    LocalMinimum,
    improper,
    measure_curvature,
    minimise,
)
from leapwise.adaptation.record import EvaluationRecord
from leapwise.adaptation.selection import Candidates
from leapwise.adaptation.surrogate_chains import find_step_size, move, surrogate_kernel
from leapwise.errors import BudgetError
from leapwise.execution import Evaluation
from leapwise.kernels import State
from leapwise.surrogates import Fitted, TrainingSet, Whitening
from leapwise.surrogates.base import hessians
from leapwise.surrogates.joint import surrogate_of_outputs
from leapwise.targets import AnyTarget, GaussianLikelihood


@dataclass(frozen=True, eq=False)
class Start:
    """Where the chains are, and the frame."""

    position: np.ndarray  # (chains, dim)
    frame: Whitening


def find(
    record: EvaluationRecord, state: State, rng: np.random.Generator, *, is_limited: bool = False
) -> Start:
    """Descend from where the chains start, and measure the curvature; `state` has been evaluated.

    With a limit of the user's (`is_limited`) nothing is spent on the question whether the minimum is a local one.
    """
    dim = state.position.shape[1]
    far_up, of_draws = record.settings.heights.training(dim), record.settings.heights.draws(dim)
    position, potential = np.array(state.position), np.array(state.potential)
    first = int(np.argmin(potential))
    for _ in range(record.settings.initialise.max_modes):
        low, frame = _find_mode(record, _row(state, first), rng)
        position[first], potential[first] = low.position, low.potential
        for i in np.argsort(state.potential):
            if i == first:
                continue
            if (state.position[i] == state.position[first]).all():  # one start for all: spread about its end
                position[i] = frame.from_white(rng.standard_normal((1, dim)))[0]
            else:
                position[i], potential[i] = _approach(record, _row(state, i), frame, low.potential)
        if not (record.gradient or is_limited):
            _descend_further(record, position, potential, frame, low.potential)
        lower = int(np.argmin(potential))
        if potential[lower] > low.potential - (far_up if record.gradient else of_draws):
            break
        # Another chain is far below already: this was not the lowest mode.
        state, first = State(position.copy(), potential.copy()), lower
    far = potential > low.potential + far_up
    position[far] = _towards_centre(frame, position[far])
    return Start(position, frame)


def _find_mode(
    record: EvaluationRecord, start: State, rng: np.random.Generator
) -> tuple[LocalMinimum, Whitening]:
    """Return the lowest point of descents that begin at one state, and the frame there."""
    settings, dim = record.settings.initialise, start.position.shape[1]
    frame, scaled = Whitening(np.zeros(dim), np.eye(dim)), False
    begun, calls = start.position[0], settings.calls + settings.calls_each * dim
    for _ in range(settings.max_descents):
        slope = _slope(record, frame, start.position[0], scaled)
        check = partial(_refuse_endless, record, begun, settings.endless)
        try:
            low = minimise(slope, start, frame, calls, scaled=scaled, check=check)
        except BudgetError:
            if _runs_away(record.evaluations, begun, settings.runs_away):
                _refuse_endless(record, begun, settings.endless_when_spent, _lowest(record.evaluations))
            raise
        curvature = measure_curvature(record, low, _axes(low.inverse))
        frame, scaled = curvature.frame, True
        if curvature.falls < settings.still_falls + settings.still_falls_each * dim:
            break
        start = State(low.position[None], np.array([low.potential]), curvature.gradient[None])
    _complete_training_set(record, frame, rng)
    return low, frame


def _slope(
    record: EvaluationRecord, frame: Whitening, position: np.ndarray, scaled: bool
) -> ExactGradient | DifferenceGradient:
    """Return gradients, exact ones if there are any."""
    if record.gradient:
        return ExactGradient(record)
    if scaled:
        step = np.full(len(position), record.settings.initialise.difference)
    else:
        step = record.settings.minimise.first_difference * (1.0 + np.abs(position))
    return DifferenceGradient(record, frame, step)


def _axes(inverse: np.ndarray) -> np.ndarray:
    """Return axes along which an inverse Hessian is the identity; none is absurdly narrow against the others."""
    width = np.sqrt(np.maximum(np.diag(inverse), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(inverse / width / width[:, None])
    return np.asarray(width[:, None] * (vectors * np.sqrt(np.maximum(values, 1e-12 * values[-1]))))


def _complete_training_set(record: EvaluationRecord, frame: Whitening, rng: np.random.Generator) -> None:
    """Evaluate until there are enough positions with mass for a first surrogate, nearer and nearer to the centre."""
    settings, dim = record.settings.initialise, frame.mean.size
    for turn in range(settings.max_tries):
        lacking = settings.fewest + settings.fewest_each * dim - len(record.training().select())
        if lacking <= 0:
            break
        white = settings.nearer ** (1 + turn) * rng.standard_normal((lacking, dim))
        record.evaluate(frame.from_white(white))


def _lowest(evaluations: Sequence[Evaluation]) -> np.ndarray:
    """Return the position of the lowest potential."""
    best = min(evaluations, key=lambda each: float(each.potential.min(initial=np.inf)))
    return np.asarray(best.position[int(best.potential.argmin())])


def _runs_away(evaluations: Sequence[Evaluation], begun: np.ndarray, times: float) -> bool:
    """Return whether a descent has come many times as far as after half of its evaluations.

    One towards a mode that is far away does not: there it is merely slow.
    """
    half, end = _lowest(evaluations[: len(evaluations) // 2 + 1]), _lowest(evaluations)
    return bool(np.abs(end - begun).max() > times * np.abs(half - begun).max())


def _refuse_endless(record: EvaluationRecord, begun: np.ndarray, far: float, position: np.ndarray) -> None:
    """Raise if a descent has come absurdly far from where it began."""
    away = position - begun
    if np.abs(away).max() > far * (1.0 + np.abs(begun).max()):
        raise improper(record.evaluator.target, away, "goes on rising")


def _approach(
    record: EvaluationRecord, start: State, frame: Whitening, lowest: float
) -> tuple[np.ndarray, float]:
    """Bring one more chain nearer to the typical set, of this mode or another; return its position and potential."""
    settings = record.settings
    calls = settings.initialise.calls_of_others
    if not record.gradient:
        calls = settings.initialise.calls_of_others_values
    slope = _slope(record, frame, start.position[0], scaled=True)
    enough = lowest + settings.heights.draws(start.position.shape[1])
    found = minimise(slope, start, frame, calls, enough=enough, scaled=True)
    return found.position, found.potential


def _descend_further(
    record: EvaluationRecord, position: np.ndarray, potential: np.ndarray, frame: Whitening, lowest: float
) -> None:
    """Let a few chains that are still far up descend to their end, and move one to the lowest known position.

    By values the other chains take two steps only, and there is no search for modes later. So this is where it turns
    out that a descent ended in a local minimum.
    """
    settings, dim = record.settings, position.shape[1]
    enough = lowest + settings.heights.draws(dim)
    order = np.argsort(potential)
    # A model may fail far away, and there is no mass: not much further out than where chains and the minimum are.
    known = np.concatenate([position, frame.mean[None]])
    margin = settings.initialise.margin * np.ptp(known, axis=0)
    box = known.min(axis=0) - margin, known.max(axis=0) + margin
    for i in order[potential[order] > enough][: settings.initialise.n_to_the_end]:
        start, calls = State(position[i : i + 1], potential[i : i + 1]), settings.initialise.calls_to_the_end
        slope = DifferenceGradient(record, frame, np.full(dim, settings.initialise.difference), box)
        found = minimise(slope, start, frame, calls, enough=enough, scaled=True)
        position[i], potential[i] = found.position, found.potential
    # A lower position may have been found by chance, for example by a draw from the frame.
    if record.lowest < potential.min() - settings.heights.draws(dim):
        highest = int(potential.argmax())
        position[highest], potential[highest] = _lowest(record.evaluations), record.lowest


def _row(state: State, i: int) -> State:
    """Return the state of one chain."""
    gradient = None if state.gradient is None else state.gradient[i : i + 1]
    return State(state.position[i : i + 1], state.potential[i : i + 1], gradient)


def _towards_centre(frame: Whitening, position: np.ndarray) -> np.ndarray:
    """Return positions on the line to the frame's centre, at the distance of the typical set or nearer."""
    white = frame.to_white(position)
    distance = np.linalg.norm(white, axis=1, keepdims=True)
    return frame.from_white(white * np.minimum(1.0, np.sqrt(white.shape[1]) / np.maximum(distance, 1e-300)))


@dataclass
class OutputDescent:
    """One descent on emulated outputs: the lowest position, and a trust region around it.

    Attributes
    ----------
    position : ndarray of shape (dim,)
    potential : float
        Exact.
    radius : float
        In units of the frame.
    curvature : ndarray of shape (dim, dim) or None
        Of the emulated potential at the position, in the frame.
    converged : bool
        Whether there is nothing more to gain.
    """

    position: np.ndarray
    potential: float
    radius: float
    curvature: np.ndarray | None = None
    converged: bool = False


@dataclass
class TrustRegion:
    """The steps of descents on emulated outputs; likelihood and prior are exact.

    Parameters
    ----------
    record : EvaluationRecord
    target : ForwardTarget
    frame : Whitening
        Of the prior.
    rng : Generator
    """

    record: EvaluationRecord
    target: AnyTarget
    frame: Whitening
    rng: np.random.Generator

    def propose(self, descent: OutputDescent, known: TrainingSet) -> tuple[np.ndarray, float] | None:
        """Return the next position from the data `known`, and the predicted gain; None if there is next to none.

        Then the descent has converged, if the emulator is right where it is, or its radius shrinks.
        """
        settings = self.record.settings.trust_region
        around = Whitening(descent.position, descent.radius * self.frame.factor)
        # The emulator is to use all of the data, also those at high potentials.
        height = float(known.potential.min()) + known.typical_height
        known = replace(known, potential=np.minimum(known.potential, height))
        recipe = replace(surrogate_of_outputs(self.target), whitening=around)
        emulated = recipe.fit(known, self.rng)
        descent.curvature = (
            self.frame.factor.T
            @ hessians(emulated, descent.position[None], around.factor)[0]
            @ self.frame.factor
        )
        end = self._minimum(emulated, around)
        before, after = emulated.potential(np.stack([descent.position, end]))
        with np.errstate(invalid="ignore"):  # both may be infinite
            gain = float(before - after)
        if not gain > settings.least_gain:
            descent.converged = abs(before - descent.potential) < 1.0
            descent.radius *= settings.shrink
            return None
        return end, gain

    def accept(self, descent: OutputDescent, end: np.ndarray, gain: float, potential: float) -> None:
        """Go to the end of a step if it is lower, and choose the radius by how much of the gain came true."""
        settings = self.record.settings.trust_region
        far = np.abs(self.frame.vector_to_white(end - descent.position)).max() > 0.8 * descent.radius
        ratio = (descent.potential - potential) / gain
        if potential < descent.potential:
            descent.position, descent.potential = end, potential
        if ratio < settings.poor_ratio:
            descent.radius *= settings.shrink
        elif ratio > settings.good_ratio and far:
            descent.radius *= settings.grow

    def _minimum(self, emulated: Fitted, around: Whitening) -> np.ndarray:
        """Return the minimum inside the trust region."""
        size = np.diag(around.factor) / np.diag(self.frame.factor)
        centre, reach = self.frame.to_white(around.mean[None])[0], self.reach
        low, high = np.clip((-reach - centre) / size, -1.0, 0.0), np.clip((reach - centre) / size, 0.0, 1.0)
        return surrogate_minimum(emulated, around, around.mean, list(zip(low, high, strict=True)))

    @property
    def reach(self) -> float:
        """How far out positions are looked at."""
        settings, known = self.record.settings.trust_region, self.record.training()
        lowest = self.frame.to_white(known.position[[int(known.potential.argmin())]])
        return max(settings.reach, settings.further * float(np.abs(lowest).max()))

    def within(self, white: np.ndarray) -> np.ndarray:
        """Return positions in the frame, not further out than the reach."""
        return np.clip(white, -self.reach, self.reach)


@dataclass
class OutputDescents(TrustRegion):
    """The descents that bring chains to the typical set, and what they may cost."""

    most: int = 0

    def __post_init__(self) -> None:
        settings, limit, known = (
            self.record.settings.initialise,
            self.record.evaluator.limit,
            len(self.record),
        )
        allowed = settings.output_most if limit is None else int(settings.output_share * (limit - known))
        self.most = known + allowed

    @property
    def is_over(self) -> bool:
        """Whether the share of the evaluations is spent."""
        return len(self.record) >= self.most

    @property
    def fits(self) -> bool | None:
        """Whether the lowest position fits the data within their errors; None if the errors are not known.

        They are known for Gaussian likelihoods of known noise.
        """
        likelihood, known = getattr(self.target, "likelihood", None), self.record.training()
        if not isinstance(likelihood, GaussianLikelihood) or not likelihood.is_plain or known.outputs is None:
            return None
        m = likelihood.data.size
        both = np.stack([likelihood.data, known.outputs[int(known.potential.argmin()), :m]])
        misfit = -2.0 * np.diff(likelihood.log_density(both))[0]
        return bool(misfit < m + self.record.settings.initialise.far_off * np.sqrt(2.0 * m))

    def are_low(self, potential: ArrayLike) -> np.ndarray:
        """Return which potentials are those of the typical set, as far as is known."""
        height = self.record.settings.heights.training(self.frame.mean.size)
        return np.asarray(potential) < self.record.lowest + height

    def agree(self, descents: Sequence[OutputDescent]) -> bool:
        """Whether two descents have ended at the lowest potential of all, up to the height of a draw.

        Where noise is unknown a local minimum with much noise also fits the data, so only agreement shows that an end
        is no local minimum.
        """
        height = self.record.settings.heights.draws(self.frame.mean.size)
        ends = [each.potential for each in descents]
        return sum(end < self.record.lowest + height for end in ends) > 1

    def begin(self, position: np.ndarray) -> OutputDescent:
        """Return a descent from the lowest of positions."""
        found = self.record.evaluate(position)
        lowest = int(found.potential.argmin())
        return OutputDescent(found.position[lowest], float(found.potential[lowest]), 1.0)

    def descend(self, descent: OutputDescent) -> None:
        """Follow the trust region to its end."""
        least = self.record.settings.initialise.least_radius
        while not (descent.converged or self.is_over or descent.radius < least):
            proposed = self.propose(descent, self._local(descent))
            if proposed is not None:
                end, gain = proposed
                self.accept(descent, end, gain, float(self.record.evaluate(end[None]).potential[0]))

    def _local(self, descent: OutputDescent) -> TrainingSet:
        """Return the data within the trust region; evaluate in directions that have not been looked at."""
        dim = descent.position.size
        known, apart = self._nearest(descent)
        _, sizes, axes = np.linalg.svd(apart / descent.radius, full_matrices=True)
        sizes = np.concatenate([sizes, np.zeros(dim - len(sizes))])
        lacking = axes[sizes < self.record.settings.initialise.least_spread]
        if len(lacking):
            signs = self.rng.choice([-0.5, 0.5], size=(len(lacking), 1))
            centre = self.frame.to_white(descent.position[None])
            white = self.within(centre + signs * descent.radius * lacking)
            self.record.evaluate(self.frame.from_white(white))
            known, _ = self._nearest(descent)
        return known

    def _nearest(self, descent: OutputDescent) -> tuple[TrainingSet, np.ndarray]:
        known = self.record.training()
        dim = known.dim
        apart = self.frame.vector_to_white(known.position - descent.position)
        distance = np.linalg.norm(apart, axis=1)
        most = np.sort(distance)[: (dim + 1) * (dim + 4) // 2][-1]
        chosen = distance <= min(most, self.record.settings.initialise.local * descent.radius)
        return known.rows(chosen), apart[chosen]


def find_by_outputs(record: EvaluationRecord, candidates: Candidates, state: State) -> Start:
    """Run the model at draws from the prior, then follow its emulator to the typical set."""
    settings = record.settings
    target, rng, dim = candidates.target, candidates.rng, state.position.shape[1]
    prior = prior_draws(target, rng, settings.initialise.n_prior)
    frame = Whitening.from_positions(prior)
    n_different = len(np.unique(state.position, axis=0))  # all chains may start at one position
    record.evaluate(prior[: max(dim + 2 - n_different, 0)])
    descents = OutputDescents(record, target, frame, rng)
    position, potential = np.array(state.position), np.array(state.potential)
    radius = np.full(len(position), np.sqrt(dim))
    for _ in range(settings.initialise.max_rounds):
        candidates.train(frame)
        surrogate = candidates.surrogate
        ends = np.stack([surrogate_minimum(surrogate, frame, each, iterations=50) for each in position])
        step_size = find_step_size(surrogate, frame, ends, rng, 1.0, settings=settings)
        kernel = surrogate_kernel(surrogate, frame, step_size, 1.0, 1, settings=settings)
        ends, _ = move(kernel, ends, rng)
        ends = _no_further(frame, position, ends, radius)
        ends = frame.from_white(descents.within(frame.to_white(ends)))
        found = record.evaluate(ends).potential
        lower = found < potential
        gain = np.where(lower, potential - found, 0.0)
        position[lower], potential[lower] = record.evaluations[-1].position[lower], found[lower]
        radius *= np.where(lower, 2.0, 0.5)
        near = potential < record.lowest + settings.heights.training(dim)
        if near.all() and gain.max() < settings.heights.draws(dim):
            break
    candidates.fitted = {}
    return follow_trust_regions(descents, position, potential, radius, iter(prior[::-1]))


def follow_trust_regions(
    region: OutputDescents,
    position: np.ndarray,
    potential: np.ndarray,
    radius: np.ndarray,
    fresh: Iterator[np.ndarray],
) -> Start:
    """Descend until two chains agree on a fit of the data; chains that are still far up start again there.

    Parameters
    ----------
    region : OutputDescents
    position, potential, radius
        Of the chains so far; the lowest of them goes first.
    fresh : iterator of ndarray of shape (dim,)
        Draws of the prior, as positions.
    """
    settings = region.record.settings.initialise
    position, potential, descents = np.array(position), np.array(potential), []
    for chain in np.argsort(potential):
        first_radius = float(np.clip(radius[chain], 0.1, 3.0))
        descents.append(OutputDescent(position[chain].copy(), float(potential[chain]), first_radius))
        region.descend(descents[-1])
        position[chain], potential[chain] = descents[-1].position, descents[-1].potential
        if region.is_over or (region.fits and np.sum(region.are_low(potential)) > 1):
            break
    n_draws = settings.n_fresh * (position.shape[1] + 1)
    while not (
        region.is_over
        or region.fits
        or (region.fits is None and region.agree(descents))
        or len(descents) >= len(position) + settings.max_fresh
    ):
        descents.append(region.begin(np.stack([next(fresh) for _ in range(n_draws)])))
        region.descend(descents[-1])
    ends = [each for each in descents if region.are_low(each.potential)]
    frame = _frame_at(min(ends, key=lambda each: each.potential), region.frame) if ends else region.frame
    return Start(_start_again(region, position, potential, ends, frame), frame)


def _frame_at(lowest: OutputDescent, frame: Whitening) -> Whitening:
    """Return the frame from the curvature at the lowest position, nowhere wider than the prior."""
    if lowest.curvature is None or not np.isfinite(lowest.curvature).all():
        return frame
    values, vectors = np.linalg.eigh(lowest.curvature)
    root = frame.factor @ (vectors / np.sqrt(np.maximum(values, 1.0)))
    return Whitening(lowest.position, np.linalg.cholesky(root @ root.T))


def _start_again(
    region: OutputDescents,
    position: np.ndarray,
    potential: np.ndarray,
    ends: list[OutputDescent],
    frame: Whitening,
) -> np.ndarray:
    """Return the positions of chains; those still far up are drawn around the ends of descents, in turn."""
    lost = np.flatnonzero(~region.are_low(potential))
    if len(lost) and ends:
        centres = np.stack([ends[i % len(ends)].position for i in range(len(lost))])
        white = region.rng.standard_normal(centres.shape)
        found = region.record.evaluate(centres + white @ frame.factor.T)
        position[lost] = np.where(region.are_low(found.potential)[:, None], found.position, centres)
    return position


def prior_draws(target: AnyTarget, rng: np.random.Generator, n: int) -> np.ndarray:
    """Return `n` draws from the prior, as positions; uniform ones if it cannot be drawn from."""
    first = target.sample_start(rng)
    if first is None:
        return rng.uniform(-2.0, 2.0, (n, target.dim))
    draws = np.stack([first, *(np.asarray(target.sample_start(rng)) for _ in range(n - 1))])
    return np.asarray(target.transform.to_position(draws))


def _no_further(frame: Whitening, position: np.ndarray, ends: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Return the ends, or points on the way to them at the radius."""
    way = frame.vector_to_white(ends - position)
    distance = np.linalg.norm(way, axis=1)
    share = np.minimum(1.0, radius / np.maximum(distance, 1e-300))
    return position + share[:, None] * (ends - position)


#: Slope of the cone in place of infinite potentials, in units of the slope downhill. A guess: above 1, so that the
#: line search steps back, and not so far that it gives up.
_STEEP = 3.0


def surrogate_minimum(
    surrogate: Fitted,
    frame: Whitening,
    position: np.ndarray,
    bounds: list[tuple[float, float]] | None = None,
    iterations: int = 200,
) -> np.ndarray:
    """Return a minimum of the surrogate near a position, within bounds in the frame."""
    from scipy.optimize import minimize  # slow to import

    lowest = np.inf, np.zeros(0), 0.0  # value, position and length of the gradient

    def height(white: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal lowest
        with np.errstate(all="ignore"):
            potential, gradient = surrogate.potential_and_gradient(frame.from_white(white[None]))
        if np.isfinite(potential).all() and np.isfinite(gradient).all():
            value, slope = float(potential[0]), frame.gradient_to_white(gradient)[0]
            if value < lowest[0]:
                lowest = value, white.copy(), float(np.linalg.norm(slope))
            return value, slope
        if lowest[0] == np.inf:
            return 1e100, np.zeros_like(white)
        # Outputs are impossible there. A cone around the lowest position makes the line search step back; from a value
        # without any relation to the others it would interpolate a step of about zero, and end.
        away, steep = white - lowest[1], _STEEP * lowest[2]
        distance = float(np.linalg.norm(away))
        return lowest[0] + steep * distance, steep / distance * away

    start = frame.to_white(position[None])[0]
    found = minimize(
        height, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": iterations}
    )
    return frame.from_white(found.x[None])[0]
