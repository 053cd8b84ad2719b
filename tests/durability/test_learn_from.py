"""A new run learns from the ledgers of others, at no cost, and only of the same target."""

from __future__ import annotations

import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import InputError, LedgerError, LedgerMismatch
from leapwise.storage import Ledger

PRECISION = np.array([[2.0, 0.7, 0.0], [0.7, 1.0, 0.2], [0.0, 0.2, 0.5]])


class Model:
    """A slightly skewed posterior that counts its calls."""

    def __init__(self, shift=0.0, gradient=True):
        self.calls, self.shift = 0, shift
        self.target = lw.Target(
            self.value,
            self.slope if gradient else None,
            dim=3,
            names=["a", "b", "c"],
            bounds=[(0, None), None, None],
        )

    def value(self, x):
        self.calls += 1
        z = np.append(np.log(x[0]), x[1:]) - self.shift
        return -0.5 * z @ PRECISION @ z - 0.02 * z[1] ** 4

    def slope(self, x):
        z = np.append(np.log(x[0]), x[1:]) - self.shift
        slope = -PRECISION @ z - np.array([0.0, 0.08 * z[1] ** 3, 0.0])
        return slope / np.array([x[0], 1.0, 1.0])


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledgers") / "old.db"
    run = lw.sample(Model().target, draws=100, random_seed=1, ledger=path, progressbar=False)
    return path, run


def test_warm_up_is_cheaper_and_the_draws_are_right(old):
    path, _ = old
    alone, run = (
        lw.sample(Model().target, draws=400, random_seed=2, learn_from=ledgers, progressbar=False)
        for ledgers in (None, [path])
    )
    assert run.surrogate.sd < alone.surrogate.sd or run.warmup.cost.n_exact < alone.warmup.cost.n_exact
    assert len(run.training.position) > run.warmup.cost.n_exact, "and it had more to learn from"
    assert run.exact and run.complete
    # Six standard errors of a difference of means of 400 effective draws each (there are some 1600).
    means = [np.log(each.draws[..., 0]).mean() for each in (alone, run)]
    assert abs(means[0] - means[1]) < 6 * np.sqrt(2 / 400) * np.log(alone.draws[..., 0]).std()


def test_all_that_was_evaluated_is_counted_but_one_look(old):
    path, _ = old
    model = Model()
    run = lw.sample(model.target, draws=50, random_seed=2, learn_from=[path], progressbar=False)
    assert model.calls == run.cost.n_exact + 1, "one recorded position is evaluated again"


def test_values_of_a_target_without_gradient_teach_one_with(tmp_path):
    without = Model(gradient=False)
    lw.sample(without.target, draws=50, random_seed=1, ledger=tmp_path / "values.db", progressbar=False)
    run = lw.sample(
        Model().target, draws=50, random_seed=1, learn_from=[tmp_path / "values.db"], progressbar=False
    )
    assert run.complete


def test_another_target_is_refused_by_name(old):
    path, _ = old
    other = lw.Target(lambda x: -x @ x, dim=3, names=["b", "a", "c"], bounds=[(0, None), None, None])
    with pytest.raises(LedgerMismatch, match=r"names changed from .*'a', 'b', 'c'.* to .*'b', 'a', 'c'"):
        lw.sample(other, learn_from=[path], progressbar=False)


def test_another_likelihood_is_refused_after_one_evaluation(old):
    path, _ = old
    model = Model(shift=0.1)
    with pytest.raises(LedgerMismatch, match="the model, its data or the prior has changed"):
        lw.sample(model.target, learn_from=[path], progressbar=False)
    assert model.calls == 1


def test_a_resumed_run_has_learned_the_same_though_the_other_ledger_is_gone(old, tmp_path):
    path, _ = old
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    kwargs = {"random_seed": 3, "learn_from": [copy], "progressbar": False}
    whole = lw.sample(Model().target, draws=60, **kwargs)
    lw.sample(Model().target, draws=20, ledger=tmp_path / "new.db", **kwargs)
    copy.unlink()
    more = lw.sample(Model().target, draws=60, ledger=tmp_path / "new.db", **kwargs)
    assert more.draws.shape == whole.draws.shape


@pytest.mark.parametrize(
    ("learn_from", "error", "message"),
    [
        ("old.db", InputError, "must be a list of ledgers"),
        (["missing.db"], LedgerError, "missing.db"),
    ],
)
def test_bad_input(learn_from, error, message):
    model = Model()
    with pytest.raises(error, match=message):
        lw.sample(model.target, learn_from=learn_from, progressbar=False)
    assert model.calls == 0


def test_other_methods_do_not_learn_from_ledgers(old):
    with pytest.raises(InputError, match="for the default method, not HMC"):
        lw.sample(Model().target, method=lw.HMC(), learn_from=[old[0]], progressbar=False)


def test_the_ledger_has_every_evaluation(old):
    path, run = old
    with Ledger.read(path) as ledger:
        assert sum(1 for _ in ledger.rows()) == run.cost.n_exact


def test_what_a_run_began_with_cannot_be_given_to_resume(old):
    with pytest.raises(InputError, match=r"chains= cannot be changed when the run .* is resumed"):
        lw.resume(old[0], Model().target, chains=3)


def test_rejections_are_not_taken_back(tmp_path):
    kwargs = {"draws": 20, "random_seed": 1, "ledger": tmp_path / "run.db", "progressbar": False}
    lw.sample(Model().target, on_failure="raise", **kwargs)
    lw.sample(Model().target, on_failure="reject", **kwargs)
    lw.sample(Model().target, on_failure="reject", **(kwargs | {"ledger": tmp_path / "other.db"}))
    with pytest.raises(LedgerMismatch, match='on_failure: "reject" -> "raise"'):
        lw.sample(Model().target, on_failure="raise", **(kwargs | {"ledger": tmp_path / "other.db"}))


def test_a_surrogate_that_was_trained_differently_is_another_run(tmp_path):
    rng = np.random.default_rng(1)
    position = rng.standard_normal((40, 3))
    surrogates = [
        lw.QuadraticNetwork().fit(lw.TrainingSet(position, scale * (position**2).sum(axis=1)), rng)
        for scale in (0.5, 0.6)
    ]
    kernels = [lw.SurrogateTransition(0.3, 3, surrogate=each) for each in surrogates]
    kwargs = {
        "tune": 0,
        "init": np.ones(3),
        "random_seed": 1,
        "ledger": tmp_path / "run.db",
        "progressbar": False,
    }
    lw.sample(Model().target, draws=5, method=kernels[0], **kwargs)
    lw.sample(Model().target, draws=8, method=kernels[0], **kwargs)
    with pytest.raises(LedgerMismatch, match="trained surrogate"):
        lw.sample(Model().target, draws=9, method=kernels[1], **kwargs)
