"""Ranks that others wait for: what the user reads, and how a job ends that would wait for ever."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import World, wait_until

OpenWorld = Callable[..., World]
# For a job that was started by the launcher, and imports the framework in every worker on a busy machine.
JOB_SECONDS = 100
# Seconds after which a world ends that waits: more than a busy machine holds up one of its workers, from init() on.
TOO_LONG = "3"


# --- in the workers ----------------------------------------------------------------------------------------------


def begin(log: str) -> list[str]:
    """Enter the world, with standard error going to a file; return which threads that began."""
    import threading

    import farandole.torch as hvd

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    hvd.init()
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("farandole"))


def allreduce(name: str) -> str:
    import torch

    import farandole.torch as hvd

    try:
        hvd.allreduce(torch.ones(3), name=name)
    except hvd.HorovodInternalError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def load_batch(fifo: int) -> None:
    os.read(fifo, 1)  # the missing rank is here


def late(path: str) -> str:
    fifo = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fifo, True)
    load_batch(fifo)
    os.close(fifo)
    return allreduce("grads")


def shutdown() -> None:
    import farandole.torch as hvd

    hvd.shutdown()


# --- outside of them ---------------------------------------------------------------------------------------------


def says(log: Path, pattern: str) -> str:
    """Wait until the world has said something, and return it."""
    wait_until(lambda: re.search(pattern, log.read_text()) is not None)
    found = re.search(pattern, log.read_text())
    assert found
    return found[0]


def test_the_warning_says_who_is_missing_what_and_where_it_is(open_world: OpenWorld, tmp_path: Path) -> None:
    log, fifo = tmp_path / "log", tmp_path / "fifo"
    os.mkfifo(fifo)
    world = open_world(3, FARANDOLE_STALL_WARNING_SECONDS="0.2")
    world.run(begin, str(log))
    world.run(allreduce, "first")
    writer = os.open(fifo, os.O_RDWR)
    world.start(late, str(fifo), ranks=[1])
    world.start(allreduce, "grads", ranks=[0, 2])
    # The first warning may come when others are late as well, as a busy machine may have it, and be another one.
    line = says(
        log,
        r"allreduce 'allreduce\.grads', for [0-9.]+ s: missing rank 1\n"
        r"What the missing ranks do:\n  rank 1: .*load_batch.*\n",
    )
    os.write(writer, b"x")
    os.close(writer)
    assert world.collect() == ["done"] * 3
    world.run(shutdown)
    assert re.search(r"farandole \[rank 0\] warning: .*wait", log.read_text())
    assert "'allreduce.first'" in line
    assert re.search(r"test_stalls\.py:\d+ in load_batch: os\.read\(fifo, 1\)  # the missing rank is here\n", line)


@pytest.mark.parametrize(
    "environment",
    [
        {"FARANDOLE_STALL_WARNING_SECONDS": "0.2", "FARANDOLE_STALL_SHUTDOWN_SECONDS": TOO_LONG},
        {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": TOO_LONG},
    ],
    ids=["ours", "Horovod's"],
)
def test_a_world_that_would_wait_for_ever_ends_with_an_error_on_every_rank(
    open_world: OpenWorld, tmp_path: Path, environment: dict[str, str]
) -> None:
    log = tmp_path / "log"
    world = open_world(3, **environment)
    world.run(begin, str(log))
    world.start(allreduce, "other", ranks=[1])
    world.start(allreduce, "grads", ranks=[0, 2])
    told = world.collect()
    assert all(re.match(r"StalledError: .*'allreduce\.(grads|other)'", text) for text in told), told
    # Each side waits for the other.
    assert "'allreduce.grads', for" in log.read_text() and "'allreduce.other', for" in log.read_text()
    # What is asked for later fails in the same way, and a new world can be entered.
    assert all(text.startswith("StalledError") for text in world.run(allreduce, "later"))
    world.run(shutdown)
    world.run(begin, str(log))
    assert world.run(allreduce, "again") == ["done"] * 3


def hold_pythons_lock(path: str) -> str:
    import ctypes

    fifo = os.open(path, os.O_RDWR)
    ctypes.PyDLL(None).read(fifo, ctypes.create_string_buffer(1), 1)
    os.close(fifo)
    return allreduce("grads")


def test_a_rank_that_holds_pythons_lock_is_told_without_its_line(open_world: OpenWorld, tmp_path: Path) -> None:
    log, fifo = tmp_path / "log", tmp_path / "fifo"
    os.mkfifo(fifo)
    world = open_world(2, FARANDOLE_STALL_WARNING_SECONDS="0.2")
    world.run(begin, str(log))
    world.start(hold_pythons_lock, str(fifo), ranks=[1])
    world.start(allreduce, "grads", ranks=[0])
    # It may be asked before it holds the lock, and then it is told with its line. It is asked again.
    says(log, r"rank 1: (?!.*it is at ).*\n")
    writer = os.open(fifo, os.O_RDWR)
    os.write(writer, b"x")
    os.close(writer)
    assert world.collect() == ["done"] * 2


@pytest.mark.parametrize(
    "environment",
    [{"HOROVOD_STALL_CHECK_DISABLE": "1"}, {"FARANDOLE_STALL_WARNING_SECONDS": "0"}],
    ids=["disabled", "never"],
)
def test_nobody_looks_where_nobody_asks(open_world: OpenWorld, tmp_path: Path, environment: dict[str, str]) -> None:
    log = str(tmp_path / "log")
    assert open_world(2, **environment).run(begin, log) == [["farandole-roster"]] * 2
    assert open_world(1).run(begin, log) == [[]]


SCRIPT = """\
import os, time
import torch
import farandole.torch as hvd

