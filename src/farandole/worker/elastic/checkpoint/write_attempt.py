"""One rank's part in the attempt to write a checkpoint, without collectives: ranks communicate by the attempt's folder.

Each rank writes its files there and then a record of them, or of the reason why there are none. Rank 0 waits for all
records and turns the folder into a checkpoint; the others wait until the folder is gone, which shows that rank 0 has
decided. A rank that gives up removes its own files. If any rank gives up, the attempt has failed: earlier checkpoints
are kept.

Attempts of two processes may have the same id, and thus the same folder: a job that is started again with the same
name resumes before the step at which it was killed. So rank 0 writes a *token* into the folder, a new one in each
attempt, and counts only records with that token. The others write their records when they have read a token, and again
if it changes: what they have read first may be from the killed job.

Races: a rank may give up (its world has ended) at the moment when rank 0 publishes; rank 0 checks again after the
rename. A rank may be in its next attempt while rank 0 is still in this one; only attempts that come before one's own
are ever removed. A rank that dies leaves files that the next attempt's rank 0 removes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import msgspec

from farandole.worker.elastic.checkpoint.manifest import (
    File,
    Manifest,
    ManifestError,
    Record,
    describe,
    seal,
    unseal_record,
)
from farandole.worker.elastic.checkpoint.store import (
    AttemptId,
    Complete,
    Store,
    remove,
    sync_directory,
    sync_file,
    write_through,
)

_SHORTEST_LOOK_SECONDS = 0.01
_LONGEST_LOOK_SECONDS = 0.5
_TOKEN = "token"


class AttemptDropped(Exception):
    """This attempt has failed; the message is the reason, for a text that begins with "was not written: "."""


@dataclass(frozen=True)
class Part:
    """One rank's part of a checkpoint.

    Attributes:
        attempt: the attempt's id.
        rank: the rank whose part this is; ranks from 0 to `writers` - 1 write.
        writers: the number of ranks that write.
        manifest: the manifest of the whole checkpoint, without its files; only rank 0's is used.
        layout: digest of the contents of all files.
        wait_for_copies: a function that waits until the tensors are copied, and releases what the copies need; raises
            OSError. It is called first, whatever becomes of the attempt.
        write: a function that writes this rank's files into a folder and returns their names; raises OSError.
        timeout: seconds that rank 0 waits for the others if no data arrives.
    """

    attempt: AttemptId
    rank: int
    writers: int
    manifest: Manifest
    layout: str
    wait_for_copies: Callable[[], None]
    write: Callable[[Path], tuple[str, ...]]
    timeout: float


class Attempt:
    """Writes a rank's part and completes the attempt with the others, in the thread that calls `run`.

    Attributes:
        waiting: whether this rank's files are written, and it waits for other ranks.
    """

    def __init__(self, store: Store, part: Part) -> None:
        self._store = store
        self._part = part
        self._folder = store.path_of(part.attempt)
        self._gave_up = Event()
        self._look = Event()
        self._token = os.urandom(8).hex() if part.rank == 0 else ""
        """The token of the attempt; on other ranks, the one in the record that was written last."""
        self.waiting = False

    @property
    def id(self) -> AttemptId:
        """The id of this attempt."""
        return self._part.attempt

    def look_now(self) -> None:
        """Check the progress of the others at once. Any thread may call this."""
        self._look.set()

    def give_up(self) -> None:
        """Stop waiting for other ranks, because their world has ended. Any thread may call this."""
        self._gave_up.set()
        self._look.set()

    def run(self) -> Complete | None:
        """Write, wait for the others and, on rank 0, publish and return the checkpoint.

        Raises:
            AttemptDropped: there will be no such checkpoint. This rank's files have been removed.
        """
        part = self._part
        try:
            part.wait_for_copies()
            if part.rank == 0:
                self._store.begin(part.attempt)
            if part.writers == 1:
                # What a process left that was killed in an attempt of this id: no other rank has files there.
                remove(self._folder)
            _make(self._folder)
            if part.rank == 0 and part.writers > 1:
                write_through(self._folder / _TOKEN, self._token.encode())
            files = self._write()
            self.waiting = True
            if part.rank != 0:
                self._wait_for_rank_0(files)
                return None
            self._report(files)
            return self._store.publish(part.attempt, self._collect())
        except AttemptDropped as dropped:
            self._take_back("" if part.rank != 0 or self._gave_up.is_set() else str(dropped))
            raise
        except Exception as error:  # An error of a format's writer ends this attempt, not the training.
            reason = self._describe(error)
            self._take_back(reason)
            raise AttemptDropped(reason) from error

    def _write(self) -> tuple[File, ...]:
        part = self._part
        _record_path(self._folder, part.rank).unlink(missing_ok=True)
        names = part.write(self._folder)
        for name in names:
            sync_file(self._folder / name)
        files = tuple(describe(self._folder / name) for name in names)
        # The names of the files must be on disk before any rank is told. Rank 0 may be on another host, whose sync does
        # not cover what this host has written.
        sync_directory(self._folder)
        return files

    def _report(self, files: tuple[File, ...]) -> None:
        record = Record(self._part.layout, files, token=self._token)
        write_through(_record_path(self._folder, self._part.rank), seal(record))

    def _take_back(self, reason: str) -> None:
        """Remove this rank's files, on rank 0 all files; record the reason for ranks that cannot know it."""
        part = self._part
        says_why = bool(reason) and part.writers > 1
        if part.rank == 0:
            remove(self._folder)
        else:
            self._remove_own(with_folder=not says_why)
        if says_why:
            excuse(self._store, part.attempt, part.rank, reason)

    def _remove_own(self, with_folder: bool) -> None:
        shard = f"-{self._part.rank:05}-of-"
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if shard in path.name or path == _record_path(self._folder, self._part.rank):
                    path.unlink()
            if with_folder:
                self._folder.rmdir()  # This succeeds on the rank that gives up last.

    def _describe(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return f"{error.strerror or error} ({self._store.directory})"
        return f"{type(error).__name__}: {error}"

    # --- waiting for each other ------------------------------------------------------------------------------------

    def _collect(self) -> Manifest:
        """Return the manifest with the files of all ranks, as soon as all are written."""
        part = self._part
        waiting = _ProgressTimeout(part.timeout)
        while True:
            # A reason may have been written before the token; one of a killed job costs no more than this attempt.
            records = {
                rank: each for rank, each in self._records().items() if each.trouble or each.token == self._token
            }
            for rank, record in records.items():
                if record.trouble:
                    raise AttemptDropped(f"rank {rank}: {record.trouble}")
                if record.layout != part.layout:
                    raise AttemptDropped(
                        f"rank {rank} has different tensors than rank 0; save the same state on all ranks"
                    )
            if len(records) == part.writers:
                files = tuple(file for rank in range(part.writers) for file in records[rank].files)
                return msgspec.structs.replace(part.manifest, files=files)
            if self._gave_up.is_set():
                raise AttemptDropped("the world has changed before all ranks had written their shards")
            if waiting.is_over(self._signs_of_life()):
                raise AttemptDropped(self._missing(set(range(part.writers)) - set(records)))
            self._pause(waiting)

    def _wait_for_rank_0(self, files: tuple[File, ...]) -> None:
        """Report the files to rank 0, and wait until it has decided: then the folder has its final name, or is gone."""
        # Twice the time of rank 0, so that rank 0 gives up first and tells the others why.
        waiting = _ProgressTimeout(2 * self._part.timeout)
        with contextlib.suppress(FileNotFoundError):
            while True:
                leader = self._records(only=0).get(0)
                if leader is not None and leader.trouble:
                    raise AttemptDropped(f"rank 0: {leader.trouble}")
                if (token := self._read_token()) != self._token:
                    self._token = token
                    self._report(files)
                if self._gave_up.is_set() or waiting.is_over(self._signs_of_life()):
                    raise AttemptDropped("rank 0 has not reported that all shards are written")
                self._pause(waiting)

    def _pause(self, waiting: _ProgressTimeout) -> None:
        self._look.wait(waiting.next_look())
        self._look.clear()

    def _records(self, only: int | None = None) -> dict[int, Record]:
        # The folder is listed, because a network file system may remember for a minute that a single name does not
        # exist.
        names = {path.name for path in self._folder.iterdir()}
        found = {}
        for rank in range(self._part.writers) if only is None else (only,):
            path = _record_path(self._folder, rank)
            if path.name in names:
                try:
                    found[rank] = unseal_record(path.read_bytes())
                except ManifestError as error:
                    raise AttemptDropped(f"{path} {error}") from None
        return found

    def _read_token(self) -> str:
        """Return rank 0's token, or the one already known if there is none. The folder is listed, as for records."""
        there = _TOKEN in (path.name for path in self._folder.iterdir())
        return (self._folder / _TOKEN).read_text() if there else self._token

    def _signs_of_life(self) -> tuple[tuple[str, int], ...]:
        """Return a value that changes as long as other ranks are writing."""
        return tuple(sorted((path.name, _size(path)) for path in self._folder.iterdir()))

    def _missing(self, ranks: set[int]) -> str:
        named = f"rank {min(ranks)}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"
        return (
            f"shards of {named} did not appear in {self._store.directory} within {self._part.timeout:g} s (check that "
            "it is on a file system that all hosts share)"
        )


class _ProgressTimeout:
    """A timeout that restarts at each change, and the intervals between checks: short at first, then ever longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: object = None
        self._since = time.monotonic()
        self._look_seconds = _SHORTEST_LOOK_SECONDS

    def is_over(self, seen: object) -> bool:
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since > self._seconds

    def next_look(self) -> float:
        self._look_seconds = min(2 * self._look_seconds, _LONGEST_LOOK_SECONDS)
        return self._look_seconds


def excuse(store: Store, attempt: AttemptId, rank: int, reason: str) -> None:
    """Record, if the disk allows, that this rank's part of an attempt will not be written."""
    folder = store.path_of(attempt)
    with contextlib.suppress(OSError):
        _make(folder)
        write_through(_record_path(folder, rank), seal(Record(trouble=reason)))


def _make(folder: Path) -> None:
    """Make a folder, even if other ranks remove it at this moment."""
    while True:
        try:
            return folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            # mkdir found it and then checked its type; between the two, another rank that gives up may have
            # removed it.
            if folder.exists() and not folder.is_dir():
                raise


def shard_name(rank: int, writers: int, suffix: str) -> str:
    """Return the name of a rank's file."""
    return f"shard-{rank:05}-of-{writers:05}.{suffix}"


def _record_path(folder: Path, rank: int) -> Path:
    return folder / f"record-{rank:05}.json"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # It was a temporary file, which has just got its final name.
