r"""Two hidden Markov models, their states summed out.

With :math:`b_{tk}` the density of observation t in state k, the likelihood is
:math:`b_1^T M_2 M_3 \cdots M_T 1` with :math:`(M_t)_{jk} = \theta_{jk} b_{tk}`. The product is taken in pairs, then in
pairs of pairs: log2(T) rounds over all of time at once. Each product is divided by its largest entry, whose log is
added to the value; the value does not depend on these divisors, so the gradient takes them as constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.posteriordb.posterior import Posterior
from benchmarks.posteriordb.regressions import normal
from benchmarks.posteriordb.transforms import Ordered, Space, simplex, vector


def likelihood(
    transition: np.ndarray, log_density: np.ndarray, gradient: bool
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Sum over all paths of states.

    Parameters
    ----------
    transition : ndarray
        ``(K, K, n)``: from state j to state k, for each row.
    log_density : ndarray
        ``(K, n, T)``: of each observation in each state.
    gradient : bool
        Whether to return gradients.

    Returns
    -------
    value : ndarray
        The log-likelihoods ``(n,)``.
    by_transition, by_log_density : ndarray or None
        Its gradients, of the same shapes as the arguments. The second are the probabilities of the states.
    """
    largest = log_density.max(axis=0)
    density = np.exp(log_density - largest)
    start, matrices = density[:, :, 0], transition[..., None] * density[None, :, :, 1:]
    product, log_scale, rounds = _product(matrices)
    tail = product.sum(axis=1)
    total = (start * tail).sum(axis=0)
    value = np.log(total) + log_scale + largest.sum(axis=1)
    if not gradient:
        return value, None, None
    by_product = np.broadcast_to((start / total)[:, None], product.shape)
    by_matrices = _back(by_product[..., None], rounds)[..., : matrices.shape[-1]]
    by_transition = (by_matrices * density[None, :, :, 1:]).sum(axis=-1)
    by_log_density = np.empty_like(density)
    by_log_density[:, :, 0] = start * tail / total
    by_log_density[:, :, 1:] = (by_matrices * matrices).sum(axis=0)
    return value, by_transition, by_log_density


_Round = tuple[np.ndarray, np.ndarray, np.ndarray]


def _product(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[_Round]]:
    """Multiply ``(K, K, n, T)`` over T; return the scaled product, the log of its scale and what `_back` needs."""
    k, _, n, length = matrices.shape
    size = 1 << (length - 1).bit_length()
    level = np.zeros((k, k, n, size))
    level[..., :length] = matrices
    level[range(k), range(k), :, length:] = 1.0  # identities up to a power of two
    log_scale, rounds = np.zeros(n), []
    while level.shape[-1] > 1:
        left, right = level[..., 0::2], level[..., 1::2]
        level = (left[:, :, None] * right[None]).sum(axis=1)
        scale = level.max(axis=(0, 1))
        level /= scale
        log_scale += np.log(scale).sum(axis=-1)
        rounds.append((left, right, scale))
    return level[..., 0], log_scale, rounds


def _back(slope: np.ndarray, rounds: list[_Round]) -> np.ndarray:
    """Turn the gradient by the product into that by each matrix: of C = A B, C' B^T and A^T C'."""
    for left, right, scale in reversed(rounds):
        slope = slope / scale
        parts = np.empty((*left.shape[:3], 2 * left.shape[3]))
        parts[..., 0::2] = (slope[:, None] * right[None]).sum(axis=2)
        parts[..., 1::2] = (left[:, :, None] * slope[:, None]).sum(axis=0)
        slope = parts
    return slope


@dataclass(frozen=True)
class NormalStates:
    """Two states of means mu and unit variance; parameters: two rows of the transition matrix, mu."""

    y: np.ndarray

    def __call__(self, parameters: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        transition, mu = parameters[:, :4].T.reshape(2, 2, -1), parameters[:, 4:]
        residual = self.y - mu.T[:, :, None]
        value, by_transition, weight = likelihood(transition, -0.5 * residual**2, gradient)
        prior, prior_slope = normal(mu, 1.0, mean=(3.0, 10.0))
        value = value + prior.sum(axis=1)
        if by_transition is None or weight is None:
            return value, None
        slope = np.empty_like(parameters)
        slope[:, :4] = by_transition.reshape(4, -1).T
        slope[:, 4:] = (weight * residual).sum(axis=-1).T + prior_slope
        return value, slope


@dataclass(frozen=True)
class ExponentialStates:
    """Two states, two exponential observations; parameters: two rows of the transition matrix, and the rates.

    Attributes
    ----------
    observed : ndarray
        ``(2, T)``: u with rates phi, and v with rates lambda.
    concentration : ndarray
        Of the Dirichlet priors of the transition matrix, ``(4,)``.
    """

    observed: np.ndarray
    concentration: np.ndarray

    def __call__(self, parameters: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray | None]:
        probability, rates = parameters[:, :4], parameters[:, 4:]
        by_kind = rates.T.reshape(2, 2, -1)  # kind of observation, state, row
        log_density = np.log(by_kind).sum(axis=0)[..., None] - np.einsum(
            "ikn,it->knt", by_kind, self.observed
        )
        value, by_transition, weight = likelihood(probability.T.reshape(2, 2, -1), log_density, gradient)
        prior, prior_slope = normal(rates, 1.0, mean=(0.0, 3.0, 0.0, 3.0))
        value = value + prior.sum(axis=1) + np.log(probability) @ (self.concentration - 1.0)
        if by_transition is None or weight is None:
            return value, None
        slope = np.empty_like(parameters)
        slope[:, :4] = by_transition.reshape(4, -1).T + (self.concentration - 1.0) / probability
        by_rates = weight.sum(axis=-1) / by_kind - np.einsum("knt,it->ikn", weight, self.observed)
        slope[:, 4:] = by_rates.reshape(4, -1).T + prior_slope
        return value, slope


_TRANSITION = (simplex(vector("theta1", 2)), simplex(vector("theta2", 2)))


def hmm_example(name: str, data: dict[str, Any]) -> Posterior:
    """Two states of increasing positive means, with normal priors."""
    return Posterior(
        name, Space(*_TRANSITION, Ordered(vector("mu", 2), positive=True)), NormalStates(data["y"])
    )


def hmm_drive_0(name: str, data: dict[str, Any]) -> Posterior:
    """Speed and distance of a basketball player, who drives to the hoop or not."""
    rates = (Ordered(vector(rate, 2), positive=True) for rate in ("phi", "lambda"))
    density = ExponentialStates(np.array([data["u"], data["v"]]), data["alpha"].astype(float).ravel())
    return Posterior(name, Space(*_TRANSITION, *rates), density)
