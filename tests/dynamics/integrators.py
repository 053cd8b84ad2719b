"""Properties of every integrator, for test classes to inherit: reversible, volume preserving, of second order.

A subclass gives one fixture, `flow`: the integrator bound to a force and a metric, with points to start from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from leapwise.dynamics import RiemannianPoint, batched_cholesky, evaluate_metric, riemannian_momentum
from leapwise.dynamics.metrics import times_rows

Phase = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Flow:
    """``run(position, momentum, step_size, n_steps)`` and the energy that it should keep."""

    run: Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Phase]
    energy: Callable[[np.ndarray, np.ndarray], np.ndarray]
    position: np.ndarray
    momentum: np.ndarray
    step_size: float = 0.2

    def __call__(self, position: np.ndarray, momentum: np.ndarray, step_size: float, n_steps: int) -> Phase:
        n = len(position)
        return self.run(position, momentum, np.full(n, step_size), np.full(n, n_steps))

    def jacobian(self, n_steps: int, step: float = 1e-3) -> np.ndarray:
        """Jacobians ``(n, 2 dim, 2 dim)`` of the map at all starts, by differences of fourth order."""
        start = np.concatenate([self.position, self.momentum], axis=1)
        n, size = start.shape

        def moved(shift: float) -> np.ndarray:
            points = (start[:, None] + shift * step * np.eye(size)).reshape(-1, size)
            ends = self(points[:, : size // 2], points[:, size // 2 :], self.step_size, n_steps)
            return np.concatenate(ends, axis=1).reshape(n, size, size)

        rows = (8.0 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12.0 * step)
        return np.swapaxes(rows, 1, 2)


class ReversibleVolumePreserving:
    """Holds for any force that is a function of the position."""

    returns_to = 1e-10
    volume_to = 1e-8

    @pytest.mark.parametrize("n_steps", [1, 7])
    def test_forward_then_back_returns(self, flow, n_steps):
        there, momentum = flow(flow.position, flow.momentum, flow.step_size, n_steps)
        assert np.abs(there - flow.position).max() > 0.1
        back, momentum = flow(there, -momentum, flow.step_size, n_steps)
        np.testing.assert_allclose(back, flow.position, rtol=0, atol=self.returns_to)
        np.testing.assert_allclose(-momentum, flow.momentum, rtol=0, atol=self.returns_to)

    @pytest.mark.parametrize("n_steps", [1, 5])
    def test_preserves_volume(self, flow, n_steps):
        jacobian = flow.jacobian(n_steps)
        assert np.abs(jacobian - np.eye(jacobian.shape[1])).max() > 0.1
        np.testing.assert_allclose(np.linalg.det(jacobian), 1.0, rtol=0, atol=self.volume_to)


class Symplectic(ReversibleVolumePreserving):
    """Holds for a force that is the gradient of a potential."""

    def test_preserves_the_symplectic_form(self, flow):
        jacobian, dim = flow.jacobian(3), flow.position.shape[1]
        form = np.kron([[0.0, 1.0], [-1.0, 0.0]], np.eye(dim))
        kept = np.swapaxes(jacobian, 1, 2) @ form @ jacobian
        np.testing.assert_allclose(kept, np.broadcast_to(form, kept.shape), rtol=0, atol=self.volume_to)

    def test_energy_error_has_slope_two_in_the_step_size(self, flow):
        time, counts = 1.6, np.array([16, 32, 64, 128])
        before = flow.energy(flow.position, flow.momentum)
        errors = [flow.energy(*flow(flow.position, flow.momentum, time / n, int(n))) - before for n in counts]
        size = np.sqrt(np.mean(np.square(errors), axis=1))
        assert size[-1] > 1e-7  # well above rounding
        slope = np.polyfit(np.log(time / counts), np.log(size), 1)[0]
        assert abs(slope - 2.0) < 0.1


def link(dim: int) -> np.ndarray:
    """Return the matrix B in z = B q."""
    return np.eye(dim) - 0.6 * np.eye(dim, k=-1)


def skewed_force(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Potential and gradient of correlated Gumbel variables: U = sum z + exp(-z)."""
    matrix = link(position.shape[1])
    z = times_rows(matrix, position)
    return (z + np.exp(-z)).sum(axis=1), times_rows(matrix.T, 1.0 - np.exp(-z))


