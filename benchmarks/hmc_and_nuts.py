"""Compare HMC() and NUTS() without settings with the NUTS of NumPyro and nutpie, on the same exact potential.

All get 500 steps of warm-up, 4 chains and 1000 draws, and the same target: NumPyro (dense mass matrix) calls ours back
from JAX, value and gradient together, and nutpie (its low-rank mass matrix) from Rust. NumPyro has our starts, nutpie
some of the same distribution. Gradients are counted, warm-up included; seconds are not compared, since callbacks cost
more than compiled models would. The figure is effective draws (smallest bulk ESS over the parameters, of means and of
squares) per gradient; medians over seeds, and ratios of `HMC()` to each other row.

    pip install 'leapwise[bench]'
    python benchmarks/hmc_and_nuts.py [--seeds 3] [--without numpyro] [gaussian funnel posteriordb:garch-garch11 ...]

Problems are built-in ones, `eight-schools-centred`, and `posteriordb:NAME` where there is a folder of posteriordb.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from numpyro.infer import MCMC, NUTS

import leapwise as lw
from leapwise.problems import registry

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CHAINS, TUNE, DRAWS = 4, 500, 1000
PROBLEMS = [
    "gaussian",
    "funnel",
    "eight-schools",
    "eight-schools-centred",
    "poisson-gp",
    "banana",
    "student-t",
]
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


class Counted:
    """The target's potential for JAX, with every gradient counted."""

    def __init__(self, target):
        self.evaluator = lw.Evaluator(target)
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
    streams = lw.Streams(seed, CHAINS)
    draws = [target.sample_start(generator) for generator in streams.generators]
    if draws[0] is None:
        return np.stack([g.uniform(-2.0, 2.0, target.dim) for g in lw.Streams(seed, CHAINS).generators])
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


def nutpie_nuts(target, init, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the ArviZ that it brings
        import nutpie
        from nutpie.compiled_pyfunc import from_pyfunc

    evaluator = lw.Evaluator(target)

    def both(position):
        found = evaluator.value_and_gradient(np.asarray(position, dtype=float)[None])
        return -float(found.potential[0]), -found.gradient[0]

    model = from_pyfunc(
        target.dim,
        lambda: both,
        lambda *_: lambda position: {"x": position},
        [np.dtype(float)],
        [(target.dim,)],
        ["x"],
        make_initial_point_fn=lambda number: starts(target, number % 2**32)[0],
    )
    trace = nutpie.sample(
        model,
        draws=DRAWS,
        tune=TUNE,
        chains=CHAINS,
        cores=1,
        seed=seed,
        progress_bar=False,
        low_rank_modified_mass_matrix=True,
    )
    n_gradients = sum(
        int(stats["n_steps"].sum()) for stats in (trace.warmup_sample_stats, trace.sample_stats)
    )
    return trace.posterior["x"].values, n_gradients


def ours(method):
    def run(target, init, seed):
        found = lw.sample(
            target,
            DRAWS,
            tune=TUNE,
            chains=CHAINS,
            method=method,
            init=init,
            random_seed=seed,
            progressbar=False,
        )
        return found.draws, found.cost.n_gradients

    return run


METHODS = {"HMC()": ours(lw.HMC()), "NUTS()": ours(lw.NUTS()), "numpyro": nuts, "nutpie": nutpie_nuts}


def eight_schools_centred():
    """Effects of eight schools, their mean and the logarithm of their spread, as they are."""

    def both(x):
        effect, mean, log_spread = x[:, :8], x[:, 8:9], x[:, 9]
        with np.errstate(over="ignore", invalid="ignore"):
            spread = np.exp(log_spread)
            off, width = (effect - mean) / spread[:, None], (spread / 5.0) ** 2
            value = -0.5 * (((EFFECT - effect) / ERROR) ** 2).sum(axis=1) - 0.5 * (off**2).sum(axis=1)
            value += -7.0 * log_spread - 0.5 * (mean[:, 0] / 5.0) ** 2 - np.log1p(width)
            slope = np.column_stack(
                [
                    (EFFECT - effect) / ERROR**2 - off / spread[:, None],
                    off.sum(axis=1) / spread - mean[:, 0] / 25.0,
                    (off**2).sum(axis=1) - 7.0 - 2.0 * width / (1.0 + width),
                ]
            )
        good = np.isfinite(value) & np.isfinite(slope).all(axis=1)
        return np.where(good, value, -np.inf), np.where(good[:, None], slope, 0.0)

    return lw.Target(lambda x: both(x)[0], value_and_gradient=both, dim=10, vectorized=True)


def problem(name):
    """Return the target of a name."""
    if name == "eight-schools-centred":
        return eight_schools_centred()
    if name.startswith("posteriordb:"):
        from benchmarks.posteriordb.registry import posterior

        return posterior(name.removeprefix("posteriordb:")).target()
    return registry.get(name).target


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
    parser.add_argument("problems", nargs="*", default=PROBLEMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--without", nargs="*", default=[], choices=list(METHODS))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    methods = {name: method for name, method in METHODS.items() if name not in options.without}
    for name in options.problems:
        target = problem(name)
        found = {method: [] for method in methods}
        for seed in range(options.seeds):
            init = starts(target, seed)
            for method, sampled in methods.items():
                found[method].append(figures(*sampled(target, init, seed)))
        print(f"\n{name} ({target.dim} parameters), medians of {options.seeds} seeds", flush=True)
        for method, rows in found.items():
            shown = {key: median(row[key] for row in rows) for key in rows[0]}
            shown["R-hat"] = max(row["R-hat"] for row in rows)
            print(f"  {method:8s}", "  ".join(f"{key} {value:,.4g}" for key, value in shown.items()))
        first, *others = found
        for key in ("per gradient", "squares per gradient"):
            for other in others:
                ratios = [a[key] / b[key] for a, b in zip(found[first], found[other], strict=True)]
                spread = f"(from {min(ratios):.2f} to {max(ratios):.2f})"
                print(f"  {first} over {other}, {key}: {median(ratios):.2f} {spread}", flush=True)


if __name__ == "__main__":
    main()
