"""Records of jobs submitted to a batch system: files in a folder that compute nodes and login nodes share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from farandole.base.wire.encoding import decode_json, encode_json
from farandole.control.jobs.errors import Refused


class Record(msgspec.Struct, frozen=True):
    """The stored facts about a job."""

    name: str
    id: str
    """The batch system's number; "": the answer to the submission was lost, and the job has not been found yet."""
    command: tuple[str, ...]
    created: float
    wanted: int
    cancelled: bool = False
    can_be_suspended: bool = False
    key: str = ""
    """The key of the submission."""


class Records:
    """The files of all jobs of one batch system: a record, a script, a log and an exit code for each.

    Args:
        root: the folder of these files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def make_folder(self) -> None:
        """Create the folder, readable only by this user.

        Raises:
            Refused: it cannot be created.
        """
        with self._writing():
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def file(self, name: str, kind: str) -> Path:
        """Return the path of a job's file: `json`, `sh`, `log` or `exit`."""
        return self._root / f"{name}.{kind}"

    def aside(self, name: str, kind: str) -> Path:
        """Return the path to which a file of an earlier job of this name is moved for the time being."""
        return self._root / f".{name}.{kind}"

    def write(self, record: Record) -> None:
        """Write a record atomically.

        Raises:
            Refused: it cannot be written; an earlier record is kept.
        """
        draft = self.aside(record.name, "json")
        with self._writing():
            draft.write_bytes(encode_json(record))
            draft.replace(self.file(record.name, "json"))

    def write_script(self, name: str, script: bytes) -> None:
        """Write a job's script.

        Raises:
            Refused: it cannot be written.
        """
        with self._writing():
            self.file(name, "sh").write_bytes(script)

    def read(self, name: str) -> Record | None:
        """Return a record; None if there is none, or if it cannot be read."""
        try:
            return decode_json(self.file(name, "json").read_bytes(), Record)
        except (OSError, msgspec.DecodeError):
            return None

    def all(self) -> Iterator[Record]:
        """Yield all records."""
        for path in self._root.glob("[!.]*.json"):
            if (record := self.read(path.stem)) is not None:
                yield record

    def free_name(self) -> str:
        """Return a name that no other job has, and that no other process is about to use.

        Raises:
            Refused: its file cannot be created.
        """
        number = 1
        while True:
            name = f"job-{number}"
            if not self.file(name, "json").exists():
                with contextlib.suppress(FileExistsError), self._writing():
                    self.file(name, "sh").touch(exist_ok=False)
                    return name
            number += 1

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise Refused(
                f"the records of jobs in {self._root} cannot be written: {error.strerror}",
                "make room there, or set XDG_STATE_HOME to a directory of yours that login and compute nodes share",
            ) from error
