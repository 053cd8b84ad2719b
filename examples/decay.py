"""An expensive forward model without a gradient, unknown noise, and priors by name: one run of the model per draw."""

import numpy as np

import leapwise as lw

t = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])
y = np.array([2.07, 1.62, 1.16, 0.87, 0.68, 0.44, 0.20, 0.10])


def solve(a, k):  # replace it by your solver: parameters in, outputs out
    return a * np.exp(-k * t)


target = lw.ForwardTarget(
    solve,
    lw.GaussianLikelihood(y, sd="sigma"),
    lw.Prior(a=lw.LogNormal(0.0, 1.0), k=lw.HalfNormal(1.0), sigma=lw.HalfNormal(0.1)),
)

if __name__ == "__main__":
    run = lw.sample(target, draws=1000, chains=4, random_seed=1)
    print(run.summary())
