r"""Likelihoods of a forward model's outputs, which may have parameters of their own.

Any object of the form `Likelihood` can be used. Those here take data of any shape, or a dict of data sets, and flatten
them one after another into a vector of m entries, like the outputs. Data that are NaN are missing: they do not count.

What is observed is :math:`\mu_j = a f_j + b`, where :math:`f` are the outputs, :math:`a` is `scale` and :math:`b` is
`offset`. Observations are independent given :math:`\mu`, unless a covariance is given. Each argument is a number, an
array of the data's shape, or the name of a variable of the prior, which is then sampled with the others; for a dict of
data sets it may be a dict of these. A variable is a scalar, or has the shape of the data set.

A family writes only its pointwise maths: ``_log_pdf``, its derivatives ``_slope`` and ``_argument_slopes``, and
``_draw``. `leapwise.targets.observations.Observations` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.special import betaln, digamma, expit, gammaln, xlogy

from leapwise.checks import require_covariance
from leapwise.errors import InputError
from leapwise.targets.observations import Argument, Given, Observations, Own
from leapwise.targets.variables import Variable, columns

#: Residuals of more standard deviations have no density, since their squares overflow.
_FAR = 1.3e154
#: Counts above this are not exact as floats.
_MOST_COUNTS = 2.0**53
#: NumPy draws no Poisson numbers of a larger mean than about 9.2e18.
_MOST_POISSON = 9e18
_LOG_2PI = np.log(2 * np.pi)


class GaussianLikelihood(Observations):
    r"""Observations of the outputs with Gaussian errors.

    With `sd` and `relative_sd`, an observation has the standard deviation :math:`\sqrt{\sigma^2 + (r \mu)^2}`, where
    :math:`\mu` is the output, or scale times output plus offset.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The observations, or several data sets by name. NaN are left out.
    sd : float, array_like or str, or dict of these, optional
        Standard deviation of the errors, if they are independent: a number, one for each observation, or the name of a
        variable.
    covariance : array_like of shape (m, m), optional
        Their covariance, if they are not. Give either this or `sd`.
    relative_sd : float, array_like or str, or dict of these, optional
        Standard deviation of further errors, in units of the output: 0.1 is ten per cent. It may stand alone if no
        observation is zero.
    scale, offset : float, array_like or str, or dict of these, optional
        Observed is scale times output plus offset.

    Attributes
    ----------
    data : ndarray of shape (m,)
    sd : ndarray of shape (m,)
        NaN where it is a variable, zero where only the relative one is given.

    Examples
    --------
    >>> likelihood = GaussianLikelihood([1.0, 2.0], sd=0.1)
    >>> likelihood.gradient(np.array([[1.0, 2.1]]))
    array([[ -0., -10.]])

    The standard deviation of one data set is to be sampled too:

    >>> both = GaussianLikelihood({"prey": [30.0, 47.2], "predator": [4.0]}, sd={"prey": "sigma", "predator": 0.5})
    >>> both.parameters
    ('sigma',)
    >>> both.log_density(np.array([[31.0, 46.2, 4.0]]), {"sigma": np.array([1.0])})
    array([-3.06366...])
    """

    _tag = "GaussianLikelihood"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        sd: Argument | None = None,
        *,
        covariance: ArrayLike | None = None,
        relative_sd: Argument | None = None,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        either = None if sd is None or relative_sd is None else 0.0  # a data set may have only one of the two
        super().__init__(data, {"sd": sd, "relative_sd": relative_sd}, scale, offset, either)
        if covariance is not None and relative_sd is not None:
            raise InputError(
                "GaussianLikelihood takes no relative_sd together with covariance; give sd instead of the covariance"
            )
        if (sd is None) == (covariance is None) and (sd is not None or relative_sd is None):
            raise InputError("GaussianLikelihood needs either sd or covariance; give exactly one of them")
        m = int(self.observed.sum())
        self._matrix: np.ndarray | None = None
        self._factor: np.ndarray | None = None  # of all data; the other one is of those that are not missing
        self._observed_factor: np.ndarray | None = None
        if covariance is None:
            self.sd = self._arguments["sd"].values if sd is not None else np.zeros(self.data.size)
            if relative_sd is not None:
                self._require_errors(self._arguments["relative_sd"].values)
            with np.errstate(divide="ignore"):
                log_det = 2.0 * np.log(self._take(self.sd)).sum()
        else:
            self._matrix, self._factor = require_covariance(covariance, self.data.size)
            self.sd = np.sqrt(np.diag(self._matrix))
            self._observed_factor = self._factor
            if not self._complete:
                self._observed_factor = np.linalg.cholesky(self._matrix[np.ix_(self.observed, self.observed)])
            log_det = 2.0 * np.log(np.diag(self._observed_factor)).sum()
        self._constant = -0.5 * (m * np.log(2 * np.pi) + log_det)
        #: Whether the errors depend on no variable and no output: the log-density is then quadratic in the means.
        self._fixed = relative_sd is None and not (sd is not None and self._arguments["sd"].uses)

    @property
    def is_plain(self) -> bool:
        """Whether it is one complete vector of data with errors given as numbers, and nothing else."""
        return (
            self._fixed
            and self._complete
            and self._scale is self._offset is None
            and len(self.outputs) == 1
            and self.outputs[0] == Variable("y", self.data.shape)
        )

    def log_density(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood ``(n,)`` of outputs ``(n, m)`` and its own parameters."""
        if not self._fixed:
            return super().log_density(outputs, own)
        z = self._whiten(self._mean(outputs, own))
        return np.asarray(self._constant - 0.5 * np.einsum("ij,ij->i", z, z))

    def pointwise(self, outputs: np.ndarray, own: Own | None = None) -> np.ndarray:
        """Return the log-likelihood of each observation, ``(n, m)``; zero where it is missing."""
        if self._factor is not None:
            raise InputError(
                "pointwise log-likelihoods are not defined for errors with a covariance, got correlated observations; "
                "give sd= if they are independent"
            )
        return super().pointwise(outputs, own)

    def identity(self) -> dict[str, Any]:
        """Return what identifies it, as JSON can hold it."""
        found = super().identity()
        return found if self._matrix is None else found | {"covariance": self._matrix.tolist()}

    def _mean_slope(self, mean: np.ndarray, own: Own | None) -> np.ndarray:
        if not self._fixed:
            return super()._mean_slope(mean, own)
        z = self._whiten(mean)
        with np.errstate(over="ignore"):
            if self._observed_factor is None:
                return np.asarray(-z / self._take(self.sd))
            return -solve_triangular(self._observed_factor, z.T, lower=True, trans=1, check_finite=False).T

    def _whiten(self, mean: np.ndarray) -> np.ndarray:
        """Return residuals with unit covariance, :math:`C^{-1} r` where the covariance is :math:`C C^T`."""
        with np.errstate(over="ignore"):  # far enough away, the likelihood is zero, and -inf is right
            residual = mean - self._y
            if self._observed_factor is None:
                return np.asarray(residual / self._take(self.sd))
        # No check here: whether NaN in the outputs is a failure is for the evaluator to judge.
        return solve_triangular(self._observed_factor, residual.T, lower=True, check_finite=False).T

    def _total_sd(self, mean: np.ndarray, given: Given) -> tuple[np.ndarray, ...]:
        r"""Return sd, relative sd, total s, and :math:`r \mu / s`, which is between -1 and 1."""
        sd, relative = given.get("sd", np.zeros(1)), given.get("relative_sd", np.zeros(1))
        part = np.clip(relative * mean, -1e300, 1e300)
        total = np.maximum(np.hypot(sd, part), np.finfo(float).tiny)
        return sd, relative, total, part / total

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        total = self._total_sd(mean, given)[2]
        return -0.5 * ((y - mean) / total) ** 2 - np.log(total) - 0.5 * _LOG_2PI

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        _, relative, total, share = self._total_sd(mean, given)
        z = _residual(y - mean, total)
        return (z + (z**2 - 1.0) * (relative * share)) / total

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        sd, _, total, share = self._total_sd(mean, given)
        excess = _residual(y - mean, total) ** 2 - 1.0  # d total / d sd is sd / total, and so on
        return {"sd": excess * (sd / total) / total, "relative_sd": excess * (mean * share) / total}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        noise = rng.standard_normal(mean.shape)
        if self._factor is not None:
            return mean + noise @ self._factor.T
        return mean + self._total_sd(mean, given)[2] * noise

    def _require_errors(self, relative: np.ndarray) -> None:
        """Raise unless each observation has an error, and zeros one that is not relative."""
        if (neither := (self.sd == 0) & (relative == 0)).any():
            lacking = next(name for name, where in columns(self.outputs).items() if neither[where].any())
            raise InputError(f"the data set {lacking!r} has neither sd nor relative_sd; give one of them")
        if ((self.sd == 0) & (self.data == 0)).any():
            raise InputError(
                "relative_sd alone gives an observation of 0 no error at all, got such data; give sd too"
            )


