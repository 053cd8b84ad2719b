r"""Free moves: exact moves of the parameters that the forward model does not see, without exact evaluations.

The posterior of a general `ForwardTarget` is :math:`\pi(x) \propto p(x, F(x_I))`. Only the model F is expensive, and it
sees only its inputs :math:`x_I`. Let f be free parameters: some of those that F does not see, such as the standard
deviation of the noise, an offset, or the parameters of a prior. Once :math:`F(x_I)` is known, the potential of f given
everything else,

.. math:: U(f) = -\log p\big(x, F(x_I)\big) - \log |dx/dq|,

is known exactly, with its gradient, at no cost. `FreeMoves` ends each draw of another kernel with HMC on it.
`tune_free_moves` chooses the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_positive, require_whole
from leapwise.dynamics import DiagonalMetric, PhasePoint, kinetic_energy, plain_leapfrog
from leapwise.errors import InputError
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels.accept import metropolis
from leapwise.kernels.base import Info, Kernel, Mixture, State
from leapwise.kernels.streams import AnyStreams, SharedStream
from leapwise.kernels.trajectory import TrajectorySettings
from leapwise.surrogates.joint import JointPotential
from leapwise.targets.transforms import Transform

#: Mean time of a tuned trajectory, in units of the scales: about a quarter period, after which a normal variable is
#: nearly independent of where it began.
LENGTH = 1.5
#: Acceptance rates at which `tune_free_moves` keeps a step size. A guess: around the 0.8 that is usual for HMC.
LOWEST_RATE, HIGHEST_RATE = 0.7, 0.95
#: Trial moves for each step size, if there are not more states: the acceptance rate is then good to about 0.03.
N_TRIALS = 100
#: Step sizes tried at most; ten halvings allow for scales that are wrong by a factor of 1000.
MOST_TRIALS = 15
#: Largest mean number of steps of a tuned trajectory. A guess: beyond it, more moves serve better than longer ones.
MOST_STEPS = 50
#: Distances for differences of gradients: relative to the position, where the scale is not known yet, and to the scale.
FIRST_DISTANCE, DISTANCE = 1e-5, 1e-3


@dataclass(frozen=True, eq=False)
class FreeMoves:
    r"""A kernel, followed by HMC steps of the free parameters alone that need no exact evaluation.

    **Invariant because** the outputs :math:`F(x_I)` do not change with the free parameters, so the potential of these
    given everything else is known exactly, up to a constant. A free move is HMC on it: momenta are drawn afresh,
    leapfrog preserves volume and is reversible, the number of its steps is drawn independently of the state, and
    `metropolis` accepts on the exact energy. So it leaves the conditional distribution of the free parameters
    invariant, whatever the rest is, and hence the posterior: this is Metropolis within Gibbs. The inner kernel leaves
    the posterior invariant too, and so does one after the other. The composition is not reversible, which nothing
    relies on.

    **What would break this**: moving a column that the model sees, which `step` refuses; outputs of another position
    than the chain's; a step size, scales or a number of moves that depend on the state.

    A chain whose outputs are not known makes no free moves. Once they are known they stay known, so start with known
    outputs, as `State.from_evaluation` has them: if chains begin their free moves when a proposal is first accepted,
    where they are has decided when, and these first draws are biased a little, like those of any warm-up.

    Where the potential is not finite, or a parameter is not representable inside its bounds, a move is rejected.

    Parameters
    ----------
    kernel : Kernel
        Makes the first part of each step, at its usual cost.
    joint : JointPotential
        Exact potentials and gradients by position and outputs.
    free : array_like of int
        Columns of the positions to move; the model must not see them.
    step_size : float
        Size of a leapfrog step, in units of the scales.
    n_steps : int or pair of int
        The number of leapfrog steps is uniform on {1..n_steps}, or on the given range.
    n_moves : int
        Free moves in each step.
    scales : array_like of shape (len(free),), optional
        Widths of the free parameters given everything else, in positions; 1 by default.

    Examples
    --------
    The standard deviation of the noise moves in every step, even if the model's input does not.

    >>> from leapwise import Evaluator, ForwardTarget, GaussianLikelihood, HalfNormal, Normal, Prior, State, Streams
    >>> from leapwise import QuadraticNetwork, SurrogateTransition, TrainingSet
    >>> target = ForwardTarget(
    ...     lambda x: np.array([x[0], x[0] ** 2]),
    ...     GaussianLikelihood([1.0, 1.5], sd="sigma"),
    ...     Prior(a=Normal(0.0, 1.0), sigma=HalfNormal(1.0)),
    ... )
    >>> rng = np.random.default_rng(1)
    >>> x = rng.standard_normal((20, 2))
    >>> rough = QuadraticNetwork().fit(TrainingSet(x, (x**2).sum(axis=1)), rng)
    >>> evaluator = Evaluator(target)
    >>> state = State.from_evaluation(evaluator.value(np.zeros((4, 2))))
    >>> joint = JointPotential(target.joint, target.transform)
    >>> kernel = FreeMoves(SurrogateTransition(0.5, 4, surrogate=rough), joint, [1], step_size=0.3, n_steps=(3, 6))
    >>> after, info = kernel.step(Streams(1, 4), state, evaluator)
    >>> bool((after.position[:, 1] != 0).all()), evaluator.counts.n_values
    (True, 8)
    """

    kernel: Kernel
    joint: JointPotential
    free: ArrayLike
    step_size: float
    n_steps: int | tuple[int, int]
    n_moves: int = 3
    scales: ArrayLike | None = None

    def __post_init__(self) -> None:
        if isinstance(self.kernel, type) or not callable(getattr(self.kernel, "step", None)):
            raise InputError(f"kernel must be one such as SurrogateTransition(...), got {self.kernel!r}")
        free = _checked_columns(self.joint, self.free)
        object.__setattr__(self, "free", free)
        require_positive(self.step_size, "step_size", ())
        if self.n_steps is None:
            raise InputError("n_steps must be a positive whole number, or a pair of them, got None")
        self._settings  # noqa: B018, raises if they are not a step size and a number of steps
        require_whole("n_moves", self.n_moves, 1)
        scales = 1.0 if self.scales is None else self.scales
        object.__setattr__(self, "scales", require_positive(scales, "scales", free.shape))

    @property
    def is_exact(self) -> bool:
        """Whether the inner kernel is exact."""
        return self.kernel.is_exact

    @cached_property
    def _settings(self) -> TrajectorySettings:
        return TrajectorySettings(self.step_size, self.n_steps)

    @cached_property
    def _metric(self) -> DiagonalMetric:
        return _metric_of(np.asarray(self.scales))

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Let the inner kernel move every chain, and then move the free parameters of each."""
        self._require_free(evaluator.target, state.position.shape[1])
        with _recording(evaluator) as recent:
            n_before = len(recent)
            after, info = self.kernel.step(streams, state, evaluator)
            after = after.with_outputs(recent[n_before:], state)
        moved = self._move_freely(streams, after)
        changed = moved.potential != after.potential
        gain = np.subtract(moved.potential, after.potential, out=np.zeros(len(changed)), where=changed)
        return moved, replace(info, energy=info.energy + gain)

    def _require_free(self, target: Any, dim: int) -> None:
        """Raise if a free column does not exist, or the model sees it."""
        free = set(np.asarray(self.free).tolist())
        if max(free) >= dim:
            raise InputError(f"free must be columns of {dim} parameters, got {sorted(free)}; correct them")
        seen = free.intersection(np.asarray(getattr(target, "inputs", ())).tolist())
        if seen:
            raise InputError(
                f"free must not have columns that the forward model sees, got {sorted(seen)}; leave them out, since "
                "the outputs change with them"
            )

    def _move_freely(self, streams: AnyStreams, state: State) -> State:
        """Return the state after the free moves, with exact potentials; gradients and forces are no longer known."""
        n = len(state.position)
        outputs = np.full((n, 1), np.nan) if state.outputs is None else state.outputs
        # Random numbers are drawn for all chains: those of one must not depend on what is known of the others.
        rows = np.flatnonzero(np.isfinite(outputs).all(axis=1))
        conditional = Conditional(self.joint, np.asarray(self.free), state.position[rows], outputs[rows])
        start = point = conditional.begin()
        for _ in range(self.n_moves):
            point, _ = conditional.move(point, self._metric, self._settings, streams, rows)
        changed = (point.position != start.position).any(axis=1)
        position, potential = state.position.copy(), state.potential.copy()
        position[rows[changed]] = conditional.filled(point.position)[changed]
        potential[rows[changed]] = point.potential[changed]
        return State(position, potential, outputs=state.outputs)


