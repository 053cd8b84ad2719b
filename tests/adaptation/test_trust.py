"""How many exact steps the draws need beside a surrogate."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from leapwise.adaptation.settings import DEFAULT
from leapwise.adaptation.trust import Trust, judge, require_use
from leapwise.errors import SurrogateError


def result(sd, surprises, missed_mass=False):
    return SimpleNamespace(
        sd=sd,
        surprises=surprises,
        training=[0] * 50,
        missed_mass=missed_mass,
        settings=DEFAULT,
        is_useful=sd < DEFAULT.stopping.useless,
    )


class TestTrust:
    def test_a_good_surrogate_needs_no_exact_steps(self):
        assert judge(result(0.3, 0.0)) == Trust(0.0)

    @pytest.mark.parametrize(("sd", "surprises"), [(2.0, 0.0), (np.inf, 0.0), (0.1, 0.5), (np.nan, 0.0)])
    def test_a_useless_one_is_not_used(self, sd, surprises):
        found = judge(result(sd, surprises))
        assert found.exact_share == 1.0 and "after 50 evaluations" in found.reason
        if surprises == 0.0:
            with pytest.raises(SurrogateError, match="no gradient to fall back on"):
                require_use(result(sd, surprises), found)

    def test_without_a_gradient_a_poor_one_is_still_used(self):
        """There are no exact steps that would cost less."""
        sd = 0.5 * (DEFAULT.stopping.useless + DEFAULT.stopping.useless_values)
        require_use(result(sd, 0.0), judge(result(sd, 0.0)))
        with pytest.raises(SurrogateError, match="no gradient to fall back on"):
            require_use(result(1.01 * DEFAULT.stopping.useless_values, 0.0), judge(result(sd, 0.0)))

    def test_a_fair_one_is_helped(self):
        found = judge(result(0.7, 0.0))
        assert 0.0 < found.exact_share < 0.5
        require_use(result(0.7, 0.0), found)

    def test_one_with_mass_beyond_its_draws_is_helped_and_says_so(self):
        found = judge(result(0.1, 0.0, missed_mass=True))
        assert 0.0 < found.exact_share < 0.5 and "there is mass" in found.reason
        assert "there is mass" not in judge(result(0.9, 0.0)).reason
