"""Objects read from an archive are those that were written, to the last bit, and continue in the same way."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import archive_cases as cases
import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import ArchiveError
from leapwise.execution import Counts
from leapwise.results import Cost, Record, SurrogateReport
from leapwise.run.class_tags import ARCHIVE, pack, parts_of, unpack
from leapwise.storage import Header, Ledger
from leapwise.storage.archive import Archive, Stored
from leapwise.surrogates.base import fingerprint
from leapwise.targets.identity import identify

POINTS = np.random.default_rng(9).standard_normal((7, cases.DIM))


def assert_same_values(one, other):
    for ask in ("potential", "potential_and_gradient", "hessian"):
        for a, b in zip(getattr(one, ask)(POINTS), getattr(other, ask)(POINTS), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), ask


@pytest.mark.parametrize("updated", [False, True], ids=["fitted", "updated"])
@pytest.mark.parametrize("name", cases.SURROGATES)
def test_surrogates(name, updated):
    target = cases.make_target()
    fitted = cases.fit(name, target, updated=updated)
    unasked = cases.through(fitted, parts_of(target))  # before any weights were solved for
    assert_same_values(fitted, unasked)
    again = cases.through(fitted, parts_of(target))
    assert_same_values(fitted, again)
    assert fingerprint(again) == fingerprint(fitted)
    more = cases.make_training(target, n=8, seed=5)
    assert_same_values(fitted.update(more), again.update(more))


@pytest.mark.parametrize("name", ["outputs", "outputs with nodes"])
@pytest.mark.parametrize("kind", cases.TARGETS)
def test_emulators_take_likelihood_and_prior_from_the_live_target(name, kind):
    target, same = cases.TARGETS[kind](), cases.TARGETS[kind]()
    fitted = cases.fit(name, target, gradients=False)
    again = cases.through(fitted, parts_of(target), again=parts_of(same))
    assert_same_values(fitted, again)
    assert again.likelihood is same.likelihood


@pytest.mark.parametrize("name", cases.make_kernels(cases.fit("quadratic", cases.make_target())))
def test_kernels_continue_bit_for_bit(name):
    target = cases.make_target()
    at = cases.begin(cases.make_kernels(cases.fit("quadratic with nodes", target))[name], target)
    again = cases.through(at)
    assert cases.go_on(again, target) == cases.go_on(at, target)


@pytest.mark.parametrize("name", cases.SURROGATES)
def test_surrogate_transitions_continue_bit_for_bit(name):
    target = cases.make_target()
    at = cases.begin(cases.make_kernels(cases.fit(name, target))["SurrogateTransition"], target)
    again = cases.through(at, parts_of(target))
    assert again["state"].known_force.surrogate is again["kernel"].surrogate
    assert cases.go_on(again, target) == cases.go_on(at, target)


METHODS = {
    "auto": lw.Auto(),
    "HMC": lw.HMC(),
    "RNSHMC": lw.RNSHMC(lw.SoftplusNetwork(40), step_size=0.3, n_steps=5),
    "RNSRMHMC": lw.RNSRMHMC(lw.QuadraticNetwork(), step_size=0.3, n_steps=2),
    "ARNSHMC": lw.ARNSHMC(lw.SoftplusNetwork(40), step_size=0.3, n_steps=5),
}


@pytest.mark.parametrize("name", METHODS)
def test_what_sample_freezes(name):
    target = cases.make_target()
    tune = None if name == "auto" else 60
    run = lw.sample(
        target, draws=20, tune=tune, chains=3, method=METHODS[name], random_seed=1, progressbar=False
    )
    at = cases.begin(run.kernel, target)
    report = {"report": run.surrogate, "training": run.training, "record": run.posterior}
    again = cases.through(at | report, parts_of(target))
    assert cases.go_on(again, target) == cases.go_on(at, target)
    assert_equal(again["record"], run.posterior)
    assert_equal(again["training"], run.training)
    assert_equal(again["report"], run.surrogate)


def test_another_process_continues_bit_for_bit(tmp_path):
    target = cases.make_target()
    at = cases.begin(cases.make_kernels(cases.fit("outputs", target))["SurrogateTransition"], target)
    arrays, meta = pack(at, parts_of(target))
    np.savez(tmp_path / "arrays.npz", **arrays)
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    script = """
import hashlib, json, sys
import numpy as np
import archive_cases as cases
from leapwise.run.class_tags import parts_of, unpack
folder, target = sys.argv[1], cases.make_target()
at = unpack(dict(np.load(folder + "/arrays.npz")), json.load(open(folder + "/meta.json")), parts_of(target))
print(hashlib.sha256(repr(cases.go_on(at, target)).encode()).hexdigest())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(cases.__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == hashlib.sha256(repr(cases.go_on(at, target)).encode()).hexdigest()


def test_a_ledger_keeps_archives(tmp_path):
    target = cases.make_target()
    at = cases.begin(cases.make_kernels(cases.fit("outputs with nodes", target))["SurrogateRMHMC"], target)
    header = Header("0", target.dim, ("a", "b", "c", "d"), {}, 1, identify(target))
    with Ledger.open(tmp_path / "run.db", header) as ledger:
        ledger.save("kernel", *pack(at, parts_of(target)))
        ledger.save("values", *pack(VALUES))
    with Ledger.open(tmp_path / "run.db", header) as ledger:
        again = unpack(*ledger.load("kernel"), parts_of(target))
        assert_equal(unpack(*ledger.load("values")), VALUES)
        assert ledger.header.fingerprint == identify(target)
    assert cases.go_on(again, target) == cases.go_on(at, target)


def assert_equal(one, other):
    """Both are of one type and have the same numbers."""
    assert type(one) is type(other)
    if is_dataclass(one):
        for each in fields(one):
            assert_equal(getattr(one, each.name), getattr(other, each.name))
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        assert one.flags.writeable == other.flags.writeable
        assert (one.flags.c_contiguous, one.flags.f_contiguous) == (
            other.flags.c_contiguous,
            other.flags.f_contiguous,
        )
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert_equal(list(one.values()), list(other.values()))
    else:
        assert repr(one) == repr(other)


def read_only(array):
    array.flags.writeable = False
    return array


VALUES = {
    "plain": [
        None,
        True,
        0,
        -3,
        2**53 + 1,
        -(10**40),
        0.1,
        -0.0,
        float("nan"),
        -float("inf"),
        "",
        "é\n",
        (),
        {},
    ],
    "nested": {"a": [(1, {"b": [2.5]})], "": [[]]},
    "scalars": [np.float64(0.1), np.int64(3), np.bool_(True), np.float64("nan")],
    "training": lw.TrainingSet(POINTS, POINTS[:, 0], outputs=POINTS),
    "counts": Counts(3, 4, 0.1, 0.2, 1, 2),
    "record": Record(POINTS[None], {"lp": POINTS[:1], "n_exact": np.array([[1, 2]])}, Cost(3, seconds=0.1)),
    "report": SurrogateReport("quadratic", 0.1, np.nan, 0.0, 0.0, "", POINTS[:2].T, "abc"),
    "metrics": [lw.UnitMetric(), lw.DiagonalMetric([1.0, 2.0]), lw.DenseMetric(cases.COVARIANCE)],
    "whitening": lw.Whitening(np.zeros(4), np.linalg.cholesky(cases.COVARIANCE)),
    "state": lw.State(POINTS, POINTS[:, 0].copy()),
    "arrays": [
        np.array(1.5),
        np.zeros((0, 3)),
        np.zeros((3, 0, 2), dtype=int),
        np.asfortranarray(POINTS),
        read_only(POINTS.copy()),
        POINTS.reshape(7, 2, 2).transpose(1, 0, 2),
        POINTS.reshape(7, 2, 2).transpose(2, 0, 1),
        POINTS[:, 0] > 0,
        POINTS[:1, :1],
        np.array([np.nan, -0.0, np.inf, 5e-324]),
    ],
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    assert_equal(cases.through(VALUES[name]), VALUES[name])


def test_strided_arrays_keep_their_numbers_and_the_order_of_their_axes():
    for odd in (POINTS[::2, ::-1], POINTS.T[1:3], np.broadcast_to(1.5, (3, 2))):
        again = cases.through(odd)
        assert (again == odd).all() and again.shape == odd.shape
    assert cases.through(POINTS.T[1:3]).flags.f_contiguous


def test_generators_continue_and_spawn_alike():
    streams = lw.Streams(5, 3)
    streams.normals(3), streams.common_uniforms(), streams.generators[1].spawn(2)
    streams.generators[0].integers(5, dtype=np.int32)  # leaves half a word behind
    streams.shared = np.random.Generator(np.random.PCG64DXSM([1, 2, 3]))
    again = cases.through(streams)
    assert again.n_chains == 3
    for one, other in zip(
        [*streams.generators, streams.shared], [*again.generators, again.shared], strict=True
    ):
        assert (
            one.integers(5, size=9, dtype=np.int32).tolist()
            == other.integers(5, size=9, dtype=np.int32).tolist()
        )
        assert one.random() == other.random()
        assert one.spawn(1)[0].random() == other.spawn(1)[0].random()


def test_one_object_in_two_places_stays_one():
    rng, array, metric = np.random.default_rng(0), POINTS.copy(), lw.UnitMetric()
    again = cases.through({"a": [rng, array, metric], "b": (rng, array, metric), "equal": POINTS.copy()})
    assert all(one is other for one, other in zip(again["a"], again["b"], strict=True))
    assert again["equal"] is not again["a"][1]


class OwnMetric(lw.UnitMetric):
    """A user's."""


@dataclass
class OwnSurrogate:
    scale: float

    def potential(self, position):
        return 0.5 * self.scale * (position**2).sum(axis=1)

    def potential_and_gradient(self, position):
        return self.potential(position), self.scale * position


OWN = {
    "metric": OwnMetric(),
    "surrogate": OwnSurrogate(1.0),
    "function": np.sin,
    "lambda": lambda x: x,
    "class": lw.HMC,
    "target": cases.make_target(),
    "evaluator": lw.Evaluator(cases.make_target()),
    "objects": np.array([None, "a"]),
    "words": np.array(["a"]),
    "single precision": np.zeros(3, dtype=np.float32),
    "matrix": np.ma.array([1.0]),
    "a set": {1, 2},
    "bytes": b"abc",
    "number keys": {1: 2},
    "complex": 1j,
    "another generator": np.random.Generator(np.random.MT19937(1)),
    "old generator": np.random.RandomState(1),
}


@pytest.mark.parametrize("name", OWN)
def test_objects_of_other_classes_are_refused_unless_they_are_references(name):
    with pytest.raises(ArchiveError, match=r"(replay|convert|default_rng)"):
        pack({"some": [OWN[name]]})
    if name not in ("number keys", "complex"):
        again = {"own": OWN[name]}
        assert cases.through({"some": [OWN[name]]}, {"own": OWN[name]}, again)["some"][0] is OWN[name]


def test_parts_of_references_are_kept_by_name():
    method = lw.SurrogateHMC(0.3, 4, surrogate=OwnSurrogate(1.0), metric=OwnMetric())
    target = cases.make_target()
    at = cases.begin(lw.Mixture((method, lw.HMC(0.2, 2, metric=method.metric)), (1, 1)), target)
    again = cases.through(at, {"method": method})
    assert again["kernel"].kernels[0] is method
    assert again["kernel"].kernels[1].metric is method.metric
    assert cases.go_on(again, target) == cases.go_on(at, target)


def test_a_state_alone_needs_no_second_copy_of_its_surrogate():
    target = cases.make_target()
    at = cases.begin(cases.make_kernels(cases.fit("quadratic with nodes", target))["Mixture"], target)
    kernel = at.pop("kernel")
    assert sum(each.nbytes for each in pack(at, {"kernel": kernel})[0].values()) < 1000
    reader = cases.through(kernel)
    again = cases.through(at, {"kernel": kernel}, again={"kernel": reader})
    assert cases.go_on(again | {"kernel": reader}, target) == cases.go_on(at | {"kernel": kernel}, target)


def test_an_emulator_whose_prior_is_not_the_targets_is_refused():
    target = cases.make_target()
    surrogate = lw.OutputSurrogate(target.likelihood, lambda q: (0.3 * (q**4).sum(axis=1), 1.2 * q**3))
    fitted = surrogate.fit(cases.make_training(target), np.random.default_rng(0))
    for references in ({}, parts_of(target)):
        with pytest.raises(ArchiveError, match="function"):
            pack(fitted, references)


def test_a_gaussian_prior_is_stored_as_the_quadratic_form_that_it_is():
    target = cases.make_target()
    surrogate = lw.OutputSurrogate(target.likelihood, lambda q: (0.3 * (q**2).sum(axis=1), 0.6 * q))
    fitted = surrogate.fit(cases.make_training(target), np.random.default_rng(0))
    again = unpack(*pack(fitted, parts_of(target)), parts_of(target))
    np.testing.assert_array_equal(again.potential(POINTS), fitted.potential(POINTS))


def test_derived_attributes_of_a_kernel_are_not_stored():
    target = cases.make_target()
    kernel = cases.make_kernels(cases.fit("softplus", target))["SurrogateTransition"]
    size = len(pack(kernel)[1]["entries"])
    cases.begin(kernel, target)
    _ = (
        kernel.surrogate.whitening.inverse,
        kernel.surrogate.hessian(POINTS),
        kernel.surrogate.problem.updater(1.0),
    )
    words = json.dumps(pack(kernel)[1])
    assert not any(name in words for name in ("_fast", "_columns", "_primal"))
    assert len(pack(kernel)[1]["entries"]) - size < 10


def test_a_class_that_was_renamed_or_moved_is_known_by_its_tag():
    @dataclass
    class OldName:
        step_size: float

    @dataclass
    class NewName:
        step_size: float

    packed = Archive({"step": Stored(OldName)}).pack([OldName(0.1)])
    assert type(Archive({"step": Stored(NewName)}).unpack(*packed)[0]) is NewName
    words = json.dumps(pack(lw.HMC(0.1, 3))[1])
    assert "leapwise" not in words and "HMC" not in words


def test_every_public_method_and_surrogate_has_a_tag():
    public = [getattr(lw, name) for name in lw.__all__]
    needed = [each for each in public if hasattr(each, "step") or hasattr(each, "fit")]
    concrete = [each for each in needed if is_dataclass(each)]
    assert len(concrete) > 10 and set(concrete) <= set(ARCHIVE.tags)


def test_unpacked_arrays_are_new():
    stored = POINTS.copy()
    arrays, meta = pack(stored)
    again = unpack(arrays, meta)
    stored[0, 0] = 99.0
    assert again[0, 0] == POINTS[0, 0]
