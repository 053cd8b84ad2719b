"""BlackJAX's NUTS after its window adaptation, four chains that move together."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from .compile_clock import CompileClock
from .exact import Exact
from .outcome import Outcome, Watch


def run(exact: Exact, seed: int, draws: int, *, tune: int, dense: bool, chains: int = 4) -> Outcome:
    """Adapt each chain, then draw."""
    log_density = exact.log_density()
    adaptation = blackjax.window_adaptation(
        blackjax.nuts,
        log_density,
        is_mass_matrix_diagonal=not dense,
        adaptation_info_fn=lambda state, info, adapting: info.num_integration_steps,
    )
    kernel = blackjax.nuts.build_kernel()

    @jax.jit
    def adapt(keys, start):
        (state, settings), n_steps = jax.vmap(lambda key, x: adaptation.run(key, x, num_steps=tune))(
            keys, start
        )
        return state, settings, n_steps.sum()

    @jax.jit
    def draw(key, state, settings):
        def step(state, key):
            moved, info = jax.vmap(
                lambda key, one, own: kernel(
                    key, one, log_density, own["step_size"], own["inverse_mass_matrix"]
                )
            )(jax.random.split(key, chains), state, settings)
            return moved, (moved.position, info.num_integration_steps, info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(key, draws))[1]

    start = jnp.asarray(exact.starts(seed, chains))
    keys = jax.random.split(jax.random.key(seed))
    watch = Watch(CompileClock())
    with watch.part("warmup"):
        state, settings, warmup_steps = jax.block_until_ready(adapt(jax.random.split(keys[0], chains), start))
    with watch.part("draws"):
        position, n_steps, diverging = jax.device_get(draw(keys[1], state, settings))
    return Outcome(
        draws=np.moveaxis(position, 0, 1),
        n_values=0,
        n_gradients=int(warmup_steps) + int(n_steps.sum()),
        seconds=watch.seconds,
        warmup_seconds=watch.parts["warmup"],
        compile_seconds=watch.compile_seconds,
        notes={"divergences": int(diverging.sum())},
    )
