"""Names, order and defaults of arguments are Horovod's: scripts pass them by position and by name."""

from __future__ import annotations

import inspect

import pytest

import farandole.torch as hvd

REDUCE = "average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global"
COMPRESSED = (
    "average=None, name=None, compression=none, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global"
)
SCATTER = "name=None, op=0, process_set=global, prescale_factor=1.0, postscale_factor=1.0"
COMPRESSED_SCATTER = "name=None, compression=none, op=0, process_set=global, prescale_factor=1.0, postscale_factor=1.0"

TO_ROOT = "root_rank, name=None, op=0, process_set=global, prescale_factor=1.0, postscale_factor=1.0"

SIGNATURES = {
    "allreduce": f"tensor, {COMPRESSED}",
    "allreduce_": f"tensor, {REDUCE}",
    "allreduce_async": f"tensor, {REDUCE}",
    "allreduce_async_": f"tensor, {REDUCE}",
    "grouped_allreduce": f"tensors, {COMPRESSED}",
    "grouped_allreduce_": f"tensors, {REDUCE}",
    "grouped_allreduce_async": f"tensors, {REDUCE}",
    "grouped_allreduce_async_": f"tensors, {REDUCE}",
    "sparse_allreduce_async": "tensor, name, op, process_set=global",
    "allgather": "tensor, name=None, process_set=global",
    "allgather_async": "tensor, name=None, process_set=global",
    "grouped_allgather": "tensors, name=None, process_set=global",
    "grouped_allgather_async": "tensors, name=None, process_set=global",
    "broadcast": "tensor, root_rank, name=None, process_set=global",
    "broadcast_": "tensor, root_rank, name=None, process_set=global",
    "broadcast_async": "tensor, root_rank, name=None, process_set=global",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=global",
    "alltoall": "tensor, splits=None, name=None, process_set=global",
    "alltoall_async": "tensor, splits=None, name=None, process_set=global",
    "reducescatter": f"tensor, {COMPRESSED_SCATTER}",
    "reducescatter_async": f"tensor, {SCATTER}",
    "grouped_reducescatter": f"tensors, {COMPRESSED_SCATTER}",
    "grouped_reducescatter_async": f"tensors, {SCATTER}",
    **dict.fromkeys(("reduce", "reduce_", "reduce_async", "reduce_async_"), f"tensor, {TO_ROOT}"),
    **dict.fromkeys(
        ("grouped_reduce", "grouped_reduce_", "grouped_reduce_async", "grouped_reduce_async_"), f"tensors, {TO_ROOT}"
    ),
    "poll": "handle",
    "synchronize": "handle",
    "join": "device=-1",
    "barrier": "process_set=global",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=global",
    "allgather_object": "obj, name=None, process_set=global",
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_initialized"), ""),
    **dict.fromkeys(("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"), ""),
    **dict.fromkeys(("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built", "sycl_built"), ""),
}


def written(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    known = {hvd.global_process_set: "global", hvd.Compression.none: "none"}
    default = parameter.default
    text = known[default] if isinstance(default, (hvd.ProcessSet, type)) else repr(default)
    return f"{parameter.name}={text}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_those_of_horovod(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert ", ".join(map(written, parameters)) == SIGNATURES[name]
    assert name in hvd.__all__


def test_constants_are_those_of_horovod() -> None:
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]
    assert all(type(op) is int for op in (hvd.Average, hvd.Adasum, hvd.Product))
