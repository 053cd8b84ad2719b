"""Two species, an ODE solver, unknown noise of each, log-normal priors: the model of many introductions."""

import numpy as np
from scipy.integrate import solve_ivp

import leapwise as lw

YEARS = np.arange(1.0, 21.0)


def solve(alpha, beta, gamma, delta, prey, predator):
    def slope(_, z):
        return [alpha * z[0] - beta * z[0] * z[1], delta * z[0] * z[1] - gamma * z[1]]

    found = solve_ivp(slope, (0.0, 20.0), [prey, predator], t_eval=YEARS, rtol=1e-6, atol=1e-8)
    return {"hares": found.y[0], "lynxes": found.y[1]}


def simulated():
    """Return data of known parameters, with log-normal errors."""
    rng, clean = np.random.default_rng(1), solve(0.55, 0.028, 0.8, 0.024, 33.0, 6.0)
    return {name: each * rng.lognormal(0.0, 0.2, len(each)) for name, each in clean.items()}


target = lw.ForwardTarget(
    solve,
    lw.LogNormalLikelihood(simulated(), sd={"hares": "noise_hares", "lynxes": "noise_lynxes"}),
    lw.Prior(
        alpha=lw.LogNormal(np.log(0.5), 0.5),
        beta=lw.LogNormal(np.log(0.03), 0.5),
        gamma=lw.LogNormal(np.log(0.8), 0.5),
        delta=lw.LogNormal(np.log(0.025), 0.5),
        prey=lw.LogNormal(np.log(30.0), 0.5),
        predator=lw.LogNormal(np.log(5.0), 0.5),
        noise_hares=lw.HalfNormal(0.5),
        noise_lynxes=lw.HalfNormal(0.5),
    ),
)

if __name__ == "__main__":
    run = lw.sample(target, random_seed=1)
    print(run.summary())
    tree = run.to_datatree()  # predictions, replicated data and pointwise log-likelihoods, at no further run
    print(tree["predictions"]["hares"].quantile([0.05, 0.95], dim=("chain", "draw")).values.round(1))
