"""The exact potential, in the form that suits each method, and the starts: the same for all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import leapwise as lw

from . import potentials
from .cases import Case

TOLERANCE = 1e-10
_REMEMBERED = 4096


class Exact:
    """The exact posterior of a case.

    `evaluator` is the library's own, which counts. No case has bounds: positions are parameters. `form` says how the
    peers' potential is computed: "jax" (compiled), or "numpy" (ours, called back by JAX).
    """

    def __init__(self, case: Case, form: str = "numpy") -> None:
        self.case, self.form = case, form
        self.problem = case.problem()
        self.target = case.target()
        assert self.target.transform.is_identity
        self.dim = self.target.dim
        self.evaluator = lw.Evaluator(self.target)
        self._known: dict[bytes, tuple[float, np.ndarray]] = {}

    def starts(self, seed: int, n: int) -> np.ndarray:
        """Draw starts ``(n, dim)`` as `sample` does: from the prior, or uniformly between -2 and 2."""
        generators = lw.Streams(seed, n).generators
        drawn = [self.target.sample_start(generator) for generator in generators]
        if drawn[0] is None:
            return np.stack([rng.uniform(-2.0, 2.0, self.dim) for rng in lw.Streams(seed, n).generators])
        return np.stack(drawn)

    def rows(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log-densities and gradients of positions ``(..., dim)``, by NumPy."""
        answer = self.evaluator.value_and_gradient(np.asarray(position, dtype=float).reshape(-1, self.dim))
        shape = np.shape(position)
        return -answer.potential.reshape(shape[:-1]), -answer.gradient.reshape(shape)

    def new_rows(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Do the same, but evaluate only rows that differ from those of the last call.

        When chains move together in JAX, those that have ended their trajectory ask for the same points again until
        the last has ended. Peers are not charged for that.
        """
        rows = np.array(position, dtype=float).reshape(-1, self.dim)
        keys = [row.tobytes() for row in rows]
        if len(self._known) > _REMEMBERED:
            self._known = {key: self._known[key] for key in keys if key in self._known}
        new = [i for i, key in enumerate(keys) if key not in self._known]
        if new:
            for i, value, gradient in zip(new, *self.rows(rows[new]), strict=True):
                self._known[keys[i]] = value, gradient
        values, gradients = zip(*(self._known[key] for key in keys), strict=True)
        return np.reshape(values, np.shape(position)[:-1]), np.reshape(gradients, np.shape(position))

    def log_density(self):
        """Return the log-density of one point for JAX; its gradient costs no further evaluation."""
        both = self._callback if self.form == "numpy" else self.compiled()

        @jax.custom_vjp
        def function(position):
            return both(position)[0]

        function.defvjp(both, lambda gradient, cotangent: (cotangent * gradient,))
        return function

    def one_point(self):
        """Return a function of one point ``(dim,)`` that Python calls: log-density and gradient as NumPy."""
        if self.form == "numpy":
            return self.rows
        compiled = jax.jit(self.compiled())

        def function(position):
            value, gradient = compiled(position)
            return float(value), np.asarray(gradient)

        return function

    def compiled(self):
        """Return the log-density in JAX, or raise if there is none."""
        function = potentials.value_and_gradient(self.case.name, self.problem)
        if function is None:
            raise ValueError(f"{self.case.name} is not written in JAX")
        return function

    def _callback(self, position):
        kinds = (jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct((self.dim,), jnp.float64))
        return jax.pure_callback(self.new_rows, kinds, position, vmap_method="broadcast_all")


def has_jax(case: Case) -> bool:
    """Return whether the case's log-density is written in JAX too."""
    return case.kind == "gradient" and potentials.log_density(case.name, case.problem()) is not None


def check_agreement(case: Case) -> float:
    """Compare JAX's log-density with ours at five points, near and far; return the largest relative difference."""
    exact = Exact(case, "jax")
    points = exact.starts(0, 5) * np.array([0.1, 0.3, 1.0, 1.0, 1.5])[:, None]
    ours = exact.rows(points)
    theirs = jax.vmap(exact.compiled())(points)
    worst = max(
        float(np.abs(np.asarray(b) - a).max() / max(1.0, np.abs(a).max()))
        for a, b in zip(ours, theirs, strict=True)
    )
    if not worst < TOLERANCE:
        raise AssertionError(f"the potential of {case.name} in JAX differs from ours by {worst:.1e}")
    return worst


def use_double_precision() -> None:
    """Set JAX up: double precision, and no second thread that waits while a callback runs."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