@dataclass(frozen=True, eq=False)
class Conditional:
    """The potential of the free columns of some chains; all other columns, and the outputs, are held.

    Points have one column more than the free ones: the number of the chain, by which the integrator, which drops chains
    that have ended, says which one is asked for. It has no momentum and no gradient, so it does not change.

    Parameters
    ----------
    joint : JointPotential
    free : ndarray of int
    position : ndarray of shape (n, dim)
    outputs : ndarray of shape (n, m)
        Exact outputs at the positions.
    """

    joint: JointPotential
    free: np.ndarray
    position: np.ndarray
    outputs: np.ndarray

    def begin(self) -> PhasePoint:
        """Return the chains at rest, with potentials and gradients; not `complete` where these are not finite."""
        number = np.arange(len(self.position), dtype=float)
        point = np.column_stack([self.position[:, self.free], number])
        potential, gradient = self.value(point), self.gradient(point)
        complete = np.isfinite(potential) & np.isfinite(gradient).all(axis=1)
        return PhasePoint(point, np.zeros_like(point), potential, gradient, complete)

    def filled(self, point: np.ndarray) -> np.ndarray:
        """Return positions ``(k, dim)`` of points ``(k, n_free + 1)``."""
        position = self.position[_numbers(point)]
        position[:, self.free] = point[:, :-1]
        return position

    def value(self, point: np.ndarray) -> np.ndarray:
        """Return exact potentials ``(k,)``; +inf outside the bounds of parameters, as for an `Evaluator`."""
        position, outputs = self.filled(point), self.outputs[_numbers(point)]
        if not len(position):
            return np.empty(0)
        transform = self.joint.transform
        with np.errstate(all="ignore"):
            potential = np.array(self.joint.value(position, outputs), dtype=float)
            if isinstance(transform, Transform):
                potential[~transform.contains(transform.to_parameters(position))] = np.inf
        return potential

    def gradient(self, point: np.ndarray) -> np.ndarray:
        """Return gradients ``(k, n_free + 1)``."""
        found = np.zeros_like(point)
        if len(point):
            with np.errstate(all="ignore"):
                by_position, _ = self.joint.gradient(self.filled(point), self.outputs[_numbers(point)])
            found[:, :-1] = by_position[:, self.free]
        return found

    def move(
        self,
        point: PhasePoint,
        metric: DiagonalMetric,
        settings: TrajectorySettings,
        streams: AnyStreams,
        rows: np.ndarray,
    ) -> tuple[PhasePoint, np.ndarray]:
        """Make one HMC step of these chains, which are `rows` of the streams; return acceptance probabilities too."""
        step_size, n_steps = settings.draw(streams)
        normals, uniforms = streams.normals(len(self.free)), streams.uniforms()
        momentum = metric.momentum(np.column_stack([normals, np.zeros(len(normals))])[rows])
        begun = replace(point, momentum=momentum)
        end = plain_leapfrog(self.gradient, metric, begun, step_size[rows], n_steps[rows])
        potential = self.value(end.position)
        with np.errstate(all="ignore"):
            energy = point.potential + kinetic_energy(metric, momentum)
            end_energy = np.where(end.complete, potential + kinetic_energy(metric, end.momentum), np.nan)
        accepted, probability = metropolis(energy, end_energy, uniforms[rows])
        moved = PhasePoint(
            np.where(accepted[:, None], end.position, point.position),
            point.momentum,
            np.where(accepted, potential, point.potential),
            np.where(accepted[:, None], end.gradient, point.gradient),
            point.complete,
        )
        return moved, probability


