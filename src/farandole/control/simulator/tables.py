"""Reads tables: CSV files in a directory or in a tar archive. Errors name the file and the line.

Each file may be compressed with gzip. Byte order marks, the line ends of all systems, empty lines, and spaces around
cells are accepted.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from farandole.control.scheduler.errors import TraceError

Row = Mapping[str, str]

LATEST = 1e12
"""Largest time in seconds: beyond it, a float may not distinguish one second from the next."""

UNREADABLE = (OSError, tarfile.TarError, UnicodeDecodeError, EOFError, zlib.error)
"""Exceptions raised by reading a file that is missing, damaged, or not text."""
_TABLE, _PACKED = ".csv", ".gz"


def read_texts(place: Path) -> dict[str, str]:
    """Return the CSV files under a directory or in a tar archive, by their paths without `.gz`, in order.

    A single file is returned under its own name.

    Raises:
        TraceError: the path does not exist, or cannot be read.
    """
    try:
        if place.is_dir():
            paths = [*place.rglob(f"*{_TABLE}"), *place.rglob(f"*{_TABLE}{_PACKED}")]
            found = {_unpacked_name(str(path.relative_to(place))): read_text(path) for path in paths if path.is_file()}
        elif place.is_file() and tarfile.is_tarfile(place):
            found = dict(_texts_of_archive(place))
        elif place.is_file():
            found = {_unpacked_name(place.name): read_text(place)}
        else:
            raise TraceError(f"{place}: there is no such file or directory", "check the path")
    except UNREADABLE as error:
        raise TraceError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return dict(sorted(found.items()))


def read_text(path: Path) -> str:
    """Return the text of a file, which may be compressed with gzip.

    Raises:
        UNREADABLE: one of these errors, if it cannot be read.
    """
    return _decoded(path.name, path.read_bytes())


def _decoded(name: str, content: bytes) -> str:
    text = gzip.decompress(content) if name.endswith(_PACKED) else content
    return text.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def _unpacked_name(name: str) -> str:
    return name.removesuffix(_PACKED)


def _texts_of_archive(place: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(place) as archive:
        for member in archive:
            if member.isfile() and _unpacked_name(member.name).endswith(_TABLE):
                file = archive.extractfile(member)
                assert file is not None
                yield _unpacked_name(member.name), _decoded(member.name, file.read())


def rows_of(name: str, text: str, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Yield each row of a table with its line number; the table has at least these columns, in any order.

    Raises:
        TraceError: a column is missing, or a row has another number of cells.
    """
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    header = header_of(reader)
    if missing := [column for column in columns if column not in header]:
        has = f"it has {', '.join(header)}" if header else "it is empty"
        raise TraceError(f"{name}, line {max(reader.line_num, 1)}: there is no column {', '.join(missing)}", has)
    if twice := sorted({column for column in header if header.count(column) > 1}):
        raise TraceError(f"{name}, line {reader.line_num}: there are two columns {', '.join(twice)}")
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise TraceError(f"{name}, line {reader.line_num}: {len(cells)} cells, and {len(header)} columns")
        yield reader.line_num, dict(zip(header, map(str.strip, cells), strict=True))


def header_of(rows: Iterator[list[str]]) -> list[str]:
    """Return the names of the columns: the first row that is not empty; nothing if there is none."""
    return next(([cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)), [])


def number(name: str, line: int, row: Row, column: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a cell as a finite number in a range.

    Raises:
        TraceError: it is not one.
    """
    try:
        value = float(row[column])
    except ValueError:
        raise TraceError(f"{name}, line {line}: {column} is {row[column]!r}, which is not a number") from None
    if not math.isfinite(value) or not least <= value <= most:
        end = "on" if most == math.inf else f"to {most:g}"
        raise TraceError(f"{name}, line {line}: {column} is {row[column]}, and must be a number from {least:g} {end}")
    return value


def seconds_of_step(name: str, line: int, row: Row) -> tuple[float, float]:
    """Return the seconds of one pass with its all-reduce, and the part of it that the all-reduce adds.

    Raises:
        TraceError: they are not two numbers, or the part is not less than the whole.
    """
    step, sync = number(name, line, row, "step_time", 0), number(name, line, row, "sync_time", 0)
    if sync >= step:
        raise TraceError(f"{name}, line {line}: sync_time is {sync:g}, and must be less than step_time, {step:g}")
    return step, sync


def whole(name: str, line: int, row: Row, column: str, least: int = 0) -> int:
    """Return a cell as a whole number that is at least `least`.

    Raises:
        TraceError: it is not one.
    """
    value = number(name, line, row, column, least)
    if value != int(value):
        raise TraceError(f"{name}, line {line}: {column} is {row[column]}, which is not a whole number")
    return int(value)
