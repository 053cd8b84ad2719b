"""Where the chains begin."""

from __future__ import annotations

import reprlib
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from leapwise.errors import BudgetError, InputError, StartError
from leapwise.execution import Evaluation, Evaluator
from leapwise.kernels import State, Streams
from leapwise.targets import AnyTarget

ATTEMPTS = 100


def read_init(init: ArrayLike, target: AnyTarget, n_chains: int) -> np.ndarray:
    """Check parameters given by the user, ``(dim,)`` or ``(chains, dim)``, and return positions."""
    try:
        given = np.asarray(init)
        if given.dtype.kind not in "fiu":
            raise TypeError(f"its dtype is {given.dtype}")
        given = given.astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"init must be an array of real numbers, got {reprlib.repr(init)} ({error}); "
            "give one number for each parameter"
        ) from error
    if given.shape not in ((target.dim,), (n_chains, target.dim)):
        raise InputError(
            f"init must have shape ({target.dim},), or ({n_chains}, {target.dim}) for {n_chains} chains, "
            f"got {given.shape}; give one value for each parameter"
        )
    parameters = np.broadcast_to(given, (n_chains, target.dim))
    bad = np.argwhere(~np.isfinite(parameters))
    if bad.size:
        chain, i = bad[0]
        raise StartError(
            f"init must be finite, got {parameters[chain, i]} for parameter {i} of chain {chain}; "
            "give a number there"
        )
    lower, upper = target.transform.lower, target.transform.upper
    bad = np.argwhere((parameters <= lower) | (parameters >= upper))
    if bad.size:
        chain, i = bad[0]
        raise StartError(
            f"init must lie strictly inside the bounds, got {parameters[chain, i]:g} for parameter {i} of chain "
            f"{chain}, whose bounds are ({lower[i]:g}, {upper[i]:g}); move it inside"
        )
    return np.array(target.transform.to_position(parameters))


def find_start(
    evaluator: Evaluator, streams: Streams, init: ArrayLike | None, gradient: bool = True
) -> State:
    """Return a state of finite potential for each chain, with its gradient if that is wanted.

    Chains begin at `init`, or at draws from the prior, or uniformly between -2 and 2 in unconstrained space. What
    is drawn is drawn again where the log-density is -inf, at most 100 times.
    """
    target = evaluator.target
    evaluate = evaluator.value_and_gradient if gradient else evaluator.value
    if init is not None:
        state = _evaluated_once(evaluate, read_init(init, target, streams.n_chains))
        _refuse_infinite(state, evaluator, "init", "start where the log-density is finite")
        return state
    position = np.stack([_draw(target, generator) for generator in streams.generators])
    state = State.from_evaluation(evaluate(position))
    attempts = 1
    while attempts < ATTEMPTS:
        lost = np.flatnonzero(~np.isfinite(state.potential))
        if not lost.size:
            return state
        again = np.stack([_draw(target, streams.generators[i]) for i in lost])
        try:
            found = State.from_evaluation(evaluate(again))
        except BudgetError:  # which would say how many are allowed, not that all of them were in vain
            break
        state, attempts = _replaced(state, lost, found), attempts + 1
    _refuse_infinite(state, evaluator, f"the last of {attempts} random starts", _remedy(target))
    return state


def _remedy(target: AnyTarget) -> str:
    """Return what helps where random starts have no mass."""
    if target.emulates_outputs:
        return "give init=, or a prior whose draws the model can be run at"
    return "give init=, or bounds= for the parameters that have them"


def _evaluated_once(evaluate: Callable[[np.ndarray], Evaluation], position: np.ndarray) -> State:
    """Evaluate different positions only: one start may be that of all chains."""
    _, first, which = np.unique(position, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rows = np.argsort(order)[which.reshape(-1)]
    found = evaluate(position[first[order]])
    gradient = None if found.gradient is None else found.gradient[rows]
    return State(position, found.potential[rows], gradient)


def _draw(target: AnyTarget, rng: np.random.Generator) -> np.ndarray:
    parameters = target.sample_start(rng)
    if parameters is None:
        return rng.uniform(-2.0, 2.0, target.dim)
    return np.asarray(target.transform.to_position(parameters[None])[0])


def _replaced(state: State, rows: np.ndarray, found: State) -> State:
    """Return the state with the few rows found put in their places."""
    position, potential = state.position.copy(), state.potential.copy()
    position[rows], potential[rows] = found.position, found.potential
    if state.gradient is None or found.gradient is None:
        return State(position, potential)
    gradient = state.gradient.copy()
    gradient[rows] = found.gradient
    return State(position, potential, gradient)


def _refuse_infinite(state: State, evaluator: Evaluator, where: str, remedy: str) -> None:
    lost = np.flatnonzero(~np.isfinite(state.potential))
    if lost.size:
        chain = int(lost[0])
        parameters = evaluator.target.transform.to_parameters(state.position[[chain]])[0]
        point = np.array2string(parameters, precision=6, threshold=12, separator=", ", max_line_width=1000)
        # Failures count as -inf here, but not every -inf is one.
        failed = f" (the last failure: {evaluator.last_failure})" if evaluator.last_failure else ""
        raise StartError(f"the log-density of chain {chain} is -inf at {where}, {point}; {remedy}{failed}")
