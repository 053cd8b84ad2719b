r"""Tests of accept rules without randomness: chains on finitely many states.

On a finite state space a kernel is a matrix :math:`P`, and its two properties are linear algebra:

.. math:: \pi P = \pi \quad\text{(invariance)}, \qquad \pi_i P_{ij} = \pi_j P_{ji} \quad\text{(detailed balance)},

with :math:`\pi_i \propto e^{-U_i}`. The rules of `leapwise.kernels.accept` do not depend on the space they are used on,
so they can be checked here to the last digits. Three kernels can be built around any such rule:

- `metropolis_matrix`: a symmetric proposal, accepted on the potential;
- `trajectory_matrix`: momenta, a map of phase space that preserves volume and is its own inverse up to the sign of the
  momentum (on a lattice: a permutation), accepted on the energy;
- `surrogate_transition_matrix`: :math:`k` steps of an inner chain that is reversible for a surrogate, accepted on the
  discrepancy.

The acceptance probability of a rule is not taken from its own report: `acceptance_probability` finds the uniform
numbers that it accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_whole
from leapwise.errors import InputError
from leapwise.kernels.accept import metropolis, surrogate_transition


def require_potential(potential: ArrayLike, n: int) -> np.ndarray:
    """Return the potentials of n states, checked: finite, or infinite where there is no mass."""
    given = np.asarray(potential, dtype=float)
    if given.shape != (n,) or not np.isfinite(given).any():
        raise InputError(
            f"potential must hold one number for each of the {n} states, some of them finite, got shape {given.shape}"
        )
    if np.isnan(given).any() or (given == -np.inf).any():
        raise InputError("potential must not be NaN or -inf anywhere; give inf for a state without mass")
    return given


def mass_of(potential: ArrayLike, n: int) -> np.ndarray:
    """Return the probabilities of n states."""
    given = require_potential(potential, n)
    mass = np.exp(given.min() - given)
    return np.asarray(mass / mass.sum())


def require_stochastic(value: ArrayLike, name: str, tolerance: float = 1e-12) -> np.ndarray:
    """Return a square matrix, checked: its rows must be probabilities."""
    matrix = np.asarray(value, dtype=float)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if (
        not square
        or not (matrix >= -tolerance).all()
        or not (np.abs(matrix.sum(axis=1) - 1.0) <= tolerance).all()
    ):
        raise InputError(
            f"{name} must be a square matrix whose rows are probabilities, got shape {matrix.shape}; "
            "divide each row by its sum"
        )
    return matrix


#: Takes energies, energies of proposals, and uniform numbers; returns what is accepted, and the probabilities.
Rule = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

#: The uniform numbers of NumPy's generators are the multiples of 1 / GRID.
GRID = 2**53


@dataclass(frozen=True)
class Balance:
    """Errors of a transition matrix.

    Attributes
    ----------
    invariance : float
        Largest entry of :math:`|\\pi P - \\pi|`.
    detailed_balance : float
        Largest entry of :math:`|\\pi_i P_{ij} - \\pi_j P_{ji}|`.
    tolerance : float
        Largest error allowed for both.
    """

    invariance: float
    detailed_balance: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether both are within the tolerance."""
        return max(self.invariance, self.detailed_balance) <= self.tolerance

    def __str__(self) -> str:
        verdict = "balanced" if self.passed else "NOT balanced"
        return (
            f"{verdict}: |pi P - pi| = {self.invariance:.1e}, |pi_i P_ij - pi_j P_ji| = {self.detailed_balance:.1e}, "
            f"allowed {self.tolerance:.0e}"
        )


def check_balance(matrix: ArrayLike, potential: ArrayLike, tolerance: float = 1e-13) -> Balance:
    """Check a transition matrix for invariance and detailed balance.

    Parameters
    ----------
    matrix : array_like of shape (n, n)
        Row i holds the probabilities of going from state i to each state.
    potential : array_like of shape (n,)
        Minus the log-probability of each state, up to a constant; infinite where there is none.
    tolerance : float
        Largest error allowed.

    Examples
    --------
    Moving round a circle leaves the uniform distribution invariant, but is not reversible:

    >>> circle = np.roll(np.eye(3), 1, axis=1)
    >>> found = check_balance(circle, np.zeros(3))
    >>> found.invariance < 1e-15, found.passed
    (True, False)
    """
    matrix = require_stochastic(matrix, "matrix", tolerance)
    mass = mass_of(potential, len(matrix))
    flow = mass[:, None] * matrix
    return Balance(
        float(np.abs(flow.sum(axis=0) - mass).max()), float(np.abs(flow - flow.T).max()), float(tolerance)
    )