class StudentTLikelihood(Observations):
    r"""Observations of the outputs with errors that have Student's t distribution: outliers matter less.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The observations, or several data sets by name. NaN are left out.
    df : float, array_like or str, or dict of these
        Degrees of freedom; few of them mean heavy tails.
    sd : float, array_like or str, or dict of these
        Scale of the errors, which is their standard deviation if `df` is large.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> likelihood = StudentTLikelihood([1.0, 2.0, 90.0], df=4, sd="sigma")
    >>> likelihood.log_density(np.array([[1.0, 2.0, 3.0]]), {"sigma": np.array([1.0])})
    array([-21.80761...])
    """

    _tag = "StudentTLikelihood"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        df: Argument,
        sd: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(df=df, sd=sd), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        df, sd = given["df"], given["sd"]
        tail = -0.5 * (df + 1.0) * np.log1p(((y - mean) / sd) ** 2 / df)
        return tail - betaln(0.5, 0.5 * df) - 0.5 * np.log(df) - np.log(sd)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        df, sd = given["df"], given["sd"]
        z = _residual(y - mean, sd)
        return (df + 1.0) * (z / (df + z**2)) / sd

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        df, sd = given["df"], given["sd"]
        z = _residual(y - mean, sd)
        pull = (df + 1.0) * (z * (z / (df + z**2)))
        norm = digamma(0.5 * (df + 1.0)) - digamma(0.5 * df) - 1.0 / df
        return {"df": 0.5 * (norm - np.log1p(z**2 / df) + pull / df), "sd": (pull - 1.0) / sd}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return mean + given["sd"] * rng.standard_t(given["df"], mean.shape)


