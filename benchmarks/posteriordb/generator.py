r"""Random smooth posteriors: a kind and its data by the seed, then a random affine change of coordinates.

Each kind is a log-density of coordinates z with its gradient, and has the rough place (`centre`) and width (`spread`)
of its mass. The parameters are

.. math:: x = \text{scale} \circ (M w + \text{shift}), \qquad w = (z - \text{centre}) / \text{spread},

with scales between 1e-6 and 1e6, M the identity or a random matrix of condition number up to 1e4 with rows of length
one, and shifts of up to 100 standard deviations. So a parameter's standard deviation is about its scale.

Chains start uniformly between -2 and 2 on the scale of x, which is far away where scales are small. How far is limited:
see `Shape`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import digamma, expit, polygamma

import leapwise as lw

Pair = tuple[np.ndarray, np.ndarray]
SCALES = (1e-6, 1e6)
MOST_CONDITION = 1e4
MOST_SHIFT = 100.0  # standard deviations
MOST_DIM = 40
START_RADIUS = 2.0
#: Farthest start in standard deviations: a potential of 1e14 still has its last digit below 0.1, so energies can be
#: compared. Stan would not start from farther away either.
FAR = 1e7
#: Farthest start of the logarithm of a scale, which divides such distances, and of a mean count, which is in the
#: potential itself.
SCALE_FAR, COUNT_FAR = 5.0, 20.0
#: Farthest start of the logarithms of rates. Farther away solutions diverge, or do not depend on the rates.
RATE_FAR, CYCLE_FAR = 3.0, 1.0


@dataclass(frozen=True, eq=False)
class RandomPosterior:
    """A random posterior.

    Attributes
    ----------
    seed, kind, dim
        Its seed, kind and number of parameters.
    target, values : leapwise.Target
        Vectorised; with gradient, and without.
    location, matrix : ndarray
        Parameters are ``location + matrix @ w`` where w has about unit size and is roughly centred.
    mean, sd : ndarray or None
        Exact moments of the parameters, where they are known.
    draw : callable or None
        ``draw(rng, n)`` makes independent exact draws ``(n, dim)``, where that can be done.
    """

    seed: int
    kind: str
    dim: int
    target: lw.Target
    values: lw.Target
    location: np.ndarray
    matrix: np.ndarray
    mean: np.ndarray | None = None
    sd: np.ndarray | None = None
    draw: Callable[[np.random.Generator, int], np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Shape:
    """A kind of posterior with its data, in its own coordinates z.

    Attributes
    ----------
    both : callable
        Log-density and gradient of rows ``(n, dim)``; where it is not finite is outside the support.
    centre, spread : ndarray of shape (dim,)
        Rough place and width of its mass.
    limits : list of (rows, reach)
        Chains start where ``abs(rows @ (z - centre)) <= reach``; quantities that are exponentiated have such a limit.
    mean, covariance, draw
        Exact moments and draws of z, where they are known.
    """

    both: Callable[[np.ndarray], Pair]
    centre: np.ndarray
    spread: np.ndarray
    limits: list[tuple[np.ndarray, float]] = field(default_factory=list)
    mean: np.ndarray | None = None
    covariance: np.ndarray | None = None
    draw: Callable[[np.random.Generator, int], np.ndarray] | None = None


def random_posterior(seed: int) -> RandomPosterior:
    """Return the posterior of a seed.

    Examples
    --------
    >>> posterior = random_posterior(1)
    >>> posterior.target.has_gradient, posterior.values.has_gradient
    (True, False)
    """
    rng = np.random.default_rng([19870831, seed])
    kind = list(KINDS)[rng.integers(len(KINDS))]
    wanted = 1 + (17 * seed) % MOST_DIM  # each once in 40 seeds, for kinds of any dimension
    shape = KINDS[kind](rng, wanted)
    location, matrix = _coordinates(rng, shape)
    dim = len(location)
    inverse = np.linalg.inv(matrix / np.abs(matrix).max(axis=1, keepdims=True))
    inverse /= np.abs(matrix).max(axis=1)  # scales differ by 1e12, so the equalised matrix is inverted

    def both(x: np.ndarray) -> Pair:
        with np.errstate(all="ignore"):
            value, slope = shape.both((x - location) @ inverse.T)
            slope = slope @ inverse
            finite = np.isfinite(value) & np.isfinite(slope).all(axis=1)
        return np.where(finite, value, -np.inf), np.where(finite[:, None], slope, 0.0)

    def value(x: np.ndarray) -> np.ndarray:
        return both(x)[0]

    mean = None if shape.mean is None else location + matrix @ shape.mean
    sd = None if shape.covariance is None else np.sqrt(((matrix @ shape.covariance) * matrix).sum(axis=1))
    draw = shape.draw
    return RandomPosterior(
        seed=seed,
        kind=kind,
        dim=dim,
        target=lw.Target(value, dim=dim, vectorized=True, value_and_gradient=both),
        values=lw.Target(value, dim=dim, vectorized=True),
        location=location + matrix @ shape.centre,
        matrix=matrix * shape.spread,
        mean=mean,
        sd=sd,
        draw=None if draw is None else lambda generator, n: location + draw(generator, n) @ matrix.T,
    )


def _coordinates(rng: np.random.Generator, shape: Shape) -> Pair:
    """Return location and matrix of ``x = location + matrix @ z``, such that starts keep the limits."""
    dim = len(shape.centre)
    mixing = np.eye(dim)
    if rng.random() < 0.5:
        rotation = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        condition = MOST_CONDITION ** rng.random()
        mixing = (rotation * np.geomspace(1.0, condition, dim)) @ np.linalg.qr(
            rng.standard_normal((dim, dim))
        )[0]
        mixing /= np.linalg.norm(mixing, axis=1, keepdims=True)
    back = np.linalg.inv(mixing)
    # Rows that must not exceed one anywhere between the centre and a start; half of that is for the shift.
    rows = [back / FAR, *((each * shape.spread) @ back / reach for each, reach in shape.limits)]
    limits = np.abs(np.concatenate(rows))
    limits[limits < 1e-14 * limits.max(axis=1, keepdims=True)] = 0.0
    shift = np.zeros(dim) if rng.random() < 0.5 else rng.uniform(-MOST_SHIFT, MOST_SHIFT, dim)
    shift *= min(1.0, 0.5 / max((limits @ np.abs(shift)).max(), 0.5))
    shares = np.count_nonzero(limits, axis=1)
    smallest = np.maximum(2.0 * START_RADIUS * (limits * shares[:, None]).max(axis=0), SCALES[0])
    scale = np.exp(rng.uniform(np.log(smallest), np.log(SCALES[1])))
    matrix = scale[:, None] * mixing / shape.spread
    return scale * shift - matrix @ shape.centre, matrix


# Regressions.


def _design(rng: np.random.Generator, n_columns: int) -> Pair:
    """Return a design with correlated columns, some of them raw, and a usual size of its coefficients."""
    n_rows = 10 + n_columns * int(rng.integers(3, 10))
    common = rng.uniform(0.0, 0.95)
    design = np.sqrt(1.0 - common) * rng.standard_normal((n_rows, n_columns))
    design += np.sqrt(common) * rng.standard_normal((n_rows, 1))
    size = np.ones(n_columns)
    if rng.random() < 0.5:  # raw columns: ages, incomes
        size = 10.0 ** rng.uniform(-2.0, 3.0, n_columns)
        design = size * (design + rng.uniform(-10.0, 10.0, n_columns))
    if n_columns > 1:
        design[:, 0], size[0] = 1.0, 1.0
    return design, 1.0 / size


def _spread(precision: np.ndarray) -> np.ndarray:
    """Return standard deviations of a normal with that precision, for parameters of any scale."""
    root = np.sqrt(np.diag(precision))
    return np.sqrt(np.diag(np.linalg.inv(precision / np.outer(root, root)))) / root


def _regression(rng: np.random.Generator, dim: int, family: str) -> Shape:
    design, size = _design(rng, dim)
    prior_sd = 10.0 ** rng.uniform(-0.5, 2.0) * size
    truth = np.minimum(1.0, prior_sd / size) * size * rng.standard_normal(dim) / np.sqrt(dim)
    truth[0] -= (design[:, 1:].mean(axis=0) @ truth[1:]) / design[0, 0] if dim > 1 else 0.0
    eta = np.clip(design @ truth, -4.0, 4.0)
    if family == "logistic":
        outcome = (rng.random(len(eta)) < expit(eta)).astype(float)
        mean, weight = expit, expit(eta) * expit(-eta)
    else:
        outcome = rng.poisson(np.exp(eta)).astype(float)
        mean, weight = np.exp, np.exp(eta)

    def both(beta: np.ndarray) -> Pair:
        eta = beta @ design.T
        total = np.logaddexp(0.0, eta) if family == "logistic" else np.exp(eta)
        value = (outcome * eta - total).sum(axis=1) - 0.5 * ((beta / prior_sd) ** 2).sum(axis=1)
        return value, (outcome - mean(eta)) @ design - beta / prior_sd**2

    precision = (design.T * weight) @ design + np.diag(prior_sd**-2.0)
    limits = [] if family == "logistic" else [(design, COUNT_FAR)]
    return Shape(both, truth, _spread(precision), limits)


def _logistic(rng: np.random.Generator, dim: int) -> Shape:
    return _regression(rng, dim, "logistic")


def _poisson(rng: np.random.Generator, dim: int) -> Shape:
    return _regression(rng, dim, "poisson")


def _linear(rng: np.random.Generator, dim: int) -> Shape:
    """Coefficients and the logarithm of the noise; priors of coefficients are normal or flat."""
    dim = max(dim, 2)
    design, size = _design(rng, dim - 1)
    noise = np.exp(rng.uniform(-2.0, 2.0))
    prior_precision = 0.0 if rng.random() < 0.5 else (10.0 ** rng.uniform(0.0, 2.0) * size) ** -2.0
    coefficients = size * rng.standard_normal(dim - 1)
    outcome = design @ coefficients + noise * rng.standard_normal(len(design))

    def both(z: np.ndarray) -> Pair:
        beta, log_noise = z[:, :-1], z[:, -1]
        residual, weight = outcome - beta @ design.T, np.exp(-2.0 * log_noise)
        squares = weight * (residual**2).sum(axis=1)
        value = -0.5 * (squares + (prior_precision * beta**2).sum(axis=1) + log_noise**2)
        slope = np.empty_like(z)
        slope[:, :-1] = weight[:, None] * (residual @ design) - prior_precision * beta
        slope[:, -1] = squares - len(design) - log_noise
        return value - len(design) * log_noise, slope

    precision = np.zeros((dim, dim))
    precision[:-1, :-1] = design.T @ design / noise**2 + prior_precision * np.eye(dim - 1)
    precision[-1, -1] = 2.0 * len(design) + 1.0
    centre = np.append(coefficients, np.log(noise))
    return Shape(both, centre, _spread(precision), [(np.eye(dim)[-1:], SCALE_FAR)])


# Fits of differential equations. Parameters are logarithms.


def _fit(
    rng: np.random.Generator,
    solve: Callable[[np.ndarray], Pair],
    usual: np.ndarray,
    noise: float,
    prior_sd: float,
    far: float,
) -> Shape:
    """Fit what `solve` returns, outputs ``(n, m)`` and their Jacobian ``(n, m, p)``; the noise may be unknown."""
    truth = usual + 0.5 * prior_sd * rng.standard_normal(len(usual))
    outputs, jacobian = solve(truth[None])
    noise *= outputs.std()
    data = outputs[0] + noise * rng.standard_normal(outputs.shape[1])
    p, unknown = len(usual), rng.random() < 0.5
    prior_mean = np.append(usual, np.log(noise)) if unknown else usual

    def both(z: np.ndarray) -> Pair:
        log_noise = z[:, p] if unknown else np.full(len(z), np.log(noise))
        outputs, jacobian = solve(z[:, :p])
        residual = (data - outputs) * np.exp(-log_noise)[:, None]
        distance = (z - prior_mean) / prior_sd
        squares = (residual**2).sum(axis=1)
        slope = -distance / prior_sd
        slope[:, :p] += np.exp(-log_noise)[:, None] * (residual[:, None] @ jacobian)[:, 0]
        if unknown:
            slope[:, p] += squares - len(data)
        return -0.5 * (squares + (distance**2).sum(axis=1)) - len(data) * log_noise, slope

    precision = np.eye(len(prior_mean)) / prior_sd**2
    precision[:p, :p] += jacobian[0].T @ jacobian[0] / noise**2
    if unknown:
        precision[p, p] += 2.0 * len(data)
    centre = np.append(truth, np.log(noise)) if unknown else truth
    return Shape(both, centre, _spread(precision), [(np.eye(len(centre)), far)])


def _growth(rng: np.random.Generator, dim: int) -> Shape:
    """Logistic growth N' = r N (1 - N / K); parameters are log N(0), log r, log K."""
    times = np.linspace(0.0, 10.0, int(rng.integers(10, 40)))

    def solve(z: np.ndarray) -> Pair:
        first, rate, most = np.exp(z.T)[:, :, None]
        decay = np.exp(-rate * times)
        below, above = first * (1.0 - decay), most * decay
        outputs = most * first / (below + above)
        by_rate = (most - first) * rate * times * decay
        slopes = np.stack([above, by_rate, below], axis=2) / (below + above)[:, :, None]
        return outputs, outputs[:, :, None] * slopes

    usual = np.log([rng.uniform(0.5, 2.0), rng.uniform(0.5, 1.0), rng.uniform(20.0, 100.0)])
    return _fit(rng, solve, usual, rng.uniform(0.02, 0.2), rng.uniform(0.3, 0.7), RATE_FAR)


