"""The posteriors that are sampled: of posteriordb or random, as they are or in other coordinates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import leapwise as lw

from .generator import random_posterior

RANDOM = "random-"
#: Exact draws of a random posterior, as many as posteriordb has.
REFERENCE = (10, 1000)


@dataclass(frozen=True, eq=False)
class Case:
    """A posterior with its reference draws.

    Attributes
    ----------
    name : str
        As in posteriordb, or ``random-SEED``.
    target, values : leapwise.Target
        With gradient, and without; parameters are unconstrained.
    sd : ndarray of shape (dim,)
        Rough standard deviations, the unit of shifts.
    reference : ndarray of shape (chains, draws, dim) or None
        Draws to compare with.
    """

    name: str
    target: lw.Target
    values: lw.Target
    sd: np.ndarray
    reference: np.ndarray | None = None


def get_case(name: str) -> Case:
    """Return a posterior of posteriordb, or the random one of a seed by the name ``random-SEED``."""
    if name.startswith(RANDOM):
        found = random_posterior(int(name.removeprefix(RANDOM)))
        sd, reference = np.linalg.norm(found.matrix, axis=1), None
        if found.draw is not None:
            drawn = found.draw(np.random.default_rng(found.seed), REFERENCE[0] * REFERENCE[1])
            reference = drawn.reshape(*REFERENCE, found.dim)
        return Case(name, found.target, found.values, sd, reference)
    from .registry import posterior

    known = posterior(name)
    reference = known.reference()
    return Case(name, known.target(), known.values(), reference.std(axis=(0, 1)), reference)


def transformed(case: Case, scale: float = 1.0, shift: float = 0.0, order: np.ndarray | None = None) -> Case:
    """Return the posterior of ``scale * (x + shift * sd)[order]``, with its reference draws.

    Examples
    --------
    >>> case = transformed(get_case("random-1"), scale=1e-4, shift=100.0)
    >>> bool(np.allclose(case.sd, 1e-4 * get_case("random-1").sd))
    True
    """
    order = np.arange(len(case.sd)) if order is None else np.asarray(order)
    back = np.argsort(order)
    offset = shift * case.sd

    def old(y: np.ndarray) -> np.ndarray:
        return y[..., back] / scale - offset

    def value(y: np.ndarray) -> np.ndarray:
        return case.values.evaluate(old(y), gradient=False).log_density

    def both(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = case.target.evaluate(old(y), gradient=True)
        return raw.log_density, raw.gradient[:, order] / scale

    names = case.target.names
    settings = {
        "dim": case.target.dim,
        "names": names if isinstance(names, str) else tuple(names[i] for i in order),
        "vectorized": True,
    }
    return replace(
        case,
        target=lw.Target(value, value_and_gradient=both, **settings),
        values=lw.Target(value, **settings),
        sd=scale * case.sd[order],
        reference=None if case.reference is None else scale * (case.reference + offset)[..., order],
    )