class LogNormalLikelihood(Observations):
    """Positive observations whose logarithms are normal about the logarithm of the output.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The observations, or several data sets by name. NaN are left out.
    sd : float, array_like or str, or dict of these
        Standard deviation of the logarithms; 0.1 is an error of about ten per cent.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> likelihood = LogNormalLikelihood([1.0, 20.0], sd=0.1)
    >>> likelihood.log_density(np.array([[1.0, 22.0], [1.0, -22.0]]))
    array([-0.68264...,        -inf])
    """

    _tag = "LogNormalLikelihood"
    _least_mean = 0.0
    _data_are = "positive"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        sd: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(sd=sd), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        z = (np.log(y) - np.log(mean)) / given["sd"]
        return -0.5 * z**2 - np.log(y) - np.log(given["sd"]) - 0.5 * _LOG_2PI

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return _residual(np.log(y) - np.log(mean), given["sd"]) / given["sd"] / mean

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        z = _residual(np.log(y) - np.log(mean), given["sd"])
        return {"sd": (z**2 - 1.0) / given["sd"]}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return mean * np.exp(given["sd"] * rng.standard_normal(mean.shape))

    def _allowed(self) -> np.ndarray:
        return np.asarray(self._y > 0)


class PoissonLikelihood(Observations):
    """Counts whose means are the outputs.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The counts, or several data sets by name. NaN are left out.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> PoissonLikelihood([3, 0], offset="background").gradient(np.ones((1, 2)), {"background": np.array([1.0])})
    array([[ 0.5, -1. ]])
    """

    _tag = "PoissonLikelihood"
    _least_mean = 0.0
    _data_are = "counts, which are whole numbers from 0 on"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, {}, scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return xlogy(y, mean) - mean - gammaln(y + 1.0)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return np.where(y == 0, 0.0, y / mean) - 1.0

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return _draw_poisson(rng, mean)

    def _allowed(self) -> np.ndarray:
        return _are_counts(self._y)


