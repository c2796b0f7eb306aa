"""Where a thread is, told for a person."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farandole.base.installed import PACKAGE_FOLDER
from farandole.worker.observe.code_location import code_location


def at(work: Callable[[], object], sign: str) -> str:
    """Run `work` in a thread and return its place in the program once it contains `sign`."""
    thread = threading.Thread(target=work)
    thread.start()
    told = ""
    while sign not in told:
        assert thread.is_alive(), f"it never was at {sign}: {told}"
        told = code_location(thread.ident)
    return told


def test_the_line_of_the_program() -> None:
    go = threading.Lock()
    go.acquire()

    def load_batch() -> None:
        go.acquire()  # here

    told = at(load_batch, "# here")
    go.release()
    name, _, rest = told.partition(":")
    assert name.endswith("tests/unit/observe/test_code_location.py")
    assert rest.partition(" ")[2] == "in load_batch: go.acquire()  # here"


def test_a_library_at_work_is_named_after_the_program() -> None:
    lines: queue.Queue[int] = queue.Queue()

    def load_batch() -> None:
        lines.get()

    told = at(load_batch, "now in")
    lines.put(0)
    assert "in load_batch: lines.get() (now in " in told
    assert told.endswith(("in get)", "in wait)"))
    inner = told.rpartition("(now in ")[2]
    assert inner.startswith(("queue.py:", "threading.py:"))


def test_a_thread_that_has_ended() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert code_location(thread.ident) == "its thread has ended"


def test_a_program_without_source() -> None:
    go = threading.Event()
    space: dict[str, object] = {"go": go}
    exec(compile("def anonymous():\n    go.acquire()\n", "<string>", "exec"), space)
    lock = threading.Lock()
    lock.acquire()
    space["go"] = lock
    told = at(space["anonymous"], "anonymous")  # type: ignore[arg-type]
    lock.release()
    assert told == "<string>:2 in anonymous"


@pytest.mark.parametrize(
    "file",
    [os.path.join(PACKAGE_FOLDER, "torch", "calls.py"), os.path.join(PACKAGE_FOLDER, "worker", "calls.py"), "<string>"],
)
def test_line_of_program_that_has_called_this_package_or_a_generated_function(file: str) -> None:
    lock = threading.Lock()
    lock.acquire()
    space: dict[str, Any] = {}
    exec(compile("def collective(lock):\n    lock.acquire()\n", file, "exec"), space)

    def train() -> None:
        space["collective"](lock)  # the user's line

    told = at(train, "collective")
    lock.release()
    assert "test_code_location.py:" in told and told.endswith('in train: space["collective"](lock)  # the user\'s line')


def test_deep_recursion_is_cut() -> None:
    lock = threading.Lock()
    lock.acquire()

    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        else:
            lock.acquire()  # the ground

    told = at(lambda: dive(500), "the ground")
    lock.release()
    assert "in dive" in told


@pytest.mark.parametrize("path", ["/usr/lib/python3/dist-packages/a/b.py", "/v/lib/python3.12/site-packages/a/b.py"])
def test_installed_code_is_no_program(path: str) -> None:
    lock = threading.Lock()
    lock.acquire()
    space: dict[str, object] = {"lock": lock}
    exec(compile("def inner():\n    lock.acquire()\n", path, "exec"), space)
    inner: Callable[[], object] = space["inner"]  # type: ignore[assignment]

    def step() -> None:
        inner()

    told = at(step, "now in")
    lock.release()
    assert told.endswith("in step: inner() (now in a/b.py:2 in inner)")


def test_a_working_directory_that_is_gone_is_no_reason_to_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "test_code_location.py" in code_location()
