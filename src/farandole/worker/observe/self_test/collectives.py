"""Runs every collective at least once, and compares each result with the expected one. All ranks do this in the same
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from farandole.base.request_kind import COLLECTIVE_KINDS, Kind, Rows
from farandole.base.self_test.report import Problem
from farandole.worker.core import basics, buffers
from farandole.worker.core.dtype import DType, Sum
from farandole.worker.core.group import ProcessSet
from farandole.worker.observe.self_test import formulas

ODD = 1001
LARGE = 1 << 20
"""Size of large tensors in bytes, all ranks' results together."""

Check = tuple[str, Callable[[], str]]
"""The name of a check, and a function that returns the error on this rank, or ""."""


def check_all(rank: int, size: int, quick: bool, tell: Callable[[str], None]) -> tuple[int, list[Problem]]:
    """Return the number of checks, and the problems on this rank.

    Args:
        rank: this worker's rank.
        size: the number of workers in the world.
        quick: whether to omit most combinations of types and operations.
        tell: called with messages about the progress.
    """
    groups = [basics.add_process_set(ranks) for ranks in _sets(size)]
    checks = [*_reductions(rank, size, quick), *_moves(rank, size), *_groups(rank, groups)]
    problems = []
    for done, (name, check) in enumerate(checks):
        tell(f"collectives: {done} of {len(checks)} checks")
        if what := check():
            problems.append(Problem(name, rank, what))
    for group in groups:
        basics.remove_process_set(group)
    return len(checks), problems


# --- reductions -------------------------------------------------------------------------------------------------


