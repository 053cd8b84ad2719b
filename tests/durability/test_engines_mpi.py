"""Engines on mpi4py's executor, where an MPI is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_workers_under_mpi():
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    pytest.importorskip("cloudpickle", reason="cloudpickle comes with the extra parallel")
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("there is no mpiexec")
    # Open MPI wants to be told that it may run as root, and more processes than cores; others do not mind.
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    script = Path(__file__).with_name("engine_mpi.py")
    done = subprocess.run(
        [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", str(script)],
        env={**os.environ, **allowed},
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == {"same": True, "kinds": ["NoneType", "KeyError", "ModelError", "NoneType"], "workers": 2}
