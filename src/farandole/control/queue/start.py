"""Prepares the state directory of a queue before its daemon starts, with what the command line says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from farandole.control.jobs.errors import Refused
from farandole.control.queue.daemon import claim
from farandole.control.queue.hosts import parse_queue_hosts
from farandole.control.queue.model import NO_OPTIONS, QueueHost, RunOptions
from farandole.control.queue.settings import changed
from farandole.control.queue.store import Store, StoreError


def prepare(state: Path, hosts: str | None, policy: str | None, options: RunOptions = NO_OPTIONS) -> None:
    """Make a queue's state directory, and write down its hosts, its policy, and the options for all jobs.

    Raises:
        Refused: another daemon serves the queue, there are no hosts, or something cannot be like that.
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
        raise Refused(f"a queue runs in {state} already", "farandole queue status shows it; --state DIR is another one")
    try:
        _write(state / "queue.db", new, policy, options)
    except StoreError as error:
        raise Refused(str(error), "name another state directory: --state DIR") from None
    finally:
        os.close(lock)


def _make_directories(state: Path) -> None:
    """Make a queue's directories: everybody passes through to the socket; the database is nobody's business.

    Raises:
        OSError: they cannot be made.
    """
    before = os.umask(0o022)
    if os.geteuid() != 0:
        os.umask(before)  # What is above it is the user's own, and as open as the user wants it.
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
        store = Store(path)
    finally:
        os.umask(before)
    try:
        if hosts is not None:
            store.write_hosts(hosts)
        elif not store.hosts():
            raise Refused("on which hosts?", "farandole queue start --hosts h1:4,h2:4, or localhost:2")
        store.write_run_options(options)
        if policy is not None:
            store.write_settings(changed(store.settings(), [f"policy={policy}"]))
    finally:
        store.close()
