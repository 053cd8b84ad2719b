"""The comparison with peers: the schedule and report without peers, and the potentials in JAX against ours."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.compare import report  # noqa: E402
from benchmarks.compare.cases import CASES, STANDARD, scalar, without_gradient  # noqa: E402
from benchmarks.compare.cells import Cells  # noqa: E402
from benchmarks.compare.figures import figures  # noqa: E402
from benchmarks.compare.methods import METHODS  # noqa: E402
from benchmarks.compare.outcome import Outcome  # noqa: E402
from benchmarks.compare.schedule import Row, Schedule  # noqa: E402

from leapwise.problems import fitzhugh_nagumo, funnel  # noqa: E402


def made(seconds, rhat=1.0, status="ok"):
    """A result as a worker would return it."""
    numbers = dict.fromkeys(report._MEDIANS, 1.0) | {"seconds_to_1000": seconds, "rhat": rhat}
    return {"status": status, **(numbers if status == "ok" else {})}


class Scripted:
    """Cells with known results, which record the requests."""

    kept = False

    def __init__(self, seconds):
        self.seconds, self.asked = seconds, []

    def get(self, request):
        if request["method"] == "choice":
            return {"status": "ok", "forms": {"loop-1": "jax", "loop-4": "numpy", "call-1": "jax"}}
        self.asked.append((request["method"], request["settings"].get("tune"), request["seed"]))
        found = self.seconds[request["method"]]
        return found(request) if callable(found) else made(found)


def schedule(cells, **settings):
    return Schedule(cells, say=lambda text: None, **settings)


def test_gradients_can_be_taken_away_and_outputs_too(rng):
    target = fitzhugh_nagumo().target
    x = target.sample_start(rng)[None]
    outputs = without_gradient(target)
    assert not outputs.has_gradient and outputs.names == target.names
    bare = scalar(target)
    assert not bare.has_gradient and bare.evaluate(x, gradient=False).outputs is None
    exact = target.evaluate(x, gradient=False)
    for each in (outputs, bare):
        np.testing.assert_array_equal(each.evaluate(x, gradient=False).log_density, exact.log_density)
    assert not without_gradient(funnel().target).has_gradient


def test_every_case_has_the_methods_that_can_sample_it():
    for name in STANDARD:
        fit = [method.name for method in METHODS.values() if method.suits(CASES[name])]
        assert fit[0] == "leapwise"
        assert ("emcee" in fit) == (CASES[name].kind == "values")
        assert ("hmc" in fit) == (CASES[name].kind == "gradient")
    assert not CASES["elliptic-pde-outputs"].target().has_gradient


def test_the_best_settings_of_the_first_seed_are_run_on_the_others():
    cells = Scripted(
        {"leapwise": 1.0, "numpyro-dense-4": lambda request: made(abs(request["settings"]["tune"] - 450))}
    )
    methods = [METHODS["leapwise"], METHODS["numpyro-dense-4"]]
    rows = schedule(cells).rows(CASES["banana"], methods)
    assert rows[1].settings == {"tune": 500} and rows[1].form == "numpy" and rows[0].form is None
    assert [ask[1:] for ask in cells.asked if ask[0] == "numpyro-dense-4"] == [
        (500, 0),
        (300, 0),
        (1000, 0),
        (500, 1),
        (500, 2),
    ]


def test_chains_that_disagree_are_never_the_best():
    def result(request):
        return made(9.0) if request["settings"]["tune"] == 1000 else made(1.0, rhat=1.2)

    rows = schedule(Scripted({"hmc": result}), seeds=1).rows(CASES["banana"], [METHODS["hmc"]])
    assert rows[0].settings == {"tune": 1000}


def test_slow_peers_run_one_seed_only():
    cells = Scripted({"leapwise": 100.0, "hmc": 0.1, "numpyro-dense-4": 1.0, "nutpie": 4.5})
    rows = schedule(cells).rows(CASES["banana"], [METHODS[name] for name in cells.seconds])
    assert [len(row.runs) for row in rows] == [3, 3, 3, 1]
    assert [tune for name, tune, _ in cells.asked if name == "nutpie"] == [500]


def test_settings_are_taken_over_from_a_like_case():
    cells = Scripted({"nutpie": lambda request: made(request["settings"]["tune"])})
    rows = schedule(cells, seeds=1).rows(CASES["elliptic-pde-120"], [METHODS["nutpie"]])
    assert rows[0].settings == {"tune": 300} and len(cells.asked) == 4


def test_failures_and_time_outs_are_rows():
    failed = {"hmc": lambda request: made(0, status="failed: no | luck"), "leapwise": 2.0, "nutpie": 6.0}
    cells = Scripted(failed)
    case = CASES["banana"]
    rows = schedule(cells).rows(case, [METHODS[name] for name in failed])
    text = report.to_markdown({"banana": rows}, CASES)
    assert "failed: no / luck" in text
    summary = text.splitlines()[2]
    assert "| nutpie | 6.00 | 3.00 | 3.00 |" in summary
    saved = json.loads(json.dumps(report.to_json({"banana": rows})))
    assert saved["banana"][0]["status"].startswith("failed")


def test_the_page_is_filled_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text())
    report.put_into(page, "first")
    report.put_into(page, "second")
    text = page.read_text()
    assert (
        "second" in text and "first" not in text.split(report.START)[1] and text.endswith(report.END + "\n")
    )


def test_figures_of_independent_draws(rng):
    draws = rng.normal(size=(4, 1000, 3))
    found = figures(Outcome(draws, n_values=1000, n_gradients=3000, seconds=8.0), np.zeros(3))
    assert 3000 < found["ess"] < 5000 and found["rhat"] < 1.01 and found["z_of_mean"] < 5.0
    assert found["per_evaluation"] == pytest.approx(found["ess"] / 4000)
    assert found["seconds_to_1000"] == pytest.approx(8000 / found["ess"])
    stuck = figures(Outcome(np.zeros((4, 100, 2)), 1, 0, 1.0))
    assert np.isfinite(stuck["seconds_to_1000"])
    assert figures(Outcome(draws[:1], 1, 0, 1.0))["rhat"] is None


def test_cells_keep_what_was_done_and_try_again_what_was_not(tmp_path, monkeypatch):
    results = [{"status": "failed: x"}, {"status": "not done after 5 s", "timeout": 5}, made(1.0), made(2.0)]
    monkeypatch.setattr(Cells, "_make", lambda self, request: results.pop(0))
    request = {
        "case": "banana",
        "method": "hmc",
        "seed": 0,
        "draws": 10,
        "settings": {"tune": 5},
        "form": None,
    }

    def get(timeout=5.0, fresh=()):
        return Cells(tmp_path, timeout, frozenset(fresh)).get(request)

    assert get()["status"].startswith("failed")
    assert get()["status"].startswith("not done")
    assert get()["status"].startswith("not done")
    assert get(timeout=6.0)["seconds_to_1000"] == get()["seconds_to_1000"] == 1.0
    assert get(fresh=["hmc"])["seconds_to_1000"] == 2.0


def test_a_worker_ends_at_its_time_limit_and_reports_its_errors(tmp_path):
    request = {"case": "nowhere", "method": "hmc", "seed": 0, "draws": 10, "settings": {}, "form": None}
    assert Cells(tmp_path, 0.01).get(request)["status"] == "not done after 0 s"
    pytest.importorskip("jax", reason="workers need the extra bench")
    assert "nowhere" in Cells(tmp_path, 60.0).get(request)["status"]


def test_medians_and_worst_leave_out_what_is_unknown():
    runs = [made(1.0, 1.01), made(2.0, None), made(9.0, 1.2), made(0, status="failed")]
    row = Row(CASES["banana"], METHODS["hmc"], {}, None, runs)
    assert row.median("seconds_to_1000") == 2.0 and row.worst("rhat") == 1.2 and row.status == "failed"
    assert not replace(row, runs=runs[2:]).is_trusted


@pytest.mark.slow
def test_the_potentials_in_jax_are_ours():
    pytest.importorskip("jax", reason="JAX comes with the extra bench")
    from benchmarks.compare.exact import check_agreement, has_jax, use_double_precision

    use_double_precision()
    for name in ("banana", "eight-schools", "funnel", "lobes", "student-t", "poisson-gp"):
        assert has_jax(CASES[name])
        assert check_agreement(CASES[name]) < 1e-10
    assert not has_jax(CASES["fitzhugh-nagumo"])


def test_a_method_that_was_not_run_has_no_row(tmp_path):
    cells = Cells(tmp_path, 10.0, kept=True)
    request = {"case": "banana", "method": "choice", "draws": None, "seed": None}
    assert cells.get(request)["status"] == "not run" and not list(tmp_path.iterdir())

    class Kept(Scripted):
        def get(self, request):
            found = super().get(request)
            return found if request["method"] in ("choice", "hmc") else {"status": "not run"}

    methods = [METHODS["leapwise"], METHODS["hmc"]]
    cells = Kept({"leapwise": 1.0, "hmc": 1.0})
    rows = schedule(cells, seeds=2).rows(CASES["banana"], methods)
    assert [row.method.name for row in rows] == ["hmc"]


def test_a_row_keeps_the_settings_it_was_run_with():
    """On the fine mesh, where the best settings of the coarse one are taken over, and may have changed since."""

    class Kept(Scripted):
        kept = True

        def get(self, request):
            if request["method"] == "choice" or request["settings"]["tune"] == 500:
                return super().get(request)
            return {"status": "not run"}

    cells = Kept({"nutpie": lambda request: made(request["settings"]["tune"])})
    (row,) = schedule(cells, seeds=1).rows(CASES["elliptic-pde-120"], [METHODS["nutpie"]])
    assert row.settings == {"tune": 500} and len(row.done) == 1
