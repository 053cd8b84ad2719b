"""Accept rules on finitely many states: invariance and detailed balance to the last digits; wrong rules fail.

Only the potentials are random.
"""

from __future__ import annotations

import numpy as np
import pytest

from leapwise.errors import InputError
from leapwise.kernels.accept import metropolis, surrogate_transition
from leapwise.testing.finite import (
    acceptance_probability,
    check_balance,
    metropolis_matrix,
    surrogate_transition_matrix,
    trajectory_matrix,
)

N, MOMENTA = 12, np.arange(-5, 6)
BROKEN = 1e-4  # errors of broken kernels are at least this; those of sound ones are below 1e-13
POSITIONS = np.arange(N)
EVERYWHERE = np.full((N, N), 1.0 / N)
NEIGHBOURS = (np.roll(np.eye(N), 1, axis=1) + np.roll(np.eye(N), -1, axis=1)) / 2
PROPOSALS = {"everywhere": EVERYWHERE, "neighbours": NEIGHBOURS}


@pytest.fixture(params=[0, 1, 2], ids="seed {}".format)
def rng(request):
    return np.random.default_rng(request.param)


@pytest.fixture(params=["plain", "holes"])
def potential(request, rng):
    """Potentials of twelve states; some may have no mass."""
    found = 2.0 * rng.normal(size=N)
    if request.param == "holes":
        found[[3, 7]] = np.inf
    return found


@pytest.fixture(params=["close", "wild", "holes", "flat"])
def surrogate(request, potential, rng):
    """Surrogates: good, bad, not even finite."""
    close = np.where(np.isfinite(potential), potential, 0.0) + 0.3 * rng.normal(size=N)
    return {
        "close": close,
        "wild": -3.0 * close + rng.normal(size=N),
        "holes": np.where(POSITIONS % 4 == 1, [np.nan, np.inf, -np.inf] * 4, close),
        "flat": np.zeros(N),
    }[request.param]


def force_of(surrogate):
    """A whole-numbered force: differences of a surrogate, rounded; 0 where it has no value."""
    with np.errstate(all="ignore"):
        slope = np.roll(surrogate, -1) - np.roll(surrogate, 1)
    return np.where(np.isfinite(slope), np.round(np.clip(slope, -9, 9)), 0).astype(int)


class Lattice:
    """Leapfrog on a circle of positions, with whole momenta that also go round in a circle.

    Kicks and drifts are shears of the lattice: they preserve volume (permute the points), and reverse.
    """

    def __init__(self, force, kinetic=0.15 * MOMENTA**2):
        self.force = force
        self.kinetic = np.broadcast_to(kinetic, (N, MOMENTA.size))
        norm = np.exp(-self.kinetic).sum(axis=1, keepdims=True)
        self.mass, self.log_norm = np.exp(-self.kinetic) / norm, np.log(norm)

    def path(self, n_steps):
        """Positions ``(n_steps + 1, n, m)`` that are visited, and the momenta at the end."""
        q, p = np.meshgrid(POSITIONS, MOMENTA, indexing="ij")
        visited = [q]
        for _ in range(n_steps):
            p = wrapped(p - self.force[q])
            q = (q + p) % N
            p = wrapped(p - self.force[q])
            visited.append(q)
        return np.stack(visited), p

    def end(self, n_steps, given_up=lambda visited: np.zeros(visited.shape[1:], dtype=bool)):
        """Numbers of the phase points that all are mapped to; -1 where the path is abandoned."""
        visited, p = self.path(n_steps)
        return np.where(given_up(visited), -1, number(visited[-1], p))


def wrapped(momentum):
    return (momentum + MOMENTA[-1]) % MOMENTA.size - MOMENTA[-1]


def number(position, momentum):
    return position * MOMENTA.size + momentum + MOMENTA[-1]


@pytest.mark.parametrize("rule", [metropolis, surrogate_transition])
def test_rules_accept_with_the_probability_that_they_report(rule, rng):
    before, after = rng.normal(0, 5, (2, 200))
    before[:5], after[5:10] = (
        [np.inf, -np.inf, np.nan, 1e308, -1e308],
        [np.inf, -np.inf, np.nan, 1e308, -1e308],
    )
    found = acceptance_probability(rule, before, after)
    expected = np.where(np.isfinite(before) & np.isfinite(after), np.exp(np.minimum(0, before - after)), 0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-16)