def surrogate_part(kernel: Any) -> Any:
    """Return the part of a kernel that may use a surrogate: without free moves, the first kernel of a mixture."""
    if isinstance(kernel, FreeMoves):
        kernel = kernel.kernel
    return kernel.kernels[0] if isinstance(kernel, Mixture) else kernel


def tune_free_moves(
    joint: JointPotential,
    free: ArrayLike,
    position: np.ndarray,
    outputs: np.ndarray,
    rng: np.random.Generator,
) -> tuple[float, tuple[int, int], np.ndarray]:
    """Choose step size, numbers of steps and scales of `FreeMoves`, without exact evaluations.

    Scales are those of the curvature of the potential at the states given, by differences of its gradient. The step
    size is doubled or halved until trial moves from these states are accepted at a rate of 0.7 to 0.95; it is at most
    1.5 scales. Trajectories are then 1.5 scales long in the mean, with at most 50 steps in the mean.

    Parameters
    ----------
    joint, free
        As for `FreeMoves`.
    position : ndarray of shape (n, dim)
        Where chains have been, after they have reached the bulk of the posterior.
    outputs : ndarray of shape (n, m)
        Exact outputs there; rows with NaN are left out.
    rng : Generator
        For the trial moves; the result depends on nothing else.

    Returns
    -------
    step_size : float
    n_steps : pair of int
        Smallest and largest number of steps.
    scales : ndarray of shape (len(free),)

    Examples
    --------
    A free parameter with a normal distribution of standard deviation 0.01, of which nothing depends on the model.

    >>> from leapwise.targets.transforms import Transform
    >>> class Joint:
    ...     def log_density(self, x, y):
    ...         return -0.5 * (100.0 * x[:, 0]) ** 2
    ...     def gradient(self, x, y):
    ...         return -1e4 * x, 0.0 * y
    >>> joint, rng = JointPotential(Joint(), Transform.from_bounds(None, 1)), np.random.default_rng(0)
    >>> x = 0.01 * rng.standard_normal((50, 1))
    >>> step_size, n_steps, scales = tune_free_moves(joint, [0], x, np.zeros((50, 1)), rng)
    >>> scales.round(6), 0.5 < step_size < 2.0
    (array([0.01]), True)
    """
    columns = _checked_columns(joint, free)
    known = np.isfinite(outputs).all(axis=1) & np.isfinite(position).all(axis=1)
    known[known] = Conditional(joint, columns, position[known], outputs[known]).begin().complete
    if not known.any():
        raise InputError(
            f"free moves are tuned at states with known outputs and finite potentials, got {len(position)} states and "
            "none of this kind; give State.with_outputs(...)"
        )
    position, outputs = position[known], outputs[known]
    scales = _curvature_scales(Conditional(joint, columns, position, outputs))
    again = np.resize(np.arange(len(position)), max(len(position), N_TRIALS))
    step_size = _tuned_step_size(Conditional(joint, columns, position[again], outputs[again]), scales, rng)
    return step_size, _step_range(step_size), scales


