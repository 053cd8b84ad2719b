"""Losses: why trajectories are rejected.

Smaller steps mend an energy that is not kept. They do nothing for a trajectory that leaves the support beyond a hard
edge: that is a matter of its length. A step size that is made smaller until few trajectories leave would shrink until
they go next to nowhere, in as many steps as they may have, and each step costs a gradient.
"""

from __future__ import annotations

from leapwise.kernels import Info

#: Steps that a trajectory may have while step sizes are learnt, and the same at an edge.
MOST_STEPS, EDGE_STEPS = 256, 8
#: There is an edge if so large a share of rejections has left the support.
MOSTLY = 0.5
#: Weight of the past, a step, in what is remembered of rejections; and how many of them it takes to judge.
MEMORY, ENOUGH_LOST = 0.95, 0.5
#: Share of trajectories that must stay inside for them to speak for the others.
FEW_INSIDE = 0.25


class Losses:
    """Remembers how much is rejected, and how much of it because the trajectory has left the support."""

    def __init__(self) -> None:
        self._lost = self._left = 0.0

    def add(self, info: Info) -> None:
        """Learn from one step of all chains."""
        assert info.left is not None
        self._lost = MEMORY * self._lost + float(1.0 - info.acceptance_rate.mean())
        self._left = MEMORY * self._left + float(info.left.mean())

    @property
    def at_an_edge(self) -> bool:
        """Whether what is rejected has mostly left the support."""
        return self._lost > ENOUGH_LOST and self._left > MOSTLY * self._lost

    @property
    def most_steps(self) -> int:
        """Steps that a trajectory may have."""
        return EDGE_STEPS if self.at_an_edge else MOST_STEPS

    def rate(self, info: Info, target: float) -> float:
        """Return the acceptance rate that tells of the step size: at an edge, of trajectories that stay inside.

        Where hardly any does they count as well: it may be too large a step that has led them out.
        """
        assert info.left is not None
        if not self.at_an_edge or self._left * (1.0 - MEMORY) > 1.0 - FEW_INSIDE:
            return float(info.acceptance_rate.mean())
        inside = info.acceptance_rate[~info.left]
        return float(inside.mean()) if inside.size else target
