"""Reading row groups, and the rows of an epoch in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.parquet.columns import to_numpy
from farandole.parquet.footers import arrow
from farandole.parquet.order import EpochOrder, Piece
from farandole.worker.elastic.ledger import Share

Columns = dict[str, Any]


class RowGroup(NamedTuple):
    """One row group of all files."""

    path: str
    number: int
    """The number of the row group within its file."""
    rows: int


class RowGroupReader:
    """Reads row groups. It keeps the last file open, since row groups of one file often follow each other.

    Args:
        system: the file system.
        groups: all row groups.
        columns: names of the columns to read.
    """

    def __init__(self, system: Any, groups: Sequence[RowGroup], columns: Sequence[str]) -> None:
        self._system = system
        self._groups = groups
        self._columns = list(columns)
        self._open: tuple[str, Any] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        """The shape of one row's value, by column."""

    def read(self, index: int) -> Columns:
        """Return the columns of a row group.

        Raises:
            RuntimeError: the file has changed since its footer was read.
            InvalidRequestError: a column cannot be converted to an array.
        """
        group = self._groups[index]
        file = self._file(group.path)
        if group.number >= file.num_row_groups or file.metadata.row_group(group.number).num_rows != group.rows:
            raise RuntimeError(
                f"{group.path} has changed since its footer was read: row group {group.number} had {group.rows} rows. "
                "Write changed data to new files, and start again with these."
            )
        table = file.read_row_group(group.number, columns=self._columns)
        columns = {}
        for name in self._columns:
            chunked = table.column(name)
            column = to_numpy(chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks(), name)
            shape = self._shapes.setdefault(name, column.shape[1:])
            if column.shape[1:] != shape:
                raise InvalidRequestError(
                    f"the rows of column {name!r} have lists of different lengths, {shape} and {column.shape[1:]}: pad "
                    "them when the files are written, or leave the column out by columns=."
                )
            columns[name] = column
        return columns

    def _file(self, path: str) -> Any:
        if self._open is None or self._open[0] != path:
            if self._open is not None:
                self._open[1].close(force=True)
            self._open = None
            file = self._system.open_input_file(path)
            self._open = path, arrow().parquet.ParquetFile(file, pre_buffer=True)
        return self._open[1]


class EpochReader:
    """Reads the rows of an epoch by their positions. It keeps the rows of one window, and decodes one further row
    group.

    Args:
        read_group: reads a row group by its number.
        rows: the number of rows of each row group.
        order: the order of the epoch's rows.
    """

    def __init__(self, read_group: Callable[[int], Columns], rows: Sequence[int], order: EpochOrder) -> None:
        self._read_group, self._rows = read_group, rows
        self._order = order
        self._window: tuple[int, Columns] | None = None
        """The number of a window, and its rows."""

    def read(self, ranges: Share) -> Columns:
        """Return the rows at these positions, in separate memory.

        Raises:
            IndexError: there are no such positions.
        """
        parts: list[Columns] = []
        for piece in list(self._order.pieces(ranges)) or [self._no_rows()]:
            if self._window is None or self._window[0] != piece.window:
                self._window = None  # Its memory is free before the next one is read.
                self._window = piece.window, self._read_window(piece.window)
            parts.append({name: column[piece.begin : piece.end] for name, column in self._window[1].items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _no_rows(self) -> Piece:
        """Return an empty piece, whose window determines the types and shapes of columns without rows."""
        window = next(self._order.pieces(((0, 1),))).window if self._window is None else self._window[0]
        return Piece(window, 0, 0)

    def _read_window(self, window: int) -> Columns:
        numbers = [number for number in self._order.windows[window] if self._rows[number]]
        places = self._order.places(window)
        if places is None:
            (number,) = numbers
            return self._read_group(number)
        filled: Columns = {}
        begin = 0
        for number in numbers:
            columns = self._read_group(number)
            own = places[begin : begin + self._rows[number]]
            begin += self._rows[number]
            for name, column in columns.items():
                if name not in filled:
                    filled[name] = np.empty((len(places), *column.shape[1:]), column.dtype)
                filled[name][own] = column
        return filled
