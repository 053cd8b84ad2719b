r"""Non-centred coordinates of hierarchies, in which the scale of a group and its members are about independent.

In a hierarchy :math:`\theta_i \sim N(\mu, \tau)` with few data the posterior is a funnel: where :math:`\tau` is small,
all :math:`\theta_i` lie close to :math:`\mu`. No step size suits both its neck and its mouth. In the *non-centred*
coordinates :math:`\eta_i = (\theta_i - \mu) / \tau` the prior has no funnel. Where the data say much about each
:math:`\theta_i`, these coordinates have one instead, so neither kind is always better, and
`leapwise.kernels.SurrogateTransition` can use both by turns.

**Change of coordinates.** Let q be positions. The column s of a scale holds :math:`q_s = \log \tau`, and the columns of
the members and of a location :math:`\mu` hold these themselves. In the other coordinates q' the column of each member
holds :math:`\eta_i`, and all other columns are as in q. With parents before their members, the matrix
:math:`\partial q / \partial q'` is triangular with the scales on its diagonal, so

.. math:: \log \Big| \det \frac{\partial q}{\partial q'} \Big| = \sum_i q_{s(i)},

the sum over all members of the logarithms of their scales. A density :math:`e^{-U(q)}` of positions is the density
:math:`e^{-U'(q')}` of the other coordinates, with

.. math:: U'(q') = U(q(q')) - \sum_i q_{s(i)}.

**Gradient.** Let g be the gradient of :math:`U - \sum_i q_{s(i)}` by q: that of U, less the number of its members in
the column of each scale. The chain rule goes from the members to their parents:

.. math::
    g_\mu \leftarrow g_\mu + \sum_i g_i, \qquad g_s \leftarrow g_s + \sum_i g_i\, (\theta_i - \mu), \qquad
    g_i \leftarrow \tau g_i,

where the sums are over the members that have this location or scale. Where a parent is itself a member of another
hierarchy, its own hierarchy comes after those of its members, so that its g is complete by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from leapwise.checks import require_real
from leapwise.errors import InputError
from leapwise.surrogates.compiled import CompiledSurrogate, compile_surrogate
from leapwise.targets import AnyTarget
from leapwise.targets.variables import columns


class _Energy(Protocol):
    """Anything with potentials and gradients, such as a trained surrogate."""

    def potential(self, position: np.ndarray) -> np.ndarray: ...

    def potential_and_gradient(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True, eq=False)
class Hierarchy:
    r"""Members :math:`\theta_i \sim N(\mu_i, \tau_i)`, said by the columns of positions that hold them.

    Parameters
    ----------
    members : array_like of int, shape (n,)
        Columns of the members.
    scales : int or array_like of int, shape (n,)
        Column of the scale of all members, or of each. It holds the logarithm of the scale.
    locations : int or array_like of int, shape (n,), optional
        Column of the location of all members, or of each. Without it the location is `shift`.
    shift : float or array_like of shape (n,)
        Constants that are added to the locations.
    """

    members: Sequence[int] | np.ndarray
    scales: int | Sequence[int] | np.ndarray
    locations: int | Sequence[int] | np.ndarray | None = None
    shift: ArrayLike = 0.0

    def __post_init__(self) -> None:
        members = _columns(self.members, "members")
        if members.ndim != 1 or not members.size or len(np.unique(members)) != members.size:
            raise InputError(f"members must be a list of different columns, got {self.members!r}")
        parents = {"scales": self.scales, "locations": self.locations}
        read: dict[str, np.ndarray | None] = {
            name: None if value is None else _columns(value, name) for name, value in parents.items()
        }
        read |= {"members": members, "shift": require_real(self.shift, "shift")}
        for name, array in read.items():
            if array is not None and array.shape not in ((), members.shape):
                raise InputError(
                    f"{name} of a hierarchy must be one number, or one for each of its {members.size} members, "
                    f"got shape {array.shape}"
                )
            if array is not None:
                array = np.broadcast_to(array, members.shape).copy()
                array.flags.writeable = False
            object.__setattr__(self, name, array)

    @cached_property
    def parents(self) -> frozenset[int]:
        """Columns of locations and scales."""
        found = [self.scales] if self.locations is None else [self.scales, self.locations]
        return frozenset(np.concatenate(found).tolist())

    @cached_property
    def _to_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """The columns of scales, and the matrix that adds up over the members of each."""
        return _sums(np.asarray(self.scales))

    @cached_property
    def _to_locations(self) -> tuple[np.ndarray, np.ndarray]:
        """The same for locations; there must be some."""
        return _sums(np.asarray(self.locations))

    def _location(self, position: np.ndarray) -> np.ndarray:
        """Return the location of each member, ``(rows, n)`` or ``(n,)``."""
        shift = np.asarray(self.shift)
        return shift if self.locations is None else position[:, self.locations] + shift

    def _scale(self, position: np.ndarray) -> np.ndarray:
        """Return the scale of each member, ``(rows, n)``; NaN where it is no positive floating-point number."""
        scale = np.exp(position[:, self.scales])
        return np.where((scale > 0) & (scale < np.inf), scale, np.nan)

    def _add_to_parents(self, gradient: np.ndarray, away: np.ndarray) -> None:
        """Add, in place, what the gradients of members mean for their parents; `away` is members less locations."""
        own = gradient[:, self.members]
        columns, matrix = self._to_scales
        gradient[:, columns] += (own * away) @ matrix
        if self.locations is not None:
            columns, matrix = self._to_locations
            gradient[:, columns] += own @ matrix


def _columns(value: object, name: str) -> np.ndarray:
    """Return columns as integers, checked."""
    try:
        found = np.asarray(value)
    except ValueError:  # ragged
        found = np.empty(0)
    if found.dtype.kind not in "iu" or not found.size or not (found >= 0).all():
        raise InputError(
            f"{name} of a hierarchy must be columns of positions, whole numbers from 0, got {value!r}"
        )
    return found.astype(np.intp)


def _sums(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different columns, and the matrix ``(n, different)`` that adds up the entries of each."""
    different, which = np.unique(columns, return_inverse=True)
    return different, np.eye(different.size)[which]


