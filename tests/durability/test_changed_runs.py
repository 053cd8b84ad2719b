"""A ledger of another target or of another run is refused before anything is spent; the refusal says what changed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from ledger_helpers import bits, raw

import leapwise as lw
from leapwise.adaptation.settings import DEFAULT
from leapwise.errors import LedgerMismatch
from leapwise.storage import Ledger

DATA = np.array([0.4, -0.2, 1.0, 0.3])
SETTINGS = {"draws": 10, "chains": 2, "random_seed": 5, "progressbar": False}


class Counting:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, x):
        self.calls += 1
        return self.function(x)


def outputs(x):
    return np.array([x[0], x[1], x[0] + x[1], x[0] * x[1]])


def forward(
    function=outputs,
    data=DATA,
    sd=0.5,
    prior=None,
    names=("depth", "slope"),
    bounds=None,
):
    counting = Counting(function)
    likelihood = lw.GaussianLikelihood(data, sd=sd)
    prior = lw.NormalPrior(0.0, 1.0, dim=2) if prior is None else prior
    return counting, lw.ForwardTarget(
        counting,
        likelihood,
        prior,
        jacobian=lambda x: (counting(x), np.array([[1, 0], [0, 1], [1, 1], [x[1], x[0]]])),
        names=names,
        bounds=bounds,
    )


def log_density(function=lambda x: -0.5 * x @ x, dim=2, names=("depth", "slope")):
    counting = Counting(function)
    return counting, lw.Target(counting, dim=dim, names=names)


def contents(path):
    with Ledger.read(path) as ledger:
        return [bits(row) for row in ledger.rows()], ledger.names()


# What changes, how the target is then, what the refusal says, and how many evaluations it took to find out.
CHANGES = {
    "data": (forward, {"data": np.array([0.4, -0.2, 1.0, 0.31])}, "data", 0),
    "noise": (forward, {"sd": 0.4}, "0.5.*0.4", 0),
    "bounds": (
        forward,
        {"bounds": [(0, None), None]},
        r"bounds of 'depth' changed from \(None, None\) to \(0, None\)",
        0,
    ),
    "prior": (
        forward,
        {"prior": lw.NormalPrior(0.0, 2.0, dim=2)},
        "prior sd of 'depth' changed from 1 to 2",
        0,
    ),
    "kind of prior": (
        forward,
        {"prior": lw.UniformPrior(-9.0, 9.0, dim=2)},
        "prior changed from NormalPrior to UniformPrior",
        0,
    ),
    "order of parameters": (
        forward,
        {"names": ("slope", "depth")},
        "names changed from .*'depth', 'slope'.* to .*'slope', 'depth'",
        0,
    ),
    "names": (
        forward,
        {"names": ("depth", "width")},
        "names changed from .*'depth', 'slope'.* to .*'depth', 'width'",
        0,
    ),
    "dim": (
        forward,
        {"prior": lw.NormalPrior(0.0, 1.0, dim=3), "names": ("depth", "slope", "width")},
        "dim changed from 2 to 3",
        0,
    ),
    "kind": (log_density, {}, "kind changed from 'forward' to 'log-density'", 0),
    "model": (
        forward,
        {"function": lambda x: outputs(x) + 0.01},
        "log-density at a position.*was .* and is now",
        1,
    ),
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The ledger of a run that is not complete."""
    path = tmp_path_factory.mktemp("changed") / "run.db"
    counting, target = forward()

    def stop(x):
        if counting.calls > 60:
            raise KeyboardInterrupt
        return outputs(x)

    counting.function = stop
    run = lw.sample(target, ledger=path, version="1", **SETTINGS)
    assert not run.complete
    return path


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_target_is_refused(what, ledger):
    make, changes, said, n_calls = CHANGES[what]
    before = contents(ledger)
    counting, target = make(**changes)
    with pytest.raises(LedgerMismatch, match=said) as caught:
        lw.sample(target, ledger=ledger, version="1", **SETTINGS)
    assert counting.calls == n_calls
    assert str(ledger) in str(caught.value) and "start a new ledger" in str(caught.value)
    assert contents(ledger) == before, "a refused call adds nothing"


