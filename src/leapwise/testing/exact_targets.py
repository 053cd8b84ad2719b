r"""Targets with exact draws, to test kernels on.

The built-in ones have one form. With independent variables :math:`z_i` of density :math:`\exp(-V)`,

.. math:: x_0 = z_0, \qquad x_i = z_i + g(x_{i-1}), \qquad U(x) = \sum_i V(z_i),

since the map has unit Jacobian. So draws are exact, and expectations of the first two coordinates are sums of
one-dimensional integrals:

.. math:: E\, x_1^k = \sum_j \binom{k}{j} E z^{k-j}\, E g^j, \quad E\, x_0 x_1 = (E z)^2 + E\, z g, \quad
    P(x_1 < c) = E\, F(c - g).

They are built from one-dimensional variables that can be drawn and integrated exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import comb

import numpy as np
from scipy.special import expit, ndtr, stdtr

from leapwise.checks import require_callable, require_dim, require_real
from leapwise.errors import InputError
from leapwise.targets import AnyTarget, Target

#: Threshold of the indicator statistics: off the centre, because a symmetric one would hide a wrong sign.
CUT = -0.5


@dataclass(frozen=True)
class Variable:
    """A variable with density proportional to exp(-V).

    Parameters
    ----------
    potential_and_slope : callable
        V and its derivative, element by element.
    below : callable
        The distribution function.
    draw : callable
        Takes a generator and a shape.
    """

    potential_and_slope: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    below: Callable[[np.ndarray], np.ndarray]
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

    def quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Return points and weights that sum to one: the trapezoidal rule in the inverse sinh, which suits any tail."""
        s = np.linspace(-30.0, 30.0, 6001)
        with np.errstate(all="ignore"):
            z = np.sinh(s)
            weight = np.exp(-self.potential_and_slope(z)[0]) * np.cosh(s)
        inside = weight > 0
        return z[inside], weight[inside] / weight[inside].sum()


