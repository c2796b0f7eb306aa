"""Which hosts there are now: asked for again and again while the job runs.

A `Source` answers that question once: a script of the user's, a file, a DNS name, or a list that stays as it is.
`Discovery` asks it, never twice at the same time, keeps its last answer, and tells when that changes. What goes wrong
the first time ends the job; later it is said once, and the last answer holds. So it does when there is not a single
slot any more: that is a mistake more often than true, and to believe it is to lose all workers, and with them the
state.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shlex
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Protocol

from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host, parse_host_lines, slots_of
from farandole.control.launcher.wording import count
from farandole.errors import SpecError

# As often as Horovod asks.
POLL_SECONDS = 1.0
DNS_SECONDS = 5.0
# A script, or a name server, that takes longer has failed.
ANSWER_SECONDS = 60.0
# People are told when there is no first answer for so long.
SLOW_SECONDS = 5.0
_SHOWN_LINES = 10
_SHELL = "/bin/sh"


class Source(Protocol):
    """Knows which hosts there are."""

    seconds: float
    """How long its answers are good; 0: for ever."""

    async def ask(self) -> tuple[Host, ...]:
        """Return the hosts that there are, each with its slots, in the order in which they should be used.

        Raises:
            SpecError: that cannot be found out now.
        """


class FixedHosts:
    """The hosts that the user named."""

    seconds = 0.0

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = tuple(hosts)

    async def ask(self) -> tuple[Host, ...]:
        """Return them."""
        return self._hosts


class ScriptHosts:
    """Horovod's way: a program that prints a line for every host, `host:slots` or `host`.

    Args:
        script: its path; what is no path is read as a command with arguments. A script whose first line names no
            interpreter is run by the shell.
        slots: of hosts that come without.
        timeout: seconds after which a program that still runs is killed.
    """

    seconds = POLL_SECONDS

    def __init__(self, script: str, slots: int | None, timeout: float = ANSWER_SECONDS) -> None:
        self._script = script
        self._command = [script] if os.path.exists(script) else shlex.split(script)
        self._slots = slots
        self._timeout = timeout

    async def ask(self) -> tuple[Host, ...]:
        """Run the program and read what it prints."""
        # Files, not pipes: what the program leaves running may hold those open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = await self._run(out, err)
            out.seek(0)
            err.seek(0)
            said = out.read()
            if code != 0:
                raise SpecError(
                    f"the host discovery script {self._script} ended with code {code}{_quoted(said + err.read())}",
                    "try it by hand; it should print a line for every host, such as h1:4",
                )
        return distinct(parse_host_lines(said.decode("utf-8", "replace"), f"output of {self._script}"), self._slots)

    async def _run(self, out: IO[bytes], err: IO[bytes]) -> int:
        try:
            process = await self._start(self._command, out, err)
        except OSError as error:
            raise SpecError(
                f"the host discovery script {self._script} cannot be started: {error.strerror}",
                f"chmod +x {self._script}; its first line names its interpreter, such as #!/bin/sh",
            ) from None
        try:
            return await asyncio.wait_for(process.wait(), self._timeout)
        except (TimeoutError, asyncio.TimeoutError):
            raise SpecError(
                f"the host discovery script {self._script} did not end within {self._timeout:g} s",
                "it should print the hosts and end",
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    async def _start(self, command: Sequence[str], out: IO[bytes], err: IO[bytes]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        except OSError as error:
            if error.errno != errno.ENOEXEC or command[0] == _SHELL:
                raise
        # As a shell does with a file that the kernel cannot run: Horovod starts scripts through one.
        return await self._start([_SHELL, *command], out, err)


class FileHosts:
    """A host file that may be written again while the job runs."""

    seconds = POLL_SECONDS

    def __init__(self, path: str, slots: int | None) -> None:
        self._path = path
        self._slots = slots
        self._seen: tuple[int, int, int] | None = None
        self._hosts: tuple[Host, ...] = ()

    async def ask(self) -> tuple[Host, ...]:
        """Read the file, unless it is the one that was read the last time."""
        try:
            status = os.stat(self._path)
            now = (status.st_ino, status.st_mtime_ns, status.st_size)
            if now != self._seen:
                with open(self._path, encoding="utf-8") as file:
                    self._hosts = distinct(parse_host_lines(file.read(), self._path), self._slots)
                self._seen = now
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"the file of hosts cannot be read: {error}", "check the path") from None
        return self._hosts


class DnsHosts:
    """All addresses that a name has, such as those of a headless service."""

    seconds = DNS_SECONDS

    def __init__(self, name: str, slots: int | None) -> None:
        self._name = name
        self._slots = slots

    async def ask(self) -> tuple[Host, ...]:
        """Look the name up."""
        lookup = asyncio.get_running_loop().getaddrinfo(self._name, None, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.wait_for(lookup, ANSWER_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            raise SpecError(f"no name server answers about {self._name}", "try: getent hosts NAME") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: no name at all, such as one with two dots.
            raise SpecError(
                f"the name {self._name} cannot be looked up: {getattr(error, 'strerror', None) or error}",
                "check its spelling",
            ) from None
        # Name servers answer in changing order; the order of the first answer is kept later on.
        addresses = sorted({str(each[4][0]) for each in found})
        return distinct([Host(address) for address in addresses], self._slots)


class DialedHosts:
    """The hosts that have dialed the launcher."""

    # No program is asked and no server: often enough that nobody waits.
    seconds = 0.2

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def ask(self) -> tuple[Host, ...]:
        """Return those that are there."""
        return self._reception.hosts()


def make_source(elastic: Elastic, hosts: Sequence[Host], reception: Reception | None = None) -> Source:
    """Return what knows the hosts of a job.

    Args:
        elastic: what the user wants.
        hosts: those that the user named, for when nothing else tells them.
        reception: where hosts dial, if they do.
    """
    if reception is not None:
        return DialedHosts(reception)
    kind, _, what = elastic.discovery.partition(":")
    if kind == "script":
        return ScriptHosts(what, elastic.slots)
    if kind == "file":
        return FileHosts(what, elastic.slots)
    if kind == "dns":
        name, _, slots = what.partition(":")
        return DnsHosts(name, _read_slots(slots, what) if slots else elastic.slots)
    return FixedHosts(distinct(hosts, elastic.slots))


class Discovery:
    """Asks a source for as long as a job runs.

    Args:
        source: what is asked.
        warn: takes what goes wrong later than the first time, for people.
        name: what it is called in what people read.
        timeout: seconds after which a first answer comes too late, and after which it is believed that there are no
            hosts any more.
        slow: seconds after which it is told that there is none yet.
    """

    def __init__(
        self,
        source: Source,
        warn: Callable[[str], None],
        name: str = "",
        timeout: float = math.inf,
        slow: float = SLOW_SECONDS,
    ) -> None:
        self._source = source
        self._warn = warn
        self._name = f"discovery ({name})" if name else "discovery"
        self._timeout = timeout
        self._slow = slow
        self._said = ""
        self._none_since: float | None = None
        """Since when there is not a single slot, though the job has some."""
        self.hosts: tuple[Host, ...] = ()

    async def first(self) -> tuple[Host, ...]:
        """Return the first answer.

        Raises:
            SpecError: there is none.
        """
        asking = asyncio.ensure_future(self._source.ask())
        try:
            await asyncio.wait({asking}, timeout=min(self._slow, self._timeout))
            if not asking.done() and self._slow < self._timeout:
                waits = "nothing is started before it does"
                self._warn(f"farandole: {self._name} has not answered for {self._slow:g} s; {waits}")
                await asyncio.wait({asking}, timeout=self._timeout - self._slow)
            if not asking.done():
                raise SpecError(
                    f"{self._name} has not answered within the elastic timeout of {self._timeout:g} s",
                    "try it by hand, or give it more time: --elastic-timeout",
                )
            self.hosts = asking.result()
        finally:
            asking.cancel()  # A script that still runs is killed.
            await asyncio.gather(asking, return_exceptions=True)
        return self.hosts

    async def watch(self, changed: Callable[[tuple[Host, ...]], None]) -> None:
        """Call with every answer that is believed and differs from the last one, until this is cancelled."""
        while self._source.seconds > 0:
            await asyncio.sleep(self._source.seconds)
            try:
                hosts = await self._source.ask()
            except SpecError as error:
                self._say(f"{error.message}; the hosts stay as they are")
                continue
            if not self._is_believed(hosts):
                continue
            self._said = ""
            if hosts != self.hosts:
                self.hosts = hosts
                changed(hosts)

    def _is_believed(self, hosts: tuple[Host, ...]) -> bool:
        if _has_slots(hosts) or not _has_slots(self.hosts):
            if self._none_since is not None:
                self._warn(f"farandole: {self._name} finds hosts again")
            self._none_since = None
            return True
        now = time.monotonic()
        if self._none_since is None:
            self._none_since = now
            then = f"if that is so for {self._timeout:g} s, they leave the job"
            goes_on = "the job goes on with those it has, and asks again"
            self._warn(f"warning: {self._name} found no hosts; {goes_on}; {then}")
        if now - self._none_since < self._timeout:
            return False
        self._warn(f"warning: {self._name} has found no hosts for {self._timeout:g} s; those that the job has leave it")
        self._none_since = None
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            self._said = trouble
            self._warn(f"warning: {trouble}")


def distinct(hosts: Sequence[Host], slots: int | None) -> tuple[Host, ...]:
    """Return each host once, with its slots; those without slots get so many, or one.

    Raises:
        SpecError: a host has two numbers of slots.
    """
    found: dict[str, Host] = {}
    for host in hosts:
        host = replace(host, slots=slots_of(host, slots))
        known = found.setdefault(host.label, host)
        if known != host:
            raise SpecError(
                f"host {host.label} is listed twice, with {_slots(known)} and with {_slots(host)}",
                "list it once, with all its slots",
            )
    return tuple(found.values())


def _has_slots(hosts: Sequence[Host]) -> bool:
    return any(host.slots != 0 for host in hosts)


def _slots(host: Host) -> str:
    return count(host.slots or 0, "slot")


def _read_slots(text: str, where: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"dns:{where}: {text!r} is not a number of slots", "write dns:NAME:4")
    return int(text)


def _quoted(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").rstrip().splitlines()[-_SHOWN_LINES:]
    return "".join(f"\n    | {line}" for line in lines)
