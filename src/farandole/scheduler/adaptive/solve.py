"""Choosing one candidate for each job, so that the sum of their values is the largest and the slots suffice.

This is a multiple-choice knapsack with one capacity for each type of node. Small ones are solved exactly by HiGHS
(`scipy.optimize.milp`); for large ones, its linear relaxation is solved and rounded, which leaves at most as many jobs
with fractions as there are types of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from farandole.scheduler.adaptive.throughput import Array

EXACT = 4000
"""Up to so many choices in all, the exact solver is used."""


class Choice(NamedTuple):
    """One way to run a job: its index, the type and the number of slots, and what it is worth (above 0)."""

    job: int
    type: str
    slots: int
    value: float


def solve(choices: Sequence[Choice], slots: Mapping[str, int]) -> list[int]:
    """Return the indices of the best choices: at most one for each job, and no more slots of a type than there are."""
    favourites = _favourites(choices, slots)
    if favourites is not None:
        return favourites
    jobs = {job: row for row, job in enumerate(dict.fromkeys(choice.job for choice in choices))}
    types = {type_: len(jobs) + row for row, type_ in enumerate(slots)}
    rows, columns, entries = [], [], []
    for column, choice in enumerate(choices):
        rows += [jobs[choice.job], types[choice.type]]
        columns += [column, column]
        entries += [1.0, float(choice.slots)]
    matrix = csr_array((entries, (rows, columns)), shape=(len(jobs) + len(types), len(choices)))
    upper = np.concatenate([np.ones(len(jobs)), np.array([float(count) for count in slots.values()])])
    values = np.array([choice.value for choice in choices])
    exact = len(choices) <= EXACT
    # A limit of nodes, not of time: the same question has the same answer on a busy machine.
    result = milp(
        -values / values.max(),
        integrality=np.full(len(choices), int(exact)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, -np.inf, upper),
        options={"mip_rel_gap": 1e-4, "node_limit": 2000, "presolve": False} if exact else {},
    )
    if result.x is None:
        return _greedy(choices, slots, range(len(choices)))
    if exact:
        return [int(index) for index in np.flatnonzero(result.x > 0.5)]
    return _rounded(choices, slots, result.x)


def _favourites(choices: Sequence[Choice], slots: Mapping[str, int]) -> list[int] | None:
    """Return the best choice of each job if the slots suffice for all of them."""
    best: dict[int, int] = {}
    for index, choice in enumerate(choices):
        if choice.slots <= slots[choice.type] and (
            choice.job not in best or choice.value > choices[best[choice.job]].value
        ):
            best[choice.job] = index
    used = dict.fromkeys(slots, 0)
    for index in best.values():
        used[choices[index].type] += choices[index].slots
    return sorted(best.values()) if all(used[type_] <= slots[type_] for type_ in slots) else None


def _rounded(choices: Sequence[Choice], slots: Mapping[str, int], part: Array) -> list[int]:
    """Return whole choices near to parts of choices: the largest parts first, then whatever still fits."""
    order = sorted(range(len(choices)), key=lambda index: (-part[index], -choices[index].value, index))
    return _greedy(choices, slots, order)


def _greedy(choices: Sequence[Choice], slots: Mapping[str, int], order: Sequence[int]) -> list[int]:
    free = dict(slots)
    chosen: dict[int, int] = {}
    for index in order:
        choice = choices[index]
        if choice.job not in chosen and choice.slots <= free[choice.type]:
            chosen[choice.job] = index
            free[choice.type] -= choice.slots
    return sorted(chosen.values())
