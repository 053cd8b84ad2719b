"""Which chains are in separate modes of a surrogate."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.adaptation.modes import add_separate, find_jumps
from leapwise.adaptation.surrogate_chains import move
from leapwise.adaptation.tune import tune_kernel
from leapwise.surrogates import Whitening


class Normals:
    """Normals of given widths at given places."""

    def __init__(self, centres, widths):
        self.centres, self.widths = np.array(centres, dtype=float), np.array(widths, dtype=float)

    def _terms(self, position):
        away = (position[:, None] - self.centres) / self.widths[:, None]
        return -0.5 * (away**2).sum(axis=2) - position.shape[1] * np.log(self.widths)

    def potential(self, position):
        return -np.logaddexp.reduce(self._terms(position), axis=1)

    def potential_and_gradient(self, position):
        terms = self._terms(position)
        share = np.exp(terms - np.logaddexp.reduce(terms, axis=1)[:, None])
        away = (position[:, None] - self.centres) / self.widths[:, None] ** 2
        return self.potential(position), (share[:, :, None] * away).sum(axis=1)


class Banana:
    def potential(self, position):
        x, y = position.T
        return 0.5 * x**2 / 4.0 + 0.5 * ((y - x**2) / 0.3) ** 2

    def potential_and_gradient(self, position):
        x, y = position.T
        off = (y - x**2) / 0.3**2
        return self.potential(position), np.stack([x / 4.0 - 2.0 * x * off, off], axis=1)


WIDE = Whitening(np.zeros(2), np.diag([4.0, 1.0]))


def found(surrogate, position, frame=WIDE, seed=0):
    return find_jumps(surrogate, frame, np.array(position, dtype=float), np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(3))
def test_chains_in_two_modes_get_jumps_between_them(seed):
    surrogate = Normals([[-5, 0], [5, 0]], [1.0, 0.5])
    jumps = found(surrogate, [[-5.2, 0.3], [5.0, 0.1], [-4.0, 1.0], [5.3, -0.2]], seed=seed)
    assert jumps is not None and len(jumps.centres) == 2
    order = np.argsort(jumps.centres[:, 0])
    np.testing.assert_allclose(jumps.centres[order], [[-5, 0], [5, 0]], atol=0.6)
    widths = np.sqrt((jumps.factors[order] ** 2).sum(axis=2))
    np.testing.assert_allclose(widths, [[1.0, 1.0], [0.5, 0.5]], rtol=0.35)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", [[7.2, 1.6], [9.2, 0.5]], ids=["a high place", "some exchange"])
def test_a_barrier_that_chains_climb_seldom_has_jumps(place, seed):
    """Eight widths apart the rise is about 6 above the higher mode: a chain climbs it once in a few hundred steps."""
    surrogate = Normals([[0, 0], [0, 0], [0, 0], [0, 0], [8, 0]], [1.0] * 5)
    frame = Whitening(np.array([1.6, 0.0]), np.diag([3.4, 1.0]))
    jumps = found(surrogate, [[-1.1, -0.3], [0.7, 0.1], place, [-0.9, -0.9]], frame, seed)
    assert jumps is not None and len(jumps.centres) == 2


def test_three_modes_are_three():
    jumps = found(Normals([[-9, 0], [0, 9], [9, 0]], [1, 1, 1]), [[-9, 0], [0, 9], [9, 0], [9, 1]])
    assert jumps is not None and len(jumps.centres) == 3


@pytest.mark.parametrize("seed", range(3))
def test_one_mode_is_one_however_bent(seed):
    assert found(Normals([[0, 0]], [1.0]), [[-1, 0], [1, 1], [2, 0]], seed=seed) is None
    ends = [[-2.5, 6.25], [2.5, 6.25], [0.0, 0.0], [1.0, 1.0]]
    frame = Whitening(np.array([0.0, 4.0]), np.diag([1.5, 2.0]))
    assert found(Banana(), ends, frame, seed) is None


def test_modes_that_chains_pass_between_are_one():
    assert found(Normals([[-1.5, 0], [1.5, 0]], [1.0, 1.0]), [[-1.5, 0], [1.5, 0]]) is None
    assert found(Normals([[-5, 0], [5, 0]], [1.0, 1.0]), [[-5.0, 0]]) is None


def test_the_kernel_of_the_draws_has_the_shares_of_the_surrogate():
    """4000 draws of the surrogate, from one mode: 6 standard errors of 0.008 are allowed."""
    surrogate, rng = Normals([[-5, 0], [5, 0]], [1.0, 0.5]), np.random.default_rng(1)
    position = np.array([[-5.0, 0.0], [5.0, 0.0]])
    jumps = find_jumps(surrogate, WIDE, position, rng)
    kernel = tune_kernel(surrogate, WIDE, position, 0.1, rng, jumps)
    assert kernel.jumps is jumps and kernel.centre is None
    draws, accepted = np.tile(position[:1], (4000, 1)), 0.0
    for _ in range(8):
        draws, accepted = move(kernel, draws, rng)
    assert accepted > 0.8
    assert abs((draws[:, 0] > 0).mean() - 0.5) < 6 * 0.5 / np.sqrt(4000)
    right = draws[draws[:, 0] > 0]
    np.testing.assert_allclose(right.std(axis=0), 0.5, atol=6 * 0.5 / np.sqrt(2 * len(right)))


def test_known_positions_behind_a_barrier_are_looked_at_too():
    surrogate = Normals([[-9, 0], [0, 9], [9, 0]], [1, 1, 1])
    known = np.array([[-9.1, 0.2], [0.0, 8.9], [0.3, 9.2], [9.0, 0.1], [-8.7, 0.0]])
    places = add_separate(surrogate, np.array([[-9.0, 0.0]]), known)
    np.testing.assert_array_equal(places, [[-9.0, 0.0], [0.0, 8.9], [9.0, 0.1]])
    np.testing.assert_array_equal(add_separate(surrogate, places, known), places)


@pytest.mark.slow
def test_eight_modes_are_found_by_four_chains():
    """Signs of three parameters; shares by quadrature. 6 standard errors of the least sure of them are 0.07."""

    def forward(x):
        return np.concatenate([x[:, :3] ** 2, x[:, 3:]], axis=1)

    data, prior = np.array([1.5, 1.2, 1.0, 0.3]), lw.NormalPrior(0.2, 1.0, dim=4)
    target = lw.ForwardTarget(forward, lw.GaussianLikelihood(data, sd=0.2), prior, vectorized=True)
    run = lw.sample(target, draws=400, random_seed=1, progressbar=False)
    assert run.surrogate.n_modes == 8
    x = np.linspace(-4.0, 4.0, 8001)[:, None]
    height = np.exp(-0.5 * ((x**2 - data[:3]) / 0.2) ** 2 - 0.5 * (x - 0.2) ** 2)
    share = (height * (x > 0)).sum(axis=0) / height.sum(axis=0)
    code = (run.draws[..., :3] > 0).reshape(-1, 3) @ [4, 2, 1]
    found = np.bincount(code, minlength=8) / len(code)
    signs = (np.arange(8)[:, None] // [4, 2, 1]) % 2
    np.testing.assert_allclose(found, np.where(signs, share, 1.0 - share).prod(axis=1), atol=0.07)


def test_one_chain_jumps_too():
    run = lw.sample(_exchanged(), draws=400, chains=1, random_seed=1, progressbar=False)
    assert run.surrogate.n_modes == 2
    assert 0.5 < (run.draws[..., 0] > 0).mean() < 0.9


def _exchanged() -> lw.ForwardTarget:
    """Two processes that may be exchanged, seen through a likelihood that is all but indifferent to which is which."""
    return lw.ForwardTarget(
        lambda x: np.array([x[0] ** 2 + 0.2 * x[0], x[1] + 0.3 * x[2]]),
        lw.GaussianLikelihood([1.0, 0.5], sd=[0.1, 0.2]),
        lw.NormalPrior(0.3, 1.0, dim=3),
    )


def test_a_run_says_how_much_mass_each_mode_has():
    """By quadrature the positive one has 0.6887; of some 1500 effective draws 6 standard errors are 0.07."""
    x = np.linspace(-4.0, 4.0, 80001)
    height = np.exp(-0.5 * ((x**2 + 0.2 * x - 1.0) / 0.1) ** 2 - 0.5 * (x - 0.3) ** 2)
    share = height[x > 0].sum() / height.sum()
    run = lw.sample(_exchanged(), random_seed=3, progressbar=False)
    assert run.kernel.jumps is not None and len(run.kernel.jumps.centres) == 2
    assert abs((run.draws[..., 0] > 0).mean() - share) < 0.07
    assert not run.summary().warnings
    assert run.exact
    shares = run.summary().to_dict()["surrogate"]["mode_shares"]
    positive = int(run.kernel.jumps.centres[:, 0].argmax())
    assert shares[positive] == pytest.approx((run.draws[..., 0] > 0).mean())
    assert "2 separate modes found, with " in str(run.summary())
    mode = run.to_datatree().sample_stats["mode"].to_numpy()
    np.testing.assert_array_equal(mode == 1 + positive, run.draws[..., 0] > 0)


def test_a_run_with_jumps_goes_on_from_its_ledger(tmp_path):
    settings = {"random_seed": 3, "progressbar": False, "ledger": tmp_path / "run.db"}
    first = lw.sample(_exchanged(), 20, **settings)
    longer = lw.sample(_exchanged(), 60, **settings)
    assert longer.kernel.jumps is not None and longer.draws.shape[1] == 60
    np.testing.assert_array_equal(longer.draws[:, :20], first.draws)
    np.testing.assert_array_equal(lw.sample(_exchanged(), 60, **settings).draws, longer.draws)
