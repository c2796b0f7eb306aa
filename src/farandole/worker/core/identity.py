"""The identity of a process: what a worker, and the processes that it starts, know about its world.

A training script starts processes: those of a `DataLoader`, of a pool, of Keras. They take part in no world, because
its threads and connections belong to the worker. But they need its rank, to read their share of the data. A forked
process has the worker's memory. One that `multiprocessing` starts in another way (spawn, forkserver) has the worker's
environment, in which a variable names a file in memory that the worker keeps up to date. The file may have any size,
disappears with the worker, and is read through /proc by processes of the same user.

Such a process knows the state at its start. In an elastic job, this does not change when the worker enters its next
world.

Other programs that a worker starts also get the variable. They may be workers of another world, so they ignore it,
unless they try to enter the worker's own world with the environment that they have inherited.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from farandole.base import external_launcher
from farandole.base.settings.table import Settings
from farandole.base.wire import encoding
from farandole.base.wire.rendezvous import World
from farandole.errors import FarandoleError, InvalidRequestError, NotInitializedError

VARIABLE = "FARANDOLE_IDENTITY"


class Identity(msgspec.Struct, frozen=True):
    """A worker's place in its world, and the other facts that are known without a collective."""

    pid: int
    """The id of the worker's process."""
    world: World
    groups: dict[int, list[int]]
    """The ranks of every registered process set, by its id."""
    settings: Settings
    placement: tuple[str, ...]
    """Hosts, ranks and sizes, as `placement_in` computes them."""

    def identifier_of(self, ranks: Sequence[int]) -> int | None:
        """Return the id of the process set of these ranks, or None if none is registered."""
        return next((identifier for identifier, known in self.groups.items() if known == list(ranks)), None)


def is_homogeneous_world(world: World) -> bool:
    """Return whether every host has the same number of workers."""
    return len(set(Counter(world.hostnames).values())) == 1


def placement_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the environment variables that determine a process's place among the workers.

    It is the same for a worker and a process that it starts, unless that process is given another place.
    """
    names = ("FARANDOLE_ROSTER", "FARANDOLE_JOB", "FARANDOLE_JOB_KEY", *external_launcher.variables())
    return tuple(environment.get(name, "") for name in names)


class Publication:
    """A worker's identity, for processes that it starts."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def publish(self, identity: Identity) -> None:
        """Publish this identity to processes that are started from now on."""
        # Not in other processes' environment: of thousands of ranks it would be too long for one.
        public = msgspec.structs.replace(
            identity,
            world=msgspec.structs.replace(identity.world, contacts=()),
            settings=dataclasses.replace(identity.settings, secret=b""),
        )
        written = os.memfd_create("farandole-identity")
        with os.fdopen(written, "wb", closefd=False) as file:
            file.write(encoding.encode(public))
        if self._descriptor is None:
            self._descriptor = written
        else:
            # Atomic: a reader finds the old one or this one.
            os.dup2(written, self._descriptor, inheritable=False)
            os.close(written)
        os.environ[VARIABLE] = f"{identity.pid}:{self._descriptor}"

    def withdraw(self) -> None:
        """Hide the identity from processes that are started from now on."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            os.environ.pop(VARIABLE, None)


class Parentage:
    """The facts that a child process of a worker knows about that worker.

    Attributes:
        known: the worker's identity; None: there is none.
        in_use: the same; None after `shutdown()`.
    """

    def __init__(self) -> None:
        self.known: Identity | None = None
        self.in_use: Identity | None = None
        self._from_memory = False
        self.look()

    def look(self) -> None:
        """Find the worker that this process belongs to; called when the process begins."""
        if not self._from_memory:
            self.known = self.in_use = _of_environment(os.environ)

    def inherit(self, identity: Identity) -> None:
        """Adopt the identity that the parent had when it forked this process."""
        self.known = self.in_use = identity
        self._from_memory = True

    def leave(self) -> None:
        """Stop answering queries until `init()` is called again."""
        self.in_use = None

    def resume(self) -> bool:
        """Answer queries again; return whether this process belongs to a worker, rather than being one."""
        if self.known is not None and self.known.placement != placement_in(os.environ):
            self.known = None
        self.in_use = self.known
        return self.known is not None

    def refusal(self) -> FarandoleError:
        """Return the error of a call that only a worker can make."""
        worker = self.in_use
        if worker is None:
            return NotInitializedError()
        return InvalidRequestError(
            f"this process, {os.getpid()}, was started by the worker of rank {worker.world.rank}, process "
            f"{worker.pid}. Here, rank(), size() and other questions are answered, but only the worker itself takes "
            "part in collectives. Make this call in the worker, and give the result to this process. If it is a line of"
            " your script that runs again in each process that multiprocessing starts, put it below "
            "`if __name__ == '__main__':`."
        )


def check_own_place(environment: Mapping[str, str]) -> None:
    """Raise an error if this process would enter a world in the place of a worker that is in it, and has started it.

    Raises:
        InvalidRequestError: it would; the message says what to do.
    """
    worker = _published(environment)
    if worker is not None:
        raise InvalidRequestError(
            f"this process, {os.getpid()}, has inherited the environment of the worker of rank {worker.world.rank}, "
            f"process {worker.pid}, which is in the world already: a second process cannot enter it in the same place. "
            "Call init() only in the worker, and give this process what it needs; or start it by "
            "`farandole run -np 1`, as a job of its own."
        )


def _of_environment(environment: Mapping[str, str]) -> Identity | None:
    return _published(environment) if _is_part_of_a_program() else None


def _published(environment: Mapping[str, str]) -> Identity | None:
    """Return the identity of the worker from which this process has inherited its environment, if it can be read."""
    pid, _, descriptor = environment.get(VARIABLE, "").partition(":")
    if not (pid.isdecimal() and descriptor.isdecimal()) or int(pid) == os.getpid():
        return None
    try:
        identity = encoding.decode(Path(f"/proc/{pid}/fd/{descriptor}").read_bytes(), Identity)
    except (OSError, msgspec.DecodeError):
        return None  # The worker has ended, or has left its world; the path may belong to another file by now.
    is_meant = identity.pid == int(pid) and identity.placement == placement_in(environment)
    return identity if is_meant else None


def _is_part_of_a_program() -> bool:
    """Return whether `multiprocessing` (or joblib) has started this process, to run a part of its parent's program."""
    # By the command line, which shows it from the beginning: the user's script may be imported again before
    # `multiprocessing.parent_process()` knows. A forked process has that of the one that it was forked from.
    return any(
        word == "--multiprocessing-fork" or "multiprocessing.forkserver" in word or "popen_loky" in word
        for word in sys.orig_argv
    )


# Belongs to the process, like the process sets of `farandole.worker.core.group`.
parentage = Parentage()