def test_a_changed_version_is_refused(ledger):
    counting, target = forward()
    for version, said in (
        ("2", "version changed from '1' to '2'"),
        (None, "version changed from '1' to None"),
    ):
        with pytest.raises(LedgerMismatch, match=said):
            lw.sample(target, ledger=ledger, version=version, **SETTINGS)
    assert counting.calls == 0


def test_a_changed_likelihood_of_a_bare_log_density_is_refused(tmp_path):
    counting, target = log_density()
    lw.sample(target, ledger=tmp_path / "run.db", **SETTINGS)
    counting, target = log_density(lambda x: -0.6 * x @ x)
    with pytest.raises(LedgerMismatch, match=r"was .* and is now"):
        lw.sample(target, ledger=tmp_path / "run.db", **SETTINGS | {"draws": 20})
    assert counting.calls == 1


SETTING_CHANGES = {
    "method": ({"method": lw.HMC(0.1, 5)}, 'method: "Auto" -> "HMC"; use'),
    "a setting of the method": (
        {"method": lw.Auto(surrogate=lw.SoftplusNetwork(20))},
        r'run: surrogate: null -> {"name": "SoftplusNetwork"',
    ),
    "a stage of the adaptation": (
        {"method": lw.Auto(settings=replace(DEFAULT, stages=replace(DEFAULT.stages, tails=False)))},
        "run: settings.stages.tails: true -> false; use",
    ),
    "chains": ({"chains": 3}, "chains: 2 -> 3"),
    "tune": ({"tune": 90}, "tune: null -> 90"),
    "init": ({"init": np.zeros(2)}, "init: null -> "),
    "seed": ({"random_seed": 6}, "random_seed: 5 -> 6"),
    "max_evaluations": (
        {"max_evaluations": 400},
        "max_evaluations: null -> 400; .*give a new ledger and learn_from=",
    ),
    "more than three": (
        {"chains": 3, "tune": 90, "init": np.zeros(2), "max_evaluations": 400},
        "chains: .*; tune: .*; max_evaluations: [^;]*; and 1 more; use",
    ),
}


@pytest.mark.parametrize("what", SETTING_CHANGES)
def test_a_changed_setting_is_refused(what, ledger):
    changes, said = SETTING_CHANGES[what]
    counting, target = forward()
    with pytest.raises(LedgerMismatch, match=said):
        lw.sample(target, ledger=ledger, version="1", **SETTINGS | changes)
    assert counting.calls == 0


def test_what_may_change(tmp_path):
    """How rows are evaluated, how often they are retried, and how many draws are asked for."""
    counting, target = log_density()
    first = lw.sample(target, ledger=tmp_path / "run.db", **SETTINGS)
    again = lw.sample(
        target,
        ledger=tmp_path / "run.db",
        retries=7,
        timeout=60.0,
        **{name: value for name, value in SETTINGS.items() if name != "random_seed"},
    )
    assert np.array_equal(first.draws, again.draws)
    assert counting.calls == first.cost.n_exact + 1, "a run that is complete is only rechecked"


def test_every_change_is_named_at_once(ledger):
    _, target = forward(sd=0.4, names=("depth", "width"))
    with pytest.raises(LedgerMismatch) as caught:
        lw.sample(target, ledger=ledger, version="2", **SETTINGS)
    assert re.search("width", str(caught.value)) and re.search("0.4", str(caught.value))
    assert re.search("version", str(caught.value))


def test_a_ledger_of_an_earlier_format_is_refused_in_one_sentence(tmp_path):
    counting, target = forward()
    path = tmp_path / "run.db"
    lw.sample(target, ledger=path, **SETTINGS)
    with raw(path) as connection:
        connection.execute("PRAGMA user_version = 1")
    spent = counting.calls
    sentence = r"has format 1, which another version of leapwise wrote, and this version reads format \d only; resume"
    for use in (
        lambda: lw.sample(target, ledger=path, **SETTINGS),
        lambda: lw.resume(path, target),
        lambda: lw.inspect_ledger(path),
    ):
        with pytest.raises(LedgerMismatch, match=sentence):
            use()
    assert counting.calls == spent
