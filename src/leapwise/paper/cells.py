"""Finished pieces of an experiment, kept on disk so that a long command can be stopped and go on where it was.

A cell is a dict of numbers, texts and arrays that took long to compute. It is kept as one ``.npz`` file (no pickles)
and used again as long as its settings and the code that made it are the same. "The code" is the library without its
command line and its pictures, plus the module that computes the cell and whatever of `leapwise.paper` it imports.
Only its meaning counts: comments, docstrings and layout may change. So a module that draws is best kept apart from the
one that computes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import leapwise

Compute = Callable[[], dict[str, Any]]

_PACKAGE = Path(leapwise.__file__).parent
_IGNORED = ("cli", "paper", "results/plots.py", "results/tables.py", "problems/elliptic/plots.py")
_HARMLESS = ("cells", "figure")  # of leapwise.paper: they keep numbers and draw them
_IMPORT = re.compile(r"^ *from leapwise\.paper\.(\w+) import", re.MULTILINE)
_SOURCE = "__source__"


class Cells:
    """Computes cells, or finds them on disk.

    Parameters
    ----------
    folder : Path, optional
        Cells are kept in its subfolder ``cells``; without it they are only remembered while this object lives.
    fresh : bool
        Compute every cell again, once.
    tell : callable, optional
        Called with a line of text before and after a cell is computed; silent if left out.

    Attributes
    ----------
    progressbar : bool or None
        For `sample`, inside a cell: no progress where nothing is told, otherwise if there is a terminal.

    Examples
    --------
    >>> cells = Cells()
    >>> cells.get("a sum", {"numbers": [1, 2]}, lambda: {"sum": 3.0})
    {'sum': 3.0}
    """

    def __init__(
        self, folder: Path | None = None, fresh: bool = False, tell: Callable[[str], None] | None = None
    ) -> None:
        self._folder = None if folder is None else Path(folder) / "cells"
        self._fresh = fresh
        self._tell = tell
        self.progressbar = False if tell is None else None
        self._known: dict[str, dict[str, Any]] = {}
        self._total = self._done = 0

    def expect(self, n: int) -> None:
        """Say that `n` cells are about to be asked for, so that progress can be shown as i/n."""
        self._total, self._done = n, 0

    def get(self, name: str, settings: dict[str, Any], compute: Compute) -> dict[str, Any]:
        """Return a cell, computed now if it is not there.

        Parameters
        ----------
        name : str
            What a person calls it, such as ``"table1 · bank · rns-hmc"``.
        settings : dict
            All that it depends on besides the code; must be JSON.
        compute : callable
            Returns its numbers (float, int, bool), texts and arrays. If it raises, nothing is kept.
        """
        key = _file_name(name, settings)
        self._done += 1
        if key not in self._known:
            self._known[key] = self._find(key, name, compute)
        return dict(self._known[key])

    def _find(self, key: str, name: str, compute: Compute) -> dict[str, Any]:
        source = source_hash(_module(compute))
        file = None if self._folder is None else self._folder / f"{key}.npz"
        if file is not None and not self._fresh:
            kept = _load(file)
            if kept is not None and kept.pop(_SOURCE, None) == source:
                self._say(f"{name}: as computed before")
                return kept
        self._say(f"{name} ...")
        started = time.perf_counter()
        found = compute()
        self._say(f"{name}: {time.perf_counter() - started:.0f} s")
        if file is not None:
            _save(file, {**found, _SOURCE: source})
        return found

    def _say(self, text: str) -> None:
        if self._tell is not None:
            self._tell(f"[{self._done}/{self._total}] {text}" if self._total else text)


@cache
def source_hash(module: str) -> str:
    """Return a hash of all code that a cell computed in `module` depends on."""
    files = [file for file in sorted(_PACKAGE.rglob("*.py")) if _matters(file.relative_to(_PACKAGE))]
    digest = hashlib.sha256()
    for file in files + _experiment_files(module):
        digest.update(file.stem.encode())
        digest.update(_meaning(file.read_text(encoding="utf-8")))
    return digest.hexdigest()


def _matters(file: Path) -> bool:
    return not file.as_posix().startswith(_IGNORED)


def _experiment_files(module: str) -> list[Path]:
    """Return the file of a module, and those of what it imports of `leapwise.paper`, and they in turn."""
    spec = find_spec(module) if module != "__main__" else None
    waiting = [] if spec is None or spec.origin is None else [Path(spec.origin)]
    found: list[Path] = []
    while waiting:
        file = waiting.pop()
        if file in found or not file.exists():
            continue
        found.append(file)
        imported = _IMPORT.findall(file.read_text(encoding="utf-8"))
        waiting += [_PACKAGE / "paper" / f"{name}.py" for name in imported if name not in _HARMLESS]
    return sorted(found)


@cache
def _meaning(code: str) -> bytes:
    """Return a hash of the code without comments, docstrings and layout."""
    tree = ast.parse(code)
    for node in _bodies(tree):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).digest()


def _bodies(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield node


def _module(compute: Compute) -> str:
    while isinstance(compute, partial):
        compute = compute.func
    return str(getattr(compute, "__module__", __name__))


def _file_name(name: str, settings: dict[str, Any]) -> str:
    words = "-".join(re.findall(r"[A-Za-z0-9]+", name))
    text = json.dumps([name, settings], sort_keys=True)
    return f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _save(file: Path, cell: dict[str, Any]) -> None:
    """Write to a partial file and move it: an interrupt leaves the old file or the new one, whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial_file = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with partial_file.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **{name: np.asarray(value) for name, value in cell.items()})
        os.replace(partial_file, file)
    finally:
        partial_file.unlink(missing_ok=True)


def _load(file: Path) -> dict[str, Any] | None:
    """Read a cell; None if there is none, or it is damaged."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        return None
    return {name: value if value.ndim else value.item() for name, value in arrays.items()}
