"""Reading any archive gives data or raises `ArchiveError`, and executes nothing that the archive names."""

from __future__ import annotations

import copy
import json

import archive_cases as cases
import numpy as np
import pytest

import leapwise as lw
from leapwise.errors import ArchiveError
from leapwise.run.class_tags import pack, parts_of, unpack
from leapwise.storage.archive import ARCHIVE_FORMAT

KERNEL = lw.HMC(0.3, 4, metric=lw.DenseMetric(cases.COVARIANCE))


def table(*entries, root=None):
    """An archive of these entries; the root is the last of them."""
    return {
        "format": ARCHIVE_FORMAT,
        "entries": list(entries),
        "root": [len(entries) - 1] if root is None else root,
    }


def entry(kind, **rest):
    return {"kind": kind, **rest}


def made(name, **attributes):
    return entry("object", tag=name, names=list(attributes), items=list(attributes.values()))


HMC = "hmc"
HMC_FIELDS = {
    "step_size": 0.1,
    "n_steps": 4,
    "trajectory_length": None,
    "jitter": 0.4,
    "metric": None,
    "target_acceptance": 0.8,
}
ARRAY = entry("array", name="a", axes=[0], writeable=True)
STATE = np.random.default_rng(0).bit_generator.state


def generator(**changes):
    inside = {"state": 1, "inc": 3}
    state = {"bit_generator": "PCG64", "state": inside, "has_uint32": 0, "uinteger": 0}
    parts = {
        "bits": "PCG64",
        "state": state,
        "entropy": 1,
        "spawn_key": [],
        "pool_size": 4,
        "n_children_spawned": 0,
    } | changes
    entries = []

    def slot(value):
        if isinstance(value, dict):
            entries.append(entry("dict", names=list(value), items=[slot(each) for each in value.values()]))
        elif isinstance(value, list):
            entries.append(entry("list", items=[slot(each) for each in value]))
        else:
            return value
        return [len(entries) - 1]

    root = slot(parts)
    return table(*entries, entry("generator", state=root))


