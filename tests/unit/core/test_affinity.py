from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from farandole.base.settings.table import Settings
from farandole.errors import SettingError
from farandole.worker.core.affinity import core_of, threads_on

WORLD_OF_ONE = """
import os, pathlib
from farandole.worker.core.basics import init, shutdown
allowed = os.sched_getaffinity(0)
init()
assert os.sched_getaffinity(0) == allowed
for task in pathlib.Path("/proc/self/task").iterdir():
    if (task / "comm").read_text().strip() == "farandole":
        print(*os.sched_getaffinity(int(task.name)))
shutdown()
"""


def test_each_local_rank_has_its_core():
    settings = Settings.from_environment({"HOROVOD_THREAD_AFFINITY": "3,1"})
    assert [core_of(settings.thread_affinity, rank) for rank in range(3)] == [3, 1, None]
    assert core_of(Settings().thread_affinity, 0) is None
    with pytest.raises(SettingError, match="HOROVOD_THREAD_AFFINITY is '1;2'"):
        Settings.from_environment({"HOROVOD_THREAD_AFFINITY": "1;2"})


def test_only_threads_that_are_started_meanwhile_are_bound():
    earlier = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    with threads_on(max(earlier)):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
    thread.join()
    assert seen == [{max(earlier)}]
    assert os.sched_getaffinity(0) == earlier


def test_a_core_that_is_not_there():
    earlier = os.sched_getaffinity(0)
    with pytest.raises(SettingError, match="names core 100000, but this process may use"), threads_on(100000):
        pass
    assert os.sched_getaffinity(0) == earlier


def test_the_engine_runs_there():
    core = str(max(os.sched_getaffinity(0)))
    environment = {**os.environ, "HOROVOD_THREAD_AFFINITY": core}
    done = subprocess.run(
        [sys.executable, "-c", WORLD_OF_ONE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [core]