def _reductions(rank: int, size: int, quick: bool) -> Iterator[Check]:
    for word, op in formulas.OPS.items():
        for dtype in (DType.F32, DType.I32) if quick else formulas.DTYPES:
            counts = (1, ODD, LARGE // formulas.element_bytes(dtype)) if word == "sum" else (ODD,)
            for count in counts if formulas.can_be_asked(op, dtype, size) else ():
                name = f"allreduce {word} of {count} {dtype.name.lower()}"
                yield name, partial(_allreduce, op, dtype, count, rank, size)
    for kind in COLLECTIVE_KINDS.values():
        if kind.reduces and kind is not Kind.ALLREDUCE:
            for count in (1, ODD, LARGE // 4):
                yield f"{kind.function} of {count} f32", partial(_reduction, kind, count, rank, size)
    yield "grouped allreduce", partial(_grouped, rank, size)


def _allreduce(op: int, dtype: DType, count: int, rank: int, size: int) -> str:
    data = _input(op, dtype, count, rank)
    buffers.allreduce(data, dtype, op)
    return formulas.what_differs(data, formulas.reduced(op, dtype, size), dtype)


def _reduction(kind: Kind, count: int, rank: int, size: int) -> str:
    result = bytearray(4 * buffers.result_count(kind, count))
    buffers.collective(kind, _input(Sum, DType.F32, count, rank), result, DType.F32, Sum)
    # Where there is a root, rank 0, the others get back what they gave.
    is_given_back = kind.has_root and rank != 0
    wanted = formulas.contribution(Sum, rank) if is_given_back else formulas.reduced(Sum, DType.F32, size)
    whole, more = divmod(count, size)
    first = rank * whole + min(rank, more) if kind.rows is Rows.SHARED else 0
    return formulas.what_differs(result, wanted, DType.F32, first)


def _grouped(rank: int, size: int) -> str:
    data = [_input(Sum, DType.F32, count, rank) for count in (1, formulas.PERIOD, ODD)]
    buffers.grouped_allreduce(data, DType.F32, Sum)
    wanted = formulas.reduced(Sum, DType.F32, size)
    return next(filter(None, (formulas.what_differs(each, wanted, DType.F32) for each in data)), "")


def _input(op: int, dtype: DType, count: int, rank: int) -> bytearray:
    return formulas.tiled(
        formulas.encode(formulas.contribution(op, rank), dtype), count * formulas.element_bytes(dtype)
    )


# --- what computes nothing --------------------------------------------------------------------------------------


def _moves(rank: int, size: int) -> Iterator[Check]:
    for count in (1, ODD, LARGE):
        for root in sorted({0, size - 1}):
            yield f"broadcast of {count} bytes from rank {root}", partial(_broadcast, count, root, rank)
    for count in (1, ODD, max(1, LARGE // size)):
        yield f"allgather of {count} bytes", partial(_allgather, count, rank, size)
        yield f"alltoall of {count} bytes", partial(_alltoall, count, rank, size)
    yield "allgather of parts of different sizes", partial(_gather, rank, size)
    yield "alltoall of parts of different sizes", partial(_exchange, rank, size)
    if size > 1:
        yield "transfers around a ring", partial(_ring, rank, size)
    yield "barrier", _barrier


def _broadcast(count: int, root: int, rank: int) -> str:
    wanted = formulas.bytes_of(root, 0, count)
    data = bytearray(wanted) if rank == root else bytearray(count)
    buffers.collective(Kind.BROADCAST, data, root_rank=root)
    return formulas.which_byte_differs(data, wanted)


def _allgather(count: int, rank: int, size: int) -> str:
    output = bytearray(count * size)
    buffers.collective(Kind.ALLGATHER, formulas.bytes_of(rank, 0, count), output)
    return formulas.which_byte_differs(output, b"".join(formulas.bytes_of(source, 0, count) for source in range(size)))


def _alltoall(count: int, rank: int, size: int) -> str:
    output = bytearray(count * size)
    given = bytearray().join(formulas.bytes_of(rank, to, count) for to in range(size))
    buffers.collective(Kind.ALLTOALL, given, output)
    return formulas.which_byte_differs(
        output, b"".join(formulas.bytes_of(source, rank, count) for source in range(size))
    )


def _gather(rank: int, size: int) -> str:
    def part(source: int) -> bytearray:
        return formulas.bytes_of(source, 0, source * 37 % 101)

    found, _ = buffers.gather(part(rank))
    return formulas.which_byte_differs(found, b"".join(part(source) for source in range(size)))


def _exchange(rank: int, size: int) -> str:
    def part(source: int, destination: int) -> bytearray:
        return formulas.bytes_of(source, destination, (3 * source + 5 * destination) % 11)

    given = [part(rank, to) for to in range(size)]
    found, _ = buffers.exchange(bytearray().join(given), [len(each) for each in given])
    return formulas.which_byte_differs(found, b"".join(part(source, rank) for source in range(size)))


def _ring(rank: int, size: int) -> str:
    before, after = (rank - 1) % size, (rank + 1) % size
    found = bytearray(ODD)
    buffers.transfer([(formulas.bytes_of(rank, after, ODD), rank, after), (found, before, rank)], name="self_test.ring")
    return formulas.which_byte_differs(found, formulas.bytes_of(before, rank, ODD))


def _barrier() -> str:
    buffers.barrier()
    return ""


# --- process sets -----------------------------------------------------------------------------------------------


def _sets(size: int) -> list[list[int]]:
    """Return the even and the odd ranks; no sets in a world of one."""
    return [] if size == 1 else [list(range(0, size, 2)), list(range(1, size, 2))]


def _groups(rank: int, groups: list[ProcessSet]) -> Iterator[Check]:
    # Every rank has the same checks, whether it is in the set or not.
    for word, group in zip(("even", "odd"), groups, strict=False):
        yield f"allreduce among the {word} ranks", partial(_among, group, rank)


def _among(group: ProcessSet, rank: int) -> str:
    if rank not in group.ranks:
        return ""
    place, size = group.rank(), len(group.ranks)
    data = _input(Sum, DType.F32, ODD, place)
    buffers.allreduce(data, DType.F32, Sum, process_set=group)
    return formulas.what_differs(data, formulas.reduced(Sum, DType.F32, size), DType.F32)
