"""Prepares the state directory of a queue, with the options of the command line, before its daemon starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from farandole.control.jobs.errors import Refused
from farandole.control.queue.address import DATABASE
from farandole.control.queue.daemon import claim
from farandole.control.queue.hosts import parse_queue_hosts
from farandole.control.queue.model import NO_OPTIONS, QueueHost, RunOptions
from farandole.control.queue.settings import changed
from farandole.control.queue.store import QueueStore, StoreError


def prepare(state: Path, hosts: str | None, policy: str | None, options: RunOptions = NO_OPTIONS) -> None:
    """Create a queue's state directory, and write its hosts, its policy, and the launch options of all jobs.

    Raises:
        Refused: another daemon serves the queue, no hosts are given, or a value is not valid.
    """
    new = parse_queue_hosts(hosts) if hosts is not None else None
    try:
        _make_directories(state)
        lock = claim(state)
    except OSError as error:
        raise Refused(
            f"{state} cannot be written: {error.strerror or error}", "name another one: --state DIR"
        ) from None
    if lock is None:
        raise Refused(
            f"a queue runs in {state} already", "farandole queue status shows it; for another queue: --state DIR"
        )
    try:
        _write(state / DATABASE, new, policy, options)
    except StoreError as error:
        raise Refused(str(error), "name another state directory: --state DIR") from None
    finally:
        os.close(lock)


def _make_directories(state: Path) -> None:
    """Create a queue's directories: all users can reach the socket, and only the owner can read the database.

    Raises:
        OSError: they cannot be created.
    """
    before = os.umask(0o022)
    if os.geteuid() != 0:
        os.umask(before)  # Directories above it have the permissions that the user chooses.
    try:
        state.mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(before)
    (state / "attempts").mkdir(exist_ok=True)
    for each in (state, state / "attempts"):
        os.chmod(each, 0o711)


def _write(path: Path, hosts: Sequence[QueueHost] | None, policy: str | None, options: RunOptions) -> None:
    before = os.umask(0o077)
    try:
        store = QueueStore(path)
    finally:
        os.umask(before)
    try:
        if hosts is not None:
            store.write_hosts(hosts)
        elif not store.hosts():
            raise Refused("the queue has no hosts", "farandole queue start --hosts h1:4,h2:4, or localhost:2")
        store.write_run_options(options)
        if policy is not None:
            store.write_settings(changed(store.settings(), [f"policy={policy}"]))
    finally:
        store.close()