def _pharmacokinetics(rng: np.random.Generator, dim: int) -> Shape:
    r"""Two compartments after a dose into the first; parameters are log k10, log k12, log k21, log V.

    The concentration is :math:`(A e^{-\alpha t} + B e^{-\beta t}) / V` with :math:`\alpha + \beta = k_{10} + k_{12} +
    k_{21}`, :math:`\alpha \beta = k_{10} k_{21}`, :math:`A = (\alpha - k_{21}) / (\alpha - \beta) = 1 - B`.
    """
    times = np.geomspace(0.1, rng.uniform(10.0, 30.0), int(rng.integers(8, 30)))
    into = np.array([0.0, 0.0, 1.0])

    def solve(z: np.ndarray) -> Pair:
        rates, volume = np.exp(z[:, :3]), np.exp(z[:, 3])[:, None]
        total, product = rates.sum(axis=1, keepdims=True), (rates[:, 0] * rates[:, 2])[:, None]
        root = np.sqrt(total**2 - 4.0 * product)
        fast = 0.5 * (total + root)
        slow = product / fast
        share = (fast - rates[:, 2:]) / root
        # By the logarithms of the rates, (n, 3): of total, product, root, fast, slow, share.
        by_product = product * np.array([1.0, 0.0, 1.0])
        by_root = (total * rates - 2.0 * by_product) / root
        by_fast, by_slow = 0.5 * (rates + by_root), 0.5 * (rates - by_root)
        by_share = (by_fast - rates * into - share * by_root) / root
        early, late = np.exp(-fast * times)[:, :, None], np.exp(-slow * times)[:, :, None]
        t = times[:, None]
        outputs = (share * early[..., 0] + (1.0 - share) * late[..., 0]) / volume
        jacobian = np.empty((*outputs.shape, 4))
        jacobian[..., :3] = by_share[:, None] * (early - late)
        jacobian[..., :3] -= share[:, None] * early * t * by_fast[:, None]
        jacobian[..., :3] -= (1.0 - share)[:, None] * late * t * by_slow[:, None]
        jacobian[..., :3] /= volume[:, None]
        jacobian[..., 3] = -outputs
        return outputs, jacobian

    usual = np.log([0.3, rng.uniform(0.3, 1.0), rng.uniform(0.1, 0.5), rng.uniform(1.0, 10.0)])
    return _fit(rng, solve, usual, rng.uniform(0.02, 0.1), rng.uniform(0.3, 0.7), RATE_FAR)


