# Rendered from farandole.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from farandole.core.group import ProcessSet

def allreduce(
    tensor: Any,
    average: bool | None = ...,
    name: str | None = ...,
    compression: Any = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> jax.Array: ...
def allreduce_async(
    tensor: Any,
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = ...,
    name: str | None = ...,
    compression: Any = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> list[jax.Array]: ...
def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def allgather(
    tensor: Any,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> jax.Array: ...
def allgather_async(
    tensor: Any,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> list[jax.Array]: ...
def grouped_allgather_async(
    tensors: Sequence[Any],
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> jax.Array: ...
def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def alltoall(
    tensor: Any,
    splits: Any | Iterable[int] | None = ...,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> Any: ...
def alltoall_async(
    tensor: Any,
    splits: Any | Iterable[int] | None = ...,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def reducescatter(
    tensor: Any,
    name: str | None = ...,
    compression: Any = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> jax.Array: ...
def reducescatter_async(
    tensor: Any,
    name: str | None = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> int: ...
def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = ...,
    compression: Any = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> list[jax.Array]: ...
def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> int: ...