HOSTILE = {
    # not an archive
    "nothing": None,
    "a list": [],
    "a word": "archive",
    "empty": {},
    "another format": {"format": ARCHIVE_FORMAT - 1, "entries": [], "root": 1},
    "no entries": {"format": ARCHIVE_FORMAT, "root": 1},
    "no root": {"format": ARCHIVE_FORMAT, "entries": []},
    "entries are a word": {"format": ARCHIVE_FORMAT, "entries": "abc", "root": 1},
    "entries are a number": {"format": ARCHIVE_FORMAT, "entries": 10**9, "root": 1},
    "an entry is a word": table("abc"),
    "an entry is nothing": table(None),
    "no kind": table({}),
    "a kind that is not known": table(entry("pickle", data="gASV")),
    "a kind that is a list": table(entry(["array"])),
    # slots
    "refers to itself": table(entry("list", items=[[0]])),
    "a cycle of two": table(entry("list", items=[[1]]), entry("list", items=[[0]])),
    "refers ahead": table(entry("list", items=[[5]])),
    "refers back from the end": table(entry("list", items=[[-1]])),
    "refers by a word": table(entry("list", items=[["0"]])),
    "refers by True": table(entry("list", items=[]), entry("list", items=[[False]])),
    "a slot is a dictionary": table(entry("list", items=[{"kind": "list"}])),
    "a slot is deep": table(entry("list", items=[[[[[[0]]]]]])),
    "a slot of two": table(entry("list", items=[]), entry("list", items=[[0, 0]])),
    "items are missing": table(entry("tuple")),
    "items are a word": table(entry("list", items="abc")),
    "a root out of reach": table(entry("list", items=[]), root=[7]),
    "a root of a list": table(root=[[]]),
    # numbers
    "a number that is code": table(entry("int", text="__import__('os')")),
    "a number that is a list": table(entry("float", text=["nan"])),
    "a number without end": table(entry("int", text="9" * 100_000)),
    # dictionaries
    "names are missing": table(entry("dict", items=[])),
    "names are numbers": table(entry("dict", names=[1], items=[1])),
    "names twice": table(entry("dict", names=["a", "a"], items=[1, 2])),
    "more names than items": table(entry("dict", names=["a", "b"], items=[1])),
    # arrays
    "an array that is missing": table(entry("array", name="b", axes=[0], writeable=True)),
    "an array without a name": table(entry("array", axes=[0], writeable=True)),
    "an array named by a list": table(entry("array", name=["a"], axes=[0], writeable=True)),
    "axes are missing": table(entry("array", name="a", writeable=True)),
    "too many axes": table(entry("array", name="a", axes=[0, 1], writeable=True)),
    "an axis twice": table(entry("array", name="a", axes=[0, 0], writeable=True)),
    "axes of words": table(entry("array", name="a", axes=["0"], writeable=True)),
    "axes are huge": table(entry("array", name="a", axes=list(range(1000)), writeable=True)),
    "writeable is a word": table(entry("array", name="a", axes=[0], writeable="yes")),
    "objects in an array": table(entry("array", name="objects", axes=[0], writeable=True)),
    "words in an array": table(entry("array", name="words", axes=[0], writeable=True)),
    "not an array": table(entry("array", name="bytes", axes=[0], writeable=True)),
    "a scalar that is a list": table(entry("scalar", name="list", axes=[], writeable=True)),
    # classes
    "no class": table(entry("object", names=[], items=[])),
    "a class that is a number": table(made(5)),
    "a class that is a list": table(made(["a"])),
    "os.system": table(made("os:system")),
    "builtins": table(made("builtins:eval")),
    "subprocess": table(made("subprocess:Popen", args="true")),
    "a class by its name": table(made("HMC", **HMC_FIELDS)),
    "a class by its module": table(made("leapwise.kernels.hmc:HMC", **HMC_FIELDS)),
    "an evaluator": table(made("leapwise.execution.evaluator:Evaluator", target=None)),
    "a target": table(made("target", dim=2)),
    # attributes
    "a kernel without fields": table(made(HMC)),
    "a kernel with too few": table(made(HMC, step_size=0.1)),
    "a kernel with a method": table(made(HMC, **HMC_FIELDS, step=None)),
    "a kernel with a dunder": table(made(HMC, **HMC_FIELDS, __class__="object")),
    "a kernel with a dictionary": table(made(HMC, **HMC_FIELDS, __dict__=None)),
    "a step size in words": table(made(HMC, **HMC_FIELDS | {"step_size": "0.1"})),
    "a word for a metric": table(made(HMC, **HMC_FIELDS | {"metric": "unknown"})),
    "a kernel for a metric": table(made(HMC, **HMC_FIELDS), made(HMC, **HMC_FIELDS | {"metric": [0]})),
    "steps that are a list": table(entry("list", items=[1, 2]), made(HMC, **HMC_FIELDS | {"n_steps": [0]})),
    "True for a number": table(made(HMC, **HMC_FIELDS | {"jitter": True})),
    "positions in words": table(
        made(
            "state",
            **{
                "position": "a",
                "potential": "b",
                "gradient": None,
                "known_metric": None,
                "known_force": None,
            },
        )
    ),
    "a state in a state": table(made("state", position=None, potential=None, gradient=None, known_metric=1)),
    "a surrogate that is a kernel": table(
        made(HMC, **HMC_FIELDS),
        made("unit-metric"),
        made(
            "surrogate-hmc",
            **{"step_size": 0.1, "n_steps": 3, "trajectory_length": None, "jitter": 0.1},
            surrogate=[0],
            metric=[1],
        ),
    ),
    "a named tuple with too few": table(made("known-force", surrogate=None)),
    "a potential that is no function": table(made("smooth-potential", value_and_gradient="print")),
    "a prior that is no function": table(
        made("unit-metric"), made("white-prior", prior="eval", whitening=[0])
    ),
    "a misfit of words": table(made("component-misfit", likelihood="a", space="b")),
    # generators
    "a generator that is not known": generator(bits="os.system"),
    "a generator of a list": generator(bits=["PCG64"]),
    "a generator without a state": generator(state=None),
    "a state of words": generator(state={"bit_generator": "PCG64", "state": "a"}),
    "a state of another": generator(state=dict(STATE, bit_generator="MT19937", state={"state": 1, "inc": 1})),
    "entropy in words": generator(entropy="x"),
    "negative entropy": generator(entropy=-1),
    "a huge pool": generator(pool_size=10**12, entropy="x"),
    "a key of words": generator(spawn_key=["a"]),
    # references
    "a reference that is not given": table(entry("reference", path="other")),
    "a reference without a name": table(entry("reference")),
    "a reference by a path": table(entry("reference", path="kernel.__class__")),
    "a reference to globals": table(entry("reference", path="kernel.step.__globals__")),
}
ARRAYS = {
    "a": np.zeros(3),
    "objects": np.array([print], dtype=object),
    "words": np.array(["a"]),
    "bytes": b"\x80\x04.",
    "list": [1, 2],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(name, monkeypatch):
    with monkeypatch.context() as watched:
        watched.setattr("builtins.__import__", refuse)
        with pytest.raises(ArchiveError):
            unpack(ARRAYS, HOSTILE[name], {"kernel": KERNEL})


class Imported(BaseException):
    """Not an Exception, so that it is not taken for damage."""


def refuse(name, *arguments):
    raise Imported(name)


def test_the_hostile_archives_are_hostile_for_what_they_say():
    """The parts that they are made of are read as they should be."""
    assert unpack(ARRAYS, table(made(HMC, **HMC_FIELDS))).step_size == 0.1
    assert unpack(ARRAYS, table(ARRAY)).shape == (3,)
    assert unpack({}, generator()).random() == pytest.approx(0.5, abs=0.5)
    assert unpack({}, table(entry("dict", names=["a"], items=[1]))) == {"a": 1}
    assert unpack({}, table(entry("reference", path="kernel.metric")), {"kernel": KERNEL}) is KERNEL.metric


def test_deep_nesting_is_no_trouble():
    entries = [entry("list", items=[])] + [entry("list", items=[[i]]) for i in range(100_000)]
    deep = unpack({}, table(*entries))
    for _ in range(100_000):
        (deep,) = deep
    assert deep == []


def test_deep_and_circular_values_are_refused():
    circle: list = []
    circle.append([circle])
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (circle, deep):
        with pytest.raises(ArchiveError, match=r"holds itself.*nested"):
            pack(value)
    while deep:  # taken apart step by step, which Python itself would not survive
        (deep,) = deep


def changed(value, rng):
    """Return JSON with one of its parts changed."""
    value = copy.deepcopy(value)
    places = []

    def walk(part):
        for key in range(len(part)) if isinstance(part, list) else list(part):
            places.append((part, key))
            if isinstance(part[key], (list, dict)):
                walk(part[key])

    walk(value)
    part, key = places[rng.integers(len(places))]
    junk = [None, True, -1, 0, 3, 1e300, "x", [], [0], [10**6], {}, {"kind": "list", "items": []}]
    if rng.random() < 0.2:
        del part[key]
    else:
        part[key] = junk[rng.integers(len(junk))]
    return value


@pytest.mark.parametrize("seed", range(4))
def test_damaged_archives(seed):
    """A part changed at random gives an `ArchiveError` or some value, and no other error."""
    target, rng = cases.make_target(), np.random.default_rng(seed)
    at = cases.begin(cases.make_kernels(cases.fit("outputs", target))["Mixture"], target)
    arrays, meta = pack(at, parts_of(target))
    meta, refused = json.loads(json.dumps(meta)), 0
    for _ in range(100):
        try:
            unpack(arrays, changed(meta, rng), parts_of(target))
        except ArchiveError:
            refused += 1
    assert refused > 50
    short = {name: each for i, (name, each) in enumerate(arrays.items()) if i != seed}
    with pytest.raises(ArchiveError, match="is missing"):
        unpack(short, meta, parts_of(target))
    with pytest.raises(ArchiveError, match="references"):
        unpack(arrays, meta)