def acceptance_probability(rule: Rule, energy: ArrayLike, proposal_energy: ArrayLike) -> np.ndarray:
    """Return the probability that a rule accepts, from its decisions on uniform numbers.

    The uniform numbers of a generator are the multiples of :math:`2^{-53}`. A rule accepts those below a limit, and
    bisection finds that limit exactly.

    Parameters
    ----------
    rule : callable
        Such as `leapwise.kernels.accept.metropolis`.
    energy, proposal_energy : array_like
        Of one shape, or shapes that broadcast.

    Examples
    --------
    >>> acceptance_probability(metropolis, [0.0, 1.0, 0.0], [np.log(4.0), 0.0, np.nan])
    array([0.25, 1.  , 0.  ])
    """
    before, after = np.broadcast_arrays(
        np.asarray(energy, dtype=float), np.asarray(proposal_energy, dtype=float)
    )
    shape, before, after = before.shape, before.ravel(), after.ravel()
    low, high = np.zeros(before.size, dtype=np.int64), np.full(before.size, GRID)
    while (low < high).any():
        middle = (low + high) // 2
        accepted, _ = rule(before, after, np.minimum(middle, GRID - 1) / GRID)
        undecided = low < high
        low = np.where(undecided & accepted, middle + 1, low)
        high = np.where(undecided & ~accepted, middle, high)
    found = low / GRID
    claimed = rule(before, after, np.zeros(before.size))[1]
    if not (np.abs(found - claimed) <= 2.0 / GRID).all():
        worst = int(np.argmax(np.abs(found - claimed)))
        raise InputError(
            f"the rule reports an acceptance probability of {claimed[worst]:.6g} but accepts with {found[worst]:.6g}; "
            "make it accept where the uniform number is below the probability that it reports"
        )
    return found.reshape(shape)


def metropolis_matrix(potential: ArrayLike, proposal: ArrayLike, rule: Rule = metropolis) -> np.ndarray:
    """Return the matrix of a chain that proposes and accepts on the potential.

    Parameters
    ----------
    potential : array_like of shape (n,)
        Argument of the rule; infinite where there is no mass.
    proposal : array_like of shape (n, n)
        Probabilities of proposals; symmetric, if the result should be balanced.
    rule : callable
        Accept rule.

    Examples
    --------
    >>> neighbours = (np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1)) / 2
    >>> potential = [0.0, 1.0, 3.0, 0.5]
    >>> print(check_balance(metropolis_matrix(potential, neighbours), potential))
    balanced: ...
    """
    proposal = require_stochastic(proposal, "proposal")
    return _accepted(require_potential(potential, len(proposal)), proposal, rule)


def surrogate_transition_matrix(
    potential: ArrayLike,
    surrogate: ArrayLike,
    proposal: ArrayLike,
    inner_steps: int = 1,
    rule: Rule = surrogate_transition,
    inner_rule: Rule = metropolis,
) -> np.ndarray:
    r"""Return the matrix of a surrogate transition.

    The inner chain :math:`\tilde P` is reversible for :math:`\tilde\pi \propto e^{-\tilde U}`, so
    :math:`\tilde\pi_i (\tilde P^k)_{ij} = \tilde\pi_j (\tilde P^k)_{ji}`; accepting with
    :math:`\min(1, e^{D_i - D_j})`, :math:`D = U - \tilde U`, makes that detailed balance for :math:`\pi`.

    Parameters
    ----------
    potential, surrogate : array_like of shape (n,)
        Exact potentials, infinite where there is no mass, and those of the surrogate, which may be anything.
    proposal : array_like of shape (n, n)
        Of the inner chain; symmetric.
    inner_steps : int
        Number of steps of the inner chain.
    rule : callable
        Accept rule on discrepancies.
    inner_rule : callable
        Accept rule of the inner chain, on potentials of the surrogate.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> potential, surrogate = rng.normal(size=(2, 12))
    >>> matrix = surrogate_transition_matrix(potential, surrogate, np.full((12, 12), 1 / 12), inner_steps=3)
    >>> check_balance(matrix, potential).passed, check_balance(matrix, surrogate).passed
    (True, False)
    """
    require_whole("inner_steps", inner_steps, 1)
    proposal = require_stochastic(proposal, "proposal")
    exact, predicted = require_potential(potential, len(proposal)), np.asarray(surrogate, dtype=float)
    if predicted.shape != exact.shape:
        raise InputError(
            f"surrogate must hold one number for each of the {len(exact)} states, got shape {predicted.shape}"
        )
    inner = np.linalg.matrix_power(_accepted(predicted, proposal, inner_rule), inner_steps)
    with np.errstate(invalid="ignore"):
        discrepancy = exact - predicted
    return _with_rejections(inner * acceptance_probability(rule, discrepancy[:, None], discrepancy[None, :]))


