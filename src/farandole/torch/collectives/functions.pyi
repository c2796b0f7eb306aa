# Rendered from farandole.collectives by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from farandole.core.group import ProcessSet

def allreduce(
    tensor: torch.Tensor,
    average: bool | None = ...,
    name: str | None = ...,
    compression: Any = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> torch.Tensor: ...
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> torch.Tensor: ...
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = ...,
    name: str | None = ...,
    compression: Any = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> list[torch.Tensor]: ...
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> tuple[torch.Tensor, ...]: ...
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = ...,
    name: str | None = ...,
    op: int | None = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def allgather(
    tensor: torch.Tensor,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> torch.Tensor: ...
def allgather_async(
    tensor: torch.Tensor,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> list[torch.Tensor]: ...
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> torch.Tensor: ...
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> torch.Tensor: ...
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Iterable[int] | None = ...,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> Any: ...
def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Iterable[int] | None = ...,
    name: str | None = ...,
    process_set: ProcessSet = ...,
) -> int: ...
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = ...,
    compression: Any = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> torch.Tensor: ...
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> int: ...
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = ...,
    compression: Any = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> list[torch.Tensor]: ...
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = ...,
    op: int = ...,
    process_set: ProcessSet = ...,
    prescale_factor: float = ...,
    postscale_factor: float = ...,
) -> int: ...
