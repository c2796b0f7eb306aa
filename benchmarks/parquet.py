"""Read Parquet files through an elastic loader, beside a plain scan of the same columns by pyarrow.

    PYTHONPATH=src .venv-frameworks/parquet/bin/python -m benchmarks.parquet [--rows N] [--json FILE]

Prints times as ratios to the scan, and the memory that a reader takes, in decoded row groups. It needs pyarrow and
PyTorch: the environment that `make test-parquet` makes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

BATCH = 256
GROUP = 50_000
REPEATS = 5


def write(folder: Path, rows: int, kind: str) -> None:
    """Write files of 4 row groups each: `wide` has rows of 128 floats, `narrow` has 8 columns of one number each."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = np.random.RandomState(0)
    for number, begin in enumerate(range(0, rows, 4 * GROUP)):
        size = min(4 * GROUP, rows - begin)
        table = {"label": pa.array(chance.randint(0, 1000, size))}
        if kind == "wide":
            flat = pa.array(chance.rand(size * 128).astype(np.float32))
            table["features"] = pa.FixedSizeListArray.from_arrays(flat, 128)
        else:
            table |= {f"x{column}": pa.array(chance.rand(size).astype(np.float32)) for column in range(8)}
        pq.write_table(pa.table(table), folder / f"part-{number:03}.parquet", row_group_size=GROUP)


def scan(folder: Path) -> int:
    """Go through all batches as tensors, in the quickest loop that can be written by hand around pyarrow's reader."""
    import pyarrow.parquet as pq
    import torch

    from farandole.parquet.columns import to_numpy

    seen = 0
    for path in sorted(folder.iterdir()):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            columns = {name: to_numpy(table.column(name).chunk(0), name) for name in table.column_names}
            for at in range(0, table.num_rows, BATCH):
                batch = {name: torch.from_numpy(column[at : at + BATCH].copy()) for name, column in columns.items()}
                seen += len(batch["label"])
    return seen


def load(folder: Path, *, shuffle: bool, rank: int = 0, size: int = 1) -> int:
    """Go through one worker's batches of an epoch, as tensors."""
    from farandole.parquet import ParquetSource
    from farandole.torch.elastic import ElasticLoader

    loader = ElasticLoader(ParquetSource(folder, shuffle=shuffle), batch_size=BATCH)
    seen = 0
    while (batch := loader.next(size, rank)) is not None:
        seen += batch.samples
        loader.commit(batch)
    return seen


WAYS: dict[str, Callable[[Path], int]] = {
    "scan by pyarrow": scan,
    "ElasticLoader": lambda folder: load(folder, shuffle=False),
    "ElasticLoader, shuffled": lambda folder: load(folder, shuffle=True),
    "ElasticLoader, shuffled, rank 1 of 4": lambda folder: load(folder, shuffle=True, rank=1, size=4),
}


def measure(folder: Path, way: str) -> dict[str, float]:
    """Return seconds for 1,000 rows, and the peak of memory, in a process of its own, which has imported everything."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(measured, folder, way).result()


def measured(folder: Path, way: str) -> dict[str, float]:
    """Go through the files in this process, and return what that took.

    The time is processor time, so that other work on the machine does not count.
    """
    _peak()
    before = _peak()
    began = time.process_time()
    seen = WAYS[way](folder)
    seconds = time.process_time() - began
    return {"seconds per 1,000 rows": seconds / seen * 1000, "peak MiB": _peak() - before}


def _peak() -> float:
    """Return this process's peak of resident memory so far, in MiB, and restart the peak from the present value."""
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(peak.split()[1]) / 1024


def main() -> None:
    """Measure all ways in turn, several times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import torch  # noqa: F401 - So that its memory does not count as the reader's.

    import farandole.parquet
    import farandole.torch.elastic  # noqa: F401

    results: dict[str, Any] = {}
    for kind, row_bytes in (("wide", 128 * 4 + 8), ("narrow", 8 * 4 + 8)):
        with tempfile.TemporaryDirectory() as name:
            write(Path(name), given.rows, kind)
            rounds = [{way: measure(Path(name), way) for way in WAYS} for _ in range(REPEATS)]
        group = GROUP * row_bytes / (1 << 20)
        print(f"{kind}: {row_bytes} bytes a row, {group:.1f} MiB a row group")
        for way in WAYS:
            seconds = statistics.median(each[way]["seconds per 1,000 rows"] for each in rounds)
            ratio = statistics.median(
                each[way]["seconds per 1,000 rows"] / each["scan by pyarrow"]["seconds per 1,000 rows"]
                for each in rounds
            )
            memory = statistics.median(each[way]["peak MiB"] for each in rounds) / group
            print(f"  {way:38} {seconds * 1000:8.3f} ms for 1,000 rows {ratio:6.2f} {memory:6.1f} row groups")
            results[f"{kind}, {way}"] = {"ms per 1,000 rows": seconds * 1000, "ratio": ratio, "row groups": memory}
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