def trajectory_matrix(
    energy: ArrayLike, momentum_mass: ArrayLike, end: ArrayLike, rule: Rule = metropolis
) -> np.ndarray:
    r"""Return the matrix, over positions, of a chain that draws a momentum, applies a map and accepts on the energy.

    There are n positions and m momenta. A phase point has the number ``position * m + momentum``.

    Parameters
    ----------
    energy : array_like of shape (n, m)
        Argument of the rule: potential plus kinetic energy, plus the logarithm of the normalising constant of the
        latter if that depends on the position.
    momentum_mass : array_like of shape (n, m)
        Probabilities of momenta at each position.
    end : array_like of int, shape (n, m)
        Number of the phase point that each is mapped to; -1 where the trajectory is abandoned.
    rule : callable
        Accept rule.

    Examples
    --------
    Momenta -1, 0 and 1 on a circle of four positions; the map adds the momentum to the position:

    >>> position, momentum = np.meshgrid(np.arange(4), [-1, 0, 1], indexing="ij")
    >>> end = (position + momentum) % 4 * 3 + (momentum + 1)
    >>> kinetic, potential = np.array([0.3, 0.0, 0.3]), np.array([0.0, 1.0, 3.0, 0.5])
    >>> mass = np.exp(-kinetic) / np.exp(-kinetic).sum()
    >>> matrix = trajectory_matrix(potential[:, None] + kinetic, np.tile(mass, (4, 1)), end)
    >>> check_balance(matrix, potential).passed
    True
    """
    energies, mass, ends = (
        np.asarray(energy, dtype=float),
        np.asarray(momentum_mass, dtype=float),
        np.asarray(end),
    )
    if not energies.shape == mass.shape == ends.shape or energies.ndim != 2:
        raise InputError(
            f"energy, momentum_mass and end must have one shape (positions, momenta), got {energies.shape}, "
            f"{mass.shape} and {ends.shape}"
        )
    n, m = energies.shape
    if not (mass >= 0).all() or not (np.abs(mass.sum(axis=1) - 1.0) <= 1e-12).all():
        raise InputError(
            "momentum_mass must hold probabilities that sum to 1 at each position; divide each row by its sum"
        )
    if ends.dtype.kind not in "iu" or not ((ends >= -1) & (ends < n * m)).all():
        raise InputError(
            f"end must hold whole numbers from 0 to {n * m - 1}, position * {m} + momentum, or -1 where the trajectory "
            "is abandoned"
        )
    there = np.where(ends >= 0, energies.ravel()[ends], np.nan)
    moved = np.zeros((n, n))
    start = np.broadcast_to(np.arange(n)[:, None], (n, m))
    np.add.at(
        moved,
        (start, np.where(ends >= 0, ends // m, start)),
        mass * acceptance_probability(rule, energies, there),
    )
    return _with_rejections(moved)


def _accepted(potential: np.ndarray, proposal: np.ndarray, rule: Rule) -> np.ndarray:
    return _with_rejections(proposal * acceptance_probability(rule, potential[:, None], potential[None, :]))


def _with_rejections(moved: np.ndarray) -> np.ndarray:
    """Add the probability of rejection to the diagonal."""
    matrix = moved.copy()
    np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    return matrix