def test_a_rule_that_does_not_do_what_it_says_is_refused():
    def boastful(before, after, uniforms):
        return metropolis(before, after + 0.1, uniforms)[0], metropolis(before, after, uniforms)[1]

    with pytest.raises(InputError, match="reports an acceptance probability"):
        acceptance_probability(boastful, [0.0], [1.0])


class TestMetropolis:
    @pytest.mark.parametrize("proposal", PROPOSALS)
    def test_is_balanced(self, potential, proposal):
        found = check_balance(metropolis_matrix(potential, PROPOSALS[proposal]), potential)
        assert found.passed, found

    def test_a_proposal_that_is_not_symmetric_is_not(self, rng):
        skewed = rng.dirichlet(np.ones(N), size=N)
        potential = rng.normal(size=N)
        assert check_balance(metropolis_matrix(potential, skewed), potential).invariance > BROKEN

    @pytest.mark.parametrize("proposal", PROPOSALS)
    def test_another_rule_is_not(self, rng, proposal):
        """One that takes half of the rise for the whole, and one that forgives small rises."""
        potential = rng.normal(size=N)
        for broken in (
            lambda before, after, u: metropolis(0.5 * before, 0.5 * after, u),
            lambda before, after, u: metropolis(before, after - 0.1, u),
            lambda before, after, u: metropolis(after, before, u),
        ):
            found = check_balance(metropolis_matrix(potential, PROPOSALS[proposal], broken), potential)
            assert found.invariance > BROKEN and not found.passed


class TestTrajectories:
    """HMC with a surrogate's force, on a lattice."""

    @staticmethod
    def energy(lattice, potential):
        return potential[:, None] + lattice.kinetic + lattice.log_norm

    @pytest.mark.parametrize("n_steps", [1, 2, 5])
    def test_is_balanced_whatever_the_force(self, potential, surrogate, n_steps):
        lattice = Lattice(force_of(surrogate))
        matrix = trajectory_matrix(self.energy(lattice, potential), lattice.mass, lattice.end(n_steps))
        assert (matrix.diagonal() < 0.999).any()
        found = check_balance(matrix, potential)
        assert found.passed, found

    def test_is_balanced_for_kinetic_energies_that_depend_on_the_position(self, potential, rng):
        """As with a Riemannian metric; the map is one that swaps phase points in pairs."""
        lattice = Lattice(np.zeros(N, dtype=int), rng.uniform(0.05, 0.5, (N, 1)) * MOMENTA**2)
        # A permutation that is its own inverse up to the sign of the momentum, with no structure besides.
        end = random_reversible_map(rng)
        matrix = trajectory_matrix(self.energy(lattice, potential), lattice.mass, end)
        found = check_balance(matrix, potential)
        assert found.passed, found
        careless = trajectory_matrix(potential[:, None] + lattice.kinetic, lattice.mass, end)
        assert check_balance(careless, potential).invariance > BROKEN  # log-determinant missing

    def test_is_balanced_when_given_up_both_ways(self, potential, surrogate):
        """On any property of the set of points visited."""
        lattice = Lattice(force_of(surrogate))
        end = lattice.end(3, lambda visited: (visited == 4).any(axis=0))
        assert (end < 0).any() and (end >= 0).any()
        found = check_balance(
            trajectory_matrix(self.energy(lattice, potential), lattice.mass, end), potential
        )
        assert found.passed, found

    def test_a_mixture_of_lengths_is_balanced(self, potential, surrogate):
        lattice = Lattice(force_of(surrogate))
        energy = self.energy(lattice, potential)
        mixed = np.mean([trajectory_matrix(energy, lattice.mass, lattice.end(k)) for k in (1, 2, 3)], axis=0)
        assert check_balance(mixed, potential).passed

    @pytest.mark.parametrize(
        "mistake",
        [
            "accepts on the surrogate",
            "no kinetic energy",
            "no decision",
            "gives up by its start",
            "length by its start",
            "force by momentum",
        ],
    )
    def test_mistakes_are_caught(self, mistake, rng):
        potential = rng.normal(size=N)
        surrogate = potential + 0.5 * rng.normal(size=N)
        lattice = Lattice(force_of(3.0 * surrogate))
        energy, end, rule = self.energy(lattice, potential), lattice.end(2), metropolis
        if mistake == "accepts on the surrogate":
            energy = self.energy(lattice, surrogate)
        elif mistake == "no kinetic energy":
            energy = np.broadcast_to(potential[:, None], energy.shape)
        elif mistake == "no decision":
            rule = always
        elif mistake == "gives up by its start":
            end = lattice.end(2, lambda visited: visited[0] < 4)
        elif mistake == "length by its start":
            end = np.where(POSITIONS[:, None] < 6, lattice.end(1), lattice.end(3))
        elif mistake == "force by momentum":
            q, p = np.meshgrid(POSITIONS, MOMENTA, indexing="ij")
            end = number((q + p) % N, wrapped(p - lattice.force[q] * (p > 0)))
        found = check_balance(trajectory_matrix(energy, lattice.mass, end, rule), potential)
        assert found.invariance > BROKEN and not found.passed, found


