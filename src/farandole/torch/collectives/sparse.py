"""Sparse tensors, reduced by gathering their elements."""

from __future__ import annotations

from collections.abc import Callable

import torch

from farandole.errors import InvalidRequestError
from farandole.torch.collectives.calls import call_of_several, gather_member
from farandole.worker.collectives.reduction_op import divisor
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import Average, Sum
from farandole.worker.core.group import ProcessSet, global_process_set


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to reduce a sparse tensor over all ranks of a process set.

    Indices and values of all ranks are gathered, as `<name>.indices` and `<name>.values`; if ranks have the same index,
    `coalesce()` of the result adds their values.

    Args:
        tensor: a tensor of layout `torch.sparse_coo`, of the same shape on all ranks; it need not be coalesced.
        name: the name by which ranks' calls match.
        op: Average or Sum.
        process_set: the ranks that take part.

    Returns:
        A function that waits for the call and returns the reduced tensor, uncoalesced. It is not a handle for
        `synchronize`.

    Raises:
        ValueError: the tensor is not sparse, or the operation is neither Average nor Sum.
    """
    if not tensor.is_sparse:
        raise InvalidRequestError(f"sparse_allreduce_async takes a sparse tensor, not one of {tensor.layout}.")
    if op not in (Average, Sum):
        raise InvalidRequestError(
            "sparse_allreduce_async has op=hvd.Average and op=hvd.Sum only. For other operations pass "
            "tensor.to_dense() to allreduce."
        )
    session = current()
    group = session.group_of(process_set, "allreduce")
    # Ranks hold different numbers of values: those are the rows to gather, so they come first.
    indices = tensor._indices().transpose(0, 1).contiguous()
    values = tensor._values().contiguous()
    parts = (("indices", indices), ("values", values))
    members = [gather_member(session, group, f"allgather.{name}.{part}", content) for part, content in parts]
    number = session.handles.begin(call_of_several(session, members))

    def result() -> torch.Tensor:
        gathered = session.handles.synchronize(number)
        if gathered is None:
            raise InvalidRequestError(f"the result of sparse_allreduce_async of {name} was already returned: store it.")
        (all_indices, _), (all_values, _) = gathered
        if op == Average:
            all_values = all_values / divisor(op, len(process_set.ranks))
        # Every rank's part was checked on that rank; checking again would wait for the device.
        return torch.sparse_coo_tensor(
            all_indices.transpose(0, 1), all_values, tensor.size(), device=tensor.device, check_invariants=False
        )

    return result
