"""How much of several shapes (rings, trees) fits into links: a linear program whose columns are made on demand.

A shape that carries w GB/s takes w of each link as often as it uses it. The program starts with a few shapes. Its dual
gives each link a price, and a shape that is cheaper than 1 at these prices would increase the sum: the cheapest ones
join, until there is none. The sum can never exceed (capacity x prices) / (price of the cheapest shape), so there is a
bound at every step. Where shapes are of several groups, such as trees of several roots, each group carries the same;
then the price of the cheapest shape is the sum over the groups.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

Shape = TypeVar("Shape")
_NEAR = 1e-9


@dataclasses.dataclass(frozen=True)
class Column(Generic[Shape]):
    """A shape and the links it uses, each as often as it is listed. ``group``: which of the groups it is of."""

    shape: Shape
    links: tuple[int, ...]
    group: int = 0


@dataclasses.dataclass(frozen=True)
class Offer(Generic[Shape]):
    """The cheapest shapes at some prices. ``least``: one shape of each group, together, are not cheaper; 0 where it
    is not known."""

    columns: list[Column[Shape]]
    least: float


@dataclasses.dataclass(frozen=True)
class Packing(Generic[Shape]):
    """Shapes with their GB/s. ``rate``: GB/s of each group. ``limit``: no packing has a higher rate; ``proven``: this
    one has it."""

    shares: tuple[tuple[Column[Shape], float], ...]
    rate: float
    limit: float
    steps: int
    proven: bool


def pack(
    capacity: Sequence[float],
    start: Iterable[Column[Shape]],
    offers: Callable[[npt.NDArray[np.float64]], Offer[Shape]],
    limit: float,
    steps: int,
    enough: float = 1.0,
    groups: int = 1,
) -> Packing[Shape]:
    """The best packing that is found in so many steps, each of them a set of prices.

    ``offers(prices)`` answers with shapes that are cheap; `limit` is a bound that is known from elsewhere. The search
    ends with `enough` of the bound (1: all of it).
    """
    room = np.array(capacity, dtype=np.float64)
    columns = list({_key(column): column for column in start}.values())
    known = {_key(column) for column in columns}
    answer = _solve(room, columns, groups)
    done = 0
    while answer.rate < limit * min(enough, 1 - _NEAR) and done < steps:
        done += 1
        offer = offers(answer.prices)
        if offer.least > 0:
            limit = min(limit, float(room @ answer.prices) / offer.least)
        cheap = {_key(c): c for c in offer.columns if _price(c, answer.prices) < answer.worth[c.group] * (1 - _NEAR)}
        new = {key: column for key, column in cheap.items() if key not in known}
        if not new:
            break
        known |= new.keys()
        columns += new.values()
        answer = _solve(room, columns, groups)
    shares = ((c, float(w)) for c, w in zip(columns, answer.weights, strict=True))
    used = tuple((column, share) for column, share in shares if share > _NEAR * answer.rate)
    return Packing(used, answer.rate, limit, done, answer.rate >= limit * (1 - 1e3 * _NEAR))


def _key(column: Column[Shape]) -> tuple[int, tuple[int, ...]]:
    return column.group, column.links


def _price(column: Column[Shape], prices: npt.NDArray[np.float64]) -> float:
    return float(prices[list(column.links)].sum())


class _Answer(NamedTuple):
    """GB/s of each shape and of each group; the price of each link, and what a GB/s of each group is worth."""

    weights: npt.NDArray[np.float64]
    rate: float
    prices: npt.NDArray[np.float64]
    worth: npt.NDArray[np.float64]


def _solve(room: npt.NDArray[np.float64], columns: Sequence[Column[Shape]], groups: int) -> _Answer:
    """The linear program of these shapes. Its last variable is the rate, which no group may fall short of."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    size, count = len(room), len(columns)
    if not columns:
        return _Answer(np.zeros(0), 0.0, np.zeros(size), np.ones(groups))
    uses = [collections.Counter(column.links) for column in columns]
    rows = [link for use in uses for link in use]
    of = [number for number, use in enumerate(uses) for _ in use]
    times = [float(n) for use in uses for n in use.values()]
    taken = csr_array((times, (rows, of)), shape=(size, count))
    rows += [size + column.group for column in columns] + [size + group for group in range(groups)]
    of += [*range(count), *[count] * groups]
    times += [-1.0] * count + [1.0] * groups
    limits = csr_array((times, (rows, of)), shape=(size + groups, count + 1))
    gain = np.zeros(count + 1)
    gain[-1] = -1
    answer = linprog(gain, A_ub=limits, b_ub=np.append(room, np.zeros(groups)), method="highs-ds")
    if answer.status != 0:
        raise RuntimeError(f"the linear program of {count} shapes was not solved: {answer.message}")
    # HiGHS keeps to a tolerance: what is a hair too much on some link is taken off all.
    weights = np.maximum(answer.x[:-1], 0.0)
    weights /= max(1.0, float(np.max(taken @ weights / room, initial=0.0)))
    each = np.bincount([column.group for column in columns], weights, groups)
    prices = -answer.ineqlin.marginals
    return _Answer(weights, float(each.min()), prices[:size], prices[size:])
