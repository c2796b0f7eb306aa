"""The description of a checkpoint, and of a rank's part of one: JSON with a digest of its content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from farandole.worker.elastic.checkpoint.writers import Piece

VERSION = 1
FORMATS = ("safetensors", "dcp")
_READ_BYTES = 4 * 1024 * 1024


class ManifestError(ValueError):
    """The file is not a manifest, or was changed after it was written; the message has the details."""


class File(msgspec.Struct, frozen=True):
    """A file beside the manifest."""

    name: str
    size: int
    sha256: str
    """The digest in hexadecimal. SHA-256 is the fastest in Python's library that detects every change."""


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor, and the files that it is in."""

    dtype: str
    """The framework's name of the element type."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole checkpoint."""

    version: int = VERSION
    number: int = 0
    """The checkpoint with the highest number in a directory is the newest: steps may restart, and clocks may jump."""
    step: int
    epoch: int
    world: int
    """The number of ranks of the world that wrote it."""
    format: str
    files: tuple[File, ...]
    """The files, in the order of the shards; files of other formats in any order."""
    tensors: dict[str, TensorEntry]
    plain: Any
    """The value of `tree.Taken.plain`."""

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)


class Record(msgspec.Struct, frozen=True):
    """A rank's report that its part of an attempt is written, or will not be."""

    layout: str = ""
    """Digest of all tensors' names, types, shapes and pieces, which must be the same on all ranks."""
    files: tuple[File, ...] = ()
    trouble: str = ""
    """The reason why the part is not written; "" if it is."""
    token: str = ""
    """Rank 0's token of the attempt that the files are written for."""


class _Sealed(msgspec.Struct, frozen=True):
    sha256: str
    content: msgspec.Raw


def seal(content: Manifest | Record) -> bytes:
    """Return the text of a file with a digest, which shows whether it was changed later."""
    encoded = msgspec.json.encode(content)
    return msgspec.json.encode(_Sealed(hashlib.sha256(encoded).hexdigest(), msgspec.Raw(encoded)))


def unseal_manifest(text: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ManifestError: it is damaged, or of a version that this version of farandole does not know.
    """
    content = _unseal(text)
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version > VERSION:
            raise ManifestError(f"is of version {version}, but this farandole supports up to {VERSION}")
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"is not a valid manifest: {error}") from None
    for file in manifest.files:
        if file.name != os.path.basename(file.name) or file.name in ("", ".", ".."):
            raise ManifestError(f"names a file in another folder: {file.name}")
    return manifest


def unseal_record(text: bytes) -> Record:
    """Read a rank's record.

    Raises:
        ManifestError: it is damaged.
    """
    try:
        return msgspec.json.decode(_unseal(text), type=Record)
    except msgspec.MsgspecError as error:
        raise ManifestError(f"is not a valid record: {error}") from None


class _Versioned(msgspec.Struct):
    version: int


def _unseal(text: bytes) -> bytes:
    try:
        sealed = msgspec.json.decode(text, type=_Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ManifestError("is damaged: it is not JSON of the right form") from None
    content = bytes(sealed.content)
    if hashlib.sha256(content).hexdigest() != sealed.sha256:
        raise ManifestError("is damaged: its SHA-256 differs")
    return content


def describe(path: Path) -> File:
    """Read a whole file and return its entry for a manifest. Python's lock is released meanwhile.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return File(path.name, size, digest.hexdigest())


def what_is_wrong(directory: Path, file: File) -> str:
    """Return how a checkpoint's file differs from its entry, with its path; "" if it does not. Reads all of it."""
    path = directory / file.name
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"{path} has {size} bytes instead of {file.size}"
        if describe(path) != file:
            return f"{path} is damaged: its SHA-256 differs"
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return ""