def _curvature_scales(conditional: Conditional) -> np.ndarray:
    """Return for each free column the median of 1 / sqrt(curvature) over states where that is positive, or 1."""
    here = conditional.begin().position
    scales = np.ones(len(conditional.free))
    for column in range(len(scales)):
        distance = FIRST_DISTANCE * np.maximum(1.0, np.abs(here[:, column]))
        for _ in range(2):  # the second time with a distance that fits the scale
            there = np.zeros_like(here)
            there[:, column] = distance
            with np.errstate(all="ignore"):
                rise = conditional.gradient(here + there) - conditional.gradient(here - there)
                curvature = rise[:, column] / (2.0 * distance)
            convex = np.isfinite(curvature) & (curvature > 0)
            if not convex.any():
                break
            scales[column] = 1.0 / np.sqrt(np.median(curvature[convex]))
            distance = np.full(len(here), DISTANCE * scales[column])
    return scales


def _tuned_step_size(conditional: Conditional, scales: np.ndarray, rng: np.random.Generator) -> float:
    """Return a step size at which trial moves are accepted often enough, and not too often."""
    start, rows, metric = conditional.begin(), np.arange(len(conditional.position)), _metric_of(scales)
    step_size, accepted_at, rejected_at = 1.0, 0.0, np.inf
    for _ in range(MOST_TRIALS):
        settings = TrajectorySettings(step_size, _step_range(step_size))
        _, probability = conditional.move(start, metric, settings, SharedStream(rng, len(rows)), rows)
        rate = float(probability.mean())
        if LOWEST_RATE <= rate <= HIGHEST_RATE or (rate > HIGHEST_RATE and step_size == LENGTH):
            return step_size
        if rate > HIGHEST_RATE:
            accepted_at = step_size
        else:
            rejected_at = step_size
        if np.isinf(rejected_at):
            step_size = min(2.0 * step_size, LENGTH)
        elif accepted_at == 0.0:
            step_size = 0.5 * step_size
        else:
            step_size = float(np.sqrt(accepted_at * rejected_at))
    return accepted_at or step_size


def _step_range(step_size: float) -> tuple[int, int]:
    """Return numbers of steps from half of LENGTH to one and a half times it; two different ones at least."""
    n_steps = min(max(1, round(LENGTH / step_size)), MOST_STEPS)
    return (n_steps + 1) // 2, max(n_steps + n_steps // 2, 2)


def _metric_of(scales: np.ndarray) -> DiagonalMetric:
    """Return the metric of points, whose last column, the number of the chain, has no momentum."""
    return DiagonalMetric(np.append(scales**2, 1.0))


def _numbers(point: np.ndarray) -> np.ndarray:
    return point[:, -1].astype(int)


def _checked_columns(joint: object, free: ArrayLike) -> np.ndarray:
    """Return free columns as an array of different whole numbers."""
    if not isinstance(joint, JointPotential):
        raise InputError(
            f"joint must be a JointPotential(target.joint, target.transform), got {type(joint).__name__}"
        )
    columns = np.asarray(free)
    if columns.dtype.kind not in "iu" or columns.ndim != 1 or not columns.size:
        raise InputError(f"free must be a list of columns, at least one, got {free!r}; give their indices")
    if (columns < 0).any() or len(set(columns.tolist())) < columns.size:
        raise InputError(
            f"free must be different columns, counted from 0, got {columns.tolist()}; correct them"
        )
    return columns.astype(int)


@contextmanager
def _recording(evaluator: Evaluator) -> Iterator[list[Evaluation]]:
    """Have the evaluator list its evaluations; an owner's list goes on, and none is left if there was none."""
    owned = evaluator.recent
    recent: list[Evaluation] = [] if owned is None else owned
    evaluator.recent = recent
    try:
        yield recent
    finally:
        evaluator.recent = owned
