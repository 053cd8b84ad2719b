"""Which runs to make: settings are searched on the first seed, and the best of them run on the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .cases import CASES, Case
from .cells import NOT_RUN, Cells
from .methods import METHODS, Method

#: Chains disagree above this R-hat; such a run is never the best.
MAX_RHAT = 1.05


@dataclass
class Row:
    """A method on a case: its best settings, and its runs."""

    case: Case
    method: Method
    settings: dict
    form: str | None
    runs: list[dict]

    @property
    def done(self) -> list[dict]:
        return [run for run in self.runs if run["status"] == "ok"]

    @property
    def status(self) -> str:
        failed = [run["status"] for run in self.runs if run["status"] != "ok"]
        return failed[0] if failed else "ok"

    def median(self, key: str) -> float | None:
        found = [run[key] for run in self.done if run[key] is not None]
        return median(found) if found else None

    def worst(self, key: str) -> float | None:
        return max((run[key] for run in self.done if run[key] is not None), default=None)

    @property
    def is_trusted(self) -> bool:
        """Whether its chains agree, on the median seed at least."""
        rhat = self.median("rhat")
        return bool(self.done) and (rhat is None or rhat < MAX_RHAT)


@dataclass
class Schedule:
    """How much to run.

    A peer that is `prune` times slower than the best other library so far is not run with further settings, nor with
    further seeds. `figure` is what best and slow are judged by.
    """

    cells: Cells
    seeds: int = 3
    draws: int = 1000
    prune: float = 4.0
    say: object = print
    figure: str = "seconds_to_1000"

    def rows(self, case: Case, methods: Iterable[Method]) -> list[Row]:
        """Run all methods on a case."""
        forms = self._forms(case)
        rows: list[Row] = []
        for method in methods:
            if method.suits(case):
                form = None if method.way is None else forms.get(method.way)
                settings, first = self._search(case, method, form, self._limit(rows))
                if first["status"] != NOT_RUN:
                    rows.append(Row(case, method, settings, form, [first]))
        limit = self._limit(rows)
        for seed in range(1, self.seeds):
            for row in rows:
                if row.method.is_ours or self._cost(row.runs[0]) <= limit:
                    run = self._run(row.case, row.method, row.settings, row.form, seed)
                    row.runs += [] if run["status"] == NOT_RUN else [run]
        return rows

    def _limit(self, rows: list[Row]) -> float:
        """Return the limit of what is too slow."""
        found = [self._cost(row.runs[0]) for row in rows if not row.method.is_ours]
        return self.prune * min(found, default=float("inf"))

    def _forms(self, case: Case) -> dict[str, str]:
        request = {"case": case.name, "method": "choice"}
        found = self.cells.get(request)
        if found["status"] != "ok":
            raise RuntimeError(f"{case.name}: {found['status']}\n{found.get('error', '')}")
        return found["forms"]

    def _search(
        self, case: Case, method: Method, form: str | None, limit: float = float("inf")
    ) -> tuple[dict, dict]:
        """Return the best settings, and their run on the first seed."""
        candidates = method.candidates(case)
        if case.like is not None and len(candidates) > 1 and not self.cells.kept:
            known = CASES[case.like]
            settings, _ = self._search(known, method, self._forms(known).get(method.way or ""))
            candidates = [settings]
        runs = []
        for settings in candidates:
            runs.append((settings, self._run(case, method, settings, form, 0)))
            if not (method.is_ours or self.cells.kept) and self._cost(runs[0][1]) > limit:
                break
        return min(runs, key=lambda pair: self._score(pair[1]))

    def _run(self, case: Case, method: Method, settings: dict, form: str | None, seed: int) -> dict:
        request = {
            "case": case.name,
            "method": method.name,
            "seed": seed,
            "draws": self.draws,
            "settings": settings,
            "form": form,
        }
        found = self.cells.get(request)
        seconds = found.get("seconds_to_1000")
        figure = f"{seconds:.3g} s to 1000" if seconds is not None else found["status"]
        self.say(f"{case.name:24s} {method.name:20s} {settings} seed {seed}: {figure}")
        return found

    def _cost(self, run: dict) -> float:
        return run.get(self.figure, float("inf"))

    def _score(self, run: dict) -> tuple[bool, bool, float]:
        """Sort runs: first those that ended, then those whose chains agree, then the fastest."""
        if run["status"] != "ok":
            return True, run["status"] == NOT_RUN, float("inf")
        return False, (run["rhat"] or 1.0) >= MAX_RHAT, self._cost(run)


def chosen(names: Iterable[str] | None) -> list[Method]:
    return (
        [METHODS[each] for each in names]
        if names
        else [each for each in METHODS.values() if not each.on_request]
    )
