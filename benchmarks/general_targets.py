"""General targets against long runs of exact HMC: an ODE with unknown noise, a hierarchy, eight schools, a funnel.

    python benchmarks/general_targets.py ode|plain|hierarchy|schools|funnel|memory [--seeds N] [--draws N]

Each line has effective draws per evaluation (the smallest over parameters, bulk, warm-up included), those of the
parameters that the model does not see, the largest z of means and of standard deviations against the reference, sd(D)
and warnings.
"""

from __future__ import annotations

import argparse
import tracemalloc

import numpy as np
from arviz_stats.base import array_stats

import leapwise as lw
from leapwise.results.statistics import statistics

YEARS, STEPS_PER_YEAR = 20, 10


def lotka_volterra(x: np.ndarray) -> np.ndarray:
    """Solve by Runge-Kutta steps for rows of six inputs, complex ones too; return both species, ``(n, 40)``."""
    alpha, beta, gamma, delta = x[:, :4].T
    z, h, found = np.array(x[:, 4:6].T), 1.0 / STEPS_PER_YEAR, []

    def slope(z: np.ndarray) -> np.ndarray:
        return np.stack([alpha * z[0] - beta * z[0] * z[1], delta * z[0] * z[1] - gamma * z[1]])

    with np.errstate(all="ignore"):
        for step in range(YEARS * STEPS_PER_YEAR):
            k1 = slope(z)
            k2 = slope(z + 0.5 * h * k1)
            k3 = slope(z + 0.5 * h * k2)
            z = z + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + slope(z + h * k3))
            if (step + 1) % STEPS_PER_YEAR == 0:
                found.append(z)
    return np.stack(found, axis=2).transpose(1, 0, 2).reshape(len(x), -1)


