"""Determines from the kernel's records whether it killed a worker because memory ran out.

Three sources, the most certain first: the kernel log names the process; a counter of the workers' memory cgroup, in
cgroups v2 also for the cgroups below it; a counter of the whole machine. The log may be unreadable, and counters do not
identify the process: their increase since `note` is used as evidence, once for each victim.

The functions are pure and parse the kernel's texts; `OomWatch` reads them.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from farandole.base.display.wording import bytes_text

_VICTIM = re.compile(r"\bKilled process (\d+)\b(?:.*\banon-rss:(\d+)kB)?")
_KMSG_RECORD = 8192
# cgroups v1 show "no limit" as the largest number of pages, in bytes: far above all memory that exists.
_NO_LIMIT = 1 << 60
# The kernel always gives this number to the namespace in which the machine starts (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


class Cgroup(NamedTuple):
    """The memory cgroup of a process."""

    name: str
    """The name of the cgroup, as in /proc/PID/cgroup."""
    folder: str
    """The folder of its files."""
    root: str
    """The folder of the topmost visible cgroup."""
    version: int


class Victim(NamedTuple):
    """A process that was killed according to the kernel log."""

    pid: int
    resident: int | None
    """Its resident memory in bytes; None if the log does not contain it."""


def memory_cgroup(cgroups: str, mounts: str) -> Cgroup | None:
    """Return the memory cgroup of a process.

    Args:
        cgroups: the content of its /proc/PID/cgroup.
        mounts: the content of its /proc/PID/mountinfo.
    """
    names = _cgroup_names(cgroups)
    found = None
    for line in mounts.splitlines():
        # 35 31 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
        place, _, what = line.partition(" - ")
        fields, kind = place.split(), what.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup" and "memory" in kind[2].split(",") and "memory" in names:
            return _cgroup_at(names["memory"], fields[3], fields[4], 1)
        if kind[0] == "cgroup2" and "" in names:
            found = _cgroup_at(names[""], fields[3], fields[4], 2)
    return found


def _cgroup_names(cgroups: str) -> dict[str, str]:
    """Return the cgroup of each v1 controller, and under "" that of v2."""
    names = {}
    for line in cgroups.splitlines():
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        names.update(dict.fromkeys(controllers.split(","), name))
    return names


def _cgroup_at(name: str, mounted: str, mount_point: str, version: int) -> Cgroup:
    """Locate a cgroup below a mount that shows the hierarchy from `mounted` on."""
    below = name
    if mounted != "/" and (name == mounted or name.startswith(mounted + "/")):
        below = name[len(mounted) :]
    folder = os.path.normpath(f"{mount_point}/{below}")
    return Cgroup(name, folder, mount_point, version)


def counted(text: str, name: str) -> int:
    """Return a number from a file of `name number` lines; 0 if it is missing.

    Example:
        >>> counted("low 0\\noom 3\\noom_kill 2\\n", "oom_kill")
        2
    """
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0


def limit_in(text: str) -> int | None:
    """Return the limit in a `memory.max` or `memory.limit_in_bytes`, in bytes; None if there is none."""
    text = text.strip()
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def victim_in(record: str) -> Victim | None:
    """Return the process that the kernel killed because of lack of memory, from a record of the kernel log.

    Example:
        >>> victim_in("3,9,7,-;Out of memory: Killed process 12 (python) total-vm:9kB, anon-rss:4kB, file-rss:0kB")
        Victim(pid=12, resident=4096)
    """
    if "out of memory" not in record.lower():
        return None
    found = _VICTIM.search(record)
    return found and Victim(int(found[1]), None if found[2] is None else int(found[2]) * 1024)


class _KernelLog:
    """The records of the kernel log since this object was created, as far as they are readable."""

    def __init__(self) -> None:
        self._fd = -1
        try:
            if os.stat("/proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE:
                return  # The log has process ids of the whole machine, which differ from ours.
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    def read(self) -> list[str]:
        """Return the new records."""
        records = []
        while self._fd >= 0:
            try:
                records.append(os.read(self._fd, _KMSG_RECORD).decode("utf-8", "replace"))
            except BrokenPipeError:
                continue  # Records were overwritten before we read them; the next read returns the oldest one left.
            except OSError:
                break
        return records

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class OomWatch:
    """Detects processes killed because of lack of memory, on the host and in the cgroup of this process.

    Example:
        >>> watch = OomWatch()
        >>> watch.note()
        >>> watch.killed(4711)
        ''
    """

    def __init__(self) -> None:
        self._cgroup = memory_cgroup(_read("/proc/self/cgroup"), _read("/proc/self/mountinfo"))
        self._log: _KernelLog | None = None
        self._victims: dict[int, Victim] = {}
        """Victims in the log for which `killed` has not been called yet, by process id."""
        self._told = 0
        """Number of processes for which `killed` has returned evidence."""
        self._in_cgroup_before = 0
        self._on_host_before = 0

    def note(self) -> None:
        """Record the counters before the first worker starts; later calls have no effect."""
        if self._log is None:
            self._log = _KernelLog()
            self._in_cgroup_before, self._on_host_before = self._count_in_cgroup(), _count_on_host()

    def killed(self, pid: int) -> str:
        """Return the evidence that the kernel killed this process, which ended by SIGKILL, because of lack of memory.

        Returns:
            A text for people, such as `the kernel killed it: out of memory (it used 498 MiB; ...)`; "" if there is no
            evidence.
        """
        if self._log is None:
            return ""
        self._victims.update({victim.pid: victim for victim in map(victim_in, self._log.read()) if victim is not None})
        victim = self._victims.pop(pid, None)
        explained = self._told + len(self._victims)
        if victim is not None or self._count_in_cgroup() > self._in_cgroup_before + explained:
            self._told += 1
            facts = [] if victim is None or victim.resident is None else [f"it used {bytes_text(victim.resident)}"]
            facts += self._limit()
            return "the kernel killed it: out of memory" + (f" ({'; '.join(facts)})" if facts else "")
        if _count_on_host() > self._on_host_before + explained:
            self._told += 1
            return "the kernel killed a process of this host at that time, out of memory; most likely this one"
        return ""

    def close(self) -> None:
        """Close the kernel log."""
        if self._log is not None:
            self._log.close()

    def _count_in_cgroup(self) -> int:
        if self._cgroup is None:
            return 0
        name = "memory.events" if self._cgroup.version == 2 else "memory.oom_control"
        return counted(_read(f"{self._cgroup.folder}/{name}"), "oom_kill")

    def _limit(self) -> list[str]:
        """Return the tightest limit between this cgroup and the topmost one, in words."""
        if self._cgroup is None:
            return []
        name = "memory.max" if self._cgroup.version == 2 else "memory.limit_in_bytes"
        limits = []
        folder = self._cgroup.folder
        while True:
            limit = limit_in(_read(f"{folder}/{name}"))
            if limit is not None:
                limits.append(limit)
            if folder == self._cgroup.root or not folder.startswith(self._cgroup.root):
                break
            folder = os.path.dirname(folder)
        return [f"cgroup {self._cgroup.name} may use {bytes_text(min(limits))}"] if limits else []


def _count_on_host() -> int:
    return counted(_read("/proc/vmstat"), "oom_kill")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
