"""Discovery of hosts, repeated while the job runs.

A `HostSource` returns the current hosts: from a user's script, a file, a DNS name, or a fixed list. `Discovery` asks
it, never twice at the same time, keeps its last answer, and reports changes. An error on the first call ends the job; a
later one is reported once, and the last answer stays in effect. An answer without any slot is not accepted at once
either: it is more often a mistake than true, and accepting it would end all workers and lose the training's state.
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

from farandole.base.display.wording import count
from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host, parse_host_lines, slots_of, unreadable_host_file
from farandole.errors import SpecError

# Horovod's interval.
POLL_SECONDS = 1.0
DNS_SECONDS = 5.0
# A script or a name server that takes longer has failed.
ANSWER_SECONDS = 60.0
# Seconds without a first answer after which the user is notified.
SLOW_SECONDS = 5.0
_SHOWN_LINES = 10
_SHELL = "/bin/sh"


class HostSource(Protocol):
    """Interface of the sources of the current hosts."""

    seconds: float
    """Seconds for which an answer stays valid; 0: for ever."""

    async def ask(self) -> tuple[Host, ...]:
        """Return the current hosts, each with its slots, in the order in which they should be used.

        Raises:
            SpecError: the hosts cannot be determined now.
        """


class FixedHosts:
    """Source of the hosts that the user named."""

    seconds = 0.0

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = tuple(hosts)

    async def ask(self) -> tuple[Host, ...]:
        """Return the hosts."""
        return self._hosts


class ScriptHosts:
    """Source that runs a program which prints `host:slots` or `host` for every host, as in Horovod.

    Args:
        script: its path; anything that is not a path is read as a command with arguments. A script whose first line
            names no interpreter is run by the shell.
        slots: number of slots of hosts without one.
        timeout: seconds after which the program is killed.

    Raises:
        SpecError: the command has a quotation that is not closed.
    """

    seconds = POLL_SECONDS

    def __init__(self, script: str, slots: int | None, timeout: float = ANSWER_SECONDS) -> None:
        self._script = script
        self._command = _read_command(script)
        self._slots = slots
        self._timeout = timeout

    async def ask(self) -> tuple[Host, ...]:
        """Run the program and parse its output."""
        # Files, not pipes: processes that the program leaves running may hold pipes open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            code = await self._run(out, err)
            out.seek(0)
            err.seek(0)
            said = out.read()
            if code != 0:
                raise SpecError(
                    f"the host discovery script {self._script} ended with code {code}{_quoted(said + err.read())}",
                    "run it by hand; it should print a line for every host, such as h1:4",
                )
        return distinct(parse_host_lines(said.decode("utf-8", "replace"), f"output of {self._script}"), self._slots)

    async def _run(self, out: IO[bytes], err: IO[bytes]) -> int:
        try:
            process = await self._start(self._command, out, err)
        except OSError as error:
            raise SpecError(
                f"the host discovery script {self._script} cannot be started: {error.strerror}",
                f"chmod +x {self._script}; its first line names its interpreter, such as #!/bin/sh"
                if os.path.isfile(self._command[0])
                else "check the path",
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


def _read_command(script: str) -> list[str]:
    try:
        words = [script] if os.path.isfile(script) else shlex.split(script) or [script]
    except ValueError as error:
        raise SpecError(
            f"the host discovery script {script} cannot be started: {error}",
            "check the path; a command with arguments is quoted as for a shell",
        ) from None
    if os.path.isfile(words[0]):
        words[0] = os.path.join(os.curdir, words[0])  # Without a slash, it would be searched for on the PATH.
    return words


class FileHosts:
    """Source that reads a host file, which may be rewritten while the job runs."""

    seconds = POLL_SECONDS

    def __init__(self, path: str, slots: int | None) -> None:
        self._path = path
        self._slots = slots
        self._seen: tuple[int, int, int] | None = None
        self._hosts: tuple[Host, ...] = ()

    async def ask(self) -> tuple[Host, ...]:
        """Read the file, unless it is unchanged since the last time."""
        try:
            status = os.stat(self._path)
            now = (status.st_ino, status.st_mtime_ns, status.st_size)
            if now != self._seen:
                with open(self._path, encoding="utf-8") as file:
                    self._hosts = distinct(parse_host_lines(file.read(), self._path), self._slots)
                self._seen = now
        except (OSError, UnicodeDecodeError) as error:
            raise unreadable_host_file(self._path, error) from None
        return self._hosts


class DnsHosts:
    """Source of all addresses of a name, such as those of a headless service."""

    seconds = DNS_SECONDS

    def __init__(self, name: str, slots: int | None) -> None:
        self._name = name
        self._slots = slots

    async def ask(self) -> tuple[Host, ...]:
        """Look up the name."""
        lookup = asyncio.get_running_loop().getaddrinfo(self._name, None, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.wait_for(lookup, ANSWER_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            raise SpecError(f"no name server knows {self._name}", "try: getent hosts NAME") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid name, such as one with two dots.
            raise SpecError(
                f"the name {self._name} cannot be looked up: {getattr(error, 'strerror', None) or error}",
                "check its spelling",
            ) from None
        # Name servers answer in changing order; later calls keep the order of the first answer.
        addresses = sorted({str(each[4][0]) for each in found})
        return distinct([Host(address) for address in addresses], self._slots)


class DialedHosts:
    """Source of the hosts that have dialed the launcher."""

    # Asks neither a program nor a server, so it can be called often.
    seconds = 0.2

    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    async def ask(self) -> tuple[Host, ...]:
        """Return the hosts that have dialed."""
        return self._reception.hosts()


def make_source(elastic: Elastic, hosts: Sequence[Host], reception: Reception | None = None) -> HostSource:
    """Return the source of a job's hosts.

    Args:
        elastic: the limits of the job, as the user wants them.
        hosts: the hosts that the user named, used without discovery.
        reception: the listener that hosts dial, if they do.
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
    """Periodic host discovery for a running job.

    Args:
        source: the source of hosts.
        warn: callback for errors after the first answer, as text for the user.
        name: name of the source in messages.
        timeout: seconds to wait for the first answer; later, seconds for which an empty answer is ignored.
        slow: seconds without a first answer after which the user is notified.
    """

    def __init__(
        self,
        source: HostSource,
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
        """The time since which answers have no slot, although the job has some."""
        self.hosts: tuple[Host, ...] = ()

    async def first(self) -> tuple[Host, ...]:
        """Return the first answer.

        Raises:
            SpecError: there is no answer.
        """
        asking = asyncio.ensure_future(self._source.ask())
        try:
            await asyncio.wait({asking}, timeout=min(self._slow, self._timeout))
            if not asking.done() and self._slow < self._timeout:
                waits = "the job cannot start without an answer"
                self._warn(f"farandole: {self._name} has not answered for {self._slow:g} s; {waits}")
                await asyncio.wait({asking}, timeout=self._timeout - self._slow)
            if not asking.done():
                raise SpecError(
                    f"{self._name} has not answered within the elastic timeout of {self._timeout:g} s",
                    "run it by hand, or give it more time by a longer elastic timeout",
                )
            self.hosts = asking.result()
        finally:
            asking.cancel()  # Kills a script that is still running.
            await asyncio.gather(asking, return_exceptions=True)
        return self.hosts

    async def watch(self, changed: Callable[[tuple[Host, ...]], None]) -> None:
        """Call `changed` with every accepted answer that differs from the last one, until cancelled."""
        while self._source.seconds > 0:
            await asyncio.sleep(self._source.seconds)
            try:
                hosts = await self._source.ask()
            except SpecError as error:
                self._say(f"{error.message}; the hosts stay the same")
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
            then = f"; if this lasts for {self._timeout:g} s, the job gives up its hosts"
            goes_on = "the job keeps its hosts and asks again"
            self._warn(f"warning: {self._name} found no hosts; {goes_on}{'' if math.isinf(self._timeout) else then}")
        if now - self._none_since < self._timeout:
            return False
        self._warn(f"warning: {self._name} has found no hosts for {self._timeout:g} s; the job gives up its hosts")
        self._none_since = None
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            self._said = trouble
            self._warn(f"warning: {trouble}")


def distinct(hosts: Sequence[Host], slots: int | None) -> tuple[Host, ...]:
    """Return each host once, with its slots; hosts without a number get this number, or one.

    Raises:
        SpecError: two different numbers of slots are given for a host.
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
