r"""What a gradient buys: two ways to make trajectories, compared while both are tuned.

A statistic :math:`f` with lag-one autocorrelation :math:`\rho` has :math:`(1 - \rho) / (1 + \rho)` effective draws a
step, and :math:`1 - \rho = E (f(q') - f(q))^2 / (2 \mathrm{Var} f)` is a mean over steps. The price of a
way is the gradients for one effective draw of the slowest mean and one of the slowest square, over all parameters and
the potential: what mixes slowly, such as the spread of a hierarchy, is not averaged away.
"""

from __future__ import annotations

import numpy as np

from leapwise.kernels import Info, State

#: What is credited at least: less cannot be told from nothing.
LEAST_FORGOTTEN = 1e-6


class Efficiency:
    """Remembers steps of several ways to make trajectories, and says what each costs."""

    def __init__(self) -> None:
        self.forget()

    def add(self, way: str, before: State, after: State, info: Info) -> None:
        """Remember one step of all chains."""
        old, new = (np.column_stack([each.position, each.potential]) for each in (before, after))
        self._seen.setdefault(way, []).append((old, new, info.n_steps))
        assert info.left is not None
        self._diverging.append(info.diverging & ~info.left)

    @property
    def n_steps(self) -> int:
        """How many steps are remembered of the way that has fewest; 0 if there are not two ways."""
        return min(map(len, self._seen.values())) if len(self._seen) > 1 else 0

    def forget(self) -> None:
        """Begin again."""
        self._seen: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        self._diverging: list[np.ndarray] = []

    @property
    def diverging(self) -> float:
        """Share of all steps that have diverged, inside the support."""
        return float(np.mean(self._diverging))

    def doublings(self, way: str) -> np.ndarray:
        """Return how often the trees of a way were doubled, or would have been."""
        return np.log2(1.0 + np.concatenate([n_steps for _, _, n_steps in self._seen[way]]))

    def prices(self) -> dict[str, float]:
        """Return the gradients that each way takes for an effective draw of the slowest mean and square."""
        rows = {
            way: [np.concatenate(each) for each in zip(*steps, strict=True)]
            for way, steps in self._seen.items()
        }
        everything = np.concatenate([after for _, after, _ in rows.values()])
        mean = everything.mean(axis=0)
        return {
            way: float(
                n_steps.mean()
                * sum(
                    1.0
                    / _effective(
                        (before - mean) ** power, (after - mean) ** power, (everything - mean) ** power
                    )
                    for power in (1, 2)
                )
            )
            for way, (before, after, n_steps) in rows.items()
        }


def _effective(before: np.ndarray, after: np.ndarray, everything: np.ndarray) -> float:
    """Return effective draws a step of the slowest of some statistics, at most one."""
    variance = everything.var(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        forgotten = np.where(variance > 0, ((after - before) ** 2).mean(axis=0) / (2.0 * variance), 0.0)
    slowest = float(np.clip(forgotten, LEAST_FORGOTTEN, 1.0).min())
    return slowest / (2.0 - slowest)
