"""Sharpened estimates against the truth, and what they save.

    python benchmarks/sharpened.py estimates [problem ...] [--seeds 20] [--draws 500]
    python benchmarks/sharpened.py precision [problem ...] [--seeds 5] [--precision 0.0316]
    python benchmarks/sharpened.py stopping [problem ...] [--seeds 40]
    python benchmarks/sharpened.py lies [--replications 200]
    python benchmarks/sharpened.py evidence [--seeds 5]

`estimates` compares runs with the truth: by quadrature, from direct draws, or from eight long runs of other seeds.
Gains are mean squared errors of plain over sharpened estimates; coverage is that of 90 % intervals. `precision` counts
evaluations until errors are small enough, `stopping` whether these errors are right. `lies` has wrong surrogates.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

import leapwise as lw
from leapwise.problems import registry
from leapwise.problems.elliptic import elliptic_pde
from leapwise.results import Record
from leapwise.testing import LIES, gumbel

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.compare.cases import without_gradient

#: Quantile of a standard normal for intervals of 90 %.
_NINETY = 1.6449
#: Long runs, and draws of each of their four chains, whose mean is taken for the truth.
_LONG_RUNS, _LONG_DRAWS = 8, 2500
#: Direct draws where they are possible; their error is 1 / 3000 of a standard deviation.
_DIRECT = 10**7
_PROBABILITIES = (0.05, 0.95)
_GROUPS = ("means", "sds", "5 %", "95 %")


class Numbers(NamedTuple):
    """Means, standard deviations and two quantiles ``(4, dim)``, and their standard errors."""

    value: np.ndarray
    error: np.ndarray


PROBLEMS: dict[str, Callable[[], lw.Target | lw.ForwardTarget]] = {
    "simulated": lambda: registry.get("logistic-simulated").target,
    "bank": lambda: registry.get("logistic-bank").target,
    "pde by outputs": lambda: without_gradient(elliptic_pde().target),
    "fitzhugh-nagumo": lambda: registry.get("fitzhugh-nagumo").target,
    "a9a": lambda: registry.get("logistic-a9a").target,
    "banana": lambda: registry.get("banana").target,
    "gumbel, d = 10": lambda: gumbel(10).target,
}


def numbers(run: lw.Run, *, plain: bool) -> Numbers:
    """Return the estimates of all parameters of a run."""
    found = run.estimate(plain=plain, probabilities=_PROBABILITIES).figures
    each = [found.mean, found.sd, *found.quantiles]
    return Numbers(np.array([one.value for one in each]), np.array([one.error for one in each]))


def truth(name: str) -> Numbers:
    """Return the truth, as well as it is known."""
    if name.startswith("gumbel"):
        draws = gumbel(10).draw(np.random.default_rng(0), _DIRECT)
        value = np.array([draws.mean(axis=0), draws.std(axis=0), *np.quantile(draws, _PROBABILITIES, axis=0)])
        return Numbers(value, np.zeros_like(value))
    if name == "banana":
        return _banana()
    target = PROBLEMS[name]()
    seeds = range(1001, 1001 + _LONG_RUNS)
    runs = [lw.sample(target, _LONG_DRAWS, random_seed=seed, progressbar=False) for seed in seeds]
    sharp = np.array([numbers(run, plain=False).value for run in runs])
    plain = np.array([numbers(run, plain=True).value for run in runs])
    errors = [each.std(axis=0, ddof=1) / np.sqrt(len(runs)) for each in (sharp, plain)]
    difference = np.abs(sharp.mean(axis=0) - plain.mean(axis=0)) / np.hypot(*errors)
    print(
        f"truth of {name}: {len(runs)} runs of 4 x {_LONG_DRAWS} draws; plain and sharpened differ by a |t| of at most "
        f"{difference.max():.1f} among {difference.size}",
        flush=True,
    )
    return Numbers(sharp.mean(axis=0), errors[0])


def _banana() -> Numbers:
    """Integrate on a grid of 8 million points."""
    a, b = np.linspace(-8, 8, 4001), np.linspace(-5, 5, 2001)
    target = registry.get("banana").target
    rows = [target.evaluate(np.stack([np.full_like(b, x), b], axis=1), gradient=False).log_density for x in a]
    density = np.exp(np.array(rows))
    density /= density.sum()
    found = []
    for grid, mass in ((a, density.sum(axis=1)), (b, density.sum(axis=0))):
        mean = mass @ grid
        middles = np.cumsum(mass) - 0.5 * mass
        found.append([mean, np.sqrt(mass @ (grid - mean) ** 2), *np.interp(_PROBABILITIES, middles, grid)])
    return Numbers(np.array(found).T, np.zeros((4, 2)))


def estimates(options: argparse.Namespace) -> None:
    print(f"4 x {options.draws} draws, {options.seeds} seeds")
    print(
        "| problem | sharpened | " + " | ".join(f"{each}: gain | coverage" for each in _GROUPS) + " | "
        "claimed gain of means | effective draws per evaluation, plain | sharpened | s of draws | s of estimates |"
    )
    print("|---|" + "---|" * 14)
    for name in options.problems or PROBLEMS:
        target, true = PROBLEMS[name](), truth(name)
        rows = []
        for seed in range(1, options.seeds + 1):
            started = time.perf_counter()
            run = lw.sample(target, options.draws, random_seed=seed, progressbar=False)
            drawn = time.perf_counter()
            found = run.estimate()
            seconds = drawn - started, time.perf_counter() - drawn
            rows.append((run, numbers(run, plain=False), numbers(run, plain=True), found, seconds))
        sharp = np.array([row[1].value for row in rows]) - true.value
        plain = np.array([row[2].value for row in rows]) - true.value
        errors = np.array([row[1].error for row in rows])
        covered = np.abs(sharp) <= _NINETY * np.hypot(errors, true.error)
        gains = (plain**2).mean(axis=0) / (sharp**2).mean(axis=0)  # of each parameter, over seeds
        claimed = [np.median(row[3].figures.mean.gain) for row in rows]
        worth = [
            (
                row[0].statistics.ess_bulk.min() / row[0].cost.n_exact,
                row[3].worst()["bulk"] / row[0].cost.n_exact,
            )
            for row in rows
        ]
        cells = [
            f"{np.median(gains[i]):.1f} ({gains[i].min():.1f}) | {covered[:, i].mean():.3f}" for i in range(4)
        ]
        share = np.mean([row[3].is_sharpened for row in rows])
        medians = np.median(worth, axis=0)
        spent = np.median([row[4] for row in rows], axis=0)
        print(
            f"| {name} | {share:.0%} | {' | '.join(cells)} | {np.median(claimed):.1f} | {medians[0]:.2f} | "
            f"{medians[1]:.1f} | {spent[0]:.1f} | {spent[1]:.1f} |",
            flush=True,
        )


def precision(options: argparse.Namespace) -> None:
    print(f"evaluations until all errors are at most {options.precision:g} sd, warm-up included")
    print("| problem | median | all seeds | reached | sharpened | seconds |")
    print("|---|---|---|---|---|---|")
    for name in options.problems or list(PROBLEMS)[:5]:
        target, rows = PROBLEMS[name](), []
        for seed in range(1, options.seeds + 1):
            started = time.perf_counter()
            run = lw.sample(
                target,
                20_000,
                precision=options.precision,
                random_seed=seed,
                progressbar=False,
            )
            seconds = time.perf_counter() - started
            assert run.precision is not None
            rows.append((run.cost.n_exact, run.precision.is_reached, run.estimate().is_sharpened, seconds))
        each = np.array(rows, dtype=float)
        print(
            f"| {name} | {np.median(each[:, 0]):,.0f} | {', '.join(f'{n:,.0f}' for n in each[:, 0])} | "
            f"{each[:, 1].mean():.0%} | {each[:, 2].mean():.0%} | {np.median(each[:, 3]):.1f} |",
            flush=True,
        )


def stopping(options: argparse.Namespace) -> None:
    print(
        f"errors of runs that stopped at a precision of {options.precision:g}, and coverage of 90 % intervals"
    )
    print(
        "| problem | draws of a chain | sharpened | "
        + " | ".join(_GROUPS)
        + " | root mean squared error, in sds |"
    )
    print("|---|" + "---|" * 7)
    for name in options.problems or ["bank", "pde by outputs", "banana", "gumbel, d = 10"]:
        target, true, rows = PROBLEMS[name](), truth(name), []
        for seed in range(1, options.seeds + 1):
            run = lw.sample(target, 20_000, precision=options.precision, random_seed=seed, progressbar=False)
            rows.append((run, numbers(run, plain=False)))
        off = np.array([row[1].value for row in rows]) - true.value
        errors = np.array([row[1].error for row in rows])
        covered = (np.abs(off) <= _NINETY * np.hypot(errors, true.error)).mean(axis=(0, 2))
        relative = np.sqrt(((off[:, :2] / true.value[1]) ** 2).mean(axis=(0, 2)))
        n_draws = np.median([row[0].draws.shape[1] for row in rows])
        share = np.mean([row[0].estimate().is_sharpened for row in rows])
        print(
            f"| {name} | {n_draws:.0f} | {share:.0%} | {' | '.join(f'{each:.3f}' for each in covered)} | "
            f"means {relative[0]:.4f}, sds {relative[1]:.4f} |",
            flush=True,
        )


class Altered:
    """A surrogate of Gumbel variables: the exact potential, changed.

    Parameters
    ----------
    scale : float
        Factor of the potential.
    shift : float
        Of the first parameter.
    rough : float
        Height of ripples.
    second : float
        Mass of a second mode, which the posterior does not have, beside the first.
    """

    kind = "altered"

    def __init__(
        self, scale: float = 1.0, shift: float = 0.0, rough: float = 0.0, second: float = 0.0
    ) -> None:
        self.scale, self.shift, self.rough, self.second = scale, shift, rough, second
        self._target = gumbel(2).target

    def potential(self, position: np.ndarray) -> np.ndarray:
        return self._both(position)[0]

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._both(position)

    def gradient(self, position: np.ndarray) -> np.ndarray:
        return self._both(position)[1]

    def _both(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, slope = self._exact(position - np.array([self.shift, 0.0]))
        value, slope = self.scale * value, self.scale * slope
        if self.second:
            other, other_slope = self._exact(position - np.array([6.0, 0.0]))
            logs = np.array([np.log1p(-self.second) - value, np.log(self.second) - other])
            both = np.logaddexp(*logs)
            share = np.exp(logs - both)
            value, slope = -both, share[0][:, None] * slope + share[1][:, None] * other_slope
        waves = 5.0 * position
        value = value + self.rough * np.sin(waves).sum(axis=-1)
        return value, slope + 5.0 * self.rough * np.cos(waves)

    def _exact(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = self._target.evaluate(np.atleast_2d(position), gradient=True)
        return -raw.log_density, -raw.gradient


def lies(options: argparse.Namespace) -> None:
    exact = gumbel(2)
    draws = exact.draw(np.random.default_rng(0), _DIRECT)
    value = np.array([draws.mean(axis=0), draws.std(axis=0), *np.quantile(draws, _PROBABILITIES, axis=0)])
    surrogates = {
        "true": Altered(),
        "half as steep": Altered(scale=0.5),
        "0.8 as steep": Altered(scale=0.8),
        "twice as steep": Altered(scale=2.0),
        "shifted by 0.3": Altered(shift=0.3),
        "shifted by 1": Altered(shift=1.0),
        "rough, 0.3": Altered(rough=0.3),
        "rough, 1": Altered(rough=1.0),
        "a second mode of 1 %": Altered(second=0.01),
        "a second mode of 5 %": Altered(second=0.05),
        "a second mode of 30 %": Altered(second=0.3),
    } | {name: lie(Altered()) for name, lie in LIES.items() if name != "NaN"}
    n, rng = options.replications, np.random.default_rng(1)
    print(f"4 x {options.draws} draws, {n} replications: 90 % intervals of two parameters")
    print(
        "| surrogate | acceptance | sharpened | "
        + " | ".join(f"{each}: gain | coverage" for each in _GROUPS)
        + " |"
    )
    print("|---|" + "---|" * 10)
    for name, surrogate in surrogates.items():
        if options.problems and name not in options.problems:
            continue
        kernel = lw.SurrogateTransition(0.5, 3, surrogate=surrogate)
        init = exact.draw(rng, 4 * n)
        whole = lw.sample(
            exact.target,
            options.draws,
            tune=0,
            chains=4 * n,
            method=kernel,
            init=init,
            random_seed=1,
            progressbar=False,
        )
        found = [_replication(whole, i) for i in range(n)]
        sharp = np.array([numbers(run, plain=False) for run in found])
        plain = np.array([numbers(run, plain=True) for run in found])
        off, plain_off = (np.abs(each[:, 0] - value) for each in (sharp, plain))
        covered = (off <= _NINETY * sharp[:, 1]).mean(axis=(0, 2))
        gains = (plain_off**2).mean(axis=(0, 2)) / (off**2).mean(axis=(0, 2))
        share = np.mean([run.estimate().is_sharpened for run in found])
        accepted = whole.posterior.stats["acceptance_rate"].mean()
        cells = [f"{gain:.2f} | {each:.3f}" for gain, each in zip(gains, covered, strict=True)]
        print(f"| {name} | {accepted:.2f} | {share:.0%} | {' | '.join(cells)} |", flush=True)


def _replication(whole: lw.Run, i: int) -> lw.Run:
    """Return four of the chains as a run of their own."""
    rows, record = slice(4 * i, 4 * i + 4), whole.posterior
    stats = {name: each[rows] for name, each in record.stats.items()}
    return replace(whole, posterior=Record(record.draws[rows], stats, record.cost), seed=i)


def evidence(options: argparse.Namespace) -> None:
    print("| posterior | evaluations | log evidence +- error | truth | z |")
    print("|---|---|---|---|---|")
    for name, (target, true) in _evidences().items():
        for seed in range(1, options.seeds + 1):
            run = lw.sample(target, options.draws, random_seed=seed, progressbar=False)
            found = run.log_evidence()
            z = (found.value - true) / found.error
            print(
                f"| {name}, seed {seed} | {run.cost.n_exact:,} | {found.value:.4f} +- {found.error:.4f} | {true:.4f} | "
                f"{z:.1f} |",
                flush=True,
            )


def _evidences() -> dict[str, tuple[lw.Target | lw.ForwardTarget, float]]:
    """Return targets whose evidence is known: conjugate, by quadrature, and with two modes."""
    found: dict[str, tuple[lw.Target | lw.ForwardTarget, float]] = {}
    rng = np.random.default_rng(3)
    for dim in (5, 20):
        design = rng.standard_normal((3 * dim, dim))
        data = design @ rng.standard_normal(dim) + 0.5 * rng.standard_normal(3 * dim)
        covariance = design @ design.T + 0.25 * np.eye(3 * dim)
        logdet = np.linalg.slogdet(2.0 * np.pi * covariance)[1]
        true = -0.5 * (logdet + data @ np.linalg.solve(covariance, data))
        found[f"conjugate normal, d = {dim}"] = (
            lw.ForwardTarget(
                lambda x, design=design: design @ x,
                lw.GaussianLikelihood(data, sd=0.5),
                lw.Prior(x=lw.Normal(0.0, 1.0, shape=dim)),
            ),
            float(true),
        )
    design = rng.standard_normal((60, 4))
    labels = rng.random(60) < 1.0 / (1.0 + np.exp(-design @ np.array([1.0, -1.0, 0.5, 0.0])))

    def logistic(x: np.ndarray) -> np.ndarray:
        logit = x @ design.T
        prior = -0.5 * (x**2).sum(axis=1) - 2.0 * np.log(2.0 * np.pi)
        return (logit * labels - np.logaddexp(0.0, logit)).sum(axis=1) + prior

    found["logistic regression, d = 4"] = (
        lw.Target(logistic, dim=4, vectorized=True),
        _by_quadrature(logistic, design),
    )
    # The square of a parameter is seen: two modes, one for each sign.
    data, sd = np.array([2.2, 1.9, 2.1]), 0.5
    grid = np.linspace(-10.0, 10.0, 400_001)
    logs = -0.5 * grid**2 - 0.5 * np.log(2.0 * np.pi)
    logs += sum(-0.5 * ((y - grid**2) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2.0 * np.pi) for y in data)
    found["two modes, outputs"] = (
        lw.ForwardTarget(
            lambda a: np.full(3, a**2), lw.GaussianLikelihood(data, sd=sd), lw.Prior(a=lw.Normal(0.0, 1.0))
        ),
        float(np.log(np.trapezoid(np.exp(logs), grid))),
    )
    return found


def _by_quadrature(log_density: Callable[[np.ndarray], np.ndarray], design: np.ndarray) -> float:
    """Integrate the posterior of a logistic regression by Gauss-Hermite quadrature about the mode."""
    from scipy.optimize import minimize

    mode = minimize(lambda x: -float(log_density(x[None])[0]), np.zeros(4))
    mass = 1.0 / (1.0 + np.exp(-design @ mode.x))
    root = np.linalg.cholesky(np.linalg.inv(np.eye(4) + (design.T * (mass * (1.0 - mass))) @ design))
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    grid = np.stack([each.ravel() for each in np.meshgrid(*[nodes] * 4, indexing="ij")], axis=1)
    product = np.prod(np.stack(np.meshgrid(*[weights] * 4, indexing="ij")), axis=0).ravel()
    values = log_density(mode.x + grid @ root.T) + 0.5 * (grid**2).sum(axis=1)
    total = product @ np.exp(values - values.max())
    return float(np.log(total) + values.max() + np.log(np.diag(root)).sum())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["estimates", "precision", "stopping", "lies", "evidence"])
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--precision", type=float, default=1000**-0.5)
    parser.add_argument("--replications", type=int, default=200)
    warnings.simplefilter("ignore")
    chosen = parser.parse_intermixed_args()
    globals()[chosen.what](chosen)
