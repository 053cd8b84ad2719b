"""SIGTERM and Ctrl-C end a run with the draws so far and a ledger to resume from, wherever it evaluates."""

from __future__ import annotations

import signal

import pytest
import resume_cases as cases
from resume_runs import Trial, account, whole

SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
PAUSE = 0.005


def stop_and_resume(runner, folder, case, where, number, shares):
    """Send a signal to runs after shares of the time that they take; check how they end and how they are resumed."""
    options = {"pause": PAUSE, "where": where}
    wanted, needed, seconds = whole(runner, folder / "whole", case, **options)
    n_stopped = 0
    for share in shares:
        trial = Trial(folder / str(share), case, options)
        ended, _ = runner.go(trial.job(), after=share * seconds, number=number)
        assert ended == 0, "it ends by itself, with a result"
        found = trial.load()
        if not found["complete"]:
            n_stopped += 1
            n = found["draws"].shape[1]
            assert (found["draws"] == wanted["draws"][:, :n]).all()
            ended, _ = runner.go(trial.job())
            assert ended == 0
        cases.assert_same(trial.load(), wanted)
        paid = account(trial, needed)
        # Calls under way when the signal came are not waited for.
        assert 0 <= paid.n_repeated <= {"here": 1, "threads": 3, "cores": 6}[where]
    assert n_stopped, "none was stopped; the times are wrong"


@pytest.mark.parametrize(("name", "where"), [("SIGTERM", "here"), ("SIGINT", "threads")])
def test_a_signal_ends_a_run_and_it_can_be_resumed(name, where, runner, tmp_path):
    stop_and_resume(runner, tmp_path, "HMC", where, SIGNALS[name], (0.6,))


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("where", ["here", "threads", "cores"])
@pytest.mark.parametrize("case", ["auto", "auto, outputs", "HMC", "RNSHMC"])
def test_a_signal_ends_any_run(name, where, case, runner, tmp_path, rng):
    if where == "cores":
        pytest.importorskip("loky", reason="loky comes with the extra parallel")
    # A run may take half as long as the one that was timed, if other work on the machine has ended: a signal after its
    # end is no test, and one early enough stops it for sure.
    shares = sorted([0.3, *rng.uniform(0.05, 0.5, size=3)])
    stop_and_resume(runner, tmp_path, case, where, SIGNALS[name], shares)