def _lotka_volterra(rng: np.random.Generator, dim: int) -> Shape:
    """Predators and prey, u' = a - b e^v, v' = d e^u - c in logarithms, by Runge-Kutta with sensitivities.

    Parameters are the logarithms of a, b, c, d, and sometimes of both first states.
    """
    step, n_steps, seen = 0.2, 50, int(rng.integers(2, 6))
    first, p = rng.uniform(-0.3, 0.3, 2), 4 if rng.random() < 0.5 else 6

    def slope(rates: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Slope of states and sensitivities ``(2, 1 + p, n)``: column 0 is the state."""
        a, b, c, d = rates
        eaten, bred = b * np.exp(y[1, 0]), d * np.exp(y[0, 0])
        result = np.empty_like(y)
        result[0], result[1] = -eaten * y[1], bred * y[0]
        result[0, 0], result[1, 0] = a - eaten, bred - c
        result[0, 1] += a
        result[0, 2] -= eaten
        result[1, 3] -= c
        result[1, 4] += bred
        return result

    def solve(z: np.ndarray) -> Pair:
        rates = np.exp(z[:, :4].T)
        y = np.zeros((2, 1 + p, len(z)))
        y[:, 0] = z[:, 4:].T if p == 6 else first[:, None]
        y[:, 5:] = np.eye(2)[:, : p - 4, None]
        kept = []
        for i in range(n_steps):
            k1 = slope(rates, y)
            k2 = slope(rates, y + 0.5 * step * k1)
            k3 = slope(rates, y + 0.5 * step * k2)
            k4 = slope(rates, y + step * k3)
            y = y + step / 6.0 * (k1 + 2.0 * (k2 + k3) + k4)
            if (i + 1) % seen == 0:
                kept.append(y)
        states = np.concatenate(kept)  # (2 * times, 1 + p, n)
        return states[:, 0].T, states[:, 1:].transpose(2, 0, 1)

    usual = np.append(np.log(rng.uniform(0.5, 1.0, 4)), first[: p - 4])
    return _fit(rng, solve, usual, rng.uniform(0.1, 0.3), rng.uniform(0.2, 0.4), CYCLE_FAR)


# Densities with exact draws.


def _mixture(rng: np.random.Generator, dim: int) -> Shape:
    """Two overlapping normals: means less than three standard deviations apart, spreads within a factor of 1.5."""
    share = rng.uniform(0.2, 0.8)
    apart = rng.uniform(0.5, 2.8) * _direction(rng, dim)
    means = np.stack([-(1.0 - share) * apart, share * apart])
    sds = 1.5 ** rng.uniform(-0.5, 0.5, (2, dim))
    log_shares = np.log([share, 1.0 - share])

    def both(z: np.ndarray) -> Pair:
        distance = (z[:, None] - means) / sds
        parts = log_shares - 0.5 * (distance**2).sum(axis=2) - np.log(sds).sum(axis=1)
        value = np.logaddexp(parts[:, 0], parts[:, 1])
        weights = np.exp(parts - value[:, None])
        return value, -np.einsum("nk,nkd->nd", weights, distance / sds)

    def draw(generator: np.random.Generator, n: int) -> np.ndarray:
        part = (generator.random(n) >= share).astype(int)
        return means[part] + sds[part] * generator.standard_normal((n, dim))

    shares = np.array([share, 1.0 - share])
    covariance = np.diag(shares @ sds**2) + (means.T * shares) @ means
    return Shape(both, np.zeros(dim), np.sqrt(np.diag(covariance)), [], np.zeros(dim), covariance, draw)


def _direction(rng: np.random.Generator, dim: int) -> np.ndarray:
    direction = rng.standard_normal(dim)
    return direction / np.linalg.norm(direction)


def _funnel(rng: np.random.Generator, dim: int) -> Shape:
    """A mild funnel: v is normal, and so is each other coordinate, with variance exp(v)."""
    dim = max(dim, 2)
    sd = rng.uniform(0.3, 1.0)

    def both(z: np.ndarray) -> Pair:
        v, rest = z[:, 0], z[:, 1:]
        weight = np.exp(-v)
        squares = weight * (rest**2).sum(axis=1)
        slope = np.empty_like(z)
        slope[:, 0] = 0.5 * (squares - (dim - 1)) - v / sd**2
        slope[:, 1:] = -weight[:, None] * rest
        return -0.5 * ((v / sd) ** 2 + (dim - 1) * v + squares), slope

    def draw(generator: np.random.Generator, n: int) -> np.ndarray:
        z = generator.standard_normal((n, dim))
        z[:, 0] *= sd
        z[:, 1:] *= np.exp(0.5 * z[:, :1])
        return z

    spread = np.append(sd, np.full(dim - 1, np.exp(0.25 * sd**2)))
    limits = [(np.eye(dim)[:1], SCALE_FAR)]
    return Shape(both, np.zeros(dim), spread, limits, np.zeros(dim), np.diag(spread**2), draw)


def _banana(rng: np.random.Generator, dim: int) -> Shape:
    """A standard normal, bent: every second coordinate is moved by the square of the one before."""
    dim = max(dim, 2)
    n = dim // 2
    bend = rng.uniform(0.2, 1.0, n) * rng.choice([-1.0, 1.0], n)
    even, odd = slice(0, 2 * n, 2), slice(1, 2 * n, 2)

    def both(z: np.ndarray) -> Pair:
        flat = z.copy()
        flat[:, odd] -= bend * (z[:, even] ** 2 - 1.0)
        slope = -flat
        slope[:, even] += 2.0 * bend * z[:, even] * flat[:, odd]
        return -0.5 * (flat**2).sum(axis=1), slope

    def draw(generator: np.random.Generator, n: int) -> np.ndarray:
        z = generator.standard_normal((n, dim))
        z[:, odd] += bend * (z[:, even] ** 2 - 1.0)
        return z

    variance = np.ones(dim)
    variance[odd] += 2.0 * bend**2
    limits = [(np.eye(dim)[even], np.sqrt(FAR))]  # its potential grows with the fourth power
    return Shape(both, np.zeros(dim), np.sqrt(variance), limits, np.zeros(dim), np.diag(variance), draw)


def _student_t(rng: np.random.Generator, dim: int) -> Shape:
    """Independent t variables of five degrees of freedom or more."""
    freedom = rng.uniform(5.0, 30.0, dim)

    def both(z: np.ndarray) -> Pair:
        value = -0.5 * ((freedom + 1.0) * np.log1p(z**2 / freedom)).sum(axis=1)
        return value, -(freedom + 1.0) * z / (freedom + z**2)

    variance = freedom / (freedom - 2.0)
    return Shape(
        both,
        np.zeros(dim),
        np.sqrt(variance),
        mean=np.zeros(dim),
        covariance=np.diag(variance),
        draw=lambda generator, n: generator.standard_t(freedom, (n, dim)),
    )


def _log_gamma(rng: np.random.Generator, dim: int) -> Shape:
    """Logarithms of independent gamma variables: skewed."""
    shape = np.exp(rng.uniform(np.log(0.5), np.log(20.0), dim))

    def both(z: np.ndarray) -> Pair:
        e = np.exp(z)
        return (shape * z - e).sum(axis=1), shape - e

    mean, variance = digamma(shape), polygamma(1, shape)
    return Shape(
        both,
        mean,
        np.sqrt(variance),
        [(np.eye(dim), COUNT_FAR)],
        mean,
        np.diag(variance),
        lambda generator, n: np.log(generator.gamma(shape, size=(n, dim))),
    )


def _hierarchy(rng: np.random.Generator, dim: int) -> Shape:
    r"""Group means around a common mean: :math:`\mu, \log \tau`, and the means, as they are or standardised.

    Given :math:`\tau` all is normal, so draws are exact but for a fine grid of :math:`\log \tau`.
    """
    dim = max(dim, 4)
    errors = rng.uniform(0.3, 1.5, dim - 2)
    mean_sd, log_tau_sd, centred = 5.0, 0.5, rng.random() < 0.5
    tau = np.exp(log_tau_sd * rng.standard_normal())
    data = rng.normal(rng.normal(0.0, 2.0), np.hypot(tau, errors))

    def both(z: np.ndarray) -> Pair:
        mu, log_tau, eta = z[:, :1], z[:, 1:2], z[:, 2:]
        tau = np.exp(log_tau)
        if centred:
            residual, eta = (data - eta) / errors**2, (eta - mu) / tau
            by_group, by_mu = residual - eta / tau, (eta / tau).sum(axis=1)
            by_tau = (eta**2).sum(axis=1) - len(data)
            jacobian = -len(data) * log_tau[:, 0]
        else:
            residual = (data - mu - tau * eta) / errors**2
            by_group, by_mu = tau * residual - eta, residual.sum(axis=1)
            by_tau = (tau * eta * residual).sum(axis=1)
            jacobian = 0.0
        slope = np.empty_like(z)
        slope[:, 0] = by_mu - mu[:, 0] / mean_sd**2
        slope[:, 1] = by_tau - log_tau[:, 0] / log_tau_sd**2
        slope[:, 2:] = by_group
        squares = ((residual * errors) ** 2 + eta**2).sum(axis=1)
        prior = (mu[:, 0] / mean_sd) ** 2 + (log_tau[:, 0] / log_tau_sd) ** 2
        return jacobian - 0.5 * (squares + prior), slope

    grid = np.linspace(-8.0 * log_tau_sd, 8.0 * log_tau_sd, 8001)
    weights = 1.0 / (errors**2 + np.exp(2.0 * grid)[:, None])  # (grid, groups)
    precision = weights.sum(axis=1) + mean_sd**-2.0
    middle = (weights @ data) / precision
    log_mass = 0.5 * (np.log(weights).sum(axis=1) - np.log(precision) - weights @ data**2)
    log_mass += 0.5 * precision * middle**2 - 0.5 * (grid / log_tau_sd) ** 2
    below = np.cumsum(np.exp(log_mass - log_mass.max()))
    below /= below[-1]

    def draw(generator: np.random.Generator, n: int) -> np.ndarray:
        log_tau = np.interp(generator.random(n), below, grid)
        at = np.exp(2.0 * log_tau)[:, None]
        weights = 1.0 / (errors**2 + at)
        precision = weights.sum(axis=1) + mean_sd**-2.0
        mu = generator.normal((weights @ data) / precision, precision**-0.5)[:, None]
        variance = 1.0 / (errors**-2.0 + 1.0 / at)
        group = generator.normal(variance * (data / errors**2 + mu / at), np.sqrt(variance))
        return np.column_stack([mu, log_tau, group if centred else (group - mu) / np.sqrt(at)])

    rough = draw(np.random.default_rng(0), 500)
    limits = [(np.eye(dim)[1:2], SCALE_FAR)]
    return Shape(both, rough.mean(axis=0), rough.std(axis=0), limits, draw=draw)


KINDS: dict[str, Callable[[np.random.Generator, int], Shape]] = {
    "linear": _linear,
    "logistic": _logistic,
    "poisson": _poisson,
    "growth": _growth,
    "pharmacokinetics": _pharmacokinetics,
    "lotka-volterra": _lotka_volterra,
    "mixture": _mixture,
    "funnel": _funnel,
    "banana": _banana,
    "student-t": _student_t,
    "log-gamma": _log_gamma,
    "hierarchy": _hierarchy,
}
