"""A posterior given by an expensive forward model and cheap, exact parts: a likelihood of its outputs, and a prior.

The log-density is log p(parameters) + log p(data | F(inputs), parameters). Only F, the forward model, is expensive. It
sees its inputs, which are some of the parameters or all of them. Everything else is cheap: `PriorAndLikelihood`, or any
`Joint` that takes parameters and outputs together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from leapwise.checks import require_callable, require_flag, require_names
from leapwise.errors import InputError, OutputError
from leapwise.targets.calls import (
    ByKeyword,
    Values,
    checked_pair,
    checked_real,
    checked_rows,
    checked_scalars,
    keywords,
    matched,
    shaped,
)
from leapwise.targets.densities import Density
from leapwise.targets.likelihoods import GaussianLikelihood
from leapwise.targets.transforms import Bounds, Transform
from leapwise.targets.variables import (
    Variable,
    checked_coords,
    columns,
    layout_of,
    require_shape,
    split,
    with_dims,
)

_LOG = logging.getLogger("leapwise")

#: Draws from the prior before a start inside the bounds is abandoned: a guess, enough if the bounds hold 1 % of it.
_MAX_REDRAWS = 1000
#: Draws from the prior of which one must have a finite log-density. A guess: a prior that has one is finite at nearly
#: all of its draws.
_N_TRIALS = 10


@runtime_checkable
class Joint(Protocol):
    """The cheap part of a target in its general form: a log-density of parameters and outputs together.

    It may have ``dim``, ``bounds``, ``variables`` and ``sample(rng)``, as priors do. `ForwardTarget` takes it as
    ``joint=``.
    """

    def log_density(self, parameters: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return log-densities ``(n,)`` at parameters ``(n, dim)`` and outputs ``(n, m)``."""
        ...

    def gradient(self, parameters: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return gradients by parameters, ``(n, dim)``, and by outputs, ``(n, m)``."""
        ...


class PriorAndLikelihood:
    """The joint log-density of a prior, and a likelihood that names parameters of it.

    Parameters
    ----------
    prior : Density
    likelihood : Likelihood
        Its `parameters` are names of variables.
    variables : sequence of Variable
        The layout of the parameters.
    n_data : int, optional
        Number of outputs that have data, if derived quantities follow them.

    Examples
    --------
    >>> from leapwise import GaussianLikelihood, HalfNormal, Normal, Prior
    >>> prior = Prior(a=Normal(0.0, 1.0), sigma=HalfNormal(1.0))
    >>> joint = PriorAndLikelihood(prior, GaussianLikelihood([1.0], sd="sigma"), prior.variables)
    >>> by_parameters, by_outputs = joint.gradient(np.array([[0.0, 0.5]]), np.array([[2.0]]))
    >>> by_parameters, by_outputs
    (array([[0. , 5.5]]), array([[-4.]]))
    """

    def __init__(
        self, prior: Density, likelihood: Any, variables: Sequence[Variable], n_data: int | None = None
    ) -> None:
        self.prior, self.likelihood, self.variables = prior, likelihood, tuple(variables)
        self.n_data = n_data
        self._names = _own_names(likelihood)
        self._columns = columns(self.variables)

    def own(self, parameters: np.ndarray) -> tuple[dict[str, np.ndarray], ...]:
        """Return the likelihood's second argument, its own parameters by name; none if it has no parameters."""
        everything = split(self.variables, parameters)
        return ({name: everything[name] for name in self._names},) if self._names else ()

    def log_density(self, parameters: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """Return log-prior plus log-likelihood, ``(n,)``."""
        log_likelihood = self.likelihood.log_density(outputs[:, : self.n_data], *self.own(parameters))
        return np.asarray(self.prior.log_density(parameters) + log_likelihood)

    def gradient(self, parameters: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return its gradients by parameters and by outputs."""
        own, seen = self.own(parameters), outputs[:, : self.n_data]
        by_parameters = np.array(self.prior.gradient(parameters), dtype=float)
        if own:
            for name, slope in self.likelihood.parameter_gradient(seen, *own).items():
                by_parameters[:, self._columns[name]] += slope.reshape(len(slope), -1)
        by_outputs = np.asarray(self.likelihood.gradient(seen, *own))
        if seen.shape[1] < outputs.shape[1]:  # the likelihood does not depend on derived quantities
            by_outputs = np.pad(by_outputs, ((0, 0), (0, outputs.shape[1] - seen.shape[1])))
        return by_parameters, by_outputs


class ForwardTarget:
    r"""Parameters seen through the outputs of a forward model.

    The log-density is :math:`\log p(x) + \log p(\text{data} \mid F(x_I), x)`, where only the forward model :math:`F` is
    expensive, and it sees only its inputs :math:`x_I`. A surrogate learns the outputs as functions of the inputs;
    prior, likelihood, noise and hierarchies stay exact. The prior is evaluated first: where it is -inf the forward
    model is not run.

    Parameters
    ----------
    forward : callable
        The model. If its signature names variables of a `Prior`, it is called by keyword, ``forward(a=..., k=...)``
        (numbers, or arrays of the variable's shape), and these are its inputs. Otherwise it is given one vector
        ``(n_inputs,)``. It returns outputs of the shape of the data: an array, or a dict with one array for each data
        set. With ``vectorized=True`` arrays have a first axis of n points.
    likelihood : Likelihood
        Of the outputs, such as `GaussianLikelihood`. Its arguments may name variables of the prior
        (``GaussianLikelihood(y, sd="sigma")``). Any object with ``log_density(outputs)`` and ``gradient(outputs)`` on
        batches ``(n, m)`` will do. It is also called with predicted outputs, which the model itself may never return:
        return -inf where they are impossible, and do not raise.
    prior : Density
        Such as `Prior`, `NormalPrior` or `UniformPrior`. Any object with ``log_density(points)`` and
        ``gradient(points)`` on batches ``(n, dim)`` will do. If it has ``sample(rng)``, chains start from it; if it has
        ``bounds``, they apply too.
    joint : Joint, optional
        Instead of likelihood and prior: any log-density of parameters and outputs together.
    inputs : sequence of str or int, optional
        The variables, or indices of parameters, that a model sees which is given a vector. By default all but those
        that the likelihood or the prior of another variable names.
    qoi : sequence of str or dict of str to shape, optional
        Derived quantities that the model returns beside its outputs: names of numbers, or names with shapes. The model
        then returns a dict with all data sets (an only one is called ``"y"``) and all of these. They are kept with the
        draws and never enter the likelihood. They must be finite: elsewhere the model counts as failed.
    vjp : callable, optional
        Takes the vector of inputs and returns ``(outputs, pull_back)``, where ``pull_back(cotangent)`` maps ``(m,)`` to
        the transposed Jacobian times it, ``(n_inputs,)``: an adjoint solve. `functools.partial(jax.vjp, forward)`
        has this form. Vectorised: rows throughout.
    jacobian : callable, optional
        Takes the vector of inputs and returns ``(outputs, jacobian)`` with the Jacobian ``(m, n_inputs)`` (vectorised:
        ``(n, m, n_inputs)``). Give this or `vjp` or neither. Derivatives are those of the outputs alone, not of `qoi`.
    dim : int, optional
        Number of parameters, if the prior has no attribute ``dim``.
    names, bounds, vectorized
        As for `Target`; a `Prior` has names of its own.
    dims : dict of str to sequence of str, optional
        Names of the axes of data sets and derived quantities, for results: ``dims={"hares": ["year"]}``. Those of
        variables are given to their prior.
    coords : dict of str to sequence, optional
        Labels along dims, for results: ``coords={"year": range(1900, 1921)}``.

    Examples
    --------
    >>> from leapwise import GaussianLikelihood, HalfNormal, LogNormal, NormalPrior, Prior
    >>> likelihood = GaussianLikelihood([1.0], sd=0.1)
    >>> ForwardTarget(lambda x: np.exp(x), likelihood, NormalPrior(0.0, 1.0, dim=1))
    ForwardTarget(dim=1, gradient=False, vectorized=False)

    Unknown noise, and a model that is called by keyword:

    >>> target = ForwardTarget(
    ...     lambda a, k: a * np.exp(-k * np.array([0.0, 1.0, 2.0])),
    ...     GaussianLikelihood([2.1, 1.2, 0.6], sd="sigma"),
    ...     Prior(a=LogNormal(0.0, 1.0), k=HalfNormal(1.0), sigma=HalfNormal(0.1)),
    ... )
    >>> target.names, target.inputs
    (('a', 'k', 'sigma'), array([0, 1]))
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        likelihood: Any = None,
        prior: Density | None = None,
        *,
        joint: Joint | None = None,
        inputs: Sequence[str] | Sequence[int] | None = None,
        qoi: Sequence[str] | Mapping[str, int | tuple[int, ...]] = (),
        vjp: Callable[[np.ndarray], Any] | None = None,
        jacobian: Callable[[np.ndarray], Any] | None = None,
        dim: int | None = None,
        names: str | Sequence[str] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        bounds: Bounds | None = None,
        vectorized: bool = False,
    ) -> None:
        require_callable("forward", forward)
        require_callable("vjp", vjp, optional=True)
        require_callable("jacobian", jacobian, optional=True)
        if vjp is not None and jacobian is not None:
            raise InputError("vjp= and jacobian= were both given; give one of them, the cheaper one")
        about = _checked_parts(likelihood, prior, joint)  # what knows dim, names and bounds
        layout = layout_of(about, "prior" if joint is None else "joint", dim, names, bounds)
        self.dim, self.names, self.variables, self.transform = layout
        self.vectorized = require_flag("vectorized", vectorized)
        self.has_gradient = vjp is not None or jacobian is not None
        self.forward, self.likelihood, self.prior = forward, likelihood, prior
        self._vjp, self._jacobian = vjp, jacobian
        self._require_own_parameters()
        self._keywords = keywords(forward, self.variables) if hasattr(about, "variables") else None
        self.inputs = self._checked_inputs(inputs)
        self._model = forward
        if self._keywords is not None:
            seen = [each.name for each in self._keywords]
            self._model = ByKeyword(forward, self._keywords, seen, self.vectorized)
        layout_of_data: tuple[Variable, ...] | None = getattr(likelihood, "outputs", None)
        #: Derived quantities, which follow the data sets in the vector of outputs.
        self.qoi = _derived(qoi, layout_of_data, self.variables)
        self._layout = None if layout_of_data is None else layout_of_data + self.qoi
        self._n_outputs = None if self._layout is None else sum(each.size for each in self._layout)
        self._layout = with_dims(self._layout, dims)
        self.coords = checked_coords(coords, (*self.variables, *(self._layout or ())))
        #: Number of outputs that have data; None for all.
        self.n_data = sum(each.size for each in layout_of_data) if self.qoi and layout_of_data else None
        #: The cheap part, unless it is a likelihood of all outputs plus a prior, of a model that sees all parameters.
        self.joint = joint
        if joint is None and (self.qoi or _own_names(likelihood) or not self.sees_all):
            assert prior is not None
            self.joint = PriorAndLikelihood(prior, likelihood, self.variables, self.n_data)
        self._require_finite_somewhere()
        self._warn_of_unused()

    def __repr__(self) -> str:
        return f"ForwardTarget(dim={self.dim}, gradient={self.has_gradient}, vectorized={self.vectorized})"

    @property
    def has_separate_value(self) -> bool:
        """Whether outputs alone are computed by another function than outputs with a derivative."""
        return self.has_gradient

    @property
    def sees_all(self) -> bool:
        """Whether the model sees all parameters, in their order."""
        return np.array_equal(self.inputs, np.arange(self.dim))

    @property
    def emulates_outputs(self) -> bool:
        """True: a surrogate learns the outputs of the forward model; likelihood and prior stay exact."""
        return True

    def is_run_at(self, parameters: np.ndarray) -> bool:
        """Return False: whether the model was run there is seen from its outputs."""
        return False

    @property
    def output_variables(self) -> tuple[Variable, ...]:
        """The layout of the outputs: data sets, then derived quantities; one vector if that is all that is known."""
        return self._layout or (Variable("y", (self._n_outputs or 0,)),)

    def evaluate(self, parameters: np.ndarray, *, gradient: bool) -> Values:
        """Return log-likelihood plus log-prior; the forward model is run only where the prior is not zero."""
        if gradient and not self.has_gradient:
            raise InputError("this ForwardTarget has no gradient; give vjp= or jacobian=")
        n = len(parameters)
        if self.prior is None:
            return self._posterior(parameters, np.zeros(n), gradient=gradient)
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
        return draw_inside(self.joint if self.prior is None else self.prior, self.transform, rng)

    # Evaluation ------------------------------------------------------------------------------------------------------

    def _posterior(self, parameters: np.ndarray, log_prior: np.ndarray, *, gradient: bool) -> Values:
        n = len(parameters)
        outputs, derivative = self._run(parameters, gradient=gradient)
        self._n_outputs = outputs.shape[1]
        if self.joint is None:
            value = self.likelihood.log_density(outputs.copy())
            log_density = checked_scalars(value, n, True, "likelihood.log_density") + log_prior
        else:
            value = self.joint.log_density(parameters.copy(), outputs.copy())
            log_density = checked_scalars(value, n, True, "joint.log_density")
        # Where a datum is missing its output does not count, nor do derived quantities, but a surrogate needs numbers.
        failed = np.isnan(outputs).any(axis=1)
        if self.n_data is not None:
            failed |= np.isinf(outputs[:, self.n_data :]).any(axis=1)
        log_density = np.where(failed, np.nan, log_density)
        if not gradient:
            return Values(log_density, None, outputs)
        if not np.isfinite(log_density).any():  # rejected or failed already: an adjoint solve is not needed
            return Values(log_density, np.zeros((n, self.dim)), outputs)
        m = outputs.shape[1]
        if self.joint is None:
            assert self.prior is not None
            cotangent = checked_rows(
                self.likelihood.gradient(outputs.copy()), n, m, True, "likelihood.gradient"
            )
            slope = self._pull_back(cotangent, derivative)
            slope += checked_rows(self.prior.gradient(parameters.copy()), n, self.dim, True, "prior.gradient")
            return Values(log_density, slope, outputs)
        by_parameters, by_outputs = self.joint.gradient(parameters.copy(), outputs.copy())
        slope = checked_rows(by_parameters, n, self.dim, True, "joint.gradient, by parameters,")
        cotangent = checked_rows(by_outputs, n, m, True, "joint.gradient, by outputs,")[:, : self.n_data]
        slope[:, self.inputs] += self._pull_back(cotangent, derivative)
        return Values(log_density, slope, outputs)

    def _run(self, parameters: np.ndarray, *, gradient: bool) -> tuple[np.ndarray, Any]:
        """Run the model; return outputs ``(n, m)``, and its derivative as the user's function returned it."""
        vector = parameters[:, self.inputs]
        point = (vector if self.vectorized else vector[0]).copy()
        given = f" (it was given positions of shape {point.shape})" if self.vectorized else ""
        if not gradient:
            value = self._model(point)
            return self._flat_outputs(value, len(parameters), "forward", given), None
        if self._vjp is not None:
            value, derivative = checked_pair(self._vjp(point), "vjp", "(outputs, pull_back)")
            return self._flat_outputs(value, len(parameters), "vjp, for its outputs,", given), derivative
        assert self._jacobian is not None
        value, derivative = checked_pair(self._jacobian(point), "jacobian", "(outputs, jacobian)")
        return self._flat_outputs(value, len(parameters), "jacobian, for its outputs,", given), derivative

    def _flat_outputs(self, value: Any, n: int, what: str, given: str) -> np.ndarray:
        """Return what the model returned as rows ``(n, m)``: an array of the data's shape, or a dict of them."""
        layout = self._layout
        if isinstance(value, Mapping) or (layout is not None and len(layout) > 1):
            return np.concatenate(
                [
                    shaped(part, n, each, self.vectorized, f"{what} for {each.name!r},")
                    for each, part in matched(value, layout, what)
                ],
                axis=1,
            )
        if layout is not None and len(layout[0].shape) != 1:
            return shaped(value, n, layout[0], self.vectorized, what)
        remedy = "return equally many outputs at all positions"
        if layout is not None:
            remedy = f"return one output for each of the {self._n_outputs} data"
        return checked_rows(value, n, self._n_outputs, self.vectorized, what, remedy, given)

    def _pull_back(self, cotangent: np.ndarray, derivative: Any) -> np.ndarray:
        """Turn a gradient in the outputs into one in the inputs."""
        (n, m), size = cotangent.shape, len(self.inputs)
        if self._vjp is not None:
            if not callable(derivative):
                raise OutputError(
                    f"vjp must return (outputs, pull_back) with a function as pull_back, got "
                    f"{type(derivative).__name__}; give jacobian= if that is the Jacobian"
                )
            slope = derivative(cotangent if self.vectorized else cotangent[0])
            # jax.vjp returns one gradient for each argument, in a tuple
            slope = slope[0] if isinstance(slope, tuple) and len(slope) == 1 else slope
            return checked_rows(slope, n, size, self.vectorized, "vjp's pull_back")
        matrix = checked_real(derivative, "jacobian")
        expected = (n, m, size) if self.vectorized else (m, size)
        if matrix.shape != expected:
            raise OutputError(
                f"jacobian must have shape {expected}, {'points, ' * self.vectorized}outputs, parameters; "
                f"got {matrix.shape}; transpose it if they are swapped"
            )
        return np.matmul(cotangent[:, None, :], matrix.reshape(n, m, size))[:, 0, :]

    # Checks, before the model is run ---------------------------------------------------------------------------------

    def _require_own_parameters(self) -> None:
        """Raise unless the variables that the likelihood names exist, and are positive where they must be."""
        names = [each.name for each in self.variables]
        where = columns(self.variables)
        for name in _own_names(self.likelihood):
            if name not in where:
                raise InputError(
                    f"the likelihood names a parameter {name!r} that has no prior; the prior has {', '.join(names)}; "
                    f"add {name}= to the Prior, or correct the name"
                )
        if hasattr(self.likelihood, "require_variables"):
            self.likelihood.require_variables(self.variables)
        for name in getattr(self.likelihood, "positive", ()):
            lower = self.transform.lower[where[name]]
            if not (lower >= 0).all():
                raise InputError(
                    f"the likelihood needs a positive {name!r}, but its prior allows values down to {lower.min():g}; "
                    "give it a positive prior, such as HalfNormal"
                )

    def _checked_inputs(self, inputs: Sequence[str] | Sequence[int] | None) -> np.ndarray:
        """Return the indices of the parameters that the model sees."""
        where = columns(self.variables)
        if self._keywords is not None:
            if inputs is not None:
                raise InputError(
                    "inputs= was given, but the model names its inputs in its signature; drop inputs="
                )
            chosen: list[Any] = [each.name for each in self._keywords]
        elif inputs is None:
            parents = getattr(self.prior, "parents", lambda name: ())
            taken = {*_own_names(self.likelihood), *(up for name in where for up in parents(name))}
            chosen = [name for name in where if name not in taken]
        else:
            chosen = [inputs] if isinstance(inputs, (str, int)) else list(inputs)
        unknown = [
            each
            for each in chosen
            if isinstance(each, bool) or each not in (where if isinstance(each, str) else range(self.dim))
        ]
        if unknown or not chosen or len(set(chosen)) < len(chosen):
            raise InputError(
                f"inputs must be different variables that the model sees, at least one of {', '.join(where)}, got "
                f"{chosen}; correct them"
            )
        index = np.arange(self.dim)
        found = np.concatenate(
            [index[where[each]] if isinstance(each, str) else index[[each]] for each in chosen]
        )
        if len(np.unique(found)) < len(found):
            raise InputError(f"inputs must name each parameter at most once, got {chosen}; drop one")
        return found

    def _warn_of_unused(self) -> None:
        """Warn of variables that neither the model nor the likelihood nor another prior uses: most are mistakes."""
        parents = getattr(self.prior, "parents", None)
        if parents is None:
            return
        where, seen = columns(self.variables), set(self.inputs.tolist())
        used = {*_own_names(self.likelihood), *(up for name in where for up in parents(name))}
        unused = [name for name, place in where.items() if name not in used and place.start not in seen]
        if unused:
            _LOG.warning(
                "Neither the model nor the likelihood uses %s: draws of it are those of its prior. Check the names in "
                "the model's signature.",
                ", ".join(unused),
            )

    def _require_finite_somewhere(self) -> None:
        """Raise if the prior is finite nowhere; the model is not run."""
        if not isinstance(self.joint, PriorAndLikelihood) or not hasattr(self.prior, "sample"):
            return
        rng = np.random.default_rng(0)
        drawn = [self.sample_start(rng) for _ in range(_N_TRIALS)]
        draws = np.array([each for each in drawn if each is not None]).reshape(-1, self.dim)
        if not len(draws) or not np.isfinite(self.joint.prior.log_density(draws)).any():
            raise InputError(
                f"the prior is not finite at any of {_N_TRIALS} of its own draws inside the bounds; check its "
                "distributions and bounds="
            )


def draw_inside(prior: object, transform: Transform, rng: np.random.Generator) -> np.ndarray | None:
    """Draw parameters ``(dim,)`` from a prior, inside the bounds; None if it cannot draw there."""
    sample, dim = getattr(prior, "sample", None), transform.lower.size
    if sample is None:
        return None
    start = checked_rows(sample(rng), 1, dim, False, "prior.sample")[0]
    for _ in range(_MAX_REDRAWS):
        outside = ~((start > transform.lower) & (start < transform.upper))
        if not outside.any():
            return start
        # Only coordinates outside are drawn again: a start need not be a draw from the truncated prior.
        start[outside] = checked_rows(sample(rng), 1, dim, False, "prior.sample")[0, outside]
    return None


def _derived(
    qoi: Sequence[str] | Mapping[str, int | tuple[int, ...]],
    layout: tuple[Variable, ...] | None,
    variables: Sequence[Variable],
) -> tuple[Variable, ...]:
    """Return the derived quantities as variables, or raise."""
    if not isinstance(qoi, (str, Sequence, Mapping)):
        raise InputError(
            f"qoi must be names, or a dict of names with shapes, got {type(qoi).__name__}; give ['name', ...]"
        )
    names = [qoi] if isinstance(qoi, str) else list(qoi)
    if not names:
        return ()
    if layout is None:
        raise InputError(
            "qoi= needs a likelihood that knows its data sets, such as GaussianLikelihood; with a joint= or a "
            "likelihood of your own, return derived quantities as outputs and ignore them there"
        )
    require_names(names, len(names), "qoi")
    taken = {each.name for each in (*layout, *variables)}
    if twice := [name for name in names if name in taken]:
        raise InputError(f"qoi has {twice[0]!r}, which is a data set or a variable already; rename it")
    shapes = qoi if isinstance(qoi, Mapping) else dict.fromkeys(names, ())
    return tuple(Variable(name, require_shape(f"the shape of qoi {name!r}", shapes[name])) for name in names)


def _own_names(likelihood: object) -> tuple[str, ...]:
    """Return the names of the variables that a likelihood needs."""
    return tuple(getattr(likelihood, "parameters", ()))


def _checked_parts(likelihood: object, prior: object, joint: object) -> Any:
    """Check the cheap parts that a user gave, and return the one that knows dim, names and bounds."""
    if joint is not None:
        if likelihood is not None or prior is not None:
            raise InputError("joint= was given together with a likelihood or a prior; give one or the other")
        if isinstance(joint, type) or not isinstance(joint, Joint):
            raise InputError(
                "joint must have the methods log_density(parameters, outputs) and gradient(parameters, outputs), got "
                f"{type(joint).__name__}; see leapwise.targets.forward.Joint"
            )
        return joint
    require_density("likelihood", likelihood)
    require_density("prior", prior)
    if isinstance(prior, GaussianLikelihood):
        raise InputError("prior must not be a GaussianLikelihood; give the likelihood first, then the prior")
    return prior


def require_density(what: str, density: object) -> None:
    """Raise unless an object has the methods of a `Density`."""
    if isinstance(density, type) or not isinstance(density, Density):
        raise InputError(
            f"{what} must have the methods log_density(points) and gradient(points), got "
            f"{f'the class {density.__name__}' if isinstance(density, type) else type(density).__name__}; "
            f"give {'data in a GaussianLikelihood' if what == 'likelihood' else 'a Prior(name=distribution, ...)'}"
        )
