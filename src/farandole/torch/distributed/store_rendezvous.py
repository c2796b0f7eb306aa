"""The rendezvous of the members of a process group, through the store that torch gives the backend.

Every member writes its engine's *contact* into the store. The first member collects them and writes one message with
all contacts and a new secret. Every member reads it, connects to all others, and proves that it has the secret. So the
store is the root of trust: any process that can read it while a group forms can join that group. The message is deleted
as soon as the group has formed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import socket
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from farandole.base.settings.table import Settings
from farandole.errors import StartError
from farandole.worker.core import binding
from farandole.worker.core.engine import Engine

SECRET_BYTES = 32


def meet(store: Store, rank: int, size: int, timeout: timedelta) -> Engine:
    """Return an engine in a world of the group's members.

    Args:
        store: the store that the members share; no other process uses its prefix.
        rank: this member's rank in the group.
        size: number of members.
        timeout: the time within which all members must arrive and be connected.

    Raises:
        StartError: not all members arrived in time; the message names the missing ones.
        LibraryError: the native library is missing.
    """
    settings = Settings.from_environment()
    if size > 1 and not settings.listen:
        settings = dataclasses.replace(settings, listen=_reachable_address(store))
    engine = Engine(binding.load(settings.library), settings)
    if size == 1:
        engine.form(1, 0, 1, (), b"", timeout.total_seconds())
        return engine
    deadline = time.monotonic() + timeout.total_seconds()
    # A process may make and destroy the group many times with one store; entries of earlier groups must
    # not be mistaken for present ones.
    attempt = f"farandole/{store.add(f'farandole/attempts/{rank}', 1)}"
    store.set(f"{attempt}/contact/{rank}", engine.contact)
    if rank == 0:
        contacts, secret = _collect(store, attempt, size, deadline), secrets.token_bytes(SECRET_BYTES)
        store.set(f"{attempt}/world", json.dumps({"contacts": contacts, "secret": secret.hex()}))
    else:
        _await(store, f"{attempt}/world", deadline, "the first rank of the group to announce it")
        world = json.loads(store.get(f"{attempt}/world"))
        contacts, secret = world["contacts"], bytes.fromhex(world["secret"])
    engine.form(1, rank, size, contacts, secret, _remaining(deadline))
    if rank == 0:
        # All members are connected to this rank, so all have read it. Some stores cannot delete.
        with contextlib.suppress(RuntimeError, NotImplementedError):
            store.delete_key(f"{attempt}/world")
    return engine


def _collect(store: Store, attempt: str, size: int, deadline: float) -> list[str]:
    """Return the contacts of all members, by rank."""
    keys = [f"{attempt}/contact/{rank}" for rank in range(size)]
    for rank, key in enumerate(keys):
        _await(store, key, deadline, f"rank {rank} of the group to arrive")
    return [store.get(key).decode() for key in keys]


def _await(store: Store, key: str, deadline: float, what: str) -> None:
    try:
        store.wait([key], timedelta(seconds=_remaining(deadline)))
    except RuntimeError as error:  # A store's timeouts have no type of their own in all versions of torch.
        raise StartError(
            f"waiting for {what} failed: {error}. Check that the process is still running, and that it has called "
            "init_process_group (or new_group) with the same arguments."
        ) from error


def _remaining(deadline: float) -> float:
    # Never zero, which some stores treat as no limit.
    return max(0.001, deadline - time.monotonic())


def _reachable_address(store: Store) -> str:
    """Return this process's address on the network of the store; empty if the store has no network, so that all members
    are on this host.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return ""
    try:
        family, kind, _, _, address = socket.getaddrinfo(store.host, store.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # Sends nothing: it only asks the kernel for the route.
            return str(probe.getsockname()[0])
    except OSError:
        return ""
