"""Finished pieces of an experiment, kept on disk so that an interrupted command can continue.

A cell is a dict of numbers, texts and arrays that took long to compute. It is kept as one ``.npz`` file (no pickle) and
used again as long as its settings and the code that computed it are the same. "The code" is the library without its
command line and its plots, plus the module that computes the cell and the modules of `leapwise.paper` that it imports.
Comments, docstrings and layout do not count.

The whole module is compared, also its captions and drawing code. A change of the picture makes its cells be computed
again. Drawing code that many figures share is in `leapwise.paper.reproductions`, which is not compared.
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
# Code that cannot change a number: it only shows them. Modules of `paper` count where they are imported.
_IGNORED = ("cli", "paper", "results/plots.py")
_HARMLESS = ("cells", "reproductions")  # of leapwise.paper: they keep numbers and draw them
_IMPORT = re.compile(r"^ *from leapwise\.paper\.(\w+) import", re.MULTILINE)
_SOURCE = "__source__"  # the entry of a file that holds the hash of the code


class Cells:
    """Cells that are computed, or read from disk.

    Parameters
    ----------
    folder : Path, optional
        Cells are kept in its subfolder ``cells``. Without it they are kept in memory by this object.
    fresh : bool
        Compute every cell again, once.
    report : callable, optional
        Called with a line of text before and after a cell is computed; silent if left out.

    Attributes
    ----------
    progressbar : bool or None
        For `sample`, inside a cell: False without `report`, else None, which shows progress on a terminal.

    Examples
    --------
    >>> cells = Cells()
    >>> cells.get("a sum", {"numbers": [1, 2]}, lambda: {"sum": 3.0})
    {'sum': 3.0}
    """

    def __init__(
        self, folder: Path | None = None, fresh: bool = False, report: Callable[[str], None] | None = None
    ) -> None:
        self._folder = None if folder is None else Path(folder) / "cells"
        self._fresh = fresh
        self._report = report
        self.progressbar = False if report is None else None
        self._known: dict[str, dict[str, Any]] = {}
        self._total = self._done = 0

    def expect(self, n: int) -> None:
        """Announce that `n` cells will be asked for, so that progress can be shown as i/n."""
        self._total, self._done = n, 0

    def get(self, name: str, settings: dict[str, Any], compute: Compute) -> dict[str, Any]:
        """Return a cell; compute it if there is none.

        Parameters
        ----------
        name : str
            A name for people, such as ``"table1 · bank · rns-hmc"``.
        settings : dict
            Everything that the cell depends on besides the code; must be JSON.
        compute : callable
            Returns the numbers (float, int, bool), texts and arrays. If it raises, nothing is kept.
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
        if self._report is not None:
            self._report(f"[{self._done}/{self._total}] {text}" if self._total else text)


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
    """Return the file of a module, and of all modules of `leapwise.paper` that it imports, directly or not."""
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
    """Write to a partial file and move it, so that an interrupt leaves either the old or the new file complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial_file = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        with partial_file.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **{name: np.asarray(value) for name, value in cell.items()})
        os.replace(partial_file, file)
    finally:
        partial_file.unlink(missing_ok=True)


def _load(file: Path) -> dict[str, Any] | None:
    """Read a cell; None if the file is missing or damaged."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError):
        return None
    return {name: value if value.ndim else value.item() for name, value in arrays.items()}
