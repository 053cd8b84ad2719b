"""The sixteen posteriors by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.posteriordb import hidden_markov, hierarchies, mixtures, regressions, time_series
from benchmarks.posteriordb.data import read_data
from benchmarks.posteriordb.posterior import Posterior

_MODELS: dict[str, Callable[[str, dict[str, Any]], Posterior]] = {
    "earnings-earn_height": regressions.earn_height,
    "earnings-logearn_interaction": regressions.logearn_interaction,
    "kilpisjarvi_mod-kilpisjarvi": regressions.kilpisjarvi,
    "kidiq-kidscore_momiq": regressions.kidscore_momiq,
    "kidiq-kidscore_interaction": regressions.kidscore_interaction,
    "mesquite-mesquite": regressions.mesquite,
    "nes2000-nes": regressions.nes,
    "sblri-blr": regressions.blr,
    "arK-arK": regressions.ark,
    "arma-arma11": time_series.arma11,
    "garch-garch11": time_series.garch11,
    "gp_pois_regr-gp_pois_regr": hierarchies.gp_pois_regr,
    "eight_schools-eight_schools_noncentered": hierarchies.eight_schools,
    "hmm_example-hmm_example": hidden_markov.hmm_example,
    "bball_drive_event_0-hmm_drive_0": hidden_markov.hmm_drive_0,
    "low_dim_gauss_mix-low_dim_gauss_mix": mixtures.low_dim_gauss_mix,
}
NAMES = tuple(_MODELS)


def posterior(name: str) -> Posterior:
    """Read the data of a posterior and return it."""
    if name not in _MODELS:
        raise KeyError(f"no posterior {name!r}; there are {', '.join(NAMES)}")
    return _MODELS[name](name, read_data(name))
