"""The example of a user's kernel: its mistake is caught, and without the mistake it passes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from leapwise.testing import check_invariance, gumbel

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kernel.py"


def test_the_mistake_is_caught():
    spec = importlib.util.spec_from_file_location("own_kernel", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    wrong, right = (check_invariance(example.RandomWalk(adapt), gumbel()) for adapt in (True, False))
    assert not wrong.passed and wrong.largest > 2 * wrong.threshold
    assert right.passed
