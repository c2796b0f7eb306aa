"""Collectives without tensors: barrier and join. They are the same functions in every front end."""

from __future__ import annotations

from farandole.base.request_kind import Kind
from farandole.worker.core.basics import current
from farandole.worker.core.group import ProcessSet, check_process_set, global_process_set
from farandole.worker.core.handle import Call, HandleTable, Pending
from farandole.worker.core.request import make_request
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called this.

    Ranks' calls match by their order, so several threads of a rank may wait in barriers of one process set.

    Raises:
        ValueError: the process set is not registered.
        HorovodInternalError: a worker was lost.
    """
    check_process_set(process_set, "barrier")
    current().carry_out(HandleTable.run, "barrier", None, process_set, _barrier, recurs=True)


def _barrier(session: Session, group: int, name: str) -> Call:
    return Pending(session.engine, Submission((make_request(Kind.BARRIER, name, group=group),)), lambda _: None)


def join(device: int = -1) -> int:
    """Announce that this rank has no more data, and wait until all ranks of the world have done so.

    Meanwhile the other ranks' `allreduce` works without this one: it contributes the neutral element (0 for Average and
    Sum, 1 for Product, and so on), and averages still divide by the full number of ranks. Any other collective fails on
    the ranks that call it, with an error that can be caught.

    Args:
        device: ignored; for compatibility with Horovod.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        HorovodInternalError: a worker was lost.
    """
    session = current()
    _, (last,) = session.run(make_request(Kind.JOIN, "join"), session.engine.result)
    # The others have gone on without this rank, so counts of unnamed calls differ; all ranks are here now.
    session.names.restart_all()
    return last