def always(before, after, uniforms):
    return uniforms < 1.0, np.ones_like(uniforms)


def random_reversible_map(rng):
    """A permutation T of phase space with R T R T = 1, where R reverses momenta: R after a random involution."""
    order = rng.permutation(N * MOMENTA.size)
    involution = np.empty_like(order)
    half = order.size // 2
    involution[order[:half]], involution[order[half : 2 * half]] = order[half : 2 * half], order[:half]
    q, p = np.divmod(involution, MOMENTA.size)
    return number(q, -(p - MOMENTA[-1])).reshape(N, MOMENTA.size)


class TestSurrogateTransition:
    @pytest.mark.parametrize("inner_steps", [1, 2, 7])
    @pytest.mark.parametrize("proposal", PROPOSALS)
    def test_is_balanced_for_any_surrogate(self, potential, surrogate, proposal, inner_steps):
        found = check_balance(
            surrogate_transition_matrix(potential, surrogate, PROPOSALS[proposal], inner_steps), potential
        )
        assert found.passed, found

    def test_is_balanced_with_inner_trajectories(self, rng):
        """As the kernel has it: inner steps are HMC on the surrogate."""
        potential, surrogate = rng.normal(size=(2, N))
        lattice = Lattice(force_of(surrogate))
        inner = np.linalg.matrix_power(
            trajectory_matrix(TestTrajectories.energy(lattice, surrogate), lattice.mass, lattice.end(2)), 3
        )
        discrepancy = potential - surrogate
        moved = inner * acceptance_probability(surrogate_transition, discrepancy[:, None], discrepancy)
        matrix = moved + np.diag(1.0 - moved.sum(axis=1))
        assert check_balance(matrix, potential).passed

    @pytest.mark.parametrize(
        "mistake",
        ["inner chain without its Metropolis step", "no decision", "decision on the potential", "wrong sign"],
    )
    def test_mistakes_are_caught(self, mistake, rng):
        potential, surrogate = rng.normal(size=(2, N))
        rules = {
            "inner chain without its Metropolis step": {"inner_rule": always},
            "no decision": {"rule": always},
            "wrong sign": {"rule": lambda before, after, u: surrogate_transition(-before, -after, u)},
            "decision on the potential": {
                "rule": lambda before, after, u: surrogate_transition(
                    np.repeat(potential, N), np.tile(potential, N), u
                )
            },
        }
        matrix = surrogate_transition_matrix(potential, surrogate, NEIGHBOURS, 3, **rules[mistake])
        found = check_balance(matrix, potential)
        assert found.invariance > BROKEN and not found.passed, found


def test_reversible_chains_do_not_commute():
    """Two balanced matrices, one after the other, are invariant; detailed balance is lost, and the check says so."""
    rng = np.random.default_rng(5)
    potential = rng.normal(size=N)
    first, second = metropolis_matrix(potential, NEIGHBOURS), metropolis_matrix(potential, EVERYWHERE)
    found = check_balance(first @ second, potential)
    assert found.invariance < 1e-14 and found.detailed_balance > BROKEN and not found.passed
    assert str(found).startswith("NOT balanced")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((np.ones((2, 2)), np.zeros(2)), "matrix must be a square matrix"),
        ((np.eye(3)[:2], np.zeros(2)), "matrix must be a square matrix"),
        ((np.array([[1.5, -0.5], [0.0, 1.0]]), np.zeros(2)), "matrix must be a square matrix"),
        ((np.eye(2), np.zeros(3)), "potential must hold one number"),
        ((np.eye(2), np.full(2, np.inf)), "potential must hold one number"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(arguments, word):
    with pytest.raises(InputError, match=word):
        check_balance(*arguments)


def test_shapes_of_phase_space_must_agree():
    with pytest.raises(InputError, match="one shape"):
        trajectory_matrix(np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3), dtype=int))
