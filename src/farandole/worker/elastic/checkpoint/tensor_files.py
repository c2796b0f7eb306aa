"""Writers and readers of files with the tensors of a checkpoint: one class for each format, in the front ends."""

from __future__ import annotations

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
