"""NumPyro's NUTS."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

from .compile_clock import CompileClock
from .exact import Exact
from .outcome import Outcome, Watch


def run(
    exact: Exact, seed: int, draws: int, *, tune: int, dense: bool, chains: int, total_chains: int = 4
) -> Outcome:
    """Sample with one chain as long as four, or with four that move together."""
    log_density = exact.log_density()
    kernel = NUTS(potential_fn=lambda position: -log_density(position), dense_mass=dense)
    mcmc = MCMC(
        kernel,
        num_warmup=tune,
        num_samples=draws * total_chains // chains,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = jnp.asarray(exact.starts(seed, chains))
    keys = jax.random.split(jax.random.key(seed))
    watch = Watch(CompileClock())
    with watch.part("warmup"):
        mcmc.warmup(
            keys[0],
            init_params=start if chains > 1 else start[0],
            collect_warmup=True,
            extra_fields=("num_steps",),
        )
        n_warmup = int(mcmc.get_extra_fields()["num_steps"].sum())
    with watch.part("draws"):
        mcmc.run(keys[1], extra_fields=("num_steps", "diverging"))
        found = np.asarray(mcmc.get_samples(group_by_chain=True))
        fields = jax.device_get(mcmc.get_extra_fields())
        n_gradients = n_warmup + int(fields["num_steps"].sum())
    return Outcome(
        draws=found,
        n_values=0,
        n_gradients=n_gradients,
        seconds=watch.seconds,
        warmup_seconds=watch.parts["warmup"],
        compile_seconds=watch.compile_seconds,
        notes={"divergences": int(fields["diverging"].sum()), "warm-up evaluations": n_warmup},
    )
