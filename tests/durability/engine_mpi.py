"""Run under `mpiexec -n N python -m mpi4py.futures engine_mpi.py`: prints what the workers found."""

from __future__ import annotations

import json

import numpy as np
from engine_models import EXIT, OK, RAISE, gather, moody, rows, sums, values

from leapwise.execution import InProcess, OnExecutor


def main():
    from mpi4py.futures import MPIPoolExecutor  # here, so that the file can be looked through without it

    parameters = np.random.default_rng(1).standard_normal((20, 40))
    with MPIPoolExecutor() as pool:
        same = np.array_equal(
            values(OnExecutor(sums(), pool), parameters),
            values(InProcess(sums()), parameters, one_by_one=True),
        )
        kinds = [
            type(attempt.error).__name__
            for attempt in gather(OnExecutor(moody(), pool), rows(OK, RAISE, EXIT, OK))
        ]
        print(json.dumps({"same": same, "kinds": kinds, "workers": pool.num_workers}), flush=True)


if __name__ == "__main__":
    main()
