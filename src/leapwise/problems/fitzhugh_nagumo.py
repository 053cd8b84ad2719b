r"""The FitzHugh-Nagumo equations of a spiking nerve cell, with noisy observations of both states.

The membrane potential V spikes, and the recovery variable R brings it back. A current I drives them:

.. math:: V' = c \,(V - V^3 / 3 + R + I), \qquad R' = -(V - a + b R) / c.

The parameters are :math:`\theta = (\log a, \log b, \log c, I, V_0, R_0)`: the three rates, which are positive, the
current, and the state at time zero.

The equations are solved by the classical Runge-Kutta method with a fixed step, for a whole batch at once. The step does
not depend on the parameters, so the outputs are a smooth function of them and have exact derivatives. Those of one step
obey the sensitivity equations

.. math:: S' = \frac{\partial f}{\partial y}\, S + \frac{\partial f}{\partial \theta},

solved by the same Runge-Kutta step, from :math:`S = I` for the state and :math:`S = 0` for the parameters. Once the
states are known, all steps of all rows are differentiated together, as one batch; the chain rule joins them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from leapwise.problems.registry import Problem
from leapwise.targets import ForwardTarget, GaussianLikelihood, NormalPrior

NAMES = ("log_a", "log_b", "log_c", "current", "V0", "R0")
#: The design: observation times a little longer than one spike (over several spikes there are false modes).
TIMES = 0.25 * np.arange(1, 41)
NOISE_SD = 0.2
#: The prior: wide around the true values, and little mass above c = 10, where the solver's steps are too long.
PRIOR_MEAN = (np.log(0.3), np.log(0.3), np.log(2.5), 0.0, -1.0, 1.0)
PRIOR_SD = (0.5, 0.5, 0.3, 0.2, 0.5, 0.5)
#: Outputs have this value where the solution diverges: far from all mass.
LARGEST = 1e6
_TRUTH = (np.log(0.2), np.log(0.2), np.log(3.0), 0.1, -1.0, 1.0)
#: Steps from one observation to the next: the solver's errors are then below 1e-3 where there is mass.
_STEPS_BETWEEN = 5
_STEP = 0.25 / _STEPS_BETWEEN
_DATA_SEED = 19610701


def fitzhugh_nagumo() -> Problem:
    """Make the posterior of a FitzHugh-Nagumo model of a nerve cell, from observations of both its states.

    Potential and recovery are observed at 40 times up to 10, a little more than one spike, with errors of standard
    deviation 0.2. The rates a, b and c have log-normal priors around 0.3, 0.3 and 2.5. The current and the first state
    have normal priors. Data are simulated from a fixed seed with a = b = 0.2, c = 3, a current of 0.1 and the first
    state (-1, 1).

    Returns
    -------
    Problem
        Its target has the Jacobian of its outputs, which costs less than a second value.

    Notes
    -----
    The solver's step is 0.05, and its errors are below 1e-3 where there is mass. Where the step is too long and the
    solution diverges (c above 10 or so, which the prior rules out), outputs are 1e6 with a Jacobian of zero.

    Over several spikes such posteriors have false modes, in which the model spikes early or late. Over one spike there
    are none: descents from 400 draws of the prior all ended at the same point.

    Examples
    --------
    >>> problem = fitzhugh_nagumo()
    >>> problem.target
    ForwardTarget(dim=6, gradient=True, vectorized=True)
    >>> problem.target.forward(problem.true_parameters[None]).shape
    (1, 80)
    """
    truth = np.array(_TRUTH)
    rng = np.random.default_rng(_DATA_SEED)
    data = solve(truth[None])[0] + NOISE_SD * rng.standard_normal(2 * TIMES.size)
    return Problem(
        name="fitzhugh-nagumo",
        description="FitzHugh-Nagumo model of a nerve cell: rates, current and first state from 2 x 40 observations",
        target=ForwardTarget(
            solve,
            GaussianLikelihood(data, sd=NOISE_SD),
            NormalPrior(PRIOR_MEAN, PRIOR_SD),
            jacobian=solve_with_jacobian,
            names=NAMES,
            vectorized=True,
        ),
        true_parameters=truth,
    )


def solve(theta: np.ndarray) -> np.ndarray:
    """Return V at the 40 times, then R, as rows ``(n, 80)``, for parameters ``(n, 6)``."""
    states = _trajectory(theta)[_STEPS_BETWEEN::_STEPS_BETWEEN]
    return _rows(np.where(_is_found(states), states, LARGEST))


def solve_with_jacobian(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs ``(n, 80)`` and their Jacobian ``(n, 80, 6)``."""
    states = _trajectory(theta)
    n = len(theta)
    with np.errstate(all="ignore"):
        by_state, by_rates = _derivatives_of_steps(theta, states[:-1])
        sensitivity = np.zeros((n, 2, 6))
        sensitivity[:, :, 4:] = np.eye(2)
        kept = np.empty((TIMES.size, 2, n, 6))
        for i in range(len(by_state)):
            sensitivity = by_state[i] @ sensitivity
            sensitivity[:, :, :4] += by_rates[i]
            if (i + 1) % _STEPS_BETWEEN == 0:
                kept[i // _STEPS_BETWEEN] = sensitivity.transpose(1, 0, 2)
    observed = states[_STEPS_BETWEEN::_STEPS_BETWEEN]
    found = _is_found(observed)
    outputs = _rows(np.where(found, observed, LARGEST))
    jacobian = np.where(found[:, :, :, None] & np.isfinite(kept), kept, 0.0)
    return outputs, np.ascontiguousarray(jacobian.transpose(2, 1, 0, 3)).reshape(n, 2 * TIMES.size, 6)


def _trajectory(theta: np.ndarray) -> np.ndarray:
    """Return the states ``(time, 2, n)``: the first one, and that after every step.

    The slope is linear in (V, R, V^3, 1). With half = (h / 2) times its coefficients, the method is

        y2 = y + half f(y),  y3 = y + half f(y2),  y4 = y + h f(y3),
        y_next = (y2 + 2 y3 + y4 - y + half f(y4)) / 3,

    and everything is computed in place: with small batches the calls themselves take most of the time.
    """
    with np.errstate(all="ignore"):
        a, b, c = np.exp(theta[:, :3].T)
        current, zero = theta[:, 3], np.zeros(len(theta))
        slope = np.array([[c, c, -c / 3.0, c * current], [-1.0 / c, -b / c, zero, a / c]])
        half, full = 0.5 * _STEP * slope, _STEP * slope
        states = np.empty((TIMES.size * _STEPS_BETWEEN + 1, 2, len(theta)))
        states[0] = theta[:, 4:].T
        terms, product, move = np.ones((4, len(theta))), np.empty_like(slope), np.empty((2, len(theta)))
        stage, potential, cube = terms[:2], terms[0], terms[2]
        for y, following in pairwise(states):
            stage[...] = y
            np.negative(y, out=following)
            for coefficients, weight in ((half, 1.0), (half, 2.0), (full, 1.0), (half, 0.0)):
                np.multiply(potential, potential, out=cube)
                np.multiply(cube, potential, out=cube)
                np.multiply(coefficients, terms, out=product)
                np.add.reduce(product, axis=1, out=move)
                if weight:
                    np.add(y, move, out=stage)
                    following += stage if weight == 1.0 else weight * stage
            following += move
            following /= 3.0
    return states


def _derivatives_of_steps(theta: np.ndarray, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Differentiate every step by the state it starts from ``(time, n, 2, 2)`` and by the rates ``(time, n, 2, 4)``.

    The rates are the first four parameters. This is one Runge-Kutta step of the state and its sensitivities, for all
    steps at once: column 0 is the state, columns 1 to 4 are its derivatives by the rates, 5 and 6 those by the state.
    """
    start = np.zeros((2, 7, *states[:, 0].shape))
    start[:, 0] = states.transpose(1, 0, 2)
    start[:, 5:] = np.eye(2)[:, :, None, None]
    first = _slope(theta, start)
    second = _slope(theta, start + 0.5 * _STEP * first)
    third = _slope(theta, start + 0.5 * _STEP * second)
    fourth = _slope(theta, start + _STEP * third)
    end = start + _STEP / 6.0 * (first + 2.0 * (second + third) + fourth)
    by_column = end.transpose(2, 3, 0, 1)
    return np.ascontiguousarray(by_column[..., 5:]), np.ascontiguousarray(by_column[..., 1:5])


def _slope(theta: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the slope of states and sensitivities ``(2, 7, time, n)``."""
    a, b, c = np.exp(theta[:, :3].T)
    current = theta[:, 3]
    (V, dV), (R, dR) = (y[0, 0], y[0, 1:]), (y[1, 0], y[1, 1:])
    slope = np.empty_like(y)
    slope[0, 0] = c * (V - V**3 / 3.0 + R + current)
    slope[1, 0] = -(V - a + b * R) / c
    slope[0, 1:] = c * ((1.0 - V**2) * dV + dR)
    slope[1, 1:] = -(dV + b * dR) / c
    slope[1, 1] += a / c  # by log a
    slope[1, 2] -= b * R / c  # by log b
    slope[0, 3] += slope[0, 0]  # by log c
    slope[1, 3] -= slope[1, 0]
    slope[0, 4] += c  # by the current
    return slope


def _is_found(states: np.ndarray) -> np.ndarray:
    return np.abs(states) < LARGEST  # false for NaN


def _rows(states: np.ndarray) -> np.ndarray:
    """Turn ``(time, 2, n)`` into rows: V at all times, then R."""
    return np.ascontiguousarray(states.transpose(2, 1, 0)).reshape(states.shape[2], 2 * TIMES.size)
