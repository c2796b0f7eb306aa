"""The files with a checkpoint's NumPy arrays: one safetensors file for each rank, with its pieces.

Types that not all readers of the format know are stored as bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.worker.elastic.checkpoint.manifest import Manifest
from farandole.worker.elastic.checkpoint.tensor_files import (
    TensorFiles,
    Tensors,
    need_safetensors,
    pieces_of,
    write_safetensors,
)
from farandole.worker.elastic.checkpoint.write_attempt import shard_name

_PLAIN_TYPES = {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}


class Safetensors:
    """One safetensors file for each rank."""

    def __init__(self) -> None:
        """Import the library.

        Raises:
            InvalidRequestError: it is not installed, or too old.
        """
        need_safetensors("omit the checkpoint.")

    def writers(self, size: int) -> int:
        """Return the number of ranks that write."""
        return size

    def write(self, folder: Path, rank: int, writers: int, pieces: Tensors) -> tuple[str, ...]:
        """Write a rank's pieces, which are contiguous arrays, and return the name of the file."""
        name = shard_name(rank, writers, "safetensors")
        # Views keep the memory alive that the library is only given the addresses of.
        stored = {key: _as_stored(piece) for key, piece in pieces.items()}
        write_safetensors(folder / name, {key: _spec(view) for key, view in stored.items()}, "np")
        return (name,)

    def read(self, folder: Path, manifest: Manifest) -> dict[str, Any]:
        """Return all arrays, each complete; the files have been verified."""
        from safetensors import SafetensorError, safe_open

        arrays = {name: np.empty(entry.shape, np.dtype(entry.dtype)) for name, entry in manifest.tensors.items()}
        for shard, file in enumerate(manifest.files):
            try:
                with safe_open(folder / file.name, framework="numpy") as opened:
                    for name, piece in pieces_of(manifest, shard):
                        rows = arrays[name] if arrays[name].ndim else arrays[name].reshape(1)
                        place = _as_stored(rows[piece.begin : piece.end])
                        np.copyto(place, opened.get_tensor(name).reshape(place.shape))
            except SafetensorError as error:
                raise ValueError(f"{file.name}: {error}") from error
        return arrays


def open_format(name: str) -> TensorFiles:
    """Return the format of this name.

    Raises:
        InvalidRequestError: there is no such format, or it needs a library that is not installed.
    """
    if name == "safetensors":
        return Safetensors()
    raise InvalidRequestError(f"{name!r} is not a format for arrays; omit it, which means safetensors.")


def _as_stored(array: Any) -> Any:
    """Return the view of a contiguous array that is stored in a safetensors file."""
    return array if array.dtype.name in _PLAIN_TYPES else array.reshape(-1).view(np.uint8)


def _spec(array: Any) -> Any:
    from safetensors import TensorSpec

    return TensorSpec(dtype=array.dtype.name, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
