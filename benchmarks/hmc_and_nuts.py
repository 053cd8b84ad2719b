"""HMC() without settings beside NumPyro's NUTS with a dense mass matrix, on the same exact potential.

Both get 500 steps of warm-up, 4 chains and 1000 draws, the same starts, and the same target: NumPyro calls ours back
from JAX, value and gradient together. Counted are gradients, warm-up included; seconds are not compared, since the
callback costs NumPyro more than its own compiled model would. The figure is effective draws (smallest bulk ESS over
the parameters, of means and of squares) per gradient; medians over seeds.

    pip install 'understudy[bench]'
    python benchmarks/hmc_and_nuts.py [--seeds 3] [gaussian logistic-bank elliptic-pde ...]
"""

from __future__ import annotations

import argparse
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from numpyro.infer import MCMC, NUTS

import understudy as us
from understudy.problems import registry

CHAINS, TUNE, DRAWS = 4, 500, 1000


class Counted:
    """The target's potential for JAX, with every gradient counted."""

    def __init__(self, target):
        self.evaluator = us.Evaluator(target)
        self.dim = target.dim

    def _call(self, position):
        rows = np.asarray(position, dtype=float).reshape(-1, self.dim)
        answer = self.evaluator.value_and_gradient(rows)
        shape = position.shape[:-1]
        return answer.potential.reshape(shape), answer.gradient.reshape(position.shape)

    def potential(self):
        @jax.custom_vjp
        def potential(position):
            return call(position)[0]

        def call(position):
            kinds = (jax.ShapeDtypeStruct((), jnp.float64), jax.ShapeDtypeStruct((self.dim,), jnp.float64))
            return jax.pure_callback(self._call, kinds, position, vmap_method="broadcast_all")

        potential.defvjp(call, lambda gradient, cotangent: (cotangent * gradient,))
        return potential


def starts(target, seed):
    """The starts that `sample` would choose."""
    streams = us.Streams(seed, CHAINS)
    draws = [target.sample_start(generator) for generator in streams.generators]
    if draws[0] is None:
        return np.stack([g.uniform(-2.0, 2.0, target.dim) for g in us.Streams(seed, CHAINS).generators])
    return np.stack(draws)


def nuts(target, init, seed):
    mcmc = MCMC(
        NUTS(potential_fn=Counted(target).potential(), dense_mass=True),
        num_warmup=TUNE,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.warmup(
        jax.random.PRNGKey(seed),
        init_params=jnp.asarray(init),
        collect_warmup=True,
        extra_fields=("num_steps",),
    )
    n_gradients = int(mcmc.get_extra_fields()["num_steps"].sum())
    mcmc.run(jax.random.PRNGKey(seed + 1), extra_fields=("num_steps",))
    n_gradients += int(mcmc.get_extra_fields()["num_steps"].sum())
    return np.asarray(mcmc.get_samples(group_by_chain=True)), n_gradients


def hmc(target, init, seed):
    run = us.sample(target, DRAWS, tune=TUNE, chains=CHAINS, init=init, random_seed=seed, progressbar=False)
    return run.draws, run.cost.n_gradients


def figures(draws, n_gradients):
    by_parameter = np.moveaxis(draws, 2, 0)
    squares = (by_parameter - by_parameter.mean(axis=(1, 2), keepdims=True)) ** 2
    means, of_squares = (array_stats.ess(x, method="bulk").min() for x in (by_parameter, squares))
    return {
        "gradients": n_gradients,
        "ESS": means,
        "ESS of squares": of_squares,
        "R-hat": array_stats.rhat(by_parameter).max(),
        "per gradient": means / n_gradients,
        "squares per gradient": of_squares / n_gradients,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=["gaussian", "logistic-bank", "elliptic-pde"])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in options.problems:
        target = registry.get(name).target
        found = {"HMC()": [], "NUTS, dense": []}
        for seed in range(options.seeds):
            init = starts(target, seed)
            found["HMC()"].append(figures(*hmc(target, init, seed)))
            found["NUTS, dense"].append(figures(*nuts(target, init, seed)))
        print(f"\n{name} ({target.dim} parameters), medians of {options.seeds} seeds")
        for method, rows in found.items():
            shown = {key: median(row[key] for row in rows) for key in rows[0]}
            shown["R-hat"] = max(row["R-hat"] for row in rows)
            print(f"  {method:12s}", "  ".join(f"{key} {value:,.4g}" for key, value in shown.items()))
        for key in ("per gradient", "squares per gradient"):
            ratios = [ours[key] / theirs[key] for ours, theirs in zip(*found.values(), strict=True)]
            print(f"  ratio {key}: {median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
