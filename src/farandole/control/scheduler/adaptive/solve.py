"""Choosing one candidate for each job, so that the sum of their values is the largest and the slots suffice.

This is a multiple-choice knapsack with one capacity for each type of node. Small ones are solved exactly by HiGHS
(`scipy.optimize.milp`); for large ones, prices of slots are found (see `prices`). Limits and quotas of queues are
further rows (see `shares`); large problems with such rows are relaxed, solved by HiGHS, and rounded, which leaves few
jobs with fractions.
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
"""Up to so many choices in all, the exact solver is used."""


class Choice(NamedTuple):
    """One way to run a job: its index, the type and the number of slots, and what it is worth (above 0)."""

    job: int
    type: str
    slots: int
    value: float


class Problem(NamedTuple):
    """What is to be solved.

    Attributes:
        choices: of which each job may have one.
        slots: how many there are of each type.
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
    """Return the indices of the best choices: at most one for each job, and no more slots of a type than there are.

    Args:
        choices: of all jobs.
        slots: how many there are of each type.
        rows: limits and quotas, which hold too.
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
    # A limit of nodes, not of time: the same question has the same answer on a busy machine.
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
    """Return a row for each job, one for each type of node, and one for each limit and quota."""
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
    """Return the best choice of each job if the slots suffice for all of them, and no limit is broken."""
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
    """Return whole choices near to parts of choices: the largest parts first, then whatever still fits."""
    choices = problem.choices
    order = sorted(range(len(choices)), key=lambda index: (-part[index], -choices[index].value, index))
    return _greedy(problem, order)


def _greedy(problem: Problem, order: Sequence[int]) -> list[int]:
    """Return choices that fit, as they come; there is always room for the smallest choice of each job that is kept."""
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
        # What is the least for a job that is kept is no question of limits.
        if not account.holds and index != least.get(choice.job):
            account.add(choice.job, again - choice.slots)
            continue
        chosen[choice.job] = index
        free[choice.type] -= choice.slots
        if had is not None:
            free[had.type] += had.slots
    return sorted(chosen.values())
