"""What is said of the target: edges of its support, and a model that does not fit."""

from dataclasses import replace

import numpy as np
import pytest

from leapwise import HMC, ForwardTarget, GaussianLikelihood, NormalPrior, Target, UniformPrior, sample
from leapwise.kernels import State
from leapwise.results import Cost, Record, TargetReport, warnings_for
from leapwise.results.diagnostics import n_outside, outside

T = np.linspace(0.0, 3.0, 8)
DATA = 2.0 * np.exp(-0.5 * T) + 0.05 * np.array([1.0, -1.0, 0.5, 0.0, -0.5, 1.0, 0.0, -1.0])


def solve(x):
    return x[0] * np.exp(-x[1] * T)


def solve_with_jacobian(x):
    decay = np.exp(-x[1] * T)
    return x[0] * decay, np.stack([decay, -T * x[0] * decay], axis=1)


def decay(sd, prior=None, likelihood=None):
    return ForwardTarget(
        solve,
        likelihood or GaussianLikelihood(DATA, sd=sd),
        prior or UniformPrior([0.1, 0.01], [10.0, 5.0]),
        jacobian=solve_with_jacobian,
    )


class Laplace:
    """Errors that are not Gaussian."""

    def log_density(self, points):
        return -np.abs(points - DATA).sum(axis=1) / 1e-3

    def gradient(self, points):
        return -np.sign(points - DATA) / 1e-3


def left(n: int) -> dict[str, np.ndarray]:
    """Statistics of HMC with `n` of 2000 trajectories outside the support."""
    found = np.arange(2000).reshape(4, 500) < n
    return {"diverging": found, "left": found, "acceptance_rate": np.where(found, 0.0, 0.9)}


class TestEdges:
    @pytest.mark.parametrize(
        ("target", "said", "unsaid"),
        [
            (None, "give bounds= for", "prior"),
            (TargetReport(), "give bounds= for", "prior"),
            (TargetReport(is_forward=True), "give the prior's limits as bounds=", "for parameters"),
            (TargetReport(is_forward=True, is_bounded=True), "reparametrise", "bounds="),
            (TargetReport(is_bounded=True), "reparametrise", "bounds="),
        ],
    )
    def test_advice_fits_the_target(self, make_run, target, said, unsaid):
        (found,) = warnings_for(make_run(stats=left(400), target=target))
        assert found.startswith("400 of 2000 trajectories ended outside the support")
        assert said in found and unsaid not in found
        assert "smaller steps" not in found  # which would not keep them inside

    def test_few_are_no_trouble(self, make_run):
        assert warnings_for(make_run(stats=left(100))) == []
        assert len(warnings_for(make_run(stats=left(101)))) == 1

    def test_rejections_outside_have_one_warning(self, make_run):
        """1300 of 2000 are lost, but all those inside are accepted."""
        (found,) = warnings_for(make_run(stats=left(1300)))
        assert "outside the support" in found

    def test_divergences_inside_are_told_apart(self, make_run):
        stats = left(400)
        stats["diverging"] = stats["diverging"].copy()
        stats["diverging"][3, -3:] = True
        run, inside = make_run(stats=stats), 3
        edge, lost = warnings_for(run)
        assert edge.startswith("400 of 2000") and lost.startswith(f"{inside} of 2000 trajectories diverged")
        cost = run.summary().cost["draws"]
        assert (cost["n_outside"], cost["n_divergences"]) == (400, inside)
        assert "outside the support, rejected" in str(run.summary())

    def test_proposals_of_a_surrogate_outside_are_no_fault_of_its(self, make_surrogate_run):
        run = make_surrogate_run()
        stats = run.posterior.stats
        beyond = np.arange(2000).reshape(4, 500) % 2 == 0
        stats["discrepancy"] = np.where(beyond, np.inf, stats["discrepancy"])
        stats["diverging"], stats["acceptance_rate"] = beyond, np.where(beyond, 0.0, 0.9)
        run.draws[0, 100:140] = run.draws[0, 100]  # 40 draws at one place, as half of its proposals are lost
        (found,) = warnings_for(run)
        assert "1000 of 2000 trajectories ended outside the support" in found
        stats["discrepancy"] = np.where(beyond, 5000.0, stats["discrepancy"])
        assert any("surrogate trajectories diverged" in each for each in warnings_for(run))

    def test_edges_of_a_surrogate_are_not_those_of_the_support(self):
        stats = {"diverging": np.ones((1, 2), bool), "left": np.ones((1, 2), bool)}
        assert outside(stats).all()
        assert not outside(stats | {"discrepancy": np.full((1, 2), np.nan)}).any()
        mixed = stats | {"discrepancy": np.full((1, 2), np.nan), "part": np.ones((1, 2), int)}
        assert outside(mixed).all()

    def test_failures_are_counted_once(self, make_run):
        run = make_run(stats=left(400))
        posterior = Record(run.draws, run.posterior.stats, Cost(n_failures=380))
        assert n_outside(posterior) == 20
        (found,) = warnings_for(replace(run, posterior=posterior))
        assert "failed at 380 positions" in found

    def test_a_run_at_an_edge_says_so(self):
        target = Target(lambda x: -0.5 * x @ x if x[0] > 0 else -np.inf, lambda x: -x, dim=1)
        run = sample(target, draws=100, tune=100, method=HMC(), init=np.ones((4, 1)), random_seed=1)
        share = run.posterior.stats["left"].mean()
        assert share > 0.05
        found = " ".join(warnings_for(run))
        assert f"{share * 400:.0f} of 400 trajectories ended outside the support" in found
        assert "give bounds= for parameters" in found and "smaller steps" not in found


