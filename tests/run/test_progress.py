import io
import threading
import time

import numpy as np
import pytest
from rich.console import Console

from leapwise.results.statistics import spread
from leapwise.run.progress import Progress

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def fail(progress: Progress, error: type[BaseException]) -> None:
    with progress:
        progress.start("draws", 10)
        progress.advance(7, 0.5)
        raise error


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def last_lines(console: Console) -> list[str]:
    """What stands on the screen in the end: the last drawing of each line."""
    return [line for line in printed(console).replace("\r", "\n").split("\n") if "exact" in line][-2:]


def test_both_phases_end_with_their_true_numbers():
    console = terminal()
    with Progress(console=console) as progress:
        progress.start("warm-up", 3)
        for i in range(3):
            progress.advance(n_exact=1000 * (i + 1), acceptance=0.5)
        progress.start("draws", 5)
        for i in range(5):
            progress.advance(n_exact=3000 + 100 * (i + 1), acceptance=0.75, note="2 diverging")
    warmup, draws = last_lines(console)
    assert "warm-up" in warmup
    assert "3/3" in warmup
    assert "3,000 exact" in warmup
    assert "accept 0.50" in warmup
    assert "5/5" in draws
    assert "3,500 exact" in draws
    assert "accept 0.75" in draws
    assert "2 diverging" in draws
    assert "taken" in draws


def test_it_is_quiet_when_nobody_looks():
    console = Console(file=io.StringIO(), force_terminal=False)
    with Progress(console=console) as progress:
        progress.start("draws", 2)
        progress.advance(1, 0.5)
    assert not progress.enabled
    assert printed(console) == ""


def test_it_is_quiet_when_told_to_be():
    console = terminal()
    with Progress(enabled=False, console=console) as progress:
        progress.start("draws", 2)
        progress.advance(1, 0.5)
    assert printed(console) == ""


def test_by_default_it_speaks_on_stderr(capsys):
    with Progress(enabled=True) as progress:
        progress.start("draws", 1)
        progress.advance(1, 0.5)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1/1" in captured.err


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_terminal_is_given_back_whatever_happens(error):
    console = terminal()
    before = threading.active_count()
    with pytest.raises(error):
        fail(Progress(console=console), error)
    text = printed(console)
    assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
    assert "7 exact" in last_lines(console)[-1]
    deadline = time.monotonic() + 10  # rich's thread ends by itself, soon after it is told to
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before  # threads of other tests may end meanwhile


def test_updates_are_throttled(monkeypatch):
    progress = Progress(console=terminal())
    updates = []
    with progress:
        progress.start("draws", 20_000)
        monkeypatch.setattr(progress._rich, "update", lambda *_, **fields: updates.append(fields))
        started = time.monotonic()
        for _ in range(20_000):
            progress.advance(1, 0.5)
        elapsed = time.monotonic() - started
    assert len(updates) <= 2 + elapsed / 0.1
    assert updates[-1]["completed"] == 20_000


def test_the_spread_of_discrepancies_is_shown():
    console = terminal()
    rng = np.random.default_rng(1)
    found = rng.normal(3.0, 0.4, (200, 4))
    found[5] = np.nan  # no proposals
    with Progress(console=console) as progress:
        progress.start("draws", 200)
        for each in found:
            progress.advance(1, 0.5, discrepancy=each)
        progress.advance(1, 0.5)  # an exact step of a mixture has none
    assert f"sd(D) {spread(found):.2g}" in last_lines(console)[-1]


def test_the_adaptation_shows_how_far_it_has_come():
    console = terminal()
    with Progress(console=console) as progress:
        progress.start("warm-up", 350)
        progress.reach(20, 20, np.nan, "find")
        progress._update()
        progress._rich.refresh()
        assert "accept -" in last_lines(console)[-1]
        progress.reach(120, 120, 0.8, "explore, sd(D) 0.15")
        progress.start("draws", 1)
    warmup, draws = last_lines(console)
    assert "120/350" in warmup
    assert "120 exact" in warmup
    assert "accept 0.80" in warmup
    assert "explore, sd(D) 0.15" in warmup
    assert "sd(D)" not in draws
    assert "accept -" in draws
