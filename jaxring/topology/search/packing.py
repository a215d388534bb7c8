"""How much of several shapes (rings, trees) fits into links: a linear program whose columns are made on demand.

A shape that carries w GB/s takes w of each link as often as it uses it. The program starts with a few shapes. Its dual
gives each link a price, and a shape that is cheaper than 1 at these prices would increase the sum: the cheapest ones
join, until there is none. The sum can never exceed (capacity x prices) / (price of the cheapest shape), so there is a
bound at every step.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

Shape = TypeVar("Shape")
_NEAR = 1e-9


@dataclasses.dataclass(frozen=True)
class Column(Generic[Shape]):
    """A shape and the links it uses, each as often as it is listed."""

    shape: Shape
    links: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Offer(Generic[Shape]):
    """The cheapest shapes at some prices. ``least``: no shape is cheaper than that; 0 where it is not known."""

    columns: list[Column[Shape]]
    least: float


@dataclasses.dataclass(frozen=True)
class Packing(Generic[Shape]):
    """Shapes with their GB/s. ``limit``: no packing has more; ``proven``: this one has as much."""

    shares: tuple[tuple[Column[Shape], float], ...]
    limit: float
    steps: int
    proven: bool

    @property
    def total(self) -> float:
        """GB/s of all shapes together."""
        return sum(share for _, share in self.shares)


def pack(
    capacity: Sequence[float],
    start: Iterable[Column[Shape]],
    offers: Callable[[npt.NDArray[np.float64]], Offer[Shape]],
    limit: float,
    steps: int,
    enough: float = 1.0,
) -> Packing[Shape]:
    """The best packing that is found in so many steps, each of them a set of prices.

    ``offers(prices)`` answers with shapes that are cheap; `limit` is a bound that is known from elsewhere. The search
    ends with `enough` of the bound (1: all of it).
    """
    room = np.array(capacity, dtype=np.float64)
    columns = list({column.links: column for column in start}.values())
    known = {column.links for column in columns}
    weights, prices = _solve(room, columns)
    done = 0
    while weights.sum() < limit * min(enough, 1 - _NEAR) and done < steps:
        done += 1
        offer = offers(prices)
        if offer.least > 0:
            limit = min(limit, float(room @ prices) / offer.least)
        new = [column for column in offer.columns if column.links not in known and _price(column, prices) < 1 - _NEAR]
        if not new:
            break
        known |= {column.links for column in new}
        columns += {column.links: column for column in new}.values()
        weights, prices = _solve(room, columns)
    shares = tuple((c, float(w)) for c, w in zip(columns, weights, strict=True) if w > _NEAR * weights.sum())
    return Packing(shares, limit, done, bool(weights.sum() >= limit * (1 - 1e3 * _NEAR)))


def _price(column: Column[Shape], prices: npt.NDArray[np.float64]) -> float:
    return float(prices[list(column.links)].sum())


def _solve(
    room: npt.NDArray[np.float64], columns: Sequence[Column[Shape]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The GB/s of each shape, and the price of each link."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    if not columns:
        return np.zeros(0), np.zeros(len(room))
    uses = [collections.Counter(column.links) for column in columns]
    rows = [link for use in uses for link in use]
    of = [number for number, use in enumerate(uses) for _ in use]
    taken = csr_array(([n for use in uses for n in use.values()], (rows, of)), shape=(len(room), len(columns)))
    answer = linprog(-np.ones(len(columns)), A_ub=taken, b_ub=room, method="highs-ds")
    if answer.status != 0:
        raise RuntimeError(f"the linear program of {len(columns)} shapes was not solved: {answer.message}")
    # HiGHS keeps to a tolerance: what is a hair too much on some link is taken off all.
    weights = np.maximum(answer.x, 0.0)
    over = float(np.max(taken @ weights / room, initial=0.0))
    return weights / max(1.0, over), -answer.ineqlin.marginals
