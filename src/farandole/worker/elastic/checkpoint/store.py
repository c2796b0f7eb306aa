"""The directory of checkpoints, and an order of writing that always preserves the last good one.

    DIR/step-00001200/            shards and, last, manifest.json: complete
    DIR/.partial-.../             an attempt, or files that are being removed

An attempt becomes a checkpoint by one rename of its folder, after all of its content has reached the disk. A complete
checkpoint is never changed or replaced: when a step is written again, its folder gets another name. A folder is renamed
before it is removed, so that a partly removed one does not look complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farandole.worker.elastic.checkpoint.manifest import (
    Manifest,
    ManifestError,
    seal,
    unseal_manifest,
    what_is_wrong,
)

MANIFEST = "manifest.json"
_PARTIAL = ".partial-"
_COMPLETE = re.compile(r"step-\d{8,}(\.\d+)?")


class AttemptId(msgspec.Struct, frozen=True, order=True):
    """The identity of an attempt to write a checkpoint, so that files of different attempts are not confused."""

    run: str
    """The id of the job: letters and digits."""
    generation: int
    """The generation of the world."""
    step: int

    @property
    def folder(self) -> str:
        """The attempt's folder."""
        return f"{_PARTIAL}step-{self.step:08}-generation-{self.generation}-run-{self.run}"

    @classmethod
    def of_folder(cls, name: str) -> AttemptId | None:
        """Return the attempt that the folder belongs to; None if it belongs to none."""
        found = re.fullmatch(re.escape(_PARTIAL) + r"step-(\d+)-generation-(\d+)-run-(\w*)", name)
        return None if found is None else cls(found[3], int(found[2]), int(found[1]))


@dataclass(frozen=True)
class Complete:
    """A complete checkpoint and its manifest."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True)
class Search:
    """The result of the search for the newest good checkpoint."""

    found: Complete | None
    passed_over: tuple[str, ...]
    """For each newer checkpoint that was skipped, what is wrong with it."""


class Store:
    """A directory of checkpoints.

    Args:
        directory: the path, which need not exist before the first attempt.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def latest(self) -> Search:
        """Return the newest intact checkpoint; every byte of it is read and verified.

        Raises:
            OSError: the directory exists but cannot be read.
        """
        complete, passed_over = self._complete()
        for each in reversed(complete):
            troubles = (what_is_wrong(each.path, file) for file in each.manifest.files)
            trouble = next(filter(None, troubles), "")
            if not trouble:
                return Search(each, tuple(passed_over))
            passed_over.append(trouble)
        return Search(None, tuple(passed_over))

    def newest(self) -> Path | None:
        """Return the path of the newest complete checkpoint, reading only manifests."""
        try:
            complete, _ = self._complete()
        except OSError:
            return None
        return complete[-1].path if complete else None

    def begin(self, attempt: AttemptId) -> None:
        """Remove the files of earlier attempts. Later attempts of this run are kept: other ranks may be ahead."""
        for path in self._folders():
            other = AttemptId.of_folder(path.name)
            ahead = other is not None and other.run == attempt.run and other >= attempt
            if path.name.startswith(_PARTIAL) and not ahead:
                remove(path)

    def path_of(self, attempt: AttemptId) -> Path:
        """Return the folder in which an attempt's files are written."""
        return self.directory / attempt.folder

    def publish(self, attempt: AttemptId, manifest: Manifest) -> Complete:
        """Turn an attempt whose files have all reached the disk into a checkpoint.

        Raises:
            OSError: it could not be written, or files have disappeared. Nothing of it is left.
        """
        partial = self.path_of(attempt)
        try:
            complete, _ = self._complete()
            newest = complete[-1].manifest.number if complete else 0
            manifest = msgspec.structs.replace(manifest, number=newest + 1)
            _tidy(partial, {file.name for file in manifest.files})
            write_through(partial / MANIFEST, seal(manifest))
            sync_directory(partial)
            path = self._rename(partial, manifest.step)
        except OSError:
            remove(partial)
            raise
        sync_directory(self.directory)
        return Complete(self._check(path, manifest), manifest)

    def retain(self, keep: int) -> None:
        """Remove all checkpoints except the newest `keep`. A folder without a readable manifest is never removed."""
        complete, _ = self._complete()
        for each in complete[:-keep]:
            _discard(each.path)

    def _complete(self) -> tuple[list[Complete], list[str]]:
        """Return all checkpoints, the newest last, and what is wrong with those that cannot be read."""
        complete, troubles = [], []
        for path in self._folders():
            if not _COMPLETE.fullmatch(path.name):
                continue
            file = path / MANIFEST
            try:
                complete.append(Complete(path, unseal_manifest(file.read_bytes())))
            except ManifestError as error:
                troubles.append(f"{file} {error}")
            except OSError as error:
                troubles.append(f"{file} cannot be read: {error.strerror or error}")
        complete.sort(key=lambda each: (each.manifest.number, each.path.name))
        return complete, troubles

    def _folders(self) -> Iterator[Path]:
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return iter(())
        return (self.directory / name for name in names)

    def _rename(self, partial: Path, step: int) -> Path:
        """Give the attempt's folder its final name, which no other folder has."""
        name = f"step-{step:08}"
        taken = set(os.listdir(self.directory))
        again = 1
        while name in taken:
            name = f"step-{step:08}.{again}"
            again += 1
        return partial.rename(self.directory / name)

    def _check(self, path: Path, manifest: Manifest) -> Path:
        # Until the rename, a rank that entered another world may have removed its shard.
        for file in manifest.files:
            if not (path / file.name).is_file() or (path / file.name).stat().st_size != file.size:
                _discard(path)
                raise FileNotFoundError(errno.ENOENT, "taken back while the manifest was written", file.name)
        return path


def _discard(complete: Path) -> None:
    leaving = complete.with_name(f"{_PARTIAL}removed-{complete.name}")
    with contextlib.suppress(OSError):
        complete.rename(leaving)
        remove(leaving)


def _tidy(folder: Path, wanted: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()


def write_through(path: Path, content: bytes) -> None:
    """Write a file to the disk with all of its content, or not at all.

    Raises:
        OSError: it could not be written; nothing of it is left.
    """
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def sync_file(path: Path) -> None:
    """Wait until a file's content is on the disk.

    Raises:
        OSError: it did not get there.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk, if the file system supports it.

    Raises:
        OSError: they did not get there.
    """
    try:
        sync_file(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def remove(folder: Path) -> None:
    """Remove a folder with its content, as far as possible; the next attempt tries again."""
    shutil.rmtree(folder, ignore_errors=True)
