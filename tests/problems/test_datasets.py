"""Data files: the folder is searched first, the checksum is always checked, and errors say what to do."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from leapwise.errors import DataError, InputError
from leapwise.problems import datasets
from leapwise.problems.datasets import DataFile, fetch, load_libsvm, load_mat, parse_libsvm

CONTENTS = b"-1 1:1 3:1\n+1 2:1\n"
PACKED = gzip.compress(CONTENTS, mtime=0)


def sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder, and one known file called tiny."""
    monkeypatch.setenv("LEAPWISE_DATA", str(tmp_path))
    file = DataFile("https://example.org/tiny", {"tiny": sha256(CONTENTS), "tiny.gz": sha256(PACKED)})
    monkeypatch.setitem(datasets.FILES, "tiny", file)
    return tmp_path


@pytest.fixture
def downloads(monkeypatch, tmp_path_factory):
    """A fake pooch: a retrieval writes `downloads.contents`, or raises it if it is an error."""
    cache = tmp_path_factory.mktemp("cache")
    fake = SimpleNamespace(contents=CONTENTS, asked=[])

    def retrieve(url, known_hash, fname, path):
        fake.asked.append((url, known_hash))
        if isinstance(fake.contents, Exception):
            raise fake.contents
        (Path(path) / fname).write_bytes(fake.contents)
        return str(Path(path) / fname)

    fake.retrieve = retrieve
    fake.os_cache = lambda name: cache
    fake.cache = cache
    monkeypatch.setitem(sys.modules, "pooch", fake)
    return fake


def test_the_folder_is_searched_first(folder, downloads):
    (folder / "tiny").write_bytes(CONTENTS)
    assert fetch("tiny") == folder / "tiny"
    assert downloads.asked == []


@pytest.mark.parametrize(("name", "contents"), [("tiny", CONTENTS), ("tiny.gz", PACKED)])
def test_plain_and_compressed_text_read_alike(folder, downloads, name, contents):
    (folder / name).write_bytes(contents)
    features, labels = load_libsvm("tiny", 3)
    np.testing.assert_array_equal(features, [[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(labels, [-1, 1])


def test_a_changed_file_in_the_folder_is_refused(folder, downloads):
    (folder / "tiny").write_bytes(CONTENTS + b"+1 1:1\n")
    with pytest.raises(DataError, match=r"not the expected file.*replace it, or remove it") as caught:
        fetch("tiny")
    assert str(folder / "tiny") in str(caught.value)
    assert sha256(CONTENTS) in str(caught.value)
    assert downloads.asked == []


@pytest.mark.parametrize("set_folder", [True, False])
def test_a_file_that_is_not_in_the_folder_is_downloaded_with_its_checksum(
    folder, downloads, monkeypatch, set_folder
):
    if not set_folder:
        monkeypatch.delenv("LEAPWISE_DATA")
    assert fetch("tiny").read_bytes() == CONTENTS
    assert downloads.asked == [("https://example.org/tiny", f"sha256:{sha256(CONTENTS)}")]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ConnectionError("no route to host"), "no route to host"),
        (ValueError("hash of downloaded file does not match"), "SHA-256"),
    ],
)
def test_a_failed_download_says_where_it_searched_and_what_to_do(folder, downloads, error, says):
    downloads.contents = error
    with pytest.raises(DataError) as caught:
        fetch("tiny")
    for part in (
        "tiny",
        str(folder),
        str(downloads.cache),
        says,
        "https://example.org/tiny",
        "LEAPWISE_DATA",
    ):
        assert part in str(caught.value)


def test_without_pooch_the_message_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"leapwise\[paper\]") as caught:
        fetch("tiny")
    assert str(folder) in str(caught.value)
    monkeypatch.delenv("LEAPWISE_DATA")
    with pytest.raises(DataError, match="LEAPWISE_DATA is not set"):
        fetch("tiny")


def test_pooch_itself_reports_a_wrong_checksum(folder, tmp_path, monkeypatch):
    """Through the real pooch, from a file URL that needs no network."""
    pooch = pytest.importorskip("pooch")
    source = tmp_path / "served"
    source.write_bytes(b"something else")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    monkeypatch.setattr(
        pooch.core,
        "choose_downloader",
        lambda url, progressbar=False: lambda url, file, mover: Path(file).write_bytes(source.read_bytes()),
    )
    with pytest.raises(DataError, match="is not the expected one"):
        fetch("tiny")
    source.write_bytes(CONTENTS)
    assert fetch("tiny").read_bytes() == CONTENTS


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(InputError, match=r"'a9b'.*bank_marketing\.mat, a9a"):
        fetch("a9b")


def test_a_last_line_without_a_newline_and_an_empty_row_are_read():
    features, labels = parse_libsvm(b"1 1:2\n-1\n1 2:-3.5", 2)
    np.testing.assert_array_equal(features, [[2, 0], [0, 0], [0, -3.5]])
    np.testing.assert_array_equal(labels, [1, -1, 1])


needs_data = pytest.mark.skipif(
    not os.environ.get("LEAPWISE_DATA"), reason="LEAPWISE_DATA does not name a folder with the data files"
)


@needs_data
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("bank_marketing.mat", {"X": (40197, 25), "y": (40197, 1)}),
        ("elliptic_pde.mat", {"y": (121, 1)}),
        ("surrogate_fit_n10.mat", {"X": (10, 1), "Y": (10, 1)}),
        ("surrogate_fit_n20.mat", {"X": (20, 1), "Y": (20, 1)}),
        ("surrogate_fit_n40.mat", {"X": (40, 1), "Y": (40, 1)}),
    ],
)
def test_the_authors_files_hold_what_they_should(name, shapes):
    contents = load_mat(name)
    assert {key: contents[key].shape for key in shapes} == shapes


@needs_data
def test_a9a_has_its_published_counts():
    features, labels = load_libsvm("a9a", 123)
    assert features.shape == (32561, 123)
    assert set(np.unique(features)) == {0.0, 1.0}
    assert (labels == -1).sum() == 24720
    assert (labels == 1).sum() == 7841
