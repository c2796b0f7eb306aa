"""Collectives without tensors."""

from __future__ import annotations

from farandole.core.dtype import Kind
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.torch.collectives.call import Member, begin, now


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called this.

    Ranks' calls match by their order, so several threads of a rank may wait in barriers of one process set.

    Raises:
        HorovodInternalError: a worker was lost.
    """

    def make(_: Session, group: int, full_name: str) -> Member:
        return make_request(Kind.BARRIER, full_name, group=group), None, lambda _: None

    now(begin("barrier", None, process_set, make))
