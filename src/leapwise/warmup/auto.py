"""`Auto`: the method that tunes itself."""

from __future__ import annotations

from dataclasses import dataclass

from leapwise.errors import InputError
from leapwise.surrogates import Surrogate


@dataclass(frozen=True, eq=False)
class Auto:
    """Learn a surrogate of the posterior in the adaptation, then draw at one exact value each.

    What `sample` does if nothing else is asked for. It finds the typical set, explores it with walkers on a surrogate
    that is trained on every exact evaluation, looks for mass that the surrogate may have walled off, and stops when
    further learning would cost more than it saves. Kept draws come from a frozen `SurrogateTransition`. Where the
    surrogate does not earn trust, steps with exact gradients are mixed in, up to all of them, and the run says so.

    Where the surrogate has separate modes, chains jump between them (`Jumps`). What it cannot promise: a mode that no
    descent arrives at is missed, and nothing tells of it. Forward models have some 16 descents, from all over the
    prior, log-densities with a gradient a dozen from far around the mode that was found, and others one from each start
    and two more; give ``init=`` with chains far apart where there may be several.
    The tips of a thin curved ridge, a wide heap of mass under a narrow spike, and tails heavier than those of a Student
    t with five degrees of freedom can be missed without a warning too.

    Parameters
    ----------
    surrogate : Surrogate, optional
        The only candidate, such as ``SoftplusNetwork(1000)``. By default several are tried, and the one that predicts
        exact potentials best is taken: a quadratic, a quadratic with hidden nodes, a Gaussian process on gradients;
        for a `ForwardTarget`, emulators of its outputs.

    Examples
    --------
    >>> import leapwise as lw
    >>> target = lw.Target(lambda x: -0.5 * x @ x, lambda x: -x, dim=2)
    >>> run = lw.sample(target, draws=100, chains=2, method=lw.Auto(lw.QuadraticNetwork()), random_seed=1)
    >>> run.posterior.cost.n_values <= 200, run.posterior.cost.n_gradients
    (True, 0)
    """

    surrogate: Surrogate | None = None

    is_exact = True

    def __post_init__(self) -> None:
        if self.surrogate is not None and (
            isinstance(self.surrogate, type) or not callable(getattr(self.surrogate, "fit", None))
        ):
            raise InputError(
                f"Auto takes a recipe such as SoftplusNetwork(1000) as its surrogate, got {self.surrogate!r}; leave it "
                "out to have one chosen"
            )
