"""A source of samples for elastic loaders: rows of Parquet files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from farandole.errors import FarandoleError, InvalidRequestError
from farandole.parquet.footers import Footers, Paths, file_system, read_footers
from farandole.parquet.order import EpochOrder
from farandole.parquet.row_groups import Columns, EpochReader, RowGroup, RowGroupReader
from farandole.worker.collectives.objects import broadcast_object
from farandole.worker.core.basics import session_if_any
from farandole.worker.elastic.ledger import Share
from farandole.worker.elastic.loader_arguments import check_flag, read_whole


class GroupedRows:
    """Rows that are read in groups, for elastic loaders; a subclass sets `_rows`, and defines how groups are read.

    Args:
        seed: the seed of the shuffled order, the same on all ranks.
        shuffle: whether rows have another order in each epoch.
        window: the number of groups whose rows are mixed.

    Raises:
        InvalidRequestError: the seed, the flag or the window is not valid.
    """

    farandole_apart = True

    _rows: Sequence[int]
    """The number of rows of each group."""

    def __init__(self, seed: int, shuffle: bool, window: int) -> None:
        self._seed, self._window = read_whole("seed", seed), read_whole("window", window, least=1)
        check_flag("shuffle", shuffle)
        self._shuffle = shuffle
        self._epoch = 0
        self._process = os.getpid()
        self._reader: EpochReader | None = None

    def __len__(self) -> int:
        return sum(self._rows)

    def _open(self) -> Callable[[int], Columns]:
        """Return a function that reads a group by its number."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order if rows are shuffled."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._reader = None

    def farandole_read(self, ranges: Share) -> Columns:
        """Return the rows at positions of the epoch's order, as a dict of arrays.

        Args:
            ranges: the positions, as pairs (begin, end).

        Raises:
            ValueError: the values of a column cannot be converted to an array; the message names the column.
            RuntimeError: the data have changed, or are lost.
            OSError: a file cannot be read.
            IndexError: there are no such positions.
        """
        if self._process != os.getpid():
            # A file that a parent process has opened cannot be read in its child.
            self._process, self._reader = os.getpid(), None
        if self._reader is None:
            order = EpochOrder(self._rows, self._seed, self._epoch, shuffle=self._shuffle, window=self._window)
            self._reader = EpochReader(self._open(), self._rows, order)
        return self._reader.read(ranges)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


class ParquetSource(GroupedRows):
    """The rows of Parquet files, for an `ElasticLoader` of PyTorch, TensorFlow or JAX, or for `Batches`.

    A row is read exactly once in an epoch, by one worker, in a world of any size and however it changes. The files and
    their row groups may have any sizes. Each worker reads its own row groups, and has about `window` + 1 decoded ones
    in memory.

    Rank 0 reads the footers of all files and sends what they contain to the others: so this is a collective of the
    world, if there is one.

    Args:
        path: a file, a folder, or a list of these: paths, or URLs such as s3://bucket/folder. In folders, files are
            read if their names end with ".parquet" and begin with neither "." nor "_".
        columns: the names of the columns to read; None: all.
        filesystem: a file system of pyarrow or fsspec; None: the one that the URL names, or the local one.
        seed: the seed of the shuffled order, the same on all ranks.
        shuffle: whether rows have another order in each epoch: row groups are shuffled, and rows within each window.
        window: the number of row groups whose rows are mixed. A larger number mixes better, and needs more memory.

    Raises:
        ValueError: there are no such files or columns, or the files do not all have the same columns.
        ModuleNotFoundError: pyarrow is not installed.
        OSError: a file cannot be read.

    Example:
        >>> source = ParquetSource("data/train", columns=["pixels", "label"], shuffle=True)  # doctest: +SKIP
        >>> loader = hvd.elastic.ElasticLoader(source, global_batch_size=256)  # doctest: +SKIP
        >>> for batch in hvd.elastic.steps(loader, model=model, optimizer=optimizer):  # doctest: +SKIP
        ...     loss = F.cross_entropy(model(batch["pixels"]), batch["label"])
    """

    def __init__(
        self,
        path: Paths,
        columns: Sequence[str] | None = None,
        filesystem: Any = None,
        seed: int = 0,
        shuffle: bool = False,
        *,
        window: int = 2,
    ) -> None:
        super().__init__(seed, shuffle, window)
        self._system, paths = file_system(path, filesystem)
        self._footers = _of_rank_0(self._system, paths)
        self._columns = chosen_columns(columns, self._footers.columns)
        self._groups = [
            RowGroup(path, number, rows) for path, groups in self._footers.files for number, rows in enumerate(groups)
        ]
        self._rows = [group.rows for group in self._groups]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are read."""
        return self._columns

    def _open(self) -> Callable[[int], Columns]:
        return RowGroupReader(self._system, self._groups, self._columns).read


def _of_rank_0(system: Any, paths: Sequence[str]) -> Footers:
    """Return the footers; rank 0 reads them for all."""
    session = session_if_any()
    if session is None or session.only_arrived or session.world.size == 1:
        # A newcomer to a job that is already training calls this alone.
        return read_footers(system, paths)
    read: Any = None
    if session.world.rank == 0:
        try:
            read = read_footers(system, paths)
        except (FarandoleError, OSError) as error:
            read = error  # The other ranks wait for an answer.
    read = broadcast_object(read, name="parquet.footers")
    if isinstance(read, Exception):
        raise read
    assert isinstance(read, Footers)
    return read


def chosen_columns(columns: Sequence[str] | None, there: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to read.

    Args:
        columns: their names, as the user gave them; None: all.
        there: the names of the columns of the data.

    Raises:
        InvalidRequestError: there is no such column, or the names are not a list.
    """
    if columns is None:
        return tuple(there)
    if not isinstance(columns, str | Sequence):
        raise InvalidRequestError(f"columns must be a list of names, but is {columns!r:.80}.")
    chosen = (columns,) if isinstance(columns, str) else tuple(columns)
    if missing := [name for name in chosen if name not in there]:
        raise InvalidRequestError(
            f"the data have no column {', '.join(map(repr, missing))}: there are {', '.join(there)}."
        )
    if not chosen:
        raise InvalidRequestError("columns= is empty: omit it to read all columns.")
    return chosen