class NegativeBinomialLikelihood(Observations):
    r"""Counts that vary more than Poisson ones: mean :math:`\mu`, the output, and variance :math:`\mu + \mu^2/\phi`.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The counts, or several data sets by name. NaN are left out.
    dispersion : float, array_like or str, or dict of these
        :math:`\phi`; if it is large, the counts are nearly Poisson.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> likelihood = NegativeBinomialLikelihood([3, 0], dispersion="phi")
    >>> likelihood.log_density(np.ones((1, 2)), {"phi": np.array([1.0])})
    array([-3.46573...])
    """

    _tag = "NegativeBinomialLikelihood"
    _least_mean = 0.0
    _data_are = "counts, which are whole numbers from 0 on"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        dispersion: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(dispersion=dispersion), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        phi = given["dispersion"]
        ways = -betaln(y + 1.0, phi) - np.log(y + phi)  # log of gamma(y + phi) / gamma(phi) / y!
        return ways + xlogy(y, mean / (mean + phi)) - phi * np.log1p(mean / phi)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        phi = given["dispersion"]
        return np.where(y == 0, -1.0, (y - mean) / mean) * (phi / (mean + phi))

    def _argument_slopes(self, y: np.ndarray, mean: np.ndarray, given: Given) -> Given:
        phi = given["dispersion"]
        ways = digamma(y + phi) - digamma(phi)
        return {"dispersion": ways - np.log1p(mean / phi) + (mean - y) / (mean + phi)}

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        phi = np.broadcast_to(given["dispersion"], mean.shape)
        return _draw_poisson(rng, mean * (rng.standard_gamma(phi) / phi))

    def _allowed(self) -> np.ndarray:
        return _are_counts(self._y)


class BinomialLikelihood(Observations):
    """Numbers of successes in n trials; the outputs are the logits of the probability of success.

    Parameters
    ----------
    data : array_like, or dict of array_like
        The successes, or several data sets by name. NaN are left out.
    n : int, array_like of int, or dict of these
        Number of trials.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> BinomialLikelihood([3, 0], n=4).log_density(np.zeros((1, 2)))
    array([-4.15888...])
    """

    _tag = "BinomialLikelihood"
    _data_are = "whole numbers from 0 to n"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        n: Argument,
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, _all_given(n=n), scale, offset)

    def _log_pdf(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        n = given["n"]
        ways = -betaln(y + 1.0, n - y + 1.0) - np.log(n + 1.0)
        return ways - y * np.logaddexp(0.0, -mean) - (n - y) * np.logaddexp(0.0, mean)

    def _slope(self, y: np.ndarray, mean: np.ndarray, given: Given) -> np.ndarray:
        return y * expit(-mean) - (given["n"] - y) * expit(mean)

    def _draw(self, rng: np.random.Generator, mean: np.ndarray, given: Given) -> np.ndarray:
        return rng.binomial(given["n"].astype(np.int64), expit(mean)).astype(float)

    def _allowed(self) -> np.ndarray:
        n = self._arguments["n"]
        if n.uses:
            raise InputError(
                f"n must be whole numbers, got the name {n.uses[0].name!r}; give the numbers of trials"
            )
        if not _are_counts(n.values).all():
            bad = n.values[~_are_counts(n.values)][0]
            raise InputError(f"n must be whole numbers, got {bad:g}; give the numbers of trials")
        return _are_counts(self._y) & (self._y <= self._take(n.values))


class BernoulliLikelihood(BinomialLikelihood):
    """Successes (1) and failures (0); the outputs are the logits of the probability of success.

    Parameters
    ----------
    data : array_like, or dict of array_like
        Zeros and ones, or several data sets by name. NaN are left out.
    scale, offset
        As for `GaussianLikelihood`.

    Examples
    --------
    >>> BernoulliLikelihood([1, 0]).gradient(np.zeros((1, 2)))
    array([[ 0.5, -0.5]])
    """

    _tag = "BernoulliLikelihood"
    _data_are = "0 or 1"

    def __init__(
        self,
        data: ArrayLike | Mapping[str, ArrayLike],
        *,
        scale: Argument | None = None,
        offset: Argument | None = None,
    ) -> None:
        super().__init__(data, 1.0, scale=scale, offset=offset)


def _all_given(**arguments: Argument) -> dict[str, Argument | None]:
    """Return the arguments if none is None."""
    for label, given in arguments.items():
        if given is None:
            raise InputError(f"{label} is missing; give a number, an array or the name of a variable")
    return dict(arguments)


def _residual(difference: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return residuals in standard deviations, for slopes; limited to where there is a density."""
    return np.clip(difference / sd, -_FAR, _FAR)


def _are_counts(values: np.ndarray) -> np.ndarray:
    return (values >= 0) & (values == np.floor(values)) & (values <= _MOST_COUNTS)


def _draw_poisson(rng: np.random.Generator, mean: np.ndarray) -> np.ndarray:
    """Draw counts as floats; NaN where the mean is too large."""
    known = mean <= _MOST_POISSON
    return np.where(known, rng.poisson(np.where(known, mean, 0.0)), np.nan)
