"""How gradients are reduced, and the general way to do it: from where they are, each call made for the occasion.

So go gradients that have no place in the arena (see `arena_views`): compressed ones, sparse ones, those on another
device, and all in the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from farandole.core.dtype import Average, Sum
from farandole.core.group import ProcessSet
from farandole.core.handle import Call
from farandole.core.session import Session
from farandole.errors import InvalidRequestError
from farandole.torch.collectives import allreduce_call, compressed_call
from farandole.torch.collectives.allgather import gather_member
from farandole.torch.collectives.call import call_of_several
from farandole.torch.compression import Feedback
from farandole.torch.entries import Entry
from farandole.torch.sparse_rows import pack, unpack


class Journey(NamedTuple):
    """A call, and what puts its result into the gradients."""

    call: Call
    land: Callable[[Any], None]


class ReduceOptions(NamedTuple):
    """How all gradients of an optimizer are reduced."""

    op: int
    prescale: float
    """Multiplied in before the reduction."""
    postscale: float
    """Multiplied in after it."""
    process_set: ProcessSet
    compression: Any
    """Done before and undone after the reduction."""
    feedback: Feedback | None
    """A compression that is a part of the reduction, and what it has not sent yet."""

    def group(self, session: Session) -> int:
        """Return the native number of the ranks that take part."""
        return session.group_of(self.process_set, "DistributedOptimizer")

    def dense(self, session: Session, entries: Sequence[Entry]) -> Journey:
        """Return the way of dense gradients that are reduced together."""
        pairs = [self.compression.compress(entry.dense()) for entry in entries]
        sent = [tensor.contiguous() for tensor, _ in pairs]
        names = [f"allreduce.{entry.name}" for entry in entries]
        how = sent, sent, names, self.op, self.prescale, self.postscale, self.group(session)
        if self.feedback is None:
            call = allreduce_call(session, *how)
        else:
            call = compressed_call(session, self.feedback, *how)

        def land(_: Any) -> None:
            for entry, tensor, (_, context) in zip(entries, sent, pairs, strict=True):
                entry.store(self.compression.decompress(tensor, context))

        return Journey(call, land)

    def sparse(self, session: Session, entry: Entry) -> Journey:
        """Return the way of a sparse gradient: all ranks' rows are gathered, and added up by whoever reads them.

        Raises:
            InvalidRequestError: the reduction is not a sum.
        """
        if self.op not in (Average, Sum):
            raise InvalidRequestError(
                f"the gradient of {entry.name} is sparse, for which there are op=hvd.Average and op=hvd.Sum only; pass "
                "sparse_as_dense=True to DistributedOptimizer."
            )
        parameter = entry.parameter
        gradient = parameter.grad
        if gradient is None:
            assert entry.sparse_dim is not None
            gradient = _nothing_stored(parameter, entry.sparse_dim)
        dtype, sparse_dim = gradient.dtype, gradient.sparse_dim()
        entry.sparse_dim = sparse_dim
        divisor = len(self.process_set.ranks) if self.op == Average else 1
        member = gather_member(session, self.group(session), f"allreduce.{entry.name}", pack(gradient))

        def land(results: Any) -> None:
            ((rows, _),) = results
            parameter.grad = unpack(rows, parameter.shape, dtype, sparse_dim).div_(divisor)

        return Journey(call_of_several(session, [member]), land)


def _nothing_stored(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=parameter.device)
    values = torch.empty(0, *parameter.shape[sparse_dim:], dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