class TestFit:
    @pytest.mark.parametrize("method", [None, HMC()])
    @pytest.mark.parametrize(("sd", "told"), [(0.05, False), (0.002, True)])
    def test_a_model_that_does_not_fit_is_told(self, method, sd, told):
        run = sample(decay(sd), draws=200, tune=None if method is None else 200, method=method, random_seed=1)
        found = [each for each in warnings_for(run) if "does not fit the data" in each]
        assert len(found) == told
        chi2 = min(np.sum(((solve(x) - DATA) / sd) ** 2) for x in run.draws.reshape(-1, 2))
        assert run.target.misfit == pytest.approx(chi2, abs=4.0)
        assert not told or f"chi^2 of {run.target.misfit:,.0f} for 8 outputs" in found[0]

    def test_it_is_not_known_of_other_likelihoods(self):
        state = State(np.array([[0.0, 0.0]]), np.array([1e6]))
        found = TargetReport.of(decay(0.0, likelihood=Laplace()), state)
        assert found.is_forward and np.isnan(found.misfit) and found.fits
        plain = TargetReport.of(Target(lambda x: -1e6, dim=2), state)
        assert not plain.is_forward and plain.fits

    @pytest.mark.parametrize("prior", [UniformPrior([0.1, 0.01], [10.0, 5.0]), NormalPrior(1.0, 2.0, dim=2)])
    @pytest.mark.parametrize("correlated", [False, True])
    def test_it_is_that_of_the_lowest_position(self, prior, correlated, rng):
        covariance = 0.01 * (np.eye(8) + 0.3 * correlated)
        likelihood = GaussianLikelihood(DATA, covariance=covariance)
        target = decay(0.0, prior, likelihood)
        position = target.transform.to_position(rng.uniform(0.5, 3.0, (20, 2)))
        parameters = target.transform.to_parameters(position)
        potential = np.array(
            [-target.evaluate(each[None], gradient=False).log_density[0] for each in parameters]
        )
        potential = potential - target.transform.log_jacobian(position)
        residual = solve(parameters[potential.argmin()]) - DATA
        halves = State(position[:10], potential[:10]), State(position[10:], potential[10:])
        found = TargetReport.of(target, None, *halves)
        assert found.misfit == pytest.approx(residual @ np.linalg.solve(covariance, residual), rel=1e-9)
        assert found.is_bounded == isinstance(prior, UniformPrior)

    def test_nothing_is_said_before_there_are_draws(self, make_run):
        far = TargetReport(is_forward=True, misfit=500.0, n_outputs=8)
        assert len(warnings_for(make_run(target=far))) == 1
        assert not any("fit" in each for each in warnings_for(make_run(target=far, draws=0, complete=False)))

    def test_the_limit_is_six_standard_deviations(self):
        for m in (1, 8, 1000):
            limit = m + 6.0 * np.sqrt(2.0 * m)
            assert TargetReport(misfit=limit - 0.01, n_outputs=m).fits
            assert not TargetReport(misfit=limit + 0.01, n_outputs=m).fits
