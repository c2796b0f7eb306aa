# Rendered from farandole.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import ArrayLike, NDArray

from farandole.core.group import ProcessSet

def allreduce(
    tensor: ArrayLike,
    average: bool | None = ...,
    name: str | None = ...,
    compression: Any = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> NDArray[Any]: ...
def allreduce_async(
    tensor: ArrayLike,
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def allreduce_(
    tensor: NDArray[Any],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> NDArray[Any]: ...
def allreduce_async_(
    tensor: NDArray[Any],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    average: bool | None = ...,
    name: str | None = ...,
    compression: Any = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> list[NDArray[Any]]: ...
def grouped_allreduce_async(
    tensors: Sequence[ArrayLike],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allreduce_(
    tensors: Sequence[NDArray[Any]],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> tuple[NDArray[Any], ...]: ...
def grouped_allreduce_async_(
    tensors: Sequence[NDArray[Any]],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def allgather(
    tensor: ArrayLike,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> NDArray[Any]: ...
def allgather_async(
    tensor: ArrayLike,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allgather(
    tensors: Sequence[ArrayLike],
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> list[NDArray[Any]]: ...
def grouped_allgather_async(
    tensors: Sequence[ArrayLike],
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def broadcast(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> NDArray[Any]: ...
def broadcast_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def broadcast_(
    tensor: NDArray[Any],
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> NDArray[Any]: ...
def broadcast_async_(
    tensor: NDArray[Any],
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | Iterable[int] | None = ...,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> Any: ...
def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | Iterable[int] | None = ...,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def reducescatter(
    tensor: ArrayLike,
    name: str | None = ...,
    compression: Any = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> NDArray[Any]: ...
def reducescatter_async(
    tensor: ArrayLike,
    name: str | None = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> int: ...
def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    name: str | None = ...,
    compression: Any = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> list[NDArray[Any]]: ...
def grouped_reducescatter_async(
    tensors: Sequence[ArrayLike],
    name: str | None = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> int: ...
