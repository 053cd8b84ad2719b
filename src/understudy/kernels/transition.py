"""The surrogate transition: many steps on the stand-in, one exact value."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from understudy.checks import require_whole
from understudy.dynamics import PhasePoint, glide, kinetic_energy
from understudy.kernels.correction import metropolis, surrogate_transition
from understudy.kernels.guides import SurrogateGuide
from understudy.kernels.hmc import MAX_ENERGY_ERROR
from understudy.kernels.state import Info, KnownForce, State
from understudy.kernels.streams import AnyStreams
from understudy.kernels.surrogate_hmc import EuclideanGuided
from understudy.targets import Evaluator


@dataclass(frozen=True, eq=False)
class SurrogateTransition(EuclideanGuided):
    r"""Several HMC steps on a trained stand-in, then one exact value that decides on where they led.

    Invariant because: each inner step is HMC on the frozen stand-in :math:`\tilde U`, with its own Metropolis step and
    with lengths drawn anew and independently of the state, so it is reversible for :math:`e^{-\tilde U}`; a power of a
    reversible kernel is reversible; and `surrogate_transition` corrects any such kernel for the exact potential. A poor
    stand-in costs acceptance, not invariance.

    Chains that no inner step has moved cost no exact value. To reach all of the posterior, the stand-in must be finite
    wherever there is mass: chains never enter or leave a region where it is not.

    Parameters
    ----------
    step_size, n_steps, trajectory_length, jitter
        Of the inner trajectories, as for `HMC`.
    surrogate : Fitted
        A trained stand-in, of positions without bounds, as for `SurrogateHMC`.
    metric : EuclideanMetric
        Distribution of momenta.
    inner_steps : int
        Number of inner steps for one exact value; with one it is delayed acceptance.

    Examples
    --------
    >>> from understudy import Evaluator, QuadraticNetwork, State, Streams, Target, TrainingSet
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

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("inner_steps", self.inner_steps, 1)

    def step(self, streams: AnyStreams, state: State, evaluator: Evaluator) -> tuple[State, Info]:
        """Move every chain by several inner steps and at most one exact value."""
        guide = self.guide(evaluator)
        here = guide.known(state)
        state = replace(state, known_force=here)
        assert here.potential is not None
        start = PhasePoint(
            state.position,
            np.zeros_like(state.position),
            here.potential,
            here.gradient,
            np.isfinite(here.potential),
        )
        end, walk = inner_walk(self, guide, streams, start)
        moved = (end.position != state.position).any(axis=1)
        exact = np.array(state.potential)
        if moved.any():
            exact[moved] = evaluator.value(end.position if moved.all() else end.position[moved]).potential
        with np.errstate(invalid="ignore"):
            before, after = state.potential - start.potential, exact - end.potential
            error = np.where(moved, after - before, np.nan)
        accepted, probability = surrogate_transition(before, after, streams.uniforms())
        accepted &= moved
        proposal = State(
            end.position, exact, known_force=KnownForce(self.surrogate, end.gradient, end.potential)
        )
        return state.accept(accepted, proposal), Info(
            accepted=accepted,
            acceptance_rate=np.where(moved, probability, 0.0),
            step_size=walk.step_size,
            n_steps=walk.n_steps,
            energy=np.where(accepted, exact, state.potential),
            energy_error=error,
            diverging=walk.lost | (moved & ~(error <= MAX_ENERGY_ERROR)),
            n_exact=moved.astype(int),
            proposal=end.position,
            proposal_momentum=end.momentum,
            discrepancy=np.where(moved, after, np.nan),
            inner_acceptance=walk.acceptance,
            proposal_potential=np.where(moved, exact, np.nan),
        )


@dataclass(frozen=True, eq=False)
class Walk:
    """What the inner steps of each chain were like: mean step size and acceptance, all leapfrog steps, any given up."""

    step_size: np.ndarray
    n_steps: np.ndarray
    acceptance: np.ndarray
    lost: np.ndarray


def inner_walk(
    kernel: SurrogateTransition, guide: SurrogateGuide, streams: AnyStreams, start: PhasePoint
) -> tuple[PhasePoint, Walk]:
    """Move every chain by the inner steps of a kernel, at no exact cost.

    Chains that are not `complete`, because the stand-in is not finite where they are, stay.
    """
    point, stays = start, ~start.complete
    sizes, counts, rates, lost = [], [], [], stays
    for _ in range(kernel.inner_steps):
        step_size, n_steps = kernel.draw(streams)
        momentum = kernel.metric.momentum(streams.normals(point.position.shape[1]))
        point = replace(point, momentum=momentum, complete=~stays)
        end = glide(guide.slope, kernel.metric, point, step_size, n_steps)
        potential = np.full(len(stays), np.nan)
        with np.errstate(all="ignore"):
            if end.complete.any():
                potential[end.complete] = guide.height(end.position[end.complete])
            energy = point.potential + kinetic_energy(kernel.metric, momentum)
            end_energy = potential + kinetic_energy(kernel.metric, end.momentum)
        accepted, probability = metropolis(energy, end_energy, streams.uniforms())
        rows = accepted[:, None]
        point = PhasePoint(
            np.where(rows, end.position, point.position),
            np.where(rows, end.momentum, momentum),
            np.where(accepted, potential, point.potential),
            np.where(rows, end.gradient, point.gradient),
            point.complete,
        )
        sizes.append(step_size)
        counts.append(n_steps)
        rates.append(probability)
        lost = lost | ~end.complete
    return point, Walk(np.mean(sizes, axis=0), np.sum(counts, axis=0), np.mean(rates, axis=0), lost)
