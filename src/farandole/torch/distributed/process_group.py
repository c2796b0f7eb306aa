# torch declares several signatures for each collective, of which its own code uses one, and a Python group must have
# that one.
# mypy: disable-error-code="override,assignment,call-arg"
"""A c10d process group with an engine that runs its collectives.

torch lets Python define a whole `ProcessGroup`, but not a `Backend` within one. Calls from C++ (by DDP and by
the functional collectives) come through torch's trampolines, calls from Python come directly; both end in
the methods below. The names with an underscore are older spellings, which earlier versions of torch call.

Each method makes a call (see `calls` and `reduce_calls`), and submits it to the group's works (see `works_in_flight`).
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import traceback
import weakref
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from farandole.errors import InvalidRequestError
from farandole.torch.collectives.tensors import RAW_STREAMS
from farandole.torch.distributed import calls, reduce_calls
from farandole.torch.distributed.calls import Call
from farandole.torch.distributed.store_rendezvous import meet
from farandole.torch.distributed.work import Work, Works, total_seconds
from farandole.torch.distributed.works_in_flight import WorksInFlight
from farandole.worker.core.engine import Block

NAME = "farandole"

# Seconds that leaving waits for the other members to leave too, because their last calls may need this one's engine.
DESTROY_SECONDS = 30.0
EXIT_SECONDS = 5.0


class ProcessGroup(dist.ProcessGroup):
    """A group of processes and the engine that runs their collectives.

    Attributes:
        timeout: the time that a call may take unless it has its own timeout.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str = "",
        global_ranks: Sequence[int] = (),
    ) -> None:
        """Meet the other members and connect to them.

        Args:
            store: the store that the members share.
            rank: this process's rank in the group.
            size: number of members.
            timeout: the time limit for all members to arrive, and for each call.
            name: the name that messages use.
            global_ranks: the members' ranks in the default group; empty for the default group itself.

        Raises:
            StartError: not all members arrived in time.
        """
        super().__init__(rank, size)
        _keep_from_compiler()
        self._store = store
        self.timeout = timeout
        self._rank = rank
        self._size = size
        self._name = name
        self._description = "undefined"  # torch's word for a group without a description
        self._label = f"process group {name!r}" if name else "the process group"
        if global_ranks:
            self._label += f" (its ranks 0 to {size - 1} are the global ranks {list(global_ranks)})"
        self._engine = meet(store, rank, size, timeout)
        self._works = WorksInFlight(self._engine, rank, self._label, name)
        self._coalesced: list[Work] | None = None
        _open_groups.add(self)

    # --- torch's questions
    # ----------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """Return the name under which the backend is registered."""
        return NAME

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device_type) for device_type in ("cpu", *RAW_STREAMS)]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        device_type = torch.device(device).type
        if device_type != "cpu" and device_type not in RAW_STREAMS:
            raise RuntimeError(f"No backend type associated with device type {device_type}")
        return self

    # torch keeps a group's name in its backends, of which this one has none.

    def setGroupName(self, name: str) -> None:
        """Set the name that torch gives the group."""
        self._name = name

    def getGroupName(self) -> str:
        """Return the name under which torch finds the group."""
        return self._name

    def setGroupDesc(self, description: str) -> None:
        """Set the description that torch gives the group."""
        self._description = description

    def getGroupDesc(self) -> str:
        """Return the description of the group."""
        return self._description

    def get_group_store(self) -> Store:
        """Return the store through which the members connected."""
        return self._store

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Return whether `allocate_tensor` works for a device."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a flat tensor in memory that the engine can send without copying it. FSDP2 uses such tensors.

        Args:
            size: number of elements.
            dtype: their type.
            device: the CPU.
        """
        block: Block | None = self._engine.allocate(size * dtype.itemsize) if size else None
        if block is None:
            return torch.empty(size, dtype=dtype, device=device)
        return torch.frombuffer(block.buffer(), dtype=dtype, count=size)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of later calls."""
        self.timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass  # All members count from 0 anyway.

    def _get_sequence_number_for_group(self) -> int:
        return self._works.number

    # --- reductions -----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Reduce tensors over all members, in place."""
        opts = opts or dist.AllreduceOptions()
        return self._begin(reduce_calls.allreduce("all_reduce", tensors, opts.reduceOp), opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        """Reduce tensors over all members, in place, in one call."""
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._begin(reduce_calls.allreduce("all_reduce_coalesced", tensors, opts.reduceOp), opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Reduce tensors over all members, in place at the root; the others' tensors are not changed."""
        elsewhere = opts.rootRank != self._rank
        return self._begin(reduce_calls.allreduce("reduce", tensors, opts.reduceOp, keep_input=elsewhere), opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Work:
        """Reduce a list of tensors, and send every member one of the results."""
        opts = opts or dist.ReduceScatterOptions()
        (output,), (parts,) = outputs, inputs
        if len(parts) != self._size or parts[self._rank].numel() != output.numel():
            raise InvalidRequestError(
                f"reduce_scatter needs one input for each of the {self._size} members, of which this member's has the "
                "size of the output."
            )
        if any(part.numel() != output.numel() for part in parts):
            return self._begin(reduce_calls.uneven_reduce_scatter(output, parts, opts.reduceOp, self._rank), opts)
        whole = torch.cat([part.detach().reshape(-1) for part in parts])
        return self._begin(
            reduce_calls.reduce_scatter("reduce_scatter", [output], [whole], opts.reduceOp, self._size), opts
        )

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Reduce a tensor, and send every member an equal part of the result."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Reduce tensors, and send every member an equal part of each result."""
        opts = opts or dist.ReduceScatterOptions()
        label = "reduce_scatter_tensor"
        return self._begin(reduce_calls.reduce_scatter(label, outputs, inputs, opts.reduceOp, self._size), opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- movements ------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Copy the root's tensors to all members, in place."""
        return self._begin(calls.broadcast("broadcast", tensors, opts.rootRank), opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Gather all members' tensors, which may have different sizes, into a list of tensors."""
        for parts in outputs:
            self._check_count("all_gather", "output", parts)
        return self._begin(calls.allgather("all_gather", outputs, inputs), opts)

    allgather_coalesced = allgather

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        """Gather all members' tensors, which have the same size, one after another into one tensor."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Gather several tensors of all members, each as `all_gather_single` does."""
        return self._begin(calls.allgather_flat("all_gather_into_tensor", outputs, inputs, self._size), opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> Work:
        """Gather all members' tensors into a list at the root."""
        (tensor,) = inputs
        nothing = tensor.detach().new_empty(0)
        sends = [tensor if member == opts.rootRank else nothing for member in range(self._size)]
        receives = [nothing] * self._size
        if opts.rootRank == self._rank:
            (receives,) = outputs
            self._check_count("gather", "output", receives)
        return self._begin(calls.exchange("gather", receives, sends, tensor), opts)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> Work:
        """Send every member one of the root's tensors."""
        (output,) = outputs
        nothing = output.detach().new_empty(0)
        sends = [nothing] * self._size
        if opts.rootRank == self._rank:
            (sends,) = inputs
            self._check_count("scatter", "input", sends)
        receives = [output if member == opts.rootRank else nothing for member in range(self._size)]
        call = calls.exchange("scatter", receives, sends, output)
        call.outputs = [output]
        return self._begin(call, opts)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Work:
        """Send every member a tensor, and receive one from each."""
        self._check_count("all_to_all", "output", outputs)
        self._check_count("all_to_all", "input", inputs)
        return self._begin(calls.exchange("all_to_all", outputs, inputs, inputs[0]), opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> Work:
        """Send every member some rows of a tensor, and receive rows from each."""
        call = calls.exchange_rows(output, tensor, output_split_sizes, input_split_sizes, self._size)
        return self._begin(call, opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Work:
        """Wait for all members."""
        return self._begin(calls.barrier(), opts)

    # --- transfers ------------------------------------------------------------------------------------------------

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> Work:
        """Send a tensor to a member."""
        return self._begin_transfer("send", tensors, self._rank, destination, tag)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
        """Receive a tensor from a member."""
        return self._begin_transfer("recv", tensors, source, self._rank, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Work:
        """Raise an error: sender and receiver agree before anything is sent, so the receiver must name the sender."""
        raise InvalidRequestError(
            "the farandole backend cannot receive from any source: pass src=, the rank that sends. If it is not "
            "known, exchange it with all_to_all_single first."
        )

    def _begin_transfer(self, label: str, tensors: list[torch.Tensor], source: int, destination: int, tag: int) -> Work:
        (tensor,) = tensors
        call = calls.transfer(label, tensor, source, destination, self._rank)
        seconds = self.timeout.total_seconds()
        return self._coalesce(self._works.begin_transfer(call, source, destination, tag, seconds))

    # --- calls ----------------------------------------------------------------------------------------------------

    def _begin(self, call: Call, opts: Any) -> Work:
        """Submit a collective."""
        seconds = total_seconds(getattr(opts, "timeout", None), self.timeout.total_seconds())
        return self._coalesce(self._works.begin(call, seconds))

    def _check_count(self, label: str, what: str, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) != self._size:
            raise InvalidRequestError(
                f"{label} needs one {what} for each of the {self._size} members of the group, not {len(tensors)}."
            )

    # --- coalescing -----------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Works:
        coalesced, self._coalesced = self._coalesced or [], None
        return Works(coalesced)

    def _coalesce(self, work: Work) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # --- the end --------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group gracefully, together with the others or, if some stay, after a time limit."""
        self._works.leave(DESTROY_SECONDS)

    def abort(self) -> None:
        """End the group at once for all members; their calls fail."""
        self._works.abort(f"rank {self._rank} aborted {self._label}")


@cache
def _keep_from_compiler() -> None:
    """Exclude the methods that torch calls from torch.compile, once there is a group.

    TorchDynamo inspects every Python frame that begins while a compiled function runs, even if C++ begins it,
    as DDP's reducer does when it calls a process group. It cannot handle those, and raises an error.
    """
    for kind in (ProcessGroup, Work):
        for name, method in list(vars(kind).items()):
            called_by_torch = hasattr(kind.__base__, name) or name.startswith(("get", "set"))
            if inspect.isfunction(method) and called_by_torch and not name.startswith("_"):
                setattr(kind, name, torch.compiler.disable(method))


# Groups that have not been left. The interpreter's end and fork() concern the whole process, so this is
# the only variable here that belongs to the process and not to a group.
_open_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _leave_all() -> None:
    """At the interpreter's end, leave the groups that were not destroyed."""
    error = getattr(sys, "last_value", None)  # The exception that Python printed as the cause of its end.
    for group in sorted(_open_groups, key=lambda group: group._name, reverse=True):
        if error is None:
            group._works.leave(EXIT_SECONDS)
        else:
            group._works.abort(f"rank {group.rank()} raised {traceback.format_exception_only(error)[-1].strip()}")


def _forget_all() -> None:
    """In a forked child, refuse calls of the parent's groups, because their threads and connections are absent."""
    for group in list(_open_groups):
        group._works.close()
    _open_groups.clear()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_forget_all)
