"""A job on Spark Connect is run by the first attempt of Spark only."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farandole.spark.connect_task import Removal, Tail, attempt

SIZE = 3


class Tasks:
    """The tasks of one attempt, which meet in `allGather`."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(SIZE, timeout=60)
        self._said = [""] * SIZE

    def run(self, killed: int | None = None) -> list[bool]:
        """Run all tasks; one of them may be killed in its work. Return what each was told."""
        with ThreadPoolExecutor(SIZE) as pool:
            return list(pool.map(lambda number: self._one(number, number == killed), range(SIZE)))

    def _one(self, number: int, is_killed: bool) -> bool:
        context = _Context(self, number)
        attempting = attempt(context, "job")
        is_first = attempting.__enter__()
        if not is_killed:
            attempting.__exit__(None, None, None)
        return is_first

    def gather(self, number: int, text: str) -> list[str]:
        self._said[number] = text
        self._barrier.wait()
        return list(self._said)


class _Context:
    def __init__(self, tasks: Tasks, number: int) -> None:
        self._tasks, self._number = tasks, number

    def partitionId(self) -> int:
        return self._number

    def allGather(self, text: str) -> list[str]:
        return self._tasks.gather(self._number, text)


def test_second_attempt_is_known_by_the_file_of_a_killed_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Tasks().run() == [True] * SIZE
    assert Tasks().run(killed=1) == [True] * SIZE, "what has ended well leaves no file"
    assert [path.name for path in tmp_path.iterdir()] == ["job.1"]
    assert Tasks().run() == [False] * SIZE
    assert not list(tmp_path.iterdir())


def test_files_of_killed_tasks_are_removed_and_those_of_other_jobs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Tasks().run(killed=1)
    (tmp_path / "job2.0").touch()
    assert list(Removal("job")([])) == []
    assert [path.name for path in tmp_path.iterdir()] == ["job2.0"]


def test_the_last_lines_are_kept_as_they_were_written() -> None:
    tail = Tail()
    tail.lines = type(tail.lines)(maxlen=2)
    for text in ("lost\n", "a", "b\nc", "\n"):
        tail.write(text)
    assert list(tail.lines) == ["ab\n", "c\n"]
