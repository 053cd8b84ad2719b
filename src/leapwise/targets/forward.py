"""A posterior given by an expensive forward model, a cheap likelihood of its outputs, and a cheap prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from leapwise.checks import require_callable, require_dim, require_flag, require_names
from leapwise.errors import InputError, OutputError
from leapwise.targets.densities import Density, GaussianLikelihood
from leapwise.targets.returns import Values, checked_pair, checked_real, checked_rows, checked_scalars
from leapwise.targets.transforms import Bounds, Transform

#: Draws from the prior before a start inside the bounds is abandoned: a guess, enough if the bounds hold 1 % of it.
_MAX_REDRAWS = 1000


class ForwardTarget:
    r"""Parameters seen through the outputs of a forward model.

    The log-density is :math:`\log L(F(x)) + \log \pi(x)`, where only :math:`F` is expensive. Because the
    outputs are kept, a surrogate can learn them rather than the scalar log-density. The prior is evaluated
    first: where it is -inf the forward model is not run.

    Parameters
    ----------
    forward : callable
        Takes parameters ``(dim,)`` and returns outputs ``(m,)``; with ``vectorized=True`` takes ``(n, dim)``
        and returns ``(n, m)``.
    likelihood : Density
        Log-density of the outputs and its gradient, on batches ``(n, m)``; see `GaussianLikelihood`. It is also called
        with predicted outputs, which the model itself may never return: return -inf where they are impossible, and do
        not raise.
    prior : Density
        Log-density of the parameters and its gradient, on batches ``(n, dim)``; see `NormalPrior` and
        `UniformPrior`. If it has ``sample(rng)``, chains start from it; if it has ``bounds``, they apply too.
    vjp : callable, optional
        Takes parameters and returns ``(outputs, pull_back)``, where ``pull_back(cotangent)`` maps ``(m,)`` to
        the transposed Jacobian times it, ``(dim,)``: an adjoint solve. `functools.partial(jax.vjp, forward)`
        has this form. Vectorised: rows throughout.
    jacobian : callable, optional
        Takes parameters and returns ``(outputs, jacobian)`` with the Jacobian ``(m, dim)`` (vectorised:
        ``(n, m, dim)``). Give this or `vjp` or neither.
    dim : int, optional
        Number of parameters, if the prior has no attribute ``dim``.
    names, bounds, vectorized
        As for `Target`.

    Examples
    --------
    >>> from leapwise import GaussianLikelihood, NormalPrior
    >>> likelihood = GaussianLikelihood([1.0], sd=0.1)
    >>> ForwardTarget(lambda x: np.exp(x), likelihood, NormalPrior(0.0, 1.0, dim=1))
    ForwardTarget(dim=1, gradient=False, vectorized=False)
    """

    def __init__(
        self,
        forward: Callable[[np.ndarray], Any],
        likelihood: Density,
        prior: Density,
        *,
        vjp: Callable[[np.ndarray], Any] | None = None,
        jacobian: Callable[[np.ndarray], Any] | None = None,
        dim: int | None = None,
        names: str | Sequence[str] | None = None,
        bounds: Bounds | None = None,
        vectorized: bool = False,
    ) -> None:
        require_callable("forward", forward)
        require_callable("vjp", vjp, optional=True)
        require_callable("jacobian", jacobian, optional=True)
        if vjp is not None and jacobian is not None:
            raise InputError("vjp= and jacobian= were both given; give one of them, the cheaper one")
        _require_density("likelihood", likelihood)
        _require_density("prior", prior)
        known = getattr(prior, "dim", None)
        if dim is None and known is None:
            if isinstance(prior, GaussianLikelihood):
                raise InputError(
                    "prior must not be a GaussianLikelihood; give the likelihood first, then the prior"
                )
            raise InputError("the prior has no attribute dim, the number of parameters; give dim=")
        self.dim = require_dim(dim if dim is not None else known)
        if known is not None and known != self.dim:
            raise InputError(f"dim={self.dim} does not match the prior's {known} parameters; drop dim=")
        self.names = require_names(names, self.dim, default="x")
        self.transform = Transform.from_bounds(bounds, self.dim)
        if (support := getattr(prior, "bounds", None)) is not None:
            self.transform = self.transform.within(Transform.from_bounds(support, self.dim))
        self.vectorized = require_flag("vectorized", vectorized)
        self.has_gradient = vjp is not None or jacobian is not None
        self.forward, self.likelihood, self.prior = forward, likelihood, prior
        self._vjp, self._jacobian = vjp, jacobian
        self._n_outputs = likelihood.data.size if isinstance(likelihood, GaussianLikelihood) else None

    def __repr__(self) -> str:
        return f"ForwardTarget(dim={self.dim}, gradient={self.has_gradient}, vectorized={self.vectorized})"

    @property
    def has_separate_value(self) -> bool:
        """Whether outputs alone are computed by another function than outputs with a derivative."""
        return self.has_gradient

    @property
    def emulates_outputs(self) -> bool:
        """True: a surrogate learns the outputs of the forward model; likelihood and prior stay exact."""
        return True

    def evaluate(self, parameters: np.ndarray, *, gradient: bool) -> Values:
        """Return log-likelihood plus log-prior; the forward model is run only where the prior is not zero."""
        if gradient and not self.has_gradient:
            raise InputError("this ForwardTarget has no gradient; give vjp= or jacobian=")
        n = len(parameters)
        log_prior = checked_scalars(self.prior.log_density(parameters.copy()), n, True, "prior.log_density")
        possible = np.isfinite(log_prior)
        if possible.all():
            return self._posterior(parameters, log_prior, gradient=gradient)
        if not possible.any():
            return Values(log_prior, np.zeros((n, self.dim)) if gradient else None, n_run=0)
        return self._posterior(parameters[possible], log_prior[possible], gradient=gradient).scatter(
            possible, log_prior
        )

    def sample_start(self, rng: np.random.Generator) -> np.ndarray | None:
        """Draw parameters from the prior, inside the bounds; None if it cannot draw there."""
        sample = getattr(self.prior, "sample", None)
        if sample is None:
            return None
        start = checked_rows(sample(rng), 1, self.dim, False, "prior.sample")[0]
        for _ in range(_MAX_REDRAWS):
            outside = ~((start > self.transform.lower) & (start < self.transform.upper))
            if not outside.any():
                return start
            # Only coordinates outside are drawn again: a start need not be a draw from the truncated prior.
            start[outside] = checked_rows(sample(rng), 1, self.dim, False, "prior.sample")[0, outside]
        return None

    def _posterior(self, parameters: np.ndarray, log_prior: np.ndarray, *, gradient: bool) -> Values:
        n = len(parameters)
        point = (parameters if self.vectorized else parameters[0]).copy()
        what, derivative = "forward", None
        if not gradient:
            value = self.forward(point)
        elif self._vjp is not None:
            what = "vjp, for its outputs,"
            value, derivative = checked_pair(self._vjp(point), "vjp", "(outputs, pull_back)")
        else:
            assert self._jacobian is not None
            what = "jacobian, for its outputs,"
            value, derivative = checked_pair(self._jacobian(point), "jacobian", "(outputs, jacobian)")
        given = f" (it was given positions of shape {point.shape})" if self.vectorized else ""
        remedy = "return equally many outputs at all positions"
        if isinstance(self.likelihood, GaussianLikelihood):
            remedy = f"return one output for each of the {self._n_outputs} data"
        outputs = checked_rows(value, n, self._n_outputs, self.vectorized, what, remedy, given)
        self._n_outputs = outputs.shape[1]
        log_likelihood = checked_scalars(
            self.likelihood.log_density(outputs.copy()), n, True, "likelihood.log_density"
        )
        log_density = log_likelihood + log_prior
        if not gradient:
            return Values(log_density, None, outputs)
        if not np.isfinite(log_density).any():  # rejected or failed already: an adjoint solve is not needed
            return Values(log_density, np.zeros((n, self.dim)), outputs)
        slope = self._pull_back(outputs, derivative)
        slope += checked_rows(self.prior.gradient(parameters.copy()), n, self.dim, True, "prior.gradient")
        return Values(log_density, slope, outputs)

    def _pull_back(self, outputs: np.ndarray, derivative: Any) -> np.ndarray:
        """Turn the likelihood's gradient in the outputs into one in the parameters."""
        n, m = outputs.shape
        cotangent = checked_rows(self.likelihood.gradient(outputs.copy()), n, m, True, "likelihood.gradient")
        if self._vjp is not None:
            if not callable(derivative):
                raise OutputError(
                    f"vjp must return (outputs, pull_back) with a function as pull_back, got "
                    f"{type(derivative).__name__}; give jacobian= if that is the Jacobian"
                )
            slope = derivative(cotangent if self.vectorized else cotangent[0])
            # jax.vjp returns one gradient for each argument, in a tuple
            slope = slope[0] if isinstance(slope, tuple) and len(slope) == 1 else slope
            return checked_rows(slope, n, self.dim, self.vectorized, "vjp's pull_back")
        matrix = checked_real(derivative, "jacobian")
        expected = (n, m, self.dim) if self.vectorized else (m, self.dim)
        if matrix.shape != expected:
            raise OutputError(
                f"jacobian must have shape {expected}, {'points, ' * self.vectorized}outputs, parameters; "
                f"got {matrix.shape}; transpose it if they are swapped"
            )
        return np.matmul(cotangent[:, None, :], matrix.reshape(n, m, self.dim))[:, 0, :]


def _require_density(what: str, density: object) -> None:
    if isinstance(density, type) or not isinstance(density, Density):
        raise InputError(
            f"{what} must have the methods log_density(points) and gradient(points), got "
            f"{f'the class {density.__name__}' if isinstance(density, type) else type(density).__name__}; "
            "see GaussianLikelihood and NormalPrior"
        )
