"""The log-densities of the built-in problems in JAX, which suits some peers best.

Each function takes the problem and returns the log-density of one point. They are checked against ours before anything
is timed, constants included. The PDE and the ODE are not here: all methods call the same solver.
"""

from __future__ import annotations

from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np

#: Problems in which one point takes so much work that several are best computed one after the other, as ours does.
ONE_BY_ONE = ("logistic-simulated", "logistic-bank", "logistic-a9a")


def log_density(name: str, problem):
    """Return the log-density of one point as a function that JAX can compile; None if there is none."""
    maker = _MAKERS.get("logistic" if name.startswith("logistic") else name)
    return None if maker is None else maker(problem)


def value_and_gradient(name: str, problem):
    """Return a compiled function of one point that returns log-density and gradient; None if there is none."""
    function = log_density(name, problem)
    if function is None:
        return None
    both = jax.value_and_grad(function)
    return jax.custom_batching.sequential_vmap(both) if name in ONE_BY_ONE else both


@jax.custom_vjp
def _sum_softplus(eta):
    return _sum_softplus_forward(eta)[0]


def _sum_softplus_forward(eta):
    """One exponential per row for value and gradient: three times as fast as JAX's own derivative."""
    tail = jnp.exp(-jnp.abs(eta))
    return (jnp.maximum(eta, 0.0) + jnp.log1p(tail)).sum(), jnp.where(eta >= 0, 1.0, tail) / (1.0 + tail)


_sum_softplus.defvjp(_sum_softplus_forward, lambda logistic, cotangent: (cotangent * logistic,))


def _logistic(problem):
    model = problem.target._log_density.__self__  # private, but the same arrays as ours
    rows = np.concatenate([block.T for block in model._blocks])[: model.n_rows]
    linear = jnp.asarray(model._linear + 0.5 * rows.sum(axis=0))
    columns = jnp.asarray(np.ascontiguousarray(rows.T))  # XLA's products are fastest in this layout

    def function(beta):
        return linear @ beta - _sum_softplus(beta @ columns) - 0.5 * (beta @ beta) / model.prior_variance

    return function


def _banana(problem):
    module = import_module("leapwise.problems.shapes")
    model = problem.target._log_density.__self__

    def function(theta):
        misfit = model.data_mean - theta[0] - theta[1] ** 2
        return -0.5 * (misfit**2 / model.mean_variance + theta @ theta / module.PRIOR_SD**2)

    return function


def _eight_schools(problem):
    module = import_module("leapwise.problems.hierarchies")
    effects, errors = jnp.asarray(module.EFFECTS), jnp.asarray(module.ERRORS)

    def function(position):
        mu, log_tau, eta = position[0], position[1], position[2:]
        residual = (effects - mu - jnp.exp(log_tau) * eta) / errors
        x = log_tau - np.log(module.SCALE)
        prior = x - jnp.logaddexp(0.0, 2.0 * x) - 0.5 * (mu / module.MEAN_SD) ** 2
        return prior - 0.5 * (residual @ residual + eta @ eta)

    return function


def _funnel(problem):
    module = import_module("leapwise.problems.shapes")

    def function(position):
        v, x = position[0], position[1:]
        return -0.5 * ((v / module.SCALE_SD) ** 2 + x.size * v + (x @ x) * jnp.exp(-v))

    return function


def _lobes(problem):
    module = import_module("leapwise.problems.shapes")
    centre = jnp.asarray(module.CENTRE)

    def function(x):
        left = np.log(module.WEIGHT) - 0.5 * ((x + centre) ** 2).sum()
        right = np.log1p(-module.WEIGHT) - 0.5 * ((x - centre) ** 2).sum()
        return jnp.logaddexp(left, right) - np.log(2.0 * np.pi)

    return function


def _student_t(problem):
    model = problem.target._log_density.__self__
    inverse = jnp.asarray(model.inverse)

    def function(x):
        z = inverse @ x
        return -0.5 * (model.freedom + x.size) * jnp.log1p(z @ z / model.freedom)

    return function


def _poisson_gp(problem):
    module = import_module("leapwise.problems.hierarchies")
    model = problem.target._log_density.__self__
    distances, counts = jnp.asarray(model.distances), jnp.asarray(model.counts)

    def function(position):
        log_amplitude, log_length, z = position[0], position[1], position[2:]
        r = np.sqrt(3.0) * distances / jnp.exp(jnp.clip(log_length, *module.LENGTH_LIMITS))
        correlation = (1.0 + r) * jnp.exp(-r) + module._NUGGET * jnp.eye(module.N_POINTS)
        latent = np.log(module.BASE_RATE) + jnp.exp(log_amplitude) * (jnp.linalg.cholesky(correlation) @ z)
        likelihood = (counts * latent - jnp.exp(latent) - jax.scipy.special.gammaln(counts + 1.0)).sum()
        scales = ((log_amplitude, module.LOG_AMPLITUDE), (log_length, module.LOG_LENGTH))
        return likelihood - 0.5 * (z @ z + sum(((x - mean) / sd) ** 2 for x, (mean, sd) in scales))

    return function


_MAKERS = {
    "logistic": _logistic,
    "banana": _banana,
    "eight-schools": _eight_schools,
    "funnel": _funnel,
    "lobes": _lobes,
    "student-t": _student_t,
    "poisson-gp": _poisson_gp,
}
