"""Everything at once: calls of all kinds, types and process sets in flight together, begun in another order on every
rank, with joins in between."""

from __future__ import annotations

import random

import numpy as np
import pytest
from oracle import adasum, check, reduced, scattered_rows, values

KINDS = ["allreduce", "adasum", "allgather", "broadcast", "alltoall", "reducescatter", "reduce", "grouped"]
DTYPES = ["uint8", "int32", "float16", "bfloat16", "float32", "float64"]


def plan(seed: int, sets: int, dtypes: list[str]) -> list[tuple[int, str, str, int]]:
    """Return calls to make: (number, kind, type, process set)."""
    chance = random.Random(seed)
    return [(number, chance.choice(KINDS), chance.choice(dtypes), chance.randrange(sets)) for number in range(60)]


def begin(front, call, process_set):
    """Begin a call; return it, and what checks its result."""
    hvd = front.hvd
    number, kind, dtype, _ = call
    dtype = "float64" if kind == "adasum" else dtype
    ranks, me = process_set.ranks, process_set.rank()
    rows = 1 + number % 7 * 40
    given = [values(rank + number, (rows, 3), dtype) for rank in ranks]
    how = {"name": f"call.{number}", "process_set": process_set}
    tensor = front.tensor(given[me], dtype)

    def expect(wanted, pick=lambda output: output):
        return lambda output: check(front.array(pick(output)), wanted, dtype, 4.0)

    def in_place(method, **further):
        if "in place" in front.has:
            return getattr(hvd, f"{method}_async_")(tensor, **further, **how)
        return front.begin(method, tensor, **further, **how)

    if kind == "allreduce":
        op = ["Average", "Sum", "Min", "Max", "Product"][number % 5]
        return in_place("allreduce", op=getattr(hvd, op)), expect(reduced(given, op, dtype))
    if kind == "adasum":
        return front.begin("allreduce", tensor, op=hvd.Adasum, **how), expect(adasum(given))
    if kind == "allgather":
        cut = [array[: rows - place % rows] for place, array in enumerate(given)]
        return front.begin("allgather", front.tensor(cut[me], dtype), **how), expect(np.concatenate(cut))
    if kind == "broadcast":
        root = number % len(ranks)
        return in_place("broadcast", root_rank=ranks[root]), expect(given[root])
    if kind == "alltoall":
        shares = [[(sender + receiver + number) % (rows // len(ranks) + 1) for receiver in ranks] for sender in ranks]
        begins = [sum(share[:me]) for share in shares]
        parts = [array[begin : begin + share[me]] for array, begin, share in zip(given, begins, shares, strict=True)]
        begun = front.begin("alltoall", tensor, splits=shares[me], **how)
        return begun, expect(np.concatenate(parts), lambda pair: pair[0])
    if kind == "reducescatter":
        wanted = reduced(given, "Sum", dtype)[scattered_rows(rows, len(ranks))[me]]
        return front.begin("reducescatter", tensor, op=hvd.Sum, **how), expect(wanted)
    if kind == "reduce":
        root = number % len(ranks)
        wanted = reduced(given, "Sum", dtype) if me == root else given[me]
        return in_place("reduce", root_rank=ranks[root], op=hvd.Sum), expect(wanted)
    both = [tensor, front.tensor(given[me].reshape(-1)[:1], dtype)]
    return (
        front.begin("grouped_allreduce", both, op=hvd.Max, **how),
        expect(reduced(given, "Max", dtype), lambda outputs: outputs[0]),
    )


@pytest.mark.needs("alltoall", "grouped", "join", "process sets")
@pytest.mark.parametrize("seed", [1, 2])
def test_everything_at_once(world, seed):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        groups = [list(range(0, size, 2)), [size - 1], list(range(1, size))] if size > 2 else []
        sets = [hvd.global_process_set, *map(hvd.add_process_set, groups)]
        order = random.Random(rank)
        dtypes = [dtype for dtype in DTYPES if dtype in front.dtypes]
        for turn in range(4 if front.is_thorough else 2):  # The same names again, with other kinds under them.
            calls = [call for call in plan(seed * 10 + turn, len(sets), dtypes) if sets[call[3]].included()]
            order.shuffle(calls)
            begun = [begin(front, call, sets[call[3]]) for call in calls]
            order.shuffle(begun)
            for each, check_result in begun:
                check_result(front.finish(each))
            if turn % 2:
                hvd.join()
        for process_set in sets[1:]:
            hvd.remove_process_set(process_set)

    world.run(body)
