"""A posterior given by its log-density, and what every target has in common.

The user's functions are given arrays of their own and what they return is copied: nothing that they write into an
array, now or later, can reach the state of a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from leapwise.checks import require_callable, require_dim, require_flag, require_names
from leapwise.errors import InputError, OutputError
from leapwise.targets.calls import (
    ByKeyword,
    Values,
    checked_pair,
    checked_rows,
    checked_scalars,
    keywords,
)
from leapwise.targets.densities import Density
from leapwise.targets.forward import ForwardTarget, draw_inside, require_density
from leapwise.targets.transforms import Bounds, Transform
from leapwise.targets.variables import Variable, checked_coords, columns, layout_of, named

TargetKind = TypeVar("TargetKind", "Target", ForwardTarget)


class AnyTarget(Protocol):
    """What the library uses of a target: `Target` and `ForwardTarget` have it."""

    dim: int
    names: str | tuple[str, ...]
    variables: tuple[Variable, ...]
    coords: dict[str, list[Any]]
    transform: Transform
    prior: Density | None
    inputs: np.ndarray
    vectorized: bool
    has_gradient: bool

    @property
    def has_separate_value(self) -> bool:
        """Whether a value alone is computed by another function than a value with its gradient."""
        ...

    @property
    def emulates_outputs(self) -> bool:
        """Whether a surrogate learns the outputs of a forward model (True) or the log-density itself (False)."""
        ...

    def evaluate(self, parameters: np.ndarray, *, gradient: bool) -> Values:
        """Return the values at the rows of ``(n, dim)``; a target that is not vectorised is given one row at a time.

        It must not write into `parameters`, and not keep or share the arrays that it returns.
        """
        ...

    def is_run_at(self, parameters: np.ndarray) -> bool:
        """Return whether a recorded log-density of -inf at parameters ``(dim,)`` is the model's: it was run there."""
        ...

    def sample_start(self, rng: np.random.Generator) -> np.ndarray | None:
        """Draw parameters ``(dim,)`` from which a chain can start; None if there is no prior to draw from."""
        ...


