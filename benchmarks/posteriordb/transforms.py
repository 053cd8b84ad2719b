r"""Maps between unconstrained parameters x and constrained ones y, as Stan defines them.

Each block of parameters has four methods on rows ``(n, size)``: `constrain`, `unconstrain`, `log_jacobian`
(the log of :math:`|\det \partial y / \partial x|`) and `pull_back`, which turns the gradient g of a density by y into
the gradient by x of density and Jacobian together, :math:`(\partial y / \partial x)^T g + \nabla_x \log|\det|`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from scipy.special import expit, log_expit


def vector(name: str, size: int) -> tuple[str, ...]:
    """Return the names of a vector's entries as Stan counts them, from 1."""
    return tuple(f"{name}[{i + 1}]" for i in range(size))


class Block(Protocol):
    """Some parameters that are constrained together; `names` are of y, `free_names` of x."""

    names: tuple[str, ...]

    @property
    def free_names(self) -> tuple[str, ...]: ...
    def constrain(self, x: np.ndarray) -> np.ndarray: ...
    def unconstrain(self, y: np.ndarray) -> np.ndarray: ...
    def log_jacobian(self, x: np.ndarray) -> np.ndarray | float: ...
    def pull_back(self, x: np.ndarray, y: np.ndarray, gradient: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class Real:
    """Parameters without constraint."""

    names: tuple[str, ...]

    @property
    def free_names(self) -> tuple[str, ...]:
        return self.names

    def constrain(self, x: np.ndarray) -> np.ndarray:
        return x

    def unconstrain(self, y: np.ndarray) -> np.ndarray:
        return y

    def log_jacobian(self, x: np.ndarray) -> float:
        return 0.0

    def pull_back(self, x: np.ndarray, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return gradient


@dataclass(frozen=True)
class Positive:
    """Parameters above zero: y = exp(x)."""

    names: tuple[str, ...]

    @property
    def free_names(self) -> tuple[str, ...]:
        return tuple(f"log_{name}" for name in self.names)

    def constrain(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)

    def unconstrain(self, y: np.ndarray) -> np.ndarray:
        return np.log(y)

    def log_jacobian(self, x: np.ndarray) -> np.ndarray:
        return x.sum(axis=1)

    def pull_back(self, x: np.ndarray, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        return gradient * y + 1.0


@dataclass(frozen=True)
class Ordered:
    """An increasing vector: y_1 = x_1, or exp(x_1) if `positive`, and y_k = y_(k-1) + exp(x_k)."""

    names: tuple[str, ...]
    positive: bool = False

    @property
    def free_names(self) -> tuple[str, ...]:
        first = f"log_{self.names[0]}" if self.positive else self.names[0]
        return (first, *(f"log_step_to_{name}" for name in self.names[1:]))

    def constrain(self, x: np.ndarray) -> np.ndarray:
        return self._steps(x).cumsum(axis=1)

    def unconstrain(self, y: np.ndarray) -> np.ndarray:
        x = np.diff(y, axis=1, prepend=0.0)
        start = self._first_step
        x[:, start:] = np.log(x[:, start:])
        return x

    def log_jacobian(self, x: np.ndarray) -> np.ndarray:
        return x[:, self._first_step :].sum(axis=1)

    def pull_back(self, x: np.ndarray, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        slope = gradient[:, ::-1].cumsum(axis=1)[:, ::-1]  # x_k moves y_k and all after it
        start = self._first_step
        slope[:, start:] = slope[:, start:] * np.exp(x[:, start:]) + 1.0
        return slope

    @property
    def _first_step(self) -> int:
        return 0 if self.positive else 1

    def _steps(self, x: np.ndarray) -> np.ndarray:
        steps = np.exp(x)
        if not self.positive:
            steps[:, 0] = x[:, 0]
        return steps


@dataclass(frozen=True)
class Sticks:
    r"""Parts broken off a stick of length one, one after another.

    With :math:`z_k = 1 / (1 + e^{-x_k + s_k})`, part k of m is :math:`y_k = z_k \prod_{i<k} (1 - z_i)`. What remains,
    :math:`\prod_i (1 - z_i)`, is the last entry of a simplex. Stan shifts the breaks of a simplex by
    :math:`s_k = \log(m - k + 1)`, so that x = 0 are equal parts. Bounds that depend on the parameter before,
    :math:`y_1 \in (0, 1)` and :math:`y_2 \in (0, 1 - y_1)`, are parts without shift and without remainder. Either way

    .. math:: \log|\det| = \sum_{k=1}^m \log z_k + (m - k + 1) \log(1 - z_k).

    Use `simplex` or `parts_of_one` to make one.
    """

    names: tuple[str, ...]
    shift: tuple[float, ...]

    @property
    def free_names(self) -> tuple[str, ...]:
        return tuple(f"logit_{name}" for name in self.names[: len(self.shift)])

    def constrain(self, x: np.ndarray) -> np.ndarray:
        x = x - self.shift
        whole = np.ones((len(x), len(self.shift) + 1))
        whole[:, 1:] = expit(-x).cumprod(axis=1)  # 1 - z would lose its digits near zero
        whole[:, :-1] *= expit(x)
        return whole[:, : len(self.names)]

    def unconstrain(self, y: np.ndarray) -> np.ndarray:
        m = len(self.shift)
        whole = y if y.shape[1] > m else np.column_stack([y, 1.0 - y.sum(axis=1)])
        after = whole[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        return np.log(whole[:, :m] / after) + self.shift

    def log_jacobian(self, x: np.ndarray) -> np.ndarray:
        x = x - self.shift
        return log_expit(x).sum(axis=1) + log_expit(-x) @ self._remaining

    def pull_back(self, x: np.ndarray, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        x, m = x - self.shift, len(self.shift)
        z = expit(x)
        weight = y * gradient
        after = weight.sum(axis=1, keepdims=True) - weight.cumsum(axis=1)
        # x_k lengthens y_k by the share 1 - z_k and shortens all after it by the share z_k
        return expit(-x) * (weight[:, :m] + 1.0) - z * (after[:, :m] + self._remaining)

    @property
    def _remaining(self) -> np.ndarray:
        return np.arange(len(self.shift), 0.0, -1.0)


def simplex(names: tuple[str, ...]) -> Sticks:
    """Make a block of probabilities that sum to one, by Stan's stick-breaking."""
    m = len(names) - 1
    return Sticks(names, tuple(float(shift) for shift in np.log(np.arange(m, 0, -1))))


def parts_of_one(names: tuple[str, ...]) -> Sticks:
    """Make a block of parameters above zero, each below what those before it leave of one."""
    return Sticks(names, (0.0,) * len(names))


class Space:
    """All blocks of a posterior side by side; itself used like a block."""

    def __init__(self, *blocks: Block) -> None:
        self.blocks = blocks
        self.names = tuple(name for block in blocks for name in block.names)
        self.free_names = tuple(name for block in blocks for name in block.free_names)
        self._x = _slices([len(block.free_names) for block in blocks])
        self._y = _slices([len(block.names) for block in blocks])

    def constrain(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [b.constrain(x[:, i]) for b, i in zip(self.blocks, self._x, strict=True)], axis=1
        )

    def unconstrain(self, y: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [b.unconstrain(y[:, j]) for b, j in zip(self.blocks, self._y, strict=True)], axis=1
        )

    def log_jacobian(self, x: np.ndarray) -> np.ndarray | float:
        return sum(b.log_jacobian(x[:, i]) for b, i in zip(self.blocks, self._x, strict=True))

    def pull_back(self, x: np.ndarray, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        parts = zip(self.blocks, self._x, self._y, strict=True)
        return np.concatenate([b.pull_back(x[:, i], y[:, j], gradient[:, j]) for b, i, j in parts], axis=1)


def _slices(sizes: list[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(start, end) for start, end in pairwise(ends)]