@dataclass(frozen=True, eq=False)
class NonCentred:
    r"""The change between positions and non-centred coordinates of one or several hierarchies.

    Parameters
    ----------
    hierarchies : Hierarchy or sequence of Hierarchy
        A location or scale may itself be a member of another hierarchy, which must come before.

    Examples
    --------
    Columns 0 and 1 are a location and the logarithm of a scale, of the members in columns 2 and 3:

    >>> coordinates = NonCentred(Hierarchy([2, 3], scales=1, locations=0))
    >>> position = np.array([[1.0, np.log(2.0), 5.0, 0.0]])
    >>> other = coordinates.to(position)
    >>> other[:, 2:], np.exp(coordinates.log_jacobian(other)).round(12)
    (array([[ 2. , -0.5]]), array([4.]))
    >>> coordinates.back(other)[:, 2:]
    array([[5., 0.]])
    """

    hierarchies: Sequence[Hierarchy]

    def __post_init__(self) -> None:
        given = (self.hierarchies,) if isinstance(self.hierarchies, Hierarchy) else tuple(self.hierarchies)
        if not given or not all(isinstance(each, Hierarchy) for each in given):
            raise InputError(
                f"hierarchies must be Hierarchy(members, scales), or several, got {self.hierarchies!r}"
            )
        object.__setattr__(self, "hierarchies", given)
        seen: set[int] = set()
        for hierarchy in reversed(given):
            members = set(np.asarray(hierarchy.members).tolist())
            if members & seen:
                raise InputError(f"each column may be a member once, got {sorted(members & seen)} repeatedly")
            seen |= members
            if hierarchy.parents & seen:
                raise InputError(
                    f"locations and scales must be members of earlier hierarchies, or of none, got columns "
                    f"{sorted(hierarchy.parents & seen)} as members of the same or a later one; change the order"
                )

    @cached_property
    def n_columns(self) -> int:
        """The fewest columns that positions must have."""
        return 1 + max(max(*each.parents, *np.asarray(each.members).tolist()) for each in self.hierarchies)

    @cached_property
    def _scales(self) -> np.ndarray:
        """Column of the scale of each member of all hierarchies."""
        return np.concatenate([np.asarray(each.scales) for each in self.hierarchies])

    @cached_property
    def _n_members(self) -> tuple[np.ndarray, np.ndarray]:
        """The different columns of scales, and how many members each has."""
        return np.unique(self._scales, return_counts=True)

    def to(self, position: np.ndarray) -> np.ndarray:
        """Map positions ``(n, dim)`` to the other coordinates; not finite where a scale is 0 or infinite."""
        other = self._copy(position)
        with np.errstate(all="ignore"):
            for each in self.hierarchies:
                away = position[:, each.members] - each._location(position)
                other[:, each.members] = away / each._scale(position)
        return other

    def back(self, other: np.ndarray) -> np.ndarray:
        """Map other coordinates ``(n, dim)`` to positions; not finite where a scale is 0 or infinite."""
        position = self._copy(other)
        with np.errstate(all="ignore"):
            for each in self.hierarchies:  # parents first
                away = each._scale(position) * position[:, each.members]
                position[:, each.members] = each._location(position) + away
        return position

    def log_jacobian(self, other: np.ndarray) -> np.ndarray:
        """Return the logarithm of the stretch of volume by `back`, at other coordinates ``(n, dim)``, ``(n,)``."""
        return self.log_jacobian_at(self.back(other))

    def log_jacobian_at(self, position: np.ndarray) -> np.ndarray:
        """Return the same, at positions."""
        return np.asarray(position[:, self._scales].sum(axis=1))

    def gradient_to(self, position: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient of U' by the other coordinates, from that of U by positions, both ``(n, dim)``."""
        found = np.array(gradient, dtype=float)
        columns, n_members = self._n_members
        found[:, columns] -= n_members
        with np.errstate(all="ignore"):
            for each in reversed(self.hierarchies):  # members first
                each._add_to_parents(found, position[:, each.members] - each._location(position))
                found[:, each.members] *= each._scale(position)
        return found

    def change(self, functions: CompiledSurrogate) -> CompiledSurrogate:
        """Return U' and its gradient as functions of the other coordinates, from U and its gradient of positions.

        The functions of positions are called only where these are finite; elsewhere U' and its gradient are NaN.
        """
        potential, gradient = functions

        def other_potential(other: np.ndarray) -> np.ndarray:
            position = self.back(other)
            return _where_finite(potential, position, position.shape[:1]) - self.log_jacobian_at(position)

        def other_gradient(other: np.ndarray) -> np.ndarray:
            position = self.back(other)
            return self.gradient_to(position, _where_finite(gradient, position, position.shape))

        return CompiledSurrogate(other_potential, other_gradient)

    def _copy(self, position: np.ndarray) -> np.ndarray:
        if np.ndim(position) != 2 or np.shape(position)[1] < self.n_columns:
            raise InputError(
                f"positions must have shape (n, dim) with dim of at least {self.n_columns}, got {np.shape(position)}; "
                "one position x is x[None]"
            )
        return np.array(position, dtype=float)


def _where_finite(
    function: Callable[[np.ndarray], np.ndarray], position: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Return a function of the finite positions, and NaN for the others."""
    with np.errstate(all="ignore"):
        if math.isfinite(np.add.reduce(position, axis=None)):
            return np.asarray(function(position))
    finite, found = np.isfinite(position).all(axis=1), np.full(shape, np.nan)
    if finite.any():
        found[finite] = function(position[finite])
    return found


@dataclass(frozen=True, eq=False)
class ChangedSurrogate:
    """A surrogate as a function of other coordinates, with their Jacobian.

    Parameters
    ----------
    surrogate : object
        With methods ``potential`` and ``potential_and_gradient`` of positions.
    coordinates : NonCentred

    Examples
    --------
    A normal member of a hierarchy is standard normal in the other coordinates:

    >>> class Prior:
    ...     def potential(self, q):
    ...         return 0.5 * (q[:, 1] / np.exp(q[:, 0])) ** 2 + q[:, 0]
    ...     def potential_and_gradient(self, q):
    ...         z = q[:, 1] / np.exp(q[:, 0])
    ...         return self.potential(q), np.stack([1.0 - z**2, z / np.exp(q[:, 0])], axis=1)
    >>> changed = ChangedSurrogate(Prior(), NonCentred(Hierarchy([1], scales=0)))
    >>> changed.potential_and_gradient(np.array([[-3.0, 2.0]]))
    (array([2.]), array([[0., 2.]]))
    """

    surrogate: _Energy
    coordinates: NonCentred

    def potential(self, other: np.ndarray) -> np.ndarray:
        """Return potentials U'."""
        return self._functions.potential(other)

    def potential_and_gradient(self, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return potentials U' and gradients."""
        return self._functions.potential(other), self._functions.gradient(other)

    def compiled(self) -> CompiledSurrogate:
        """Return both as bare functions."""
        return self._functions

    @cached_property
    def _functions(self) -> CompiledSurrogate:
        return self.coordinates.change(compile_surrogate(self.surrogate))  # type: ignore[arg-type]


def coordinates_of(target: AnyTarget) -> NonCentred | None:
    """Return the non-centred coordinates that the prior of a target names; None if it names none.

    They exist for normal variables without bounds whose scale is another variable, bounded by 0 alone, and whose
    location is a number or a variable without bounds.

    Examples
    --------
    >>> from leapwise import HalfNormal, Normal, Prior, Target
    >>> prior = Prior(mu=Normal(0, 1), tau=HalfNormal(1.0), theta=Normal("mu", "tau", shape=2))
    >>> coordinates_of(Target(log_likelihood=lambda theta: 0.0, log_prior=prior)).hierarchies[0].members
    array([2, 3])
    """
    named = getattr(target.prior, "locations", {})
    where = {name: np.arange(target.dim)[each] for name, each in columns(target.variables).items()}
    lower, upper = target.transform.lower, target.transform.upper
    is_plain, is_positive = np.isneginf(lower) & np.isposinf(upper), (lower == 0.0) & np.isposinf(upper)
    waiting, done = {}, set(where) - set(named)
    for name, (location, scale) in named.items():
        fits = isinstance(scale, str) and is_positive[where[scale]].all() and is_plain[where[name]].all()
        if fits and (not isinstance(location, str) or is_plain[where[location]].all()):
            waiting[name] = (location, scale)
        else:
            done.add(name)
    found = []
    while ready := [
        name for name, parents in waiting.items() if {p for p in parents if isinstance(p, str)} <= done
    ]:
        for name in ready:  # parents come first
            location, scale = waiting.pop(name)
            members = where[name]
            found.append(
                Hierarchy(
                    members,
                    np.broadcast_to(where[scale], members.shape),
                    np.broadcast_to(where[location], members.shape) if isinstance(location, str) else None,
                    0.0 if isinstance(location, str) else np.broadcast_to(np.ravel(location), members.shape),
                )
            )
            done.add(name)
    return NonCentred(tuple(found)) if found else None
