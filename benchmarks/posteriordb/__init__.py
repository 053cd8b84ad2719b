"""Sixteen posteriors of posteriordb, re-written in NumPy with gradients by hand.

Each is a log-density on unconstrained space, with the Jacobians of Stan's transforms, up to a constant. The
models are those of the public collection stan-dev/posteriordb. Its reference draws are the truth to compare
with: by Stein's identities, E[d_i log p] = 0 and E[x_i d_j log p] = -1 if i = j, else 0 (``tests/posteriordb``).

- `data` finds the folder of data and reference draws: the environment variable ``LEAPWISE_POSTERIORDB``,
  else ``../shared/posteriordb`` beside the checkout.
- `transforms` are the maps between unconstrained and constrained parameters.
- `posterior` joins a space of parameters and a density into a `Posterior`.
- `regressions`, `time_series`, `hierarchies`, `hidden_markov` and `mixtures` are the models.
- `registry` maps names to posteriors::

    from benchmarks.posteriordb.registry import NAMES, posterior

    garch = posterior("garch-garch11")
    garch.target()  # leapwise.Target with gradient; garch.values() is without
    garch.reference()  # (10, 1000, 4), unconstrained

Every density takes ``(n, dim)`` at once. Where floating-point numbers overflow it is -inf with gradient zero.
"""
