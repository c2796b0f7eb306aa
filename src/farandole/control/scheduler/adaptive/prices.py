"""Prices of slots: an approximate solution of problems that are too large to be solved exactly.

With a price for a slot of each type, every job can be considered alone: its best choice is the one whose value exceeds
the price of its slots most. At the right prices the jobs want exactly the available slots, and the choices are optimal
for all jobs together, except for the few jobs with two equally good choices (Lagrangian dual of the program; Everett
1963, "Generalized Lagrange Multiplier Method"). Prices are found by bisection, one type after the other, in several
sweeps, because a job for which one type is too expensive wants another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from farandole.control.scheduler.adaptive.throughput import Array

_SWEEPS = 5
"""Number of sweeps over the types."""
_HALVINGS = 14
_CLOSER = 6.0
"""Factor by which the search range around the previous price shrinks in each sweep."""

Indices = NDArray[np.intp]


class Market:
    """The choices of all jobs as arrays, in the order of the jobs.

    Args:
        jobs: job of each choice; choices of one job are adjacent.
        types: index of the type of each choice.
        counts: number of slots of each choice.
        values: value of each choice.
        slots: number of slots of each type.
        kept: jobs that must have one of their choices.
    """

    def __init__(
        self,
        jobs: Sequence[int],
        types: Sequence[int],
        counts: Sequence[int],
        values: Array,
        slots: Sequence[int],
        kept: Collection[int],
    ) -> None:
        ids = np.array(jobs)
        self._starts: Indices = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
        self._rows: Indices = np.repeat(np.arange(len(self._starts)), np.diff(self._starts, append=len(ids)))
        self._least = np.where(np.isin(ids[self._starts], list(kept)), -np.inf, 0.0)
        self._types, self._counts, self._values = np.array(types), np.array(counts, dtype=float), values
        self._slots = np.array(slots, dtype=float)

    def order(self) -> list[int]:
        """Return choices in the order in which they should be granted, as far as there are slots for them.

        The choices that are best at the right prices come first, then choices of other jobs, which may still fit.
        """
        prices = self._prices()
        net = self._values - prices[self._types] * self._counts
        chosen = self._chosen(net)
        left = self._slots - self._wanted(chosen)
        served = np.isin(self._rows, self._rows[chosen])
        fits = self._counts <= np.maximum(left, 0.0)[self._types]
        # A kept job gets another choice if its best one does not quite fit.
        rest = np.flatnonzero(np.isinf(self._least[self._rows]) | (~served & fits))
        return [*self._best_first(chosen, net), *self._best_first(rest, net)]

    def _best_first(self, choices: Indices, net: Array) -> list[int]:
        found: list[int] = choices[np.argsort(-net[choices] / self._counts[choices], kind="stable")].tolist()
        return found

    def _prices(self) -> Array:
        """Return the price of a slot of each type at which the demand does not exceed the supply."""
        each = self._values / self._counts
        highest = np.array([each[self._types == type_].max(initial=0.0) for type_ in range(len(self._slots))])
        prices = highest / 2
        for sweep in range(_SWEEPS):
            reach = highest / 2 / _CLOSER**sweep
            for type_ in range(len(self._slots)):
                low, high = max(0.0, prices[type_] - reach[type_]), prices[type_] + reach[type_]
                for _ in range(_HALVINGS):
                    prices[type_] = (low + high) / 2
                    chosen = self._chosen(self._values - prices[self._types] * self._counts)
                    if self._wanted(chosen)[type_] > self._slots[type_]:
                        low = prices[type_]
                    else:
                        high = prices[type_]
                prices[type_] = high
        return prices

    def _chosen(self, net: Array) -> Indices:
        """Return the best choice of each job that has a choice worth its price."""
        best = np.maximum.reduceat(net, self._starts)
        found = np.flatnonzero(net == best[self._rows])
        rows = self._rows[found]
        first = np.diff(rows, prepend=-1) > 0
        return np.asarray(found[first & (best[rows] > self._least[rows])])

    def _wanted(self, chosen: Indices) -> Array:
        """Return the number of slots of each type that some choices take."""
        return np.bincount(self._types[chosen], self._counts[chosen], len(self._slots)).astype(np.float64)


def order_by_prices(
    jobs: Sequence[int],
    types: Sequence[str],
    counts: Sequence[int],
    values: Array,
    slots: Mapping[str, int],
    kept: Collection[int],
) -> list[int]:
    """Return the indices of choices in the order in which they should be granted; see `Market`."""
    number = {type_: index for index, type_ in enumerate(slots)}
    by_job = np.argsort(np.array(jobs), kind="stable")
    market = Market(
        np.array(jobs)[by_job].tolist(),
        np.array([number[type_] for type_ in types])[by_job].tolist(),
        np.array(counts)[by_job].tolist(),
        values[by_job],
        list(slots.values()),
        kept,
    )
    found: list[int] = by_job[market.order()].tolist()
    return found
