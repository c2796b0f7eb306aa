"""Reads the records of the workers of `steps_style.py`, and reports errors in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from waiting import until

_SCRIPTS = Path(__file__).resolve().parents[1] / "integration/elastic/scripts"
SCRIPT = str(_SCRIPTS / "steps_style.py")
PLAIN_SCRIPT = str(_SCRIPTS / "plain_style.py")
SAMPLES = 101
_TAIL_BYTES = 8192


class Books:
    """The workers' records (*books*) of one job.

    Args:
        directories: the directories of the books, one on each host; some may be lost with their hosts.
    """

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = list(directories)
        self._gone: dict[int, list[dict[str, Any]]] = {}
        self._read: dict[Path, tuple[int, dict[str, Any] | None]] = {}
        """The size and the last step of each book when it was last read."""

    def read(self) -> dict[int, list[dict[str, Any]]]:
        """Return the lines of each worker."""
        found = dict(self._gone)
        for directory in self._directories:
            for path in sorted(directory.glob("worker-*.book")):
                # What follows the last end of line is still being written.
                lines = path.read_text().split("\n")[:-1]
                if lines:
                    found[int(path.stem.partition("-")[2])] = [json.loads(line) for line in lines]
        return found

    def keep(self) -> None:
        """Read the books now, before their host is lost."""
        self._gone = self.read()

    def pid(self, worker: int) -> int:
        """Return a worker's process id, on its host."""
        return int(self.read()[worker][0]["pid"])

    def steps_of(self, worker: int) -> list[dict[str, Any]]:
        """Return the steps that a worker has recorded so far."""
        return [line for line in self.read().get(worker, []) if "step" in line]

    def newest(self) -> dict[str, Any]:
        """Return the last step that any worker has recorded."""
        return max(self._ends(), key=lambda line: int(line["step"]), default={"step": -1, "size": 0, "epoch": 0})

    def latest(self) -> dict[str, Any]:
        """Return the most recently recorded step, also of a restarted training."""
        return max(self._ends(), key=lambda line: float(line["at"]), default={"step": -1, "size": 0, "at": 0.0})

    def _ends(self) -> list[dict[str, Any]]:
        """Return the last step in each book.

        It is called often, and books are long: only the end of a book that has grown is read.
        """
        steps = [line for lines in self._gone.values() for line in lines if "step" in line]
        for path in (path for directory in self._directories for path in directory.glob("worker-*.book")):
            size, last = self._read.get(path, (-1, None))
            if (now := path.stat().st_size) != size:
                last = _last_step(path) or last
                self._read[path] = now, last
            steps += [last] if last is not None else []
        return steps

    def await_steps(self, more: int, size: int | None = None, seconds: float = 60) -> None:
        """Wait until this number of further steps are done and, if a size is given, until the world has it."""
        goal = int(self.newest()["step"]) + more

        def done() -> bool:
            newest = self.newest()
            return newest["step"] >= goal and size in (None, newest["size"])

        until(done, f"there are {more} steps more, by {size or 'any number of'} workers", seconds)

    def stop(self) -> None:
        """Make the training end after the current step."""
        for directory in self._directories:
            if directory.exists():
                (directory / "stop").touch()

    def wrongs(self) -> list[str]:
        """Return errors; none if every sample was used once in an epoch, and all workers have the same records."""
        books = self.read()
        return [*self._different_ends(books), *self._wrong_steps(books)]

    def _different_ends(self, books: dict[int, list[dict[str, Any]]]) -> Iterator[str]:
        ends = {worker: lines[-1] for worker, lines in books.items() if "end" in lines[-1]}
        if len({(line["end"], line["digest"], line["size"]) for line in ends.values()}) != 1:
            yield f"the workers have not ended alike: {ends}"
        elif len(ends) != next(iter(ends.values()))["size"]:
            yield f"of the last world only {sorted(ends)} have come to the end"

    def _wrong_steps(self, books: dict[int, list[dict[str, Any]]]) -> Iterator[str]:
        steps: dict[int, tuple[int, list[int]]] = {}
        for step, seen, worker in _accounts(books):
            if steps.setdefault(step, seen) != seen:
                yield f"worker {worker} has seen step {step} otherwise than others: {seen} and {steps[step]}"
        if sorted(steps) != list(range(len(steps))):
            yield f"steps are missing: there are {sorted(steps)}"
        epochs: dict[int, Counter[int]] = {}
        for epoch, used in steps.values():
            epochs.setdefault(epoch, Counter()).update(used)
        for epoch, used_in_it in epochs.items():
            twice = [index for index, count in used_in_it.items() if count > 1]
            missing = [] if epoch == max(epochs) else sorted(set(range(SAMPLES)).difference(used_in_it))
            if twice or missing:
                yield f"epoch {epoch}: used more than once {twice}, not at all {missing}"


def _last_step(path: Path) -> dict[str, Any] | None:
    """Return the last step in the last few kilobytes of a book, or None."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        lines = file.read().decode().split("\n")
    # The first one is cut off, unless it is the book's first, which is no step; the last one is still being written.
    steps = [found for found in map(json.loads, lines[1:-1]) if "step" in found]
    return steps[-1] if steps else None


def _accounts(books: dict[int, list[dict[str, Any]]]) -> Iterator[tuple[int, tuple[int, list[int]], int]]:
    """Yield (step, used samples, worker) for all valid records.

    A record is not valid if its worker died right after a step that no other worker has completed: the others repeat
    this step.
    """
    for worker, lines in books.items():
        steps = [line for line in lines if "step" in line]
        ended = "end" in lines[-1]
        for line in steps if ended else steps[:-1]:
            yield line["step"], (line["epoch"], line["used"]), worker
