"""Reading tables: CSV files in a directory or in a tar archive, with errors that name the file and the line."""

from __future__ import annotations

import csv
import io
import math
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from farandole.scheduler.errors import TraceError

Row = Mapping[str, str]


def read_texts(place: Path, suffix: str = ".csv") -> dict[str, str]:
    """Return the text files under a directory or in a tar archive, by their paths, in order.

    A single file is a collection of one, under its own name.

    Raises:
        TraceError: there is no such place, or it cannot be read.
    """
    try:
        if place.is_dir():
            found = {str(path.relative_to(place)): path.read_text() for path in place.rglob(f"*{suffix}")}
        elif place.is_file() and tarfile.is_tarfile(place):
            found = dict(_texts_of_archive(place, suffix))
        elif place.is_file():
            found = {place.name: place.read_text()}
        else:
            raise TraceError(f"{place}: there is no such file or directory")
    except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
        raise TraceError(f"{place} cannot be read: {error}") from error
    return dict(sorted(found.items()))


def _texts_of_archive(place: Path, suffix: str) -> Iterator[tuple[str, str]]:
    with tarfile.open(place) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(suffix):
                file = archive.extractfile(member)
                assert file is not None
                yield member.name, file.read().decode()


def rows_of(name: str, text: str, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Yield the number of its line and each row of a table that has these columns, in any order, and maybe others.

    Raises:
        TraceError: a column is missing, or a row has another number of cells.
    """
    reader = csv.reader(io.StringIO(text))
    header = [cell.strip() for cell in next(reader, [])]
    if missing := [column for column in columns if column not in header]:
        raise TraceError(f"{name}, line 1: there is no column {', '.join(missing)}", f"it has {', '.join(header)}")
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise TraceError(f"{name}, line {reader.line_num}: {len(cells)} cells, and {len(header)} columns")
        yield reader.line_num, dict(zip(header, cells, strict=True))


def number(name: str, line: int, row: Row, column: str, least: float = -math.inf) -> float:
    """Return a cell as a finite number that is at least so large.

    Raises:
        TraceError: it is none.
    """
    try:
        value = float(row[column])
    except ValueError:
        raise TraceError(f"{name}, line {line}: {column} is {row[column]!r}, which is no number") from None
    if not math.isfinite(value) or value < least:
        raise TraceError(f"{name}, line {line}: {column} is {row[column]}, and must be a number from {least:g} on")
    return value


def whole(name: str, line: int, row: Row, column: str, least: int = 0) -> int:
    """Return a cell as a whole number that is at least so large.

    Raises:
        TraceError: it is none.
    """
    value = number(name, line, row, column, least)
    if value != int(value):
        raise TraceError(f"{name}, line {line}: {column} is {row[column]}, which is no whole number")
    return int(value)