def with_jacobian(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs and their Jacobian by complex steps."""
    n, size = x.shape
    moved = x[:, None, :] + 1e-20j * np.eye(size)
    jacobian = lotka_volterra(moved.reshape(-1, size)).imag.reshape(n, size, -1) / 1e-20
    return lotka_volterra(x), jacobian.swapaxes(1, 2)


TRUTH = np.array([[0.55, 0.028, 0.8, 0.024, 33.0, 6.0]])
NAMES = ("alpha", "beta", "gamma", "delta", "prey", "predator")


def ode(exact: bool = False) -> lw.ForwardTarget:
    rng, clean = np.random.default_rng(1), lotka_volterra(TRUTH).reshape(2, -1)
    data = dict(zip(("hares", "lynxes"), clean * rng.lognormal(0.0, 0.2, clean.shape), strict=True))
    centres = dict(zip(NAMES, (0.5, 0.03, 0.8, 0.025, 30.0, 5.0), strict=True))
    prior = lw.Prior(
        **{name: lw.LogNormal(np.log(each), 0.5) for name, each in centres.items()},
        noise_hares=lw.HalfNormal(0.5),
        noise_lynxes=lw.HalfNormal(0.5),
    )

    def solve(x: np.ndarray) -> dict[str, np.ndarray]:
        found = lotka_volterra(x)
        return {"hares": found[:, :YEARS], "lynxes": found[:, YEARS:]}

    def both(x: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        _, jacobian = with_jacobian(x)
        return solve(x), jacobian

    likelihood = lw.LogNormalLikelihood(data, sd={"hares": "noise_hares", "lynxes": "noise_lynxes"})
    return lw.ForwardTarget(solve, likelihood, prior, vectorized=True, jacobian=both if exact else None)


def plain() -> lw.Target:
    """Return the same as a log-density of eight parameters, by values."""
    whole = ode()
    bounds = list(zip(whole.transform.lower, [None] * whole.dim, strict=True))
    return lw.Target(
        lambda x: whole.evaluate(x, gradient=False).log_density,
        dim=whole.dim,
        names=whole.names,
        bounds=bounds,
        vectorized=True,
    )


GROUPS, TIMES = 8, np.linspace(0.2, 3.0, 6)


def hierarchy(exact: bool = False) -> lw.ForwardTarget:
    """Return eight groups, each with its own input of the model, a common spread, and unknown noise."""
    rng = np.random.default_rng(3)

    def solve(x: np.ndarray) -> np.ndarray:
        return 2.0 * np.exp(-np.exp(x)[..., None] * TIMES)

    def jacobian(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs = solve(x)
        slopes = -outputs * np.exp(x)[..., None] * TIMES
        found = np.zeros((len(x), GROUPS, len(TIMES), GROUPS))
        every = np.arange(GROUPS)
        found[:, every, :, every] = slopes.swapaxes(0, 1)
        return outputs, found.reshape(len(x), -1, GROUPS)

    data = solve(rng.normal(0.2, 0.4, (1, GROUPS)))[0] + 0.15 * rng.standard_normal((GROUPS, len(TIMES)))
    prior = lw.Prior(
        mu=lw.Normal(0, 1),
        tau=lw.HalfNormal(1.0),
        theta=lw.Normal("mu", "tau", shape=GROUPS),
        sigma=lw.HalfNormal(0.5),
    )
    return lw.ForwardTarget(
        solve,
        lw.GaussianLikelihood(data, sd="sigma"),
        prior,
        vectorized=True,
        jacobian=jacobian if exact else None,
    )


EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools() -> lw.Target:
    prior = lw.Prior(mu=lw.Normal(0, 5), tau=lw.HalfCauchy(5), theta=lw.Normal("mu", "tau", shape=8))
    return lw.Target(
        log_likelihood=lambda theta: -0.5 * np.sum(((EFFECTS - theta) / ERRORS) ** 2), log_prior=prior
    )


def schools_reference(n: int = 40_000) -> np.ndarray:
    """Return independent draws of mu, tau and theta, ``(10, n / 10, 10)``: tau on a grid, the rest given it."""
    rng, log_tau = np.random.default_rng(0), np.linspace(-9.0, 7.0, 4000)
    tau = np.exp(log_tau)
    variance = tau[:, None] ** 2 + ERRORS**2
    precision = (1.0 / variance).sum(axis=1) + 1.0 / 25.0
    mean = (EFFECTS / variance).sum(axis=1) / precision
    log = -np.log1p((tau / 5.0) ** 2) + log_tau - 0.5 * np.log(precision) + 0.5 * precision * mean**2
    log += -0.5 * (np.log(variance) + EFFECTS**2 / variance).sum(axis=1)
    chosen = rng.choice(len(tau), size=n, p=np.exp(log - log.max()) / np.exp(log - log.max()).sum())
    mu, scale = rng.normal(mean[chosen], precision[chosen] ** -0.5)[:, None], tau[chosen][:, None]
    weight = ERRORS**-2.0 + scale**-2.0
    theta = rng.normal((EFFECTS / ERRORS**2 + mu / scale**2) / weight, weight**-0.5)
    return np.concatenate([mu, scale, theta], axis=1).reshape(10, -1, 10)


def funnel() -> lw.Target:
    """Return a funnel of ten parameters whose likelihood says next to nothing."""
    prior = lw.Prior(log_scale=lw.Normal(0, 3), scale=lw.LogNormal(0, 3), x=lw.Normal(0, "scale", shape=9))
    return lw.Target(log_likelihood=lambda x: -1e-6 * float(x @ x) / (1.0 + float(x @ x)), log_prior=prior)


def compared(run: lw.Run, reference: np.ndarray, log: tuple[str, ...] = ()) -> str:
    """Return one line on a run; variables in `log` are compared on the log scale."""
    draws, free = np.array(run.draws), [i for i, name in enumerate(run.names) if "theta" not in name]
    reference = np.array(reference)
    for i, name in enumerate(run.names):
        if name in log:
            draws[..., i], reference[..., i] = np.log(draws[..., i]), np.log(reference[..., i])
    here, there = statistics(draws), statistics(reference)
    z = np.abs(here.mean - there.mean) / np.hypot(here.mcse, there.mcse)
    errors = [array_stats.mcse(x, method="sd", chain_axis=0, draw_axis=1) for x in (draws, reference)]
    z_sd = np.abs(here.sd - there.sd) / np.hypot(*errors)
    each = here.ess_bulk / run.cost.n_exact
    some = ", ".join(f"{run.names[i]} {each[i]:.2f}" for i in free[-3:])
    return (
        f"{run.cost.n_exact} evaluations ({run.warmup.cost.n_exact} of warm-up), ESS per evaluation {each.min():.2f} "
        f"({some}), z of means {z.max():.1f}, of sds {z_sd.max():.1f}, sd(D) {run.surrogate.sd:.3f}, R-hat "
        f"{here.rhat.max():.3f}, warnings {len(run.summary().warnings)}"
    )


def memory(draws: int) -> None:
    """Print the largest memory of a run with 100,000 outputs a draw."""
    m = 100_000
    grid = np.linspace(0.0, 1.0, m)
    target = lw.ForwardTarget(
        lambda a: a * grid, lw.GaussianLikelihood(0.3 * grid, sd=10.0), lw.Prior(a=lw.Normal(0, 1))
    )
    tracemalloc.start()
    run = lw.sample(target, draws=draws, random_seed=1, progressbar=False)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    print(
        f"{4 * draws} draws of {m} outputs: kept {run.posterior.outputs.shape}, largest memory {peak:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("ode", "plain", "hierarchy", "schools", "funnel", "memory"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    if options.what == "memory":
        memory(options.draws)
        return
    if options.what == "funnel":
        rng = np.random.default_rng(0)
        scale = np.exp(rng.normal(0.0, 3.0, (10, 2000, 1)))
        log_scale = rng.normal(0.0, 3.0, scale.shape)
        reference = np.concatenate([log_scale, scale, scale * rng.standard_normal((10, 2000, 9))], axis=2)
        target, log = funnel(), ("scale",)
    elif options.what == "schools":
        target, reference, log = schools(), schools_reference(), ("tau",)
    else:
        make = hierarchy if options.what == "hierarchy" else ode
        # Far out the solver overflows and returns NaN: such points are declared impossible, for all runs.
        long_run = lw.sample(
            make(exact=True),
            draws=2000,
            random_seed=100,
            method=lw.HMC(),
            on_failure="reject",
            progressbar=False,
        )
        reference, log = long_run.draws, ("tau",)
        print("reference: HMC, R-hat", f"{statistics(reference).rhat.max():.3f}", flush=True)
        target = plain() if options.what == "plain" else make()
    for seed in range(1, options.seeds + 1):
        run = lw.sample(target, draws=options.draws, random_seed=seed, on_failure="reject", progressbar=False)
        print(f"{options.what}, seed {seed}: {compared(run, reference, log)}", flush=True)


if __name__ == "__main__":
    main()
