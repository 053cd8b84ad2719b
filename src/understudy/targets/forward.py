"""A posterior given by an expensive forward model, a cheap likelihood of its outputs, and a cheap prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from understudy.errors import InputError, OutputError
from understudy.targets.densities import Density
from understudy.targets.target import Raw, checked_rows, checked_scalars, require_callable, require_dim, require_names
from understudy.targets.transforms import Bounds, Transform


class ForwardTarget:
    r"""Parameters seen through the outputs of a forward model.

    The log-density is :math:`\log L(F(x)) + \log \pi(x)`, where only :math:`F` is expensive. Because the
    outputs are kept, a surrogate can learn them rather than the scalar log-density.

    Parameters
    ----------
    forward : callable
        Takes parameters ``(dim,)`` and returns outputs ``(m,)``; with ``vectorized=True`` takes ``(n, dim)``
        and returns ``(n, m)``.
    likelihood : Density
        Log-density of the outputs and its gradient, on batches ``(n, m)``; see `GaussianLikelihood`.
    prior : Density
        Log-density of the parameters and its gradient, on batches ``(n, dim)``; see `NormalPrior` and
        `UniformPrior`. If it has ``sample(rng)``, chains start from it; if it has ``bounds``, they are used.
    vjp : callable, optional
        Takes parameters and returns ``(outputs, pull_back)``, where ``pull_back(cotangent)`` maps ``(m,)`` to
        the transposed Jacobian times it, ``(dim,)``: an adjoint solve. `functools.partial(jax.vjp, forward)`
        has this form. Vectorised: rows throughout.
    jacobian : callable, optional
        Takes parameters and returns ``(outputs, jacobian)`` with the Jacobian ``(m, dim)`` (vectorised:
        ``(n, m, dim)``). Give this or `vjp` or neither.
    dim : int, optional
        Number of parameters, if the prior does not say it.
    names, bounds, vectorized
        As for `Target`.

    Examples
    --------
    >>> from understudy import GaussianLikelihood, NormalPrior
    >>> target = ForwardTarget(lambda x: x**2, GaussianLikelihood([1.0], sd=0.1), NormalPrior(0.0, 1.0, dim=1))
    >>> target
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
        for what, density in (("likelihood", likelihood), ("prior", prior)):
            if not isinstance(density, Density):
                raise InputError(
                    f"{what} must have the methods log_density(points) and gradient(points), "
                    f"got {type(density).__name__}; see GaussianLikelihood and NormalPrior"
                )
        if vjp is not None and jacobian is not None:
            raise InputError("give vjp= or jacobian=, not both")
        for what, function in (("vjp", vjp), ("jacobian", jacobian)):
            if function is not None:
                require_callable(what, function)
        known = getattr(prior, "dim", None)
        if dim is None and known is None:
            raise InputError("the prior does not say its number of parameters; give dim=")
        self.dim = require_dim(dim if dim is not None else known)
        if known is not None and known != self.dim:
            raise InputError(f"dim={self.dim} does not match the prior's {known} parameters; drop dim=")
        self.names = require_names(names, self.dim, default="x")
        self.transform = Transform.from_bounds(
            bounds if bounds is not None else getattr(prior, "bounds", None), self.dim
        )
        self.vectorized = bool(vectorized)
        self.has_gradient = vjp is not None or jacobian is not None
        self.forward, self.likelihood, self.prior = forward, likelihood, prior
        self._vjp, self._jacobian = vjp, jacobian

    def __repr__(self) -> str:
        return f"ForwardTarget(dim={self.dim}, gradient={self.has_gradient}, vectorized={self.vectorized})"

    def evaluate(self, parameters: np.ndarray, *, gradient: bool) -> Raw:
        """Run the forward model on the rows of `parameters`, then the likelihood and the prior."""
        if not gradient:
            outputs = self._outputs(self.forward(self._point(parameters)), parameters)
            return Raw(self._log_density(outputs, parameters), outputs=outputs)
        outputs, slope = self._outputs_and_likelihood_gradient(parameters)
        prior_gradient = checked_rows(
            self.prior.gradient(parameters), len(parameters), self.dim, True, "prior.gradient"
        )
        return Raw(self._log_density(outputs, parameters), slope + prior_gradient, outputs)

    def sample_start(self, rng: np.random.Generator) -> np.ndarray | None:
        """Draw parameters from the prior, if it can be drawn from."""
        sample = getattr(self.prior, "sample", None)
        return None if sample is None else np.asarray(sample(rng), dtype=float)

    def _point(self, parameters: np.ndarray) -> np.ndarray:
        return parameters if self.vectorized else np.asarray(parameters[0])

    def _outputs(self, value: Any, parameters: np.ndarray) -> np.ndarray:
        width = getattr(getattr(self.likelihood, "data", None), "size", None)
        return checked_rows(value, len(parameters), width, self.vectorized, "forward")

    def _log_density(self, outputs: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        n = len(parameters)
        likelihood = checked_scalars(self.likelihood.log_density(outputs), n, True, "likelihood.log_density")
        return likelihood + checked_scalars(self.prior.log_density(parameters), n, True, "prior.log_density")

    def _outputs_and_likelihood_gradient(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        point, n = self._point(parameters), len(parameters)
        if self._vjp is not None:
            value, pull_back = _two(self._vjp(point), "vjp", "(outputs, pull_back)")
            outputs = self._outputs(value, parameters)
            cotangent = self.likelihood.gradient(outputs)
            slope = pull_back(cotangent if self.vectorized else cotangent[0])
            # jax.vjp hands back one gradient for each argument, in a tuple
            slope = slope[0] if isinstance(slope, tuple) and len(slope) == 1 else slope
            return outputs, checked_rows(slope, n, self.dim, self.vectorized, "vjp's pull_back")
        if self._jacobian is None:
            raise InputError("this ForwardTarget has no gradient; give vjp= or jacobian=")
        value, matrix = _two(self._jacobian(point), "jacobian", "(outputs, jacobian)")
        outputs = self._outputs(value, parameters)
        matrix = np.asarray(matrix if self.vectorized else [matrix], dtype=float)
        expected = (n, outputs.shape[1], self.dim)
        if matrix.shape != expected:
            raise OutputError(
                f"jacobian must have shape {expected[1:]} (outputs, parameters) a point, got {matrix.shape[1:]}; "
                "transpose it if the two are swapped"
            )
        return outputs, np.einsum("nm,nmd->nd", self.likelihood.gradient(outputs), matrix)


def _two(value: Any, what: str, expected: str) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise OutputError(f"{what} must return {expected}, got {type(value).__name__}")
    return value[0], value[1]
