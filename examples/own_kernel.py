"""Test a kernel of your own: a random walk with a mistake that no trace plot shows, and the same without it."""

import numpy as np

import leapwise as lw
from leapwise.testing import check_invariance, gumbel


class RandomWalk:
    """Metropolis with normal proposals. With `adapt`, proposals are longer far out, which is a mistake."""

    is_exact = True

    def __init__(self, adapt):
        self.adapt = adapt

    def step(self, streams, state, evaluator):
        width = 0.8 + 0.1 * np.abs(state.position) if self.adapt else 0.8  # depends on the state: the mistake
        proposed = state.position + width * streams.normals(state.position.shape[1])
        proposal = lw.State.from_evaluation(evaluator.value(proposed))
        accepted = streams.uniforms() < np.exp(np.minimum(0.0, state.potential - proposal.potential))
        return state.accept(accepted, proposal), None


if __name__ == "__main__":
    print(check_invariance(RandomWalk(adapt=True), gumbel()))
    print(check_invariance(RandomWalk(adapt=False), gumbel()))
