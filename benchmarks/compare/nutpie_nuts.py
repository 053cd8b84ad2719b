"""nutpie's NUTS, four chains on as many cores as there are."""

from __future__ import annotations

import os
import warnings

import numpy as np

from .exact import Exact
from .outcome import Outcome, Watch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # of the ArviZ that it brings
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc


def run(exact: Exact, seed: int, draws: int, *, tune: int, low_rank: bool, chains: int = 4) -> Outcome:
    """Sample with the diagonal mass matrix, or with its low-rank correction."""
    function = exact.one_point()
    function(exact.starts(seed, 1)[0])  # compiles
    model = from_pyfunc(
        exact.dim,
        lambda: function,
        lambda *_: lambda position: {"x": position},
        [np.dtype(float)],
        [(exact.dim,)],
        ["x"],
        make_initial_point_fn=lambda number: exact.starts(number % 2**32, 1)[0],
    )
    watch = Watch()
    with watch.part("all"):
        trace = nutpie.sample(
            model,
            draws=draws,
            tune=tune,
            chains=chains,
            cores=min(chains, os.cpu_count() or 1),
            seed=seed,
            progress_bar=False,
            low_rank_modified_mass_matrix=low_rank,
        )
    n_steps = [int(stats["n_steps"].sum()) for stats in (trace.warmup_sample_stats, trace.sample_stats)]
    return Outcome(
        draws=trace.posterior["x"].values,
        n_values=0,
        n_gradients=sum(n_steps),
        seconds=watch.seconds,
        notes={
            "divergences": int(trace.sample_stats["diverging"].sum()),
            "warm-up evaluations": n_steps[0],
        },
    )
