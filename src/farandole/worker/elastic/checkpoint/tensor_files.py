"""Writers and readers of files with the tensors of a checkpoint: one class for each format, in the front ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from farandole.errors import InvalidRequestError
from farandole.worker.elastic.checkpoint.manifest import Manifest
from farandole.worker.elastic.checkpoint.writers import Piece

Tensors = Mapping[str, Any]


class TensorFiles(Protocol):
    """Writes and reads the tensors of a checkpoint."""

    def writers(self, size: int) -> int:
        """Return the number of ranks, of a world of this size, that write; rank 0 always does."""

    def write(self, folder: Path, rank: int, writers: int, pieces: Tensors) -> tuple[str, ...]:
        """Write a rank's pieces, and return the names of the files.

        Raises:
            OSError: they could not be written.
        """

    def read(self, folder: Path, manifest: Manifest) -> dict[str, Any]:
        """Return all tensors, each complete, in ordinary memory; the files have been verified."""


def pieces_of(manifest: Manifest, shard: int) -> Iterator[tuple[str, Piece]]:
    """Return the pieces that are in a file, by the names of their tensors."""
    for name, entry in manifest.tensors.items():
        for piece in entry.pieces:
            if piece.shard == shard:
                yield name, piece


def write_safetensors(file: Path, specs: Mapping[str, Any], framework: str) -> None:
    """Write a file of the library safetensors.

    Args:
        file: the path.
        specs: a `TensorSpec` for each tensor, whose memory must live until this returns.
        framework: the mark in the file that tells readers which framework's tensors it has: `pt` or `np`.

    Raises:
        OSError: it could not be written.
    """
    from safetensors import SafetensorError, serialize_file

    try:
        serialize_file(dict(specs), file, {"format": framework})
    except SafetensorError as error:
        # The library has the system's error number only in its text.
        found = re.search(r"os error (\d+)", str(error))
        raise (OSError(str(error)) if found is None else OSError(int(found[1]), os.strerror(int(found[1])))) from error
    # The library makes files that only their owner can read; users who may read the folder may read its files, too.
    file.chmod(file.parent.stat().st_mode & 0o666)


def need_safetensors(otherwise: str) -> None:
    """Import the library safetensors, for a format that needs it.

    Call this before a thread writes: an import in that thread would hold Python's lock, for which training would wait.

    Args:
        otherwise: the user's alternative without it.

    Raises:
        InvalidRequestError: it is not installed, or older than version 0.8, which would hold that lock while it writes.
    """
    try:
        import safetensors
    except ImportError:
        fault = "is not installed"
    else:
        if tuple(map(int, safetensors.__version__.split(".")[:2])) >= (0, 8):
            return
        fault = f"is of version {safetensors.__version__}"
    raise InvalidRequestError(
        f"the library safetensors, which checkpoints of this format need, {fault} here. "
        f"Run: pip install 'safetensors>=0.8', or {otherwise}"
    )
