"""Lines of logs: following a file that grows, and selecting the lines of one rank."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

POLL_SECONDS = 0.2
_PIECE_BYTES = 1024 * 1024

# The launcher's prefix of workers' output, with or without a timestamp before it and colours around it.
_PREFIX = re.compile(r"^(?:\x1b\[[\d;]*m)*[^\[<]*\[(\d{1,9})\]<std(out|err)>:")
# Identical output of several ranks is printed once, below such a line; see `farandole.control.launcher.output.alike`.
_RUN = r"\d{1,9}(?:-\d{1,9})?"
_ALIKE = re.compile(rf"\d+ ranks \(({_RUN}(?:, {_RUN})*)\) printed:\s*$")
MARK_OF_ALIKE = "    | "
_COLOR = re.compile(r"\x1b\[[\d;]*m")


def of_rank(lines: Iterable[str], rank: int | None) -> Iterator[str]:
    """Yield the lines of one rank; all lines if `rank` is None."""
    alike = False
    """Whether this rank is among the ranks that printed the marked lines that follow."""
    for line in lines:
        if rank is None:
            yield line
        elif found := _ALIKE.match(line):
            runs = (run.partition("-") for run in found[1].split(", "))
            alike = any(int(first) <= rank <= int(last or first) for first, _, last in runs)
        elif alike and line.startswith(MARK_OF_ALIKE):
            yield line.removeprefix(MARK_OF_ALIKE)
        else:
            alike = False
            if (found := _PREFIX.match(line)) is not None and int(found[1]) == rank:
                yield line


def rank_and_text(line: str) -> tuple[int | None, bool, str]:
    """Return the rank that printed a line (None: the launcher), whether to standard error, and its text, uncoloured.

    Example:
        >>> rank_and_text("[3]<stderr>:loss 0.2")
        (3, True, 'loss 0.2')
    """
    found = _PREFIX.match(line)
    text = _COLOR.sub("", line if found is None else line[found.end() :])
    return (None, True, text) if found is None else (int(found[1]), found[2] == "err", text)


def follow_file(path: Path, is_over: Callable[[], bool] | None) -> Iterator[str]:
    """Yield the lines of a file, including those written to it until `is_over` returns true.

    A last line without a line end is yielded at the end, with one added.

    Args:
        path: the file; it may not exist yet.
        is_over: whether the writer has finished; None: read only what is there now.
    """
    rest = b""
    offset = 0
    over = is_over is None
    while True:
        # Checked before reading, so that everything that was written before the end is read.
        over = over or (is_over is not None and is_over())
        try:
            with path.open("rb") as file:
                file.seek(offset)
                new = file.read(_PIECE_BYTES)
        except FileNotFoundError:
            new = b""
        offset += len(new)
        *lines, rest = (rest + new).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace") + "\n"
        if over and len(new) < _PIECE_BYTES:
            if rest:
                yield rest.decode(errors="replace") + "\n"
            return
        if not new:
            time.sleep(POLL_SECONDS)
