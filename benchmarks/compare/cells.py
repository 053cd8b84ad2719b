"""Runs that are kept on disk: each is made once, in its own process, and read again after an interrupt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = "not run"


@dataclass
class Cells:
    """Results in `folder`, one file for each request; `fresh` names methods whose old results are not used.

    With `kept` nothing is run: a missing result has the status `NOT_RUN`. `worker` is the module that makes a result.
    """

    folder: Path
    timeout: float
    fresh: frozenset[str] = frozenset()
    kept: bool = False
    worker: str = "benchmarks.compare.worker"
    _made: set[Path] = field(default_factory=set)

    def get(self, request: dict) -> dict:
        """Return the result of a request, and make it if it is missing; ``status`` is "ok" or what went wrong."""
        file = self.folder / request["case"] / request["method"] / f"{_key(request)}.json"
        if file.exists():
            result = json.loads(file.read_text())
            if self.kept or file in self._made or not self._is_stale(result):
                return result
        if self.kept:
            return {"request": request, "status": NOT_RUN}
        self._made.add(file)
        started = time.perf_counter()
        result = self._make(request)
        result = {"request": request, "wall_seconds": time.perf_counter() - started, **result}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1))
        return result

    def _is_stale(self, result: dict) -> bool:
        """Return whether to run again: a failure may be fixed by now, and a slow run may get more time."""
        if result["request"]["method"] in self.fresh or result["status"].startswith("failed"):
            return True
        return result["status"] != "ok" and result["timeout"] < self.timeout

    def _make(self, request: dict) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "result.json"
            command = [sys.executable, "-m", self.worker, json.dumps(request), str(answer)]
            try:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=_environment(request["method"]),
                    capture_output=True,
                    text=True,
                    timeout=self.timeout,
                )
            except subprocess.TimeoutExpired:
                return {"status": f"not done after {self.timeout:.0f} s", "timeout": self.timeout}
            if done.returncode or not answer.exists():
                return {"status": f"failed: {_reason(done)}", "error": done.stderr[-4000:]}
            return {"status": "ok", **json.loads(answer.read_text())}


def _key(request: dict) -> str:
    settings = "".join(f"{key}-{value}-" for key, value in request.get("settings", {}).items())
    return f"{settings}draws-{request.get('draws')}-seed-{request.get('seed')}"


def _environment(method: str) -> dict[str, str]:
    """Return the environment of a run: as many BLAS threads as a user would have, and one if chains share the cores.

    JAX's own threads are not changed.
    """
    shared = method in METHODS and METHODS[method].shares_cores
    return ({"OPENBLAS_NUM_THREADS": "1"} if shared else {}) | {"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ


def _reason(done: subprocess.CompletedProcess) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"ended with code {done.returncode}"
