"""Choosing one candidate for each job, to maximise the sum of their values within the available slots.

This is a multiple-choice knapsack problem with one capacity for each type of node. Small problems are solved exactly by
HiGHS (`scipy.optimize.milp`), large ones by prices of slots (see `prices`). Limits and quotas of queues are further
rows (see `shares`). Large problems with such rows are relaxed to linear programs, solved by HiGHS, and rounded; few
jobs have fractional choices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from farandole.control.scheduler.adaptive.prices import order_by_prices
from farandole.control.scheduler.adaptive.shares import Account, Row
from farandole.control.scheduler.adaptive.throughput import Array

EXACT = 4000
"""Largest number of choices for which the exact solver is used."""


class Choice(NamedTuple):
    """One way to run a job: the job's index, the type and number of slots, and the value (above 0)."""

    job: int
    type: str
    slots: int
    value: float


class Problem(NamedTuple):
    """A problem to solve.

    Attributes:
        choices: choices of all jobs, of which each job gets at most one.
        slots: number of slots of each type.
        rows: limits and quotas.
        kept: jobs that must have one of their choices.
    """

    choices: Sequence[Choice]
    slots: Mapping[str, int]
    rows: Sequence[Row] = ()
    kept: Collection[int] = ()


def solve(
    choices: Sequence[Choice], slots: Mapping[str, int], rows: Sequence[Row] = (), kept: Collection[int] = ()
) -> list[int]:
    """Return the indices of the best choices: at most one for each job, within the slots, limits and quotas.

    Args:
        choices: choices of all jobs.
        slots: number of slots of each type.
        rows: limits and quotas.
        kept: jobs that must have one of their choices.
    """
    problem = Problem(choices, slots, rows, kept)
    favourites = _favourites(problem)
    if favourites is not None:
        return favourites
    exact = len(choices) <= EXACT
    if not exact and not rows:
        jobs, types, counts, worths = zip(*choices, strict=True)
        return _greedy(problem, order_by_prices(jobs, types, counts, np.array(worths), slots, kept))
    borrowers = list(dict.fromkeys(name for row in rows for name in row.borrowed))
    values = np.array([choice.value for choice in choices])
    # A limit of nodes, not of time: the result must not depend on the load of the machine.
    result = milp(
        np.concatenate([-values / values.max(), np.zeros(len(borrowers))]),
        integrality=np.concatenate([np.full(len(choices), int(exact)), np.zeros(len(borrowers))]),
        bounds=Bounds(0, np.concatenate([np.ones(len(choices)), np.full(len(borrowers), np.inf)])),
        constraints=_constraint(problem, borrowers),
        options={"mip_rel_gap": 1e-4, "node_limit": 2000, "presolve": False} if exact else {},
    )
    if result.x is None:
        return _greedy(problem, range(len(choices)))
    if exact:
        return [int(index) for index in np.flatnonzero(result.x[: len(choices)] > 0.5)]
    return _rounded(problem, result.x)


def _constraint(problem: Problem, borrowers: Sequence[str]) -> LinearConstraint:
    """Return the constraints: a row for each job, for each type of node, and for each limit and quota."""
    choices, slots, limits, kept = problem
    jobs = {job: row for row, job in enumerate(dict.fromkeys(choice.job for choice in choices))}
    types = {type_: len(jobs) + row for row, type_ in enumerate(slots)}
    rows, columns, entries = [], [], []
    for column, choice in enumerate(choices):
        rows += [jobs[choice.job], types[choice.type]]
        columns += [column, column]
        entries += [1.0, float(choice.slots)]
    for number, limit in enumerate(limits, len(jobs) + len(types)):
        mine = [(column, float(one.slots)) for column, one in enumerate(choices) if one.job in limit.jobs]
        mine += [(len(choices) + borrowers.index(name), factor) for name, factor in limit.borrowed.items()]
        rows += [number] * len(mine)
        columns += [column for column, _ in mine]
        entries += [entry for _, entry in mine]
    shape = (len(jobs) + len(types) + len(limits), len(choices) + len(borrowers))
    upper = [1.0] * len(jobs) + [float(count) for count in slots.values()] + [limit.upper for limit in limits]
    lower = np.full(len(upper), -np.inf)
    lower[[row for job, row in jobs.items() if job in kept]] = 1.0
    return LinearConstraint(csr_array((entries, (rows, columns)), shape=shape), lower, np.array(upper))


def _favourites(problem: Problem) -> list[int] | None:
    """Return the best choice of each job if all of them fit together, or None."""
    choices, slots, rows, _ = problem
    best: dict[int, int] = {}
    for index, choice in enumerate(choices):
        if choice.slots <= slots[choice.type] and (
            choice.job not in best or choice.value > choices[best[choice.job]].value
        ):
            best[choice.job] = index
    used = dict.fromkeys(slots, 0)
    account = Account(rows)
    for index in best.values():
        used[choices[index].type] += choices[index].slots
        account.add(choices[index].job, choices[index].slots)
    fits = all(used[type_] <= slots[type_] for type_ in slots) and account.holds
    return sorted(best.values()) if fits else None


def _rounded(problem: Problem, part: Array) -> list[int]:
    """Return an integral solution close to a fractional one: the largest fractions first, then what still fits."""
    choices = problem.choices
    order = sorted(range(len(choices)), key=lambda index: (-part[index], -choices[index].value, index))
    return _greedy(problem, order)


def _greedy(problem: Problem, order: Sequence[int]) -> list[int]:
    """Return the choices that fit, in the given order. The smallest choice of each kept job always fits."""
    choices, slots, rows, kept = problem
    least: dict[int, int] = {}
    for index, choice in enumerate(choices):
        if choice.job in kept and (choice.job not in least or choice.slots < choices[least[choice.job]].slots):
            least[choice.job] = index
    free, account = dict(slots), Account(rows)
    for index in least.values():
        free[choices[index].type] -= choices[index].slots
        account.add(choices[index].job, choices[index].slots)
    chosen: dict[int, int] = {}
    for index in order:
        choice = choices[index]
        had = choices[least[choice.job]] if choice.job in least else None
        again = had.slots if had is not None else 0
        same = again if had is not None and had.type == choice.type else 0
        if choice.job in chosen or choice.slots - same > free[choice.type]:
            continue
        account.add(choice.job, choice.slots - again)
        # The smallest choice of a kept job is allowed even beyond limits.
        if not account.holds and index != least.get(choice.job):
            account.add(choice.job, again - choice.slots)
            continue
        chosen[choice.job] = index
        free[choice.type] -= choice.slots
        if had is not None:
            free[had.type] += had.slots
    return sorted(chosen.values())