class Target:
    """A posterior given by its log-density, up to a constant.

    Parameters
    ----------
    log_density : callable
        Takes parameters ``(dim,)`` and returns a number; -inf outside the support. With ``vectorized=True``
        takes ``(n, dim)`` and returns ``(n,)``.
    gradient : callable, optional
        Takes the same and returns the gradient of the log-density (or of the log-likelihood), ``(dim,)`` or
        ``(n, dim)``.
    log_likelihood : callable, optional
        Instead of `log_density`, together with `log_prior`: only it is expensive, and only it is learned by the
        surrogate. It is not evaluated where the prior is zero. If its signature names variables of a `Prior`, it is
        called by keyword.
    log_prior : Prior or another Density, optional
        The cheap prior, which stays exact. It brings the number of parameters, their names and bounds if it has them,
        and chains start from its draws.
    dim : int
        Number of parameters; not needed with a prior that knows it.
    names : str or sequence of str, optional
        One name for the whole vector (default ``"x"``), or one name for each parameter.
    coords : dict of str to sequence, optional
        Labels along the dims of a prior's variables, for results.
    bounds : pair or sequence of pairs, optional
        ``(lower, upper)`` for each parameter (one pair holds for all), None where there is no bound. Chains
        move in unconstrained space; the Jacobian is added for you, and draws come back inside the bounds.
    vectorized : bool
        Whether the callables take many points at once.
    returns_gradient : bool
        Set it if `log_density` returns ``(log_density, gradient)``.
    value_and_gradient : callable, optional
        Returns ``(log_density, gradient)`` together, for models where they share their work; used instead of
        `gradient` whenever both are needed, while `log_density` serves where a value is enough.

    Examples
    --------
    >>> target = Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=3)
    >>> target
    Target(dim=3, gradient=True, vectorized=False)

    An expensive likelihood and a cheap prior:

    >>> from leapwise import HalfNormal, Normal, Prior
    >>> Target(log_likelihood=lambda a, b: -((a - b) ** 2), log_prior=Prior(a=Normal(0, 1), b=HalfNormal(1.0)))
    Target(dim=2, gradient=False, vectorized=False)
    """

    def __init__(
        self,
        log_density: Callable[..., Any] | None = None,
        gradient: Callable[[np.ndarray], Any] | None = None,
        *,
        log_likelihood: Callable[..., Any] | None = None,
        log_prior: Density | None = None,
        dim: int | None = None,
        names: str | Sequence[str] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        bounds: Bounds | None = None,
        vectorized: bool = False,
        returns_gradient: bool = False,
        value_and_gradient: Callable[[np.ndarray], Any] | None = None,
    ) -> None:
        log_density = _one_of(log_density, log_likelihood, log_prior)
        require_callable("gradient", gradient, optional=True)
        require_callable("value_and_gradient", value_and_gradient, optional=True)
        returns_gradient = require_flag("returns_gradient", returns_gradient)
        ways = [gradient is not None, value_and_gradient is not None, returns_gradient]
        if sum(ways) > 1:
            raise InputError(
                "give the gradient in one way only: gradient=, value_and_gradient= or returns_gradient=True"
            )
        self.prior = log_prior
        if log_prior is None:
            self.dim = require_dim(dim)
            self.names = require_names(names, self.dim, default="x")
            self.variables = named(self.names, self.dim)
            self.transform = Transform.from_bounds(bounds, self.dim)
        else:
            layout = layout_of(log_prior, "prior", dim, names, bounds)
            self.dim, self.names, self.variables, self.transform = layout
        self.coords = checked_coords(coords, self.variables)
        self.vectorized = require_flag("vectorized", vectorized)
        what = "log_likelihood"
        seen = keywords(log_density, self.variables, what) if hasattr(log_prior, "variables") else None
        #: The parameters that an expensive likelihood sees.
        self.inputs = np.arange(self.dim)
        if seen is not None:
            names_seen = [each.name for each in seen]
            log_density = ByKeyword(log_density, self.variables, names_seen, self.vectorized)
            where = columns(self.variables)
            self.inputs = np.concatenate([self.inputs[where[name]] for name in names_seen])
        self.has_gradient = any(ways)
        self._log_density = log_density
        self._gradient = gradient
        self._both = value_and_gradient
        self._returns_gradient = returns_gradient

    @staticmethod
    def from_factory(make: Callable[[], TargetKind]) -> TargetKind:
        """Return the target that `make` builds; worker processes build their own, once each, and are not sent it.

        For models that cannot be pickled (a compiled solver, an open file or connection, a licence) or that are too
        large to be sent. `make` is also called here, at once: the run must know dimension, names and bounds, and it
        evaluates some points itself.

        Parameters
        ----------
        make : callable
            Takes no arguments and returns a `Target` or a `ForwardTarget`, the same one wherever it is called. It is
            sent to the workers by cloudpickle.

        Returns
        -------
        Target or ForwardTarget
            As `make` returned it, except for how it is pickled.

        Examples
        --------
        >>> import threading
        >>> def make():
        ...     solver = threading.Lock()  # something that cannot be pickled
        ...     return Target(lambda x: -0.5 * x @ x if solver else 0.0, dim=2)
        >>> Target.from_factory(make)
        Target(dim=2, gradient=False, vectorized=False)
        """
        require_callable("make", make)
        built = make()
        if not isinstance(built, (Target, ForwardTarget)):
            raise InputError(
                f"make() must return a Target or a ForwardTarget, got {type(built).__name__}; "
                "build and return one in it"
            )
        # A copy, since `make` may return an object that others use too. Its class is a subclass of the original's,
        # since the run depends on the kind of target.
        kind = type(built)
        if not isinstance(built, _MadeByFactory):
            kind = type(kind.__name__, (_MadeByFactory, kind), {"__module__": kind.__module__})
        made = object.__new__(kind)
        vars(made).update(vars(built), _make=make)
        return made

    def __repr__(self) -> str:
        return f"Target(dim={self.dim}, gradient={self.has_gradient}, vectorized={self.vectorized})"

    @property
    def has_separate_value(self) -> bool:
        """Whether a value alone is computed by another function than a value with its gradient."""
        return self._both is not None

    @property
    def emulates_outputs(self) -> bool:
        """False: a surrogate learns the log-density itself."""
        return False

    def evaluate(self, parameters: np.ndarray, *, gradient: bool) -> Values:
        """Call the user's functions at the rows of `parameters` and check what they return."""
        if gradient and not self.has_gradient:
            raise InputError(
                "this Target has no gradient; give gradient=, value_and_gradient= or returns_gradient="
            )
        n, slope = len(parameters), None
        if self.prior is not None:
            log_prior = checked_scalars(
                self.prior.log_density(parameters.copy()), n, True, "log_prior.log_density"
            )
            possible = np.isfinite(log_prior)
            if not possible.any():
                return Values(log_prior, np.zeros((n, self.dim)) if gradient else None, n_run=0)
            if not possible.all():
                return self.evaluate(parameters[possible], gradient=gradient).scatter(possible, log_prior)
        if self._returns_gradient:
            what = "log_density, with returns_gradient=True,"
            value, slope = checked_pair(
                self._log_density(self._point(parameters)), what, "(log_density, gradient)"
            )
        elif gradient and self._both is not None:
            pair = self._both(self._point(parameters))
            value, slope = checked_pair(pair, "value_and_gradient", "(log_density, gradient)")
        else:
            value = self._log_density(self._point(parameters))
            if isinstance(value, tuple):
                raise OutputError(
                    f"log_density must return the log-density alone, got a tuple of {len(value)}; if that is "
                    "(log_density, gradient), pass returns_gradient=True"
                )
        given = f" (it was given positions of shape {parameters.shape})" if self.vectorized else ""
        log_density = checked_scalars(value, n, self.vectorized, "log_density", given)
        if self.prior is not None:
            log_density = log_density + log_prior
        if not gradient:
            return Values(log_density)
        if not np.isfinite(log_density).any():  # rejected or failed already: the gradient is not needed
            return Values(log_density, np.zeros((n, self.dim)))
        if self._gradient is not None:
            slope = self._gradient(self._point(parameters))
        found = checked_rows(slope, n, self.dim, self.vectorized, "gradient", given=given)
        if self.prior is not None:
            found += checked_rows(
                self.prior.gradient(parameters.copy()), n, self.dim, True, "log_prior.gradient"
            )
        return Values(log_density, found)

    def is_run_at(self, parameters: np.ndarray) -> bool:
        """Return whether the model is run at parameters ``(dim,)``: where the prior is not zero."""
        return self.prior is None or bool(np.isfinite(self.prior.log_density(parameters[None]))[0])

    def sample_start(self, rng: np.random.Generator) -> np.ndarray | None:
        """Draw parameters from the prior, if there is one that can be drawn from; otherwise return None."""
        return None if self.prior is None else draw_inside(self.prior, self.transform, rng)

    def _point(self, parameters: np.ndarray) -> np.ndarray:
        return (parameters if self.vectorized else parameters[0]).copy()


def _one_of(log_density: Any, log_likelihood: Any, log_prior: Any) -> Callable[..., Any]:
    """Return the expensive function, or raise unless it is given in one way, and a prior with a likelihood."""
    if log_likelihood is None:
        if log_prior is not None:
            raise InputError(
                "log_prior= goes with log_likelihood=; give both, or a log_density that has the prior in it"
            )
        require_callable("log_density", log_density)
        assert log_density is not None
        return log_density
    require_callable("log_likelihood", log_likelihood)
    if log_density is not None:
        raise InputError("log_density and log_likelihood= were both given; give one of them")
    if log_prior is None:
        raise InputError(
            "log_likelihood= needs log_prior=, such as a Prior; or give log_density with the prior in it"
        )
    require_density("log_prior", log_prior)
    return log_likelihood


class _MadeByFactory:
    """A target that is pickled as the function that made it."""

    _make: Callable[[], Target | ForwardTarget]

    def __reduce__(self) -> tuple[Any, ...]:
        return Target.from_factory, (self._make,)
