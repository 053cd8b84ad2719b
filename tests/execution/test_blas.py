"""Linear algebra has one thread in the sampler, and its own number in the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json
import numpy as np
from threadpoolctl import threadpool_info
import leapwise as lw

def threads():
    return max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")

seen = {"before": threads(), "model": [], "sampler": []}

def log_density(x):
    if len(seen["model"]) < 5:
        seen["model"].append(threads())
    return -0.5 * x @ x

class Watched(lw.HMC):
    def step(self, streams, state, evaluator):
        if len(seen["sampler"]) < 5:
            seen["sampler"].append(threads())
        return super().step(streams, state, evaluator)

target = lw.Target(log_density, lambda x: -x, dim=2)
lw.sample(target, draws=5, tune=0, chains=2, method=Watched(0.5, 2, metric=lw.UnitMetric()), random_seed=1)
seen["after"] = threads()
print(json.dumps(seen))
"""


def test_the_model_keeps_its_threads_and_the_sampler_has_one():
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    seen = json.loads(done.stdout)
    before = seen["before"]  # one, where there is a single processor
    assert set(seen["model"]) == {before} == {seen["after"]}
    assert set(seen["sampler"]) == {1}
