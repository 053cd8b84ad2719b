"""An expensive forward model without a gradient: one run of the model per exact draw."""

import numpy as np

import leapwise as lw

t = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0])
y = np.array([2.07, 1.62, 1.16, 0.87, 0.68, 0.44, 0.20, 0.10])


def solve(x):  # replace it by your solver: parameters in, outputs out
    return x[0] * np.exp(-x[1] * t)


target = lw.ForwardTarget(
    solve, lw.GaussianLikelihood(y, sd=0.05), lw.UniformPrior([0.1, 0.01], [10.0, 5.0]), names=["a", "k"]
)

if __name__ == "__main__":
    run = lw.sample(target, draws=1000, chains=4, random_seed=1)
    print(run.summary())
