"""The files with a checkpoint's tensors, one class for each format.

*safetensors*: every rank writes one file with its pieces. Types that not all readers of the format know are stored as
bytes. *dcp*: `torch.distributed.checkpoint` writes all tensors, from rank 0, as a job without distributed tensors does;
`torch.distributed.checkpoint.load(..., checkpoint_id=<the checkpoint's folder>)` reads them too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from farandole.errors import InvalidRequestError
from farandole.worker.elastic.checkpoint.manifest import Manifest
from farandole.worker.elastic.checkpoint.tensor_files import TensorFiles, need_safetensors, pieces_of, write_safetensors
from farandole.worker.elastic.checkpoint.write_attempt import shard_name

if TYPE_CHECKING:
    from safetensors import TensorSpec

# The element types that all versions of the format have, and that every program which reads it supports.
_PLAIN_TYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}
Tensors = Mapping[str, torch.Tensor]


class Safetensors:
    """One safetensors file for each rank."""

    def __init__(self) -> None:
        """Import the library.

        Raises:
            InvalidRequestError: it is not installed, or too old.
        """
        need_safetensors("use format='dcp', which needs nothing more.")

    def writers(self, size: int) -> int:
        return size

    def write(self, folder: Path, rank: int, writers: int, pieces: Tensors) -> tuple[str, ...]:
        name = shard_name(rank, writers, "safetensors")
        # The library gets addresses only; the views hold the memory until it has written. Its own function for tensors
        # does the same, but needs numpy.
        stored = {key: _as_stored(piece) for key, piece in pieces.items()}
        write_safetensors(folder / name, {key: _spec(view) for key, view in stored.items()}, "pt")
        return (name,)

    def read(self, folder: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
        from safetensors import SafetensorError, safe_open

        tensors = _empty_tensors(manifest)
        for shard, file in enumerate(manifest.files):
            try:
                with safe_open(folder / file.name, framework="pt") as opened:
                    for name, piece in pieces_of(manifest, shard):
                        # Copied, because the library's tensor is a mapping of the file, which ends when the file is
                        # closed.
                        place = _as_stored(_rows_of(tensors[name])[piece.begin : piece.end])
                        place.copy_(opened.get_tensor(name).reshape(place.shape))
            except SafetensorError as error:
                raise ValueError(f"{file.name}: {error}") from error
        return tensors


class Dcp:
    """PyTorch's own distributed checkpoint, which rank 0 writes."""

    def __init__(self) -> None:
        """Silence PyTorch's warning about each checkpoint that is written without a process group."""
        # Once and for good, not around each call: the filters of warnings belong to all threads.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        # Imported here and not in the thread that writes, because an import there holds Python's lock, for which
        # training would wait.
        import torch.distributed.checkpoint  # noqa: F401

    def writers(self, size: int) -> int:
        return 1

    def write(self, folder: Path, rank: int, writers: int, pieces: Tensors) -> tuple[str, ...]:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        try:
            save(dict(pieces), storage_writer=FileSystemWriter(folder), no_dist=True)
        except CheckpointException as error:
            raise _failure_within(error.failures) from error
        return tuple(sorted(path.name for path in folder.iterdir()))

    def read(self, folder: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        tensors = _empty_tensors(manifest)
        try:
            load(tensors, storage_reader=FileSystemReader(folder), no_dist=True)
        except CheckpointException as error:
            raise ValueError(str(_failure_within(error.failures))) from error
        return tensors


def open_format(name: str) -> TensorFiles:
    """Return the format of this name.

    Raises:
        InvalidRequestError: there is no such format, or it needs a library that is not installed.
    """
    if name == "safetensors":
        return Safetensors()
    if name == "dcp":
        return Dcp()
    raise InvalidRequestError(f"{name!r} is not a format for tensors; choose safetensors or dcp.")


def _rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a view with one row of a tensor without dimensions."""
    return tensor if tensor.dim() else tensor.reshape(1)


def _empty_tensors(manifest: Manifest) -> dict[str, torch.Tensor]:
    return {
        name: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device="cpu")
        for name, entry in manifest.tensors.items()
    }


def _failure_within(failures: Mapping[int, tuple[BaseException, Any]]) -> Exception:
    """Return the operating system's error, if it is the cause, or else PyTorch's, as an ordinary exception."""
    first: BaseException | None = next((failure for failure, _ in failures.values()), None)
    cause = first
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or RuntimeError(str(first))


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return the view of a contiguous tensor that is stored in a safetensors file."""
    return tensor if tensor.dtype in _PLAIN_TYPES else tensor.reshape(-1).view(torch.uint8)


def _spec(tensor: torch.Tensor) -> TensorSpec:
    from safetensors import TensorSpec

    return TensorSpec(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tensor.shape,
        data_ptr=tensor.data_ptr(),
        data_len=tensor.nbytes,
    )