def _gumbel(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    tail = np.exp(-z)
    return z + tail, 1.0 - tail


def _log_exponential(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    head = np.exp(z)
    return head - z, head - 1.0


#: Degrees of freedom: heavy tails with a finite fourth moment, which a statistic needs.
_FREEDOM = 5.0


def _student(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return 0.5 * (_FREEDOM + 1.0) * np.log1p(z**2 / _FREEDOM), (_FREEDOM + 1.0) * z / (_FREEDOM + z**2)


#: Weight of the left mode; mean and standard deviation of both. Modes that chains can still change between.
_WEIGHT, _LEFT, _RIGHT = 0.35, (-1.6, 0.6), (1.2, 0.9)


def _mixture(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    (a, s), (b, t) = _LEFT, _RIGHT
    left = np.log(_WEIGHT / s) - 0.5 * ((z - a) / s) ** 2
    right = np.log((1.0 - _WEIGHT) / t) - 0.5 * ((z - b) / t) ** 2
    share = expit(left - right)  # probability of the left mode, given z
    return -np.logaddexp(left, right), share * (z - a) / s**2 + (1.0 - share) * (z - b) / t**2


def _draw_mixture(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    left = rng.random(shape) < _WEIGHT
    return np.where(left, _LEFT[0], _RIGHT[0]) + np.where(left, _LEFT[1], _RIGHT[1]) * rng.standard_normal(
        shape
    )


def _below_mixture(z: np.ndarray) -> np.ndarray:
    (a, s), (b, t) = _LEFT, _RIGHT
    return _WEIGHT * ndtr((z - a) / s) + (1.0 - _WEIGHT) * ndtr((z - b) / t)


NORMAL = Variable(lambda z: (0.5 * z**2, z), ndtr, lambda rng, shape: rng.standard_normal(shape))
GUMBEL = Variable(_gumbel, lambda z: np.exp(-np.exp(-z)), lambda rng, shape: rng.gumbel(size=shape))
LOG_EXPONENTIAL = Variable(
    _log_exponential, lambda z: -np.expm1(-np.exp(z)), lambda rng, shape: np.log(rng.exponential(size=shape))
)
STUDENT = Variable(_student, lambda z: stdtr(_FREEDOM, z), lambda rng, shape: rng.standard_t(_FREEDOM, shape))
MIXTURE = Variable(_mixture, _below_mixture, _draw_mixture)


Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True, eq=False)
class ExactTarget:
    """A target with a function that draws from it exactly.

    Parameters
    ----------
    target : Target or ForwardTarget
    draw : callable
        Takes a generator and n, and returns n independent draws ``(n, dim)`` of the parameters.
    name : str
        Its name in reports.
    expected : dict of str to float
        Known exact means of statistics, by name.

    Examples
    --------
    >>> normal = Target(lambda x: -0.5 * (x**2).sum(axis=1), dim=3, vectorized=True)
    >>> ExactTarget(normal, lambda rng, n: rng.standard_normal((n, 3)), "normal")
    ExactTarget(normal, dim=3)
    """

    target: AnyTarget
    draw: Draw
    name: str = "target"
    expected: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_callable("draw", self.draw)
        if isinstance(self.target, type) or not hasattr(self.target, "evaluate"):
            raise InputError(
                f"target must be a Target or a ForwardTarget, got {type(self.target).__name__}; "
                "wrap a function as Target(log_density, dim=...)"
            )
        if not isinstance(self.expected, Mapping):
            raise InputError(
                f"expected must be a dict of names and numbers, got {type(self.expected).__name__}"
            )
        for name, value in self.expected.items():
            if require_real(value, f"expected[{name!r}]").ndim:
                raise InputError(f"expected[{name!r}] must be one number, the exact mean of that statistic")

    def __repr__(self) -> str:
        return f"ExactTarget({self.name}, dim={self.target.dim})"

    def positions(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return n exact draws as unconstrained positions ``(n, dim)``."""
        parameters = np.asarray(self.draw(rng, n), dtype=float)
        if parameters.shape != (n, self.target.dim):
            raise InputError(
                f"draw must return an array of shape {(n, self.target.dim)} for {n} draws, "
                f"got {parameters.shape}"
            )
        return self.target.transform.to_position(parameters)


def gaussian(dim: int = 2) -> ExactTarget:
    """Make a correlated Gaussian.

    Examples
    --------
    >>> round(gaussian().expected["q0 q1"], 12)
    0.8
    """
    return _linked("gaussian", NORMAL, 0.8, 0.0, dim)


def gumbel(dim: int = 2) -> ExactTarget:
    """Make skewed variables, each a Gumbel variable plus 0.8 times the one before.

    Examples
    --------
    >>> bool(abs(gumbel().expected["q0"] - np.euler_gamma) < 1e-12)
    True
    """
    return _linked("gumbel", GUMBEL, 0.8, 0.0, dim)


def banana(dim: int = 2) -> ExactTarget:
    """Make a banana: each coordinate is standard normal about a parabola in the one before.

    Examples
    --------
    >>> bool(abs(banana().expected["q1"] + 0.5) < 1e-12)
    True
    """
    return _linked("banana", NORMAL, 0.0, 0.5, dim)


def mixture(dim: int = 2) -> ExactTarget:
    """Make two modes of different weight and width in each coordinate, which depends on the one before.

    Examples
    --------
    >>> mixture()
    ExactTarget(mixture, dim=2)
    """
    return _linked("mixture", MIXTURE, 0.3, 0.0, dim)


def student_t(dim: int = 2) -> ExactTarget:
    """Make heavy tails: Student's t with five degrees of freedom, each depending on the one before.

    Examples
    --------
    >>> bool(abs(student_t().expected["q0^2"] - 5 / 3) < 1e-9)
    True
    """
    return _linked("student-t", STUDENT, 0.5, 0.0, dim)


def exponential(dim: int = 2) -> ExactTarget:
    """Make exponential variables, bounded at zero: chains move in their logarithms.

    Examples
    --------
    >>> bool(abs(exponential().expected["U"] - 2 * (1 + np.euler_gamma)) < 1e-12)
    True
    """
    dim = require_dim(dim)
    target = Target(
        lambda x: -x.sum(axis=1), lambda x: -np.ones_like(x), dim=dim, bounds=(0, None), vectorized=True
    )
    linked = _Linked(LOG_EXPONENTIAL, 0.0, 0.0)
    return ExactTarget(
        target, lambda rng, n: rng.exponential(size=(n, dim)), "exponential", linked.expected(dim)
    )


def _linked(name: str, variable: Variable, slope: float, bend: float, dim: int) -> ExactTarget:
    linked, dim = _Linked(variable, slope, bend), require_dim(dim)
    target = Target(
        lambda x: linked.value_and_gradient(x)[0],
        dim=dim,
        vectorized=True,
        value_and_gradient=linked.value_and_gradient,
    )
    return ExactTarget(target, lambda rng, n: linked.draw(rng, n, dim), name, linked.expected(dim))


@dataclass(frozen=True, eq=False)
class _Linked:
    """Variables of which each depends on the one before by g(x) = slope x + bend (x^2 - 2)."""

    variable: Variable
    slope: float
    bend: float

    def lean(self, x: np.ndarray) -> np.ndarray:
        return self.slope * x + self.bend * (x**2 - 2.0)

    def value_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-density and its gradient."""
        with np.errstate(all="ignore"):
            z = x.copy()
            z[:, 1:] -= self.lean(x[:, :-1])
            value, slope = self.variable.potential_and_slope(z)
            gradient = slope.copy()
            gradient[:, :-1] -= slope[:, 1:] * (self.slope + 2.0 * self.bend * x[:, :-1])
            value = value.sum(axis=1)
        # Far out, powers overflow: the density is zero there.
        value[~(np.isfinite(value) & np.isfinite(gradient).all(axis=1))] = np.inf
        return -value, -gradient

    def draw(self, rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
        x = self.variable.draw(rng, (n, dim))
        for i in range(1, dim):  # each needs the one before
            x[:, i] += self.lean(x[:, i - 1])
        return x

    def expected(self, dim: int) -> dict[str, float]:
        """Return exact means of the default statistics: those of the first two coordinates, and of U."""
        z, weight = self.variable.quadrature()
        lean, powers = self.lean(z), range(5)
        moment = [float(weight @ z**k) for k in powers]
        leaning = [float(weight @ lean**k) for k in powers]
        known = {"U": dim * float(weight @ self.variable.potential_and_slope(z)[0])}
        known |= {"q0": moment[1], "q0^2": moment[2], "q0^4": moment[4]}
        known[f"q0 < {CUT}"] = float(self.variable.below(np.array(CUT)))
        if dim > 1:
            for name, k in (("q1", 1), ("q1^2", 2), ("q1^4", 4)):
                known[name] = sum(comb(k, j) * moment[k - j] * leaning[j] for j in range(k + 1))
            known["q0 q1"] = moment[1] ** 2 + float(weight @ (z * lean))
            known[f"q1 < {CUT}"] = float(weight @ self.variable.below(CUT - lean))
        return known
