"""The methods and the settings that are tried for each. Peers are not imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module

from .cases import Case

#: Steps of warm-up that are tried where there is a choice; the best for each problem is kept.
TUNE = (500, 300, 1000)


@dataclass(frozen=True)
class Method:
    """One row of the table.

    `function` is ``module:function`` in this package, `fixed` are its fixed arguments, `tried` the settings of which
    the best is kept. `way` is how it calls the potential, see `choice`; None means through the library's evaluator.
    `shares_cores` says that its chains run at the same time, each on its own core. `is_main` marks the methods that
    peers are compared with, `slow_only` those that only help for slow models, `on_request` those that are run only if
    they are named.
    """

    name: str
    title: str
    function: str
    kind: str = "gradient"
    way: str | None = None
    fixed: dict = field(default_factory=dict)
    tried: tuple[dict, ...] = ({},)
    is_ours: bool = False
    is_main: bool = False
    slow_only: bool = False
    shares_cores: bool = False
    on_request: bool = False

    def candidates(self, case: Case) -> list[dict]:
        """Return the settings that are tried on a case; the paper's only where it has them."""
        return [each for each in self.tried if each.get("settings") != "paper" or case.paper is not None]

    def suits(self, case: Case) -> bool:
        """Return whether it can sample the case; methods without gradients are shown only where there is none."""
        return self.kind in ("any", case.kind) and (case.is_slow or not self.slow_only)

    def run(self, *args, **settings):
        module, function = self.function.split(":")
        return getattr(import_module(f".{module}", __package__), function)(*args, **self.fixed, **settings)


_TUNES = tuple({"tune": tune} for tune in TUNE)


def _numpyro(dense: bool, chains: int) -> Method:
    shape = "dense" if dense else "diagonal"
    return Method(
        f"numpyro-{shape}-{chains}",
        f"NumPyro NUTS, {shape}, {chains} chain{'s' * (chains > 1)}",
        "numpyro_nuts:run",
        way=f"loop-{chains}",
        fixed={"dense": dense, "chains": chains},
        tried=_TUNES,
    )


def _nutpie(low_rank: bool) -> Method:
    return Method(
        "nutpie-low-rank" if low_rank else "nutpie",
        "nutpie, low rank" if low_rank else "nutpie",
        "nutpie_nuts:run",
        way="call-1",
        fixed={"low_rank": low_rank},
        tried=_TUNES,
        shares_cores=True,
    )


METHODS = {
    method.name: method
    for method in (
        Method("leapwise", "leapwise", "ours:run", kind="any", is_ours=True, is_main=True),
        Method(
            "leapwise-cores",
            "leapwise, cores=2",
            "ours:run",
            kind="any",
            fixed={"cores": 2},
            is_ours=True,
            is_main=True,
            slow_only=True,
            shares_cores=True,
        ),
        Method(
            "leapwise-precision",
            "leapwise, precision=",
            "ours:run_to_precision",
            kind="any",
            is_ours=True,
            on_request=True,
        ),
        Method("hmc", "leapwise, HMC()", "ours:run_hmc", tried=_TUNES, is_ours=True),
        Method(
            "rns-hmc",
            "RNS-HMC (the paper's)",
            "ours:run_rns",
            tried=({"settings": "paper", "tune": 1250}, {"settings": "own", "tune": 500}),
            is_ours=True,
        ),
        _numpyro(dense=True, chains=4),
        _numpyro(dense=False, chains=4),
        _numpyro(dense=True, chains=1),
        _numpyro(dense=False, chains=1),
        _nutpie(low_rank=False),
        _nutpie(low_rank=True),
        Method(
            "blackjax-dense",
            "BlackJAX NUTS, dense, 4 chains",
            "blackjax_nuts:run",
            way="loop-4",
            fixed={"dense": True},
            tried=_TUNES,
        ),
        Method(
            "emcee",
            "emcee",
            "emcee_ensemble:run",
            kind="values",
            tried=({"moves": "stretch", "tune": 1000}, {"moves": "differential", "tune": 1000}),
        ),
    )
}


def settings_text(settings: dict) -> str:
    """Describe settings in a few words."""
    words = {"tune": "{} of warm-up", "moves": "{} moves", "settings": "{} settings"}
    return ", ".join(words.get(key, key + " {}").format(value) for key, value in settings.items())
