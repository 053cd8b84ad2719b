"""A run that is killed at any moment and resumed gives the same draws, and evaluates nothing that is recorded twice.

An evaluation is recorded once `Ledger.append` has returned. A call that was complete just before that, when its process
was killed, is made again; their number is printed (``pytest -rP``). Each resumed run also evaluates one recorded
position again, to check that the model is the same.
"""

from __future__ import annotations

import pytest
import resume_cases as cases
from resume_runs import Trial, account, kill_and_resume, whole

PAUSE = 0.003
#: Calls that can be complete and not recorded at one kill: as many as are under way at once.
AT_ONCE = {"here": 1, "threads": 3, "cores": 6}

SLOW = [
    *[(case, "here", 8) for case in cases.CASES if case != "auto, bounds"],
    *[(case, "threads", 8) for case in ("auto", "auto, outputs", "HMC", "RNSHMC")],
    *[(case, "cores", 7) for case in ("auto", "auto, values", "RNSHMC")],
]


def kill(runner, folder, case, where, n_kills, rng):
    """Make runs with three kills each until there are `n_kills`; check each run, and print what the kills cost."""
    options = {"pause": PAUSE, "where": where}
    wanted, needed, seconds = whole(runner, folder / "whole", case, **options)
    n_done = n_repeated = n_calls = number = 0
    while n_done < n_kills:
        trial = Trial(folder / str(number), case, options)
        killed = kill_and_resume(runner, trial, rng.uniform(0.0, seconds, size=min(3, n_kills - n_done)))
        cases.assert_same(trial.load(), wanted)
        paid = account(trial, needed)
        assert paid.n_repeated >= 0, "calls are missing from the log"
        # One call of a vectorised target is an evaluation for each chain.
        most = AT_ONCE[where] * (3 if "vectorized" in case and where == "here" else 1)
        assert paid.n_repeated <= most * killed
        n_done, n_repeated, n_calls = n_done + killed, n_repeated + paid.n_repeated, n_calls + paid.n_calls
        number += 1
    print(
        f"{case}, {where}: {n_done} kills, {number} runs of {sum(needed.values())} evaluations; {n_repeated} calls "
        f"of {n_calls} were made again that were complete, and not recorded, when the process was killed"
    )


@pytest.mark.parametrize(
    "case", ["auto", *(pytest.param(each, marks=pytest.mark.slow) for each in ("HMC", "RNSHMC"))]
)
def test_killed_at_random_moments(case, runner, tmp_path, rng):
    kill(runner, tmp_path, case, "here", 2, rng)


def test_killed_with_threads(runner, tmp_path, rng):
    kill(runner, tmp_path, "auto", "threads", 2, rng)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "where", "n_kills"), SLOW)
def test_killed_a_hundred_times(case, where, n_kills, runner, tmp_path, rng):
    if where == "cores":
        pytest.importorskip("loky", reason="loky comes with the extra parallel")
    kill(runner, tmp_path, case, where, n_kills, rng)


def test_there_are_a_hundred():
    assert sum(n for _, _, n in SLOW) >= 100


def places(case, n):
    """Return moments while writing, from early to late: which function, which of its calls, before or after it."""
    per_run = {"append": 100, "save": 4, "transaction": 5, "sqlite": 150}
    found = []
    for number in range(n):
        name = list(per_run)[number % len(per_run)]
        call = 1 + int((number + 0.5) / n * per_run[name])
        found.append((name, call, ("before", "after")[number // len(per_run) % 2]))
    return found


def kill_inside(runner, folder, case, where, doomed):
    options = {"where": where}
    wanted, needed, _ = whole(runner, folder / "whole", case, **options)
    n_repeated = 0
    for number, die in enumerate(doomed):
        trial = Trial(folder / str(number), case, options)
        ended, _ = runner.go(trial.job(die=die))
        assert ended == -9, f"{die} was not reached"
        for _ in range(3):  # it may be killed at the same place again
            ended, _ = runner.go(trial.job(die=die))
            if ended == 0:
                break
        else:
            ended, _ = runner.go(trial.job())
        assert ended == 0
        cases.assert_same(trial.load(), wanted)
        n_repeated += account(trial, needed).n_repeated
    print(f"{case}, {where}: {len(doomed)} places, {n_repeated} calls were made again")


def test_killed_while_writing(runner, tmp_path):
    kill_inside(runner, tmp_path, "auto", "here", places("auto", 8)[::2])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["auto", "HMC", "RNSHMC"])
@pytest.mark.parametrize("where", ["here", "threads"])
def test_killed_at_twenty_moments_while_writing(case, where, runner, tmp_path):
    kill_inside(runner, tmp_path, case, where, places(case, 20))


@pytest.mark.slow
def test_workers_end_with_a_killed_run(runner, tmp_path):
    pytest.importorskip("loky", reason="loky comes with the extra parallel")
    trial = Trial(tmp_path, "auto", {"pause": PAUSE, "where": "cores"})
    runner.go(trial.job(), after=2.0, tidy=False)
