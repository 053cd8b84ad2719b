"""Families of prior distributions, each in closed form.

The entries of a variable are independent, except those of `MultivariateNormal`. All families take ``shape`` and
``dims``, which `leapwise.targets.family.Family` describes; there is also what they share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.special import betaln, digamma, erf, gammaln, log_ndtr, ndtri_exp, xlog1py, xlogy

from leapwise.checks import require_covariance
from leapwise.errors import InputError
from leapwise.targets.family import Array, Family

_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, eq=False, repr=False)
class Normal(Family):
    """The normal distribution.

    Parameters
    ----------
    mean, sd : float, array_like or str
        Mean and standard deviation.

    Examples
    --------
    >>> Normal(0.0, 0.5).log_density(np.array([0.0, 0.5]))
    array([-0.22579..., -0.72579...])
    """

    mean: ArrayLike | str
    sd: ArrayLike | str

    tag = "normal"
    positive = ("sd",)

    def _log(self, x: Array, mean: Any, sd: Any) -> Array:
        return np.asarray(-0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - _HALF_LOG_2PI)

    def _slopes(self, x: Array, mean: Any, sd: Any) -> tuple[Any, ...]:
        z = (x - mean) / sd
        return -z / sd, z / sd, (z * z - 1) / sd

    def _draw(self, rng: np.random.Generator, mean: Any, sd: Any) -> Any:
        return rng.normal(mean, sd, self.shape)


@dataclass(frozen=True, eq=False, repr=False)
class LogNormal(Family):
    """A positive number whose logarithm is normal.

    Parameters
    ----------
    mean, sd : float, array_like or str
        Mean and standard deviation of the logarithm.

    Examples
    --------
    >>> LogNormal(0.0, 0.5).log_density(np.array([1.0, -1.0]))
    array([-0.22579..., -inf])
    """

    mean: ArrayLike | str
    sd: ArrayLike | str

    tag = "log_normal"
    positive = ("sd",)
    limits = (0.0, np.inf)

    def _log(self, x: Array, mean: Any, sd: Any) -> Array:
        y = np.log(x)
        return np.asarray(-0.5 * ((y - mean) / sd) ** 2 - np.log(sd) - y - _HALF_LOG_2PI)

    def _slopes(self, x: Array, mean: Any, sd: Any) -> tuple[Any, ...]:
        z = (np.log(x) - mean) / sd
        return -(z / sd + 1) / x, z / sd, (z * z - 1) / sd

    def _draw(self, rng: np.random.Generator, mean: Any, sd: Any) -> Any:
        return rng.lognormal(mean, sd, self.shape)


@dataclass(frozen=True, eq=False, repr=False)
class HalfNormal(Family):
    """The size of a normal number with mean 0.

    Parameters
    ----------
    sd : float, array_like or str
        Standard deviation of that normal number.

    Examples
    --------
    >>> HalfNormal(2.0).log_density(np.array([0.0, 2.0]))
    array([-0.91893..., -1.41893...])
    """

    sd: ArrayLike | str

    tag = "half_normal"
    positive = ("sd",)
    limits = (0.0, np.inf)

    def _log(self, x: Array, sd: Any) -> Array:
        return np.asarray(-0.5 * (x / sd) ** 2 - np.log(sd) + np.log(2) - _HALF_LOG_2PI)

    def _slopes(self, x: Array, sd: Any) -> tuple[Any, ...]:
        z = x / sd
        return -z / sd, (z * z - 1) / sd

    def _draw(self, rng: np.random.Generator, sd: Any) -> Any:
        return np.abs(rng.normal(0.0, sd, self.shape))


@dataclass(frozen=True, eq=False, repr=False)
class HalfCauchy(Family):
    """The size of a Cauchy number with centre 0.

    Parameters
    ----------
    scale : float, array_like or str
        Its median.

    Examples
    --------
    >>> HalfCauchy(1.0).log_density(np.array([0.0, 1.0]))
    array([-0.45158..., -1.14472...])
    """

    scale: ArrayLike | str

    tag = "half_cauchy"
    positive = ("scale",)
    limits = (0.0, np.inf)

    def _log(self, x: Array, scale: Any) -> Array:
        return np.asarray(np.log(2 / np.pi) - np.log(scale) - _log_1_plus_square(x / scale))

    def _slopes(self, x: Array, scale: Any) -> tuple[Any, ...]:
        z = x / scale
        return -2 * z / (1 + z * z) / scale, (1 - 2 / (1 + z * z)) / scale

    def _draw(self, rng: np.random.Generator, scale: Any) -> Any:
        return scale * np.abs(rng.standard_cauchy(self.shape))


@dataclass(frozen=True, eq=False, repr=False)
class Exponential(Family):
    """The exponential distribution.

    Parameters
    ----------
    rate : float, array_like or str
        The mean is ``1 / rate``.

    Examples
    --------
    >>> Exponential(2.0).log_density(np.array([0.0, 1.0]))
    array([ 0.69314..., -1.30685...])
    """

    rate: ArrayLike | str

    tag = "exponential"
    positive = ("rate",)
    limits = (0.0, np.inf)

    def _log(self, x: Array, rate: Any) -> Array:
        return np.asarray(np.log(rate) - rate * x)

    def _slopes(self, x: Array, rate: Any) -> tuple[Any, ...]:
        return -rate, 1 / rate - x

    def _draw(self, rng: np.random.Generator, rate: Any) -> Any:
        return rng.standard_exponential(self.shape) / rate


@dataclass(frozen=True, eq=False, repr=False)
class Gamma(Family):
    """The gamma distribution.

    Parameters
    ----------
    alpha, rate : float, array_like or str
        The density is proportional to ``x**(alpha - 1) * exp(-rate * x)``; the mean is ``alpha / rate``.

    Examples
    --------
    >>> Gamma(2.0, 1.0).log_density(np.array([1.0, 0.0]))
    array([ -1., -inf])
    """

    alpha: ArrayLike | str
    rate: ArrayLike | str

    tag = "gamma"
    positive = ("alpha", "rate")
    limits = (0.0, np.inf)

    def _log(self, x: Array, alpha: Any, rate: Any) -> Array:
        return np.asarray(alpha * np.log(rate) - gammaln(alpha) + xlogy(alpha - 1, x) - rate * x)

    def _slopes(self, x: Array, alpha: Any, rate: Any) -> tuple[Any, ...]:
        return (alpha - 1) / x - rate, np.log(rate) - digamma(alpha) + np.log(x), alpha / rate - x

    def _draw(self, rng: np.random.Generator, alpha: Any, rate: Any) -> Any:
        return rng.standard_gamma(alpha, self.shape) / rate


@dataclass(frozen=True, eq=False, repr=False)
class InverseGamma(Family):
    """A number whose inverse has a gamma distribution.

    Parameters
    ----------
    alpha, scale : float, array_like or str
        The density is proportional to ``x**(-alpha - 1) * exp(-scale / x)``; the mean is ``scale / (alpha - 1)``.

    Examples
    --------
    >>> InverseGamma(2.0, 1.0).log_density(np.array([1.0, 0.0]))
    array([ -1., -inf])
    """

    alpha: ArrayLike | str
    scale: ArrayLike | str

    tag = "inverse_gamma"
    positive = ("alpha", "scale")
    limits = (0.0, np.inf)

    def _log(self, x: Array, alpha: Any, scale: Any) -> Array:
        return np.asarray(alpha * np.log(scale) - gammaln(alpha) - (alpha + 1) * np.log(x) - scale / x)

    def _slopes(self, x: Array, alpha: Any, scale: Any) -> tuple[Any, ...]:
        in_alpha = np.log(scale) - digamma(alpha) - np.log(x)
        return (scale / x - (alpha + 1)) / x, in_alpha, alpha / scale - 1 / x

    def _draw(self, rng: np.random.Generator, alpha: Any, scale: Any) -> Any:
        return scale / rng.standard_gamma(alpha, self.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Beta(Family):
    """The beta distribution on (0, 1).

    Parameters
    ----------
    alpha, beta : float, array_like or str
        The density is proportional to ``x**(alpha - 1) * (1 - x)**(beta - 1)``; the mean is ``alpha / (alpha + beta)``.

    Examples
    --------
    >>> Beta(1.0, 2.0).log_density(np.array([0.0, 0.5]))
    array([0.69314..., 0.        ])
    """

    alpha: ArrayLike | str
    beta: ArrayLike | str

    tag = "beta"
    positive = ("alpha", "beta")
    limits = (0.0, 1.0)

    def _log(self, x: Array, alpha: Any, beta: Any) -> Array:
        return np.asarray(xlogy(alpha - 1, x) + xlog1py(beta - 1, -x) - betaln(alpha, beta))

    def _slopes(self, x: Array, alpha: Any, beta: Any) -> tuple[Any, ...]:
        both = digamma(alpha + beta)
        in_alpha, in_beta = np.log(x) - digamma(alpha) + both, np.log1p(-x) - digamma(beta) + both
        return (alpha - 1) / x - (beta - 1) / (1 - x), in_alpha, in_beta

    def _draw(self, rng: np.random.Generator, alpha: Any, beta: Any) -> Any:
        return rng.beta(alpha, beta, self.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Uniform(Family):
    """The uniform distribution between two limits.

    Parameters
    ----------
    lower, upper : float or array_like
        The limits, which must be numbers.

    Examples
    --------
    >>> Uniform(0.0, [1.0, 2.0]).support
    (array([0., 0.]), array([1., 2.]))
    """

    lower: ArrayLike
    upper: ArrayLike

    tag = "uniform"
    fixed = ("lower", "upper")

    def _log(self, x: Array, lower: Any, upper: Any) -> Array:
        return np.zeros_like(x) - np.log(0.5 * upper - 0.5 * lower) - np.log(2)  # halves do not overflow

    def _slopes(self, x: Array, lower: Any, upper: Any) -> tuple[Any, ...]:
        return (np.zeros_like(x),)

    def _draw(self, rng: np.random.Generator, lower: Any, upper: Any) -> Any:
        share = rng.uniform(size=self.shape)
        return (1 - share) * lower + share * upper


@dataclass(frozen=True, eq=False, repr=False)
class LogUniform(Family):
    """A positive number whose logarithm is uniform between two limits.

    Parameters
    ----------
    lower, upper : float or array_like
        Limits of the number itself, not of its logarithm; they must be positive numbers.

    Examples
    --------
    >>> LogUniform(0.001, 1.0).log_density(np.array([0.01, 2.0]))
    array([2.67252..., -inf])
    """

    lower: ArrayLike
    upper: ArrayLike

    tag = "log_uniform"
    positive = ("lower", "upper")
    fixed = ("lower", "upper")

    def _log(self, x: Array, lower: Any, upper: Any) -> Array:
        return np.asarray(-np.log(x) - np.log(np.log(upper) - np.log(lower)))

    def _slopes(self, x: Array, lower: Any, upper: Any) -> tuple[Any, ...]:
        return (-1 / x,)

    def _draw(self, rng: np.random.Generator, lower: Any, upper: Any) -> Any:
        drawn = np.exp(rng.uniform(np.log(lower), np.log(upper), self.shape))
        return np.clip(drawn, lower, upper)


@dataclass(frozen=True, eq=False, repr=False)
class StudentT(Family):
    """Student's t distribution, with centre and scale.

    Parameters
    ----------
    df : float, array_like or str
        Degrees of freedom: small for heavy tails.
    mean, scale : float, array_like or str
        Centre and scale. The scale is less than the standard deviation, which exists only if ``df > 2``.

    Examples
    --------
    >>> StudentT(3.0, 0.0, 1.0).log_density(np.array([0.0, 10.0]))
    array([-1.00088..., -8.07312...])
    """

    df: ArrayLike | str
    mean: ArrayLike | str
    scale: ArrayLike | str

    tag = "student_t"
    positive = ("df", "scale")

    def _log(self, x: Array, df: Any, mean: Any, scale: Any) -> Array:
        root = np.sqrt(df)
        tail = 0.5 * (df + 1) * _log_1_plus_square((x - mean) / scale / root)
        return np.asarray(-betaln(0.5 * df, 0.5) - np.log(root) - np.log(scale) - tail)

    def _slopes(self, x: Array, df: Any, mean: Any, scale: Any) -> tuple[Any, ...]:
        z = (x - mean) / scale
        fall = (df + 1) * z / (df + z * z)
        share = 1 - df / (df + z * z)  # z² / (df + z²)
        in_df = digamma(0.5 * (df + 1)) - digamma(0.5 * df) - _log_1_plus_square(z / np.sqrt(df))
        in_df = 0.5 * (in_df - 1 / df + (df + 1) / df * share)
        return -fall / scale, in_df, fall / scale, ((df + 1) * share - 1) / scale

    def _draw(self, rng: np.random.Generator, df: Any, mean: Any, scale: Any) -> Any:
        return mean + scale * rng.standard_t(df, self.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Cauchy(Family):
    """The Cauchy distribution.

    Parameters
    ----------
    mean, scale : float, array_like or str
        Centre (the median; strictly, it has no mean) and half the distance between the quartiles.

    Examples
    --------
    >>> Cauchy(0.0, 1.0).log_density(np.array([0.0, 1.0]))
    array([-1.14472..., -1.83787...])
    """

    mean: ArrayLike | str
    scale: ArrayLike | str

    tag = "cauchy"
    positive = ("scale",)

    def _log(self, x: Array, mean: Any, scale: Any) -> Array:
        return np.asarray(-np.log(np.pi) - np.log(scale) - _log_1_plus_square((x - mean) / scale))

    def _slopes(self, x: Array, mean: Any, scale: Any) -> tuple[Any, ...]:
        z = (x - mean) / scale
        fall = 2 * z / (1 + z * z) / scale
        return -fall, fall, (1 - 2 / (1 + z * z)) / scale

    def _draw(self, rng: np.random.Generator, mean: Any, scale: Any) -> Any:
        return mean + scale * rng.standard_cauchy(self.shape)


@dataclass(frozen=True, eq=False, repr=False)
class TruncatedNormal(Family):
    """A normal distribution cut off at limits.

    Parameters
    ----------
    mean, sd : float, array_like or str
        Mean and standard deviation before the cut.
    lower, upper : float or array_like, optional
        The limits, which must be numbers; None or an infinity for no limit.

    Examples
    --------
    >>> TruncatedNormal(0.0, 1.0, lower=0.0).log_density(np.array([0.0, -1.0]))
    array([-0.22579..., -inf])
    """

    mean: ArrayLike | str
    sd: ArrayLike | str
    lower: ArrayLike | None = None
    upper: ArrayLike | None = None

    tag = "truncated_normal"
    positive = ("sd",)
    fixed = ("lower", "upper")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.named:
            with np.errstate(all="ignore"):
                mass = _log_mass(*self._ends(*self._numbers({})))
            if not np.isfinite(mass).all():
                raise InputError(
                    f"{self!r} has no mass between its limits that floating point can hold; widen the limits"
                )

    def _as_numbers(self, name: str, value: Any) -> Array:
        if name not in self.fixed:
            return super()._as_numbers(name, value)
        if value is None:
            return np.asarray(-np.inf if name == "lower" else np.inf)
        try:
            infinite = np.isinf(np.asarray(value, dtype=float))
        except (TypeError, ValueError):
            infinite = np.asarray(False)
        finite = super()._as_numbers(name, np.where(infinite, 0.0, value) if infinite.any() else value)
        return np.where(infinite, value, finite) if infinite.any() else finite

    @staticmethod
    def _ends(mean: Any, sd: Any, lower: Any, upper: Any) -> tuple[Array, Array]:
        return np.asarray((lower - mean) / sd), np.asarray((upper - mean) / sd)

    def _log(self, x: Array, mean: Any, sd: Any, lower: Any, upper: Any) -> Array:
        mass = _log_mass(*self._ends(mean, sd, lower, upper))
        return np.asarray(-0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - _HALF_LOG_2PI - mass)

    def _slopes(self, x: Array, mean: Any, sd: Any, lower: Any, upper: Any) -> tuple[Any, ...]:
        z = (x - mean) / sd
        ends = self._ends(mean, sd, lower, upper)
        mass = _log_mass(*ends)
        # The density at each end, relative to the mass, and times the end; both are 0 at infinity.
        low, high = (np.exp(-0.5 * end * end - _HALF_LOG_2PI - mass) for end in ends)
        low_end, high_end = (
            np.where(np.isfinite(end), end * height, 0.0)
            for end, height in zip(ends, (low, high), strict=True)
        )
        return -z / sd, (z - low + high) / sd, (z * z - 1 - low_end + high_end) / sd

    def _draw(self, rng: np.random.Generator, mean: Any, sd: Any, lower: Any, upper: Any) -> Any:
        a, b = self._ends(mean, sd, lower, upper)
        flip = np.where(a + b > 0, -1.0, 1.0)  # the left tail has the accurate logarithms
        left, right = np.where(flip > 0, a, -b), np.where(flip > 0, b, -a)
        share = rng.uniform(size=self.shape)
        drawn = ndtri_exp(np.logaddexp(log_ndtr(left) + np.log1p(-share), log_ndtr(right) + np.log(share)))
        return np.clip(mean + sd * flip * drawn, lower, upper)


@dataclass(frozen=True, eq=False, repr=False)
class MultivariateNormal(Family):
    """A vector of correlated normal numbers.

    Parameters
    ----------
    mean : float, array_like of shape (k,) or str
        Their mean.
    covariance : array_like of shape (k, k)
        Their covariance, which must be numbers.

    Examples
    --------
    >>> family = MultivariateNormal(0.0, [[1.0, 0.5], [0.5, 1.0]])
    >>> family.shape, family.log_density(np.array([[0.0, 0.0]]))
    ((2,), array([-1.69403...]))
    """

    mean: ArrayLike | str
    covariance: ArrayLike

    tag = "multivariate_normal"
    fixed = ("covariance",)

    def _as_numbers(self, name: str, value: Any) -> Array:
        return require_covariance(value)[0] if name == "covariance" else super()._as_numbers(name, value)

    def _shape_of_numbers(self) -> tuple[int, ...]:
        size = np.shape(self.covariance)[:1]
        given = np.broadcast_shapes(size, np.shape(self.mean)) if "mean" not in self.named else size
        if given != size:
            raise ValueError("the mean has more entries, or axes, than the covariance")
        return given

    def _whole_shape(self) -> tuple[int, ...]:
        whole, size = super()._whole_shape(), len(np.asarray(self.covariance))
        if whole != (size,):
            raise InputError(
                f"shape of MultivariateNormal must be ({size},), as its covariance has it, got {whole}; leave it out"
            )
        return whole

    @cached_property
    def _factor(self) -> Array:
        return np.linalg.cholesky(np.asarray(self.covariance))

    def _whitened(self, x: Array, mean: Any) -> Array:
        """Return :math:`C^{-1} (x - mean)`, of shape ``(k, n)``, where the covariance is :math:`C C^T`."""
        return solve_triangular(self._factor, (x - mean).T, lower=True, check_finite=False)

    def _log(self, x: Array, mean: Any, covariance: Any) -> Array:
        z = self._whitened(x, mean)
        constant = np.log(np.diag(self._factor)).sum() + len(z) * _HALF_LOG_2PI
        return np.asarray(-0.5 * np.einsum("in,in->n", z, z) - constant)

    def _slopes(self, x: Array, mean: Any, covariance: Any) -> tuple[Any, ...]:
        slope = solve_triangular(
            self._factor, self._whitened(x, mean), lower=True, trans=1, check_finite=False
        ).T
        return -slope, slope

    def _draw(self, rng: np.random.Generator, mean: Any, covariance: Any) -> Any:
        return mean + self._factor @ rng.standard_normal(self.shape)


def _log_1_plus_square(z: Array) -> Array:
    """Return log(1 + z²), also where z² overflows."""
    return np.asarray(np.logaddexp(0.0, 2 * np.log(np.abs(z))))


def _log_mass(a: Array, b: Array) -> Array:
    """Return the logarithm of the standard normal mass between a and b, without the differences of close numbers."""
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)  # now a <= 0
    across = np.log(0.5 * (erf(b / np.sqrt(2)) - erf(a / np.sqrt(2))))
    below = log_ndtr(b) + np.log(-np.expm1(log_ndtr(a) - log_ndtr(b)))
    return np.where(b > 0, across, below)