hvd.init()
while hvd.rank() != 0 and not os.path.exists("over"):
    time.sleep(0.1)
try:
    hvd.allreduce(torch.ones(3), name="grads")
    print("no error")
except hvd.HorovodInternalError as error:
    print(type(error).__name__)
open("over", "w").close()
"""


TESTS = """
import os
import time

import pytest
import torch

import farandole.torch as hvd


def test_one():
    hvd.init()
    assert hvd.rank() != 2, "this rank leaves before the collective"
    while not os.path.exists("two"):  # However long pytest takes to report the failure.
        time.sleep(0.01)
    with pytest.raises(hvd.HorovodInternalError, match="'allreduce.one'"):
        hvd.allreduce(torch.ones(3), name="one")


def test_two():
    hvd.init()
    with pytest.raises(hvd.HorovodInternalError, match="stalled"):
        handle = hvd.allgather_async(torch.ones(3), name="two")
        open("two", "w").close()
        hvd.synchronize(handle)
"""


@pytest.mark.timeout(JOB_SECONDS + 20)
def test_a_failed_assertion_on_one_rank_under_pytest_ends_all_and_the_launcher_says_why(tmp_path: Path) -> None:
    """Rank 2 leaves a test by an assertion and waits in the next one, while the others wait in the first.

    pytest captures the workers' standard error, and shows that of tests that fail, at their end.
    """
    (tmp_path / "test_job.py").write_text(TESTS)
    pytest_command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--show-capture=no",
        "test_job.py",
    ]
    job = subprocess.run(
        [sys.executable, "-m", "farandole", "run", "-np", "3", *pytest_command],
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        cwd=tmp_path,
        env={**os.environ, "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.4", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": TOO_LONG},
        check=False,
    )
    assert job.returncode == 1, job.stderr
    said = job.stderr
    assert re.search(r"\[0\]<stderr>:farandole \[rank 0\] warning: some ranks wait for others", said), said
    assert "allreduce 'allreduce.one', for" in said and "'allgather.two'" in said, said
    # The launcher says it again if rank 0 is the first to end.
    assert len(re.findall(r"\[0\]<stderr>:farandole \[rank 0\] error: some ranks wait", said)) == 1, said
    assert "this rank leaves before the collective" in job.stdout


@pytest.mark.timeout(JOB_SECONDS + 20)
def test_a_job_of_the_launcher(tmp_path: Path) -> None:
    """A rank that comes when it is too late: all get an error, and may live with it."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ["-np", "2", "--stall-warning", "0.4", "--stall-shutdown", TOO_LONG]
    job = subprocess.run(
        [sys.executable, "-m", "farandole", "run", *options, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        cwd=tmp_path,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == [f"[{rank}]<stdout>:StalledError" for rank in (0, 1)]
    assert re.search(r"it is at train\.py:(6 in <module>: while |7 in <module>: time\.sleep\(0\.1\))", job.stderr)