def twisted_force(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A force that is no gradient: its Jacobian is not symmetric; the potential with it is arbitrary."""
    x, others = position, np.roll(position, 1, axis=1)
    return (x**2).sum(axis=1), x + 0.7 * np.sin(others) + 0.3 * others**2


@dataclass
class TensorLocal:
    """A local metric from its matrix and the full tensor of its derivatives, contracted the long way."""

    matrix: np.ndarray  # (n, d, d)
    derivative: np.ndarray  # (n, d, d, d): derivative[:, i] is the derivative by coordinate i
    cholesky: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.cholesky = batched_cholesky(self.matrix)

    def quadratic_contraction(self, velocity: np.ndarray) -> np.ndarray:
        inner = np.matmul(self.derivative, velocity[:, None, :, None])[..., 0]
        return times_rows(inner, velocity)

    def trace_contraction(self) -> np.ndarray:
        usable = np.isfinite(self.cholesky).all(axis=(1, 2))
        safe = np.where(usable[:, None, None], self.matrix, np.eye(self.matrix.shape[1]))
        trace = np.trace(np.linalg.solve(safe[:, None], self.derivative), axis1=2, axis2=3)
        return np.where(usable[:, None], trace, np.nan)


class HessianMetric:
    """The Hessian of the skewed potential plus a constant: G = B' diag(1 + exp(-z)) B."""

    def at(self, position: np.ndarray) -> TensorLocal:
        matrix = link(position.shape[1])
        tail = np.exp(-times_rows(matrix, position))
        outer = matrix[:, :, None] * matrix[:, None, :]
        derivative = np.einsum("nk,ki,kab->niab", -tail, matrix, outer)
        return TensorLocal(np.einsum("nk,kab->nab", 1.0 + tail, outer), derivative)


class ShearMetric:
    """G = R'R in two dimensions, with R = [[1, 0.7 sin q2], [0, exp(0.3 q1)]]: no Hessian of anything."""

    def at(self, position: np.ndarray) -> TensorLocal:
        n, root, slope = len(position), np.zeros((len(position), 2, 2)), np.zeros((len(position), 2, 2, 2))
        root[:, 0, 0], root[:, 0, 1] = 1.0, 0.7 * np.sin(position[:, 1])
        root[:, 1, 1] = np.exp(0.3 * position[:, 0])
        slope[:, 0, 1, 1], slope[:, 1, 0, 1] = 0.3 * root[:, 1, 1], 0.7 * np.cos(position[:, 1])
        half = np.matmul(np.swapaxes(root, 1, 2)[:, None], slope)
        assert half.shape == (n, 2, 2, 2)
        return TensorLocal(np.swapaxes(root, 1, 2) @ root, half + np.swapaxes(half, 2, 3))


@dataclass
class Case:
    """A force, a metric, and where to start from."""

    force: object
    metric: object
    centre: np.ndarray
    scale: float = 1.0

    def start(self, rng, n):
        position = self.centre + self.scale * rng.normal(size=(n, len(self.centre)))
        normals = rng.normal(size=position.shape)
        return self.start_at(position, riemannian_momentum(evaluate_metric(self.metric, position), normals))

    def start_at(self, position, momentum):
        everyone = np.ones(len(position), dtype=bool)
        local = evaluate_metric(self.metric, position)
        return RiemannianPoint(position, momentum, *self.force(position), local, everyone, ~everyone)


class Recorder:
    """Passes calls on to a function of positions and keeps the positions of each call."""

    def __init__(self, function):
        self.function, self.calls = function, []

    def __call__(self, position):
        self.calls.append(position.copy())
        return self.function(position)

    at = __call__

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate(self.calls)
