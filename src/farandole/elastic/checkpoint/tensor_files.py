"""What writes the tensors of a checkpoint into files, and reads them: one class for each format, in the front ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from farandole.elastic.checkpoint.manifest import Manifest
from farandole.elastic.checkpoint.writers import Piece

Tensors = Mapping[str, Any]


class TensorFiles(Protocol):
    """Writes and reads the tensors of a checkpoint."""

    def writers(self, size: int) -> int:
        """Return how many ranks of a world write; rank 0 always does."""

    def write(self, folder: Path, rank: int, writers: int, pieces: Tensors) -> tuple[str, ...]:
        """Write a rank's pieces, and return the names of the files.

        Raises:
            OSError: they could not be written.
        """

    def read(self, folder: Path, manifest: Manifest) -> dict[str, Any]:
        """Return all tensors, whole, in ordinary memory; the files have been verified."""


def pieces_of(manifest: Manifest, shard: int) -> Iterator[tuple[str, Piece]]:
    """Return the pieces that are in a file, by the names of their tensors."""
    for name, entry in manifest.tensors.items():
        for piece in entry.pieces:
            if piece.shard == shard:
                yield name, piece
