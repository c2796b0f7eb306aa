"""Processor, memory, disk and clocks, from /proc and /sys."""

from __future__ import annotations

import os
import re
import time

from farandole.control.agent.inspect.facts import Cache, Clock, Memory, NumaNode, Processor, System
from farandole.control.agent.inspect.view import HostView, whole_number

_NODES = "/sys/devices/system/node"
_KIB = 1024
# The value that cgroups v1 show for "no limit": the largest number of whole pages.
_NO_LIMIT = 1 << 62


def system(view: HostView) -> System:
    """Return the facts about the machine as a whole."""
    release, architecture = view.uname()
    named = re.search(r'^PRETTY_NAME="?([^"\n]+)', view.quiet_text("/etc/os-release") or "", re.MULTILINE)
    return System(
        hostname=view.hostname(),
        boot=view.text("/proc/sys/kernel/random/boot_id"),
        kernel=release,
        distribution=named[1] if named else None,
        architecture=architecture,
    )


def processor(view: HostView) -> Processor:
    """Return the cores, and the share of them that this process may use."""
    model = re.search(r"^model name\s*:\s*(.+)$", view.text("/proc/cpuinfo") or "", re.MULTILINE)
    return Processor(
        model=model[1] if model else None,
        cores=count_cores(view.text("/sys/devices/system/cpu/online")),
        allowed=view.allowed_cores(),
        quota=_quota(view),
        numa=tuple(
            NumaNode(
                number=int(name[4:]),
                cores=view.text(f"{_NODES}/{name}/cpulist") or "",
                memory_bytes=_meminfo(view.text(f"{_NODES}/{name}/meminfo"), "MemTotal"),
            )
            for name in sorted(view.names(_NODES), key=lambda name: (len(name), name))
            if re.fullmatch(r"node[0-9]+", name)
        ),
    )


def count_cores(listed: str | None) -> int:
    """Return the number of cores in a list of the kernel.

    Example:
        >>> count_cores("0-3,8")
        5
    """
    count = 0
    for run in (listed or "").split(","):
        first, _, last = run.partition("-")
        if first.isdecimal():
            count += int(last or first) - int(first) + 1
    return count


def memory(view: HostView) -> Memory:
    """Return the memory of the host, and its limits."""
    told = view.text("/proc/meminfo")
    limit, used = _memory_limit(view)
    shm = view.space("/dev/shm")
    return Memory(
        total=_meminfo(told, "MemTotal"),
        available=_meminfo(told, "MemAvailable"),
        limit=limit,
        used=used,
        shm_total=shm[0] if shm else None,
        shm_free=shm[1] if shm else None,
        huge_pages=_chosen(view.quiet_text("/sys/kernel/mm/transparent_hugepage/enabled")),
        shared_huge_pages=_chosen(view.quiet_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
    )


def _meminfo(told: str | None, name: str) -> int | None:
    found = re.search(rf"\b{name}:\s+([0-9]+) kB", told or "")
    return int(found[1]) * _KIB if found else None


def _chosen(told: str | None) -> str | None:
    """Return the word in brackets, which is the selected one."""
    found = re.search(r"\[(\w+)\]", told or "")
    return found[1] if found else None


# --- cgroups: the strictest limit between this process's group and the root applies -----------------------------------


def group_files(view: HostView, controller: str, name: str) -> list[str]:
    """Return the possible paths of a file of this process's cgroup and of its ancestors, the closest first.

    Args:
        view: the host to inspect.
        controller: name of the controller in v1, such as `memory`; "" means v2.
        name: name of the file.
    """
    mount = f"/sys/fs/cgroup/{controller}".rstrip("/")
    group = "/"
    for line in (view.quiet_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = path
    parts = [part for part in group.split("/") if part and part != ".."]
    return ["/".join([mount, *parts[:count], name]) for count in range(len(parts), -1, -1)]


def _quota(view: HostView) -> float | None:
    quotas = []
    for path in group_files(view, "", "cpu.max"):
        share, _, period = (view.quiet_text(path) or "max 1").partition(" ")
        quotas += [int(share) / int(period)] if share != "max" else []
    periods = group_files(view, "cpu", "cpu.cfs_period_us")
    for path, period_path in zip(group_files(view, "cpu", "cpu.cfs_quota_us"), periods, strict=True):
        quota, period_us = view.number(path), view.number(period_path)
        quotas += [quota / period_us] if quota is not None and quota > 0 and period_us else []
    return min(quotas, default=None)


def _memory_limit(view: HostView) -> tuple[int | None, int | None]:
    found: list[tuple[int, int | None]] = []
    for controller, limit_name, used_name in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        used_files = group_files(view, controller, used_name)
        for path, used_path in zip(group_files(view, controller, limit_name), used_files, strict=True):
            limit = view.number(path)
            if limit is not None and limit < _NO_LIMIT:
                found.append((limit, view.number(used_path)))
    return min(found, key=lambda entry: entry[0], default=(None, None))


# --- clocks and disk --------------------------------------------------------------------------------------------------


def clock(view: HostView) -> Clock:
    """Return the facts about the clocks."""
    told = view.time_of_day()
    return Clock(
        source=view.quiet_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        synchronised=told[0] if told else None,
        error_seconds=told[1] if told and told[0] else None,
        now=time.time(),
    )


def cache(view: HostView) -> Cache:
    """Return the cache directory, and the free space there."""
    home = view.environment.get("HOME") or os.path.expanduser("~")
    folder = os.path.join(view.environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "farandole")
    there = folder
    while not view.exists(there) and there != "/":
        # The folder is created at its first use; until then, its closest existing parent has the file system.
        there = os.path.dirname(there)
    space = view.space(there)
    return Cache(folder=folder, free=space[1] if space else None, writable=view.may_write(there))


def process_limit(view: HostView) -> int | None:
    """Return the cgroup's limit on the number of processes."""
    paths = group_files(view, "", "pids.max") + group_files(view, "pids", "pids.max")
    limits = [whole_number(view.quiet_text(path)) for path in paths]
    return min((limit for limit in limits if limit is not None), default=None)
