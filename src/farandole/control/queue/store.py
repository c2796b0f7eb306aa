"""The queue's database: SQLite in WAL mode, written by the daemon that holds the state directory's lock.

It contains all state that must survive. A change is one transaction, which is on the disk when it returns. A change
that cannot be written raises `StoreError`, and is rolled back as a whole.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.base.wire.encoding import decode_json, encode_json
from farandole.control.jobs.status import Event as ToldEvent
from farandole.control.queue.model import JobEvent, QueueHost, QueueJob, RunOptions
from farandole.control.queue.settings import QueueSettings

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, submitted REAL NOT NULL, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS launches (name TEXT PRIMARY KEY, environment TEXT NOT NULL, directory TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS hosts (position INTEGER PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS settings (id INTEGER PRIMARY KEY CHECK (id = 0), row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS run_options (id INTEGER PRIMARY KEY CHECK (id = 0), row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tokens (digest TEXT PRIMARY KEY, user TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, job TEXT NOT NULL, at REAL NOT NULL, text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_of_job ON events (job, id);
"""
VERSION = 1
KEPT_EVENTS = 200


class StoreError(RuntimeError):
    """The database cannot be read or written.

    Attributes:
        hint: the next step for the user.
    """

    def __init__(self, message: str, hint: str = "see the queue's log") -> None:
        super().__init__(message)
        self.hint = hint


class QueueStore:
    """The database of one queue.

    Args:
        path: path of the database file; it is created if it does not exist.
        durable: whether a change is on the disk when it returns. Only tests may set it to False: their crashes are
            simulated, and the machine survives.
    """

    def __init__(self, path: Path, durable: bool = True) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found > VERSION:
                raise StoreError(f"{path} was written by a newer farandole (format {found}, not {VERSION})")
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA user_version={VERSION}")
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be used as the queue's database: {error}") from None

    def close(self) -> None:
        self._db.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    def jobs(self) -> dict[str, QueueJob]:
        """Return all jobs by name, oldest first."""
        rows = self._db.execute("SELECT row FROM jobs ORDER BY submitted, name")
        jobs = (decode_json(row, QueueJob) for (row,) in rows)
        return {job.name: job for job in jobs}

    def hosts(self) -> tuple[QueueHost, ...]:
        rows = self._db.execute("SELECT row FROM hosts ORDER BY position")
        return tuple(decode_json(row, QueueHost) for (row,) in rows)

    def settings(self) -> QueueSettings:
        found = self._db.execute("SELECT row FROM settings").fetchone()
        return QueueSettings() if found is None else decode_json(found[0], QueueSettings)

    def run_options(self) -> RunOptions:
        found = self._db.execute("SELECT row FROM run_options").fetchone()
        return RunOptions() if found is None else decode_json(found[0], RunOptions)

    def launch(self, job: str) -> tuple[dict[str, str], str]:
        """Return the environment and the directory in which a job was submitted."""
        found = self._db.execute("SELECT environment, directory FROM launches WHERE name = ?", (job,)).fetchone()
        if found is None:
            return {}, "/"
        return decode_json(found[0], dict[str, str]), found[1]

    def events(self, job: str) -> tuple[ToldEvent, ...]:
        """Return the last events of a job, newest last."""
        rows = self._db.execute("SELECT at, text FROM events WHERE job = ? ORDER BY id DESC LIMIT 20", (job,))
        return tuple(ToldEvent(at, text) for at, text in rows)[::-1]

    def user_of(self, digest: str) -> str | None:
        """Return the user whose token has this digest; None if there is none."""
        found = self._db.execute("SELECT user FROM tokens WHERE digest = ?", (digest,)).fetchone()
        return None if found is None else str(found[0])

    # --- changes ---------------------------------------------------------------------------------------------------

    def write_jobs(self, jobs: Iterable[QueueJob], events: Sequence[JobEvent], now: float) -> None:
        """Write jobs and their events in one transaction."""
        with _transaction(self._db):
            self._put_jobs(jobs)
            self._put_events(events, now)

    def add_job(
        self, job: QueueJob, environment: Mapping[str, str], directory: str, events: Sequence[JobEvent], now: float
    ) -> None:
        """Write a new job, with its environment and its directory."""
        with _transaction(self._db):
            self._db.execute("DELETE FROM events WHERE job = ?", (job.name,))
            self._put_jobs([job])
            plain = _text(dict(environment))
            self._db.execute("INSERT OR REPLACE INTO launches VALUES (?, ?, ?)", (job.name, plain, directory))
            self._put_events(events, now)

    def forget(self, jobs: Iterable[str]) -> None:
        """Remove jobs that are over."""
        with _transaction(self._db):
            for name in jobs:
                for table, column in (("jobs", "name"), ("launches", "name"), ("events", "job")):
                    self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))

    def write_hosts(self, hosts: Sequence[QueueHost]) -> None:
        with _transaction(self._db):
            self._db.execute("DELETE FROM hosts")
            self._db.executemany(
                "INSERT INTO hosts VALUES (?, ?)", [(at, _text(host)) for at, host in enumerate(hosts)]
            )

    def write_settings(self, settings: QueueSettings) -> None:
        with _transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO settings VALUES (0, ?)", (_text(settings),))

    def write_run_options(self, options: RunOptions) -> None:
        with _transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO run_options VALUES (0, ?)", (_text(options),))

    def add_token(self, digest: str, user: str) -> None:
        with _transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (digest, user))

    def remove_tokens(self, user: str) -> int:
        """Remove a user's tokens; return how many there were."""
        with _transaction(self._db):
            return self._db.execute("DELETE FROM tokens WHERE user = ?", (user,)).rowcount

    def backup(self, path: Path) -> None:
        """Copy the current database to another file, while it is in use.

        Raises:
            StoreError: the file cannot be written.
        """
        try:
            draft = path.with_name(f".{path.name}.draft")
            draft.unlink(missing_ok=True)
            # Readable by this user only, from the first byte on: it has the environments of jobs, digests of tokens.
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            copy = sqlite3.connect(draft)
            try:
                self._db.backup(copy)
            finally:
                copy.close()
            draft.replace(path)
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise StoreError(
                f"{path} cannot be written: {reason}", "name a file that the queue's daemon can write, on its machine"
            ) from None

    def _put_jobs(self, jobs: Iterable[QueueJob]) -> None:
        rows = [(job.name, job.submitted, _text(job)) for job in jobs]
        self._db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", rows)

    def _put_events(self, events: Sequence[JobEvent], now: float) -> None:
        rows = [(event.job, now, event.text) for event in events]
        self._db.executemany("INSERT INTO events (job, at, text) VALUES (?, ?, ?)", rows)
        for job in {event.job for event in events}:
            self._db.execute(
                "DELETE FROM events WHERE job = ? AND id NOT IN"
                " (SELECT id FROM events WHERE job = ? ORDER BY id DESC LIMIT ?)",
                (job, job, KEPT_EVENTS),
            )


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Make several changes in one transaction, which is on the disk at the end, or rolled back.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # SQLite may have rolled it back itself, as on a full disk.
                db.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise StoreError(f"the queue's database cannot be written: {error}") from error


def _text(value: Any) -> str:
    return encode_json(value).decode()
