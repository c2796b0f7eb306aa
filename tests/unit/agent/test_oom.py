"""Parsing of the kernel's texts about memory."""

from __future__ import annotations

import pytest

from farandole.control.agent.oom import Cgroup, OomWatch, Victim, counted, limit_in, memory_cgroup, victim_in

HYBRID_CGROUPS = "9:name=systemd:/\n4:memory:/jobs/one\n1:cpu,cpuacct:/\n0::/\n"
HYBRID_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:3 - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
UNIFIED_MOUNT = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("cgroups", "mounts", "expected"),
    [
        (
            HYBRID_CGROUPS,
            HYBRID_MOUNTS,
            Cgroup("/jobs/one", "/sys/fs/cgroup/memory/jobs/one", "/sys/fs/cgroup/memory", 1),
        ),
        (
            "0::/user.slice/app: with colon\n",
            UNIFIED_MOUNT.format(root="/"),
            Cgroup("/user.slice/app: with colon", "/sys/fs/cgroup/user.slice/app: with colon", "/sys/fs/cgroup", 2),
        ),
        ("0::/\n", UNIFIED_MOUNT.format(root="/"), Cgroup("/", "/sys/fs/cgroup", "/sys/fs/cgroup", 2)),
        (
            "0::/docker/abc/sub\n",
            UNIFIED_MOUNT.format(root="/docker/abc"),
            Cgroup("/docker/abc/sub", "/sys/fs/cgroup/sub", "/sys/fs/cgroup", 2),
        ),
        ("", HYBRID_MOUNTS, None),
        (HYBRID_CGROUPS, "", None),
        ("rubbish", "more rubbish - x", None),
    ],
)
def test_memory_cgroup(cgroups: str, mounts: str, expected: Cgroup | None) -> None:
    assert memory_cgroup(cgroups, mounts) == expected


def test_counters() -> None:
    assert counted("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", "oom_kill") == 2
    assert counted("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "oom_kill") == 1
    assert counted("", "oom_kill") == counted("oom_kill x\n", "oom_kill") == 0


def test_limits() -> None:
    assert limit_in("536870912\n") == 512 * 1024 * 1024
    assert limit_in("max\n") is None and limit_in("9223372036854771712\n") is None and limit_in("") is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            "3,2011,94,-;Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:63000kB, "
            "file-rss:1kB, shmem-rss:0kB, UID:0 pgtables:200kB oom_score_adj:0\n",
            Victim(4242, 63000 * 1024),
        ),
        ("3,9,1,-;Out of memory: Killed process 7 (a b) total-vm:1kB", Victim(7, None)),
        ("6,10,1,-;oom_reaper: reaped process 7 (python), now anon-rss:0kB", None),
        ("4,11,1,-;python: Killed process 7 is what I print", None),
        ("", None),
    ],
)
def test_victims_in_the_kernel_log(record: str, expected: Victim | None) -> None:
    assert victim_in(record) == expected


def test_kernel_is_not_blamed_without_evidence() -> None:
    watch = OomWatch()
    assert watch.killed(1) == ""  # Before the first worker.
    watch.note()
    assert watch.killed(1) == ""
    watch.close()
