"""Parquet files for tests, whose column `id` numbers all rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write(folder: Path, files: Sequence[Sequence[int]], **columns: Any) -> int:
    """Write one file for each list of row-group sizes, and return the number of rows.

    Args:
        folder: the folder for the files.
        files: the sizes of the row groups of each file.
        columns: functions from the array of ids to a column.
    """
    folder.mkdir(exist_ok=True)
    begin = 0
    for number, sizes in enumerate(files):
        path = folder / f"part-{number}.parquet"
        schema = None
        writer = None
        for size in sizes:
            ids = np.arange(begin, begin + size)
            table = pa.table({"id": ids, **{name: make(ids) for name, make in columns.items()}}, schema)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table, row_group_size=max(size, 1))
            begin += size
        assert writer is not None
        writer.close()
    return begin
