"""One run, or the choice of a potential, in its own process. The result is a JSON file.

python -m benchmarks.compare.worker '{"case": "banana", ...}' result.json
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from .cases import CASES
from .methods import METHODS


def main(request: dict) -> dict:
    from .exact import use_double_precision

    use_double_precision()
    case = CASES[request["case"]]
    if request["method"] == "choice":
        from .choice import choose

        return choose(case)
    from .exact import Exact
    from .figures import figures

    method = METHODS[request["method"]]
    exact = Exact(case, request.get("form") or "numpy")
    load = os.getloadavg()[0]
    outcome = method.run(exact, request["seed"], request["draws"], **request["settings"])
    return {
        **figures(outcome, exact.problem.mean),
        "rows": exact.evaluator.counts.n_exact,  # rows that a peer's callbacks evaluated
        "load": load,
        "versions": {name: version(name) for name in PACKAGES},
    }


PACKAGES = ("leapwise", "numpy", "scipy", "jax", "numpyro", "nutpie", "blackjax", "emcee")

if __name__ == "__main__":
    result = main(json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(result))
