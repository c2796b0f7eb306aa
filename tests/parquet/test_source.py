"""Rows of Parquet files: columns, files, refusals, and each row once in any world."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
import torch
from loader_datasets import Training
from parquet_files import write

import farandole
from farandole.parquet import Batches, ParquetSource
from farandole.torch.elastic import ElasticLoader

UNEQUAL = [[5, 3], [1], [7, 2, 4], [11]]

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


def ids(columns: dict[str, Any]) -> Any:
    return torch.as_tensor(columns["id"])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_read_once_in_worlds_that_change(tmp_path: Path, shuffle: bool, seed: int) -> None:
    rows = write(tmp_path / "data", UNEQUAL)
    source = ParquetSource(tmp_path / "data", shuffle=shuffle, seed=seed)
    training = Training(lambda: ElasticLoader(source, global_batch_size=4, collate_fn=ids), seed=seed, most=4)
    assert training.epoch() == training.epoch() == Counter(range(rows))
    training.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_has_an_order_of_its_own(tmp_path: Path, num_workers: int) -> None:
    rows = write(tmp_path / "data", UNEQUAL)

    def epochs() -> list[list[int]]:
        source = ParquetSource(tmp_path / "data", shuffle=True)
        loader = ElasticLoader(source, batch_size=rows, num_workers=num_workers, collate_fn=ids)
        found = []
        for _ in range(2):
            found.append(loader.next(1, 0).data.tolist())
            loader.next_epoch()
        loader.close()
        return found

    first, second = epochs()
    assert first != second
    assert epochs() == [first, second]


def test_columns_are_arrays_of_their_type(tmp_path: Path) -> None:
    write(
        tmp_path / "data",
        [[3, 2]],
        half=lambda ids: pa.array(ids.astype(np.float16)),
        missing=lambda ids: pa.array([None, *ids[1:].astype(float)]),
        flag=lambda ids: pa.array(ids % 2 == 0),
        word=lambda ids: pa.array([f"w{each}" for each in ids]).dictionary_encode(),
        image=lambda ids: pa.array([bytes([each]) for each in ids]),
        vector=lambda ids: pa.array([[each, each + 1.5] for each in ids]),
        matrix=lambda ids: pa.array([[[each, 1], [2, 3], [4, 5]] for each in ids]),
        fixed=lambda ids: pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 4)), 4),
        tensor=lambda ids: pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.repeat(ids, 6).reshape(-1, 2, 3).astype(np.float32)
        ),
    )
    rows = ParquetSource(tmp_path / "data").farandole_read([(1, 4)])
    kinds = {name: (column.dtype.name, column.shape) for name, column in rows.items()}
    assert kinds == {
        "id": ("int64", (3,)),
        "half": ("float16", (3,)),
        "missing": ("float64", (3,)),
        "flag": ("bool", (3,)),
        "word": ("object", (3,)),
        "image": ("object", (3,)),
        "vector": ("float64", (3, 2)),
        "matrix": ("int64", (3, 3, 2)),
        "fixed": ("int64", (3, 4)),
        "tensor": ("float32", (3, 2, 3)),
    }
    assert rows["word"].tolist() == ["w1", "w2", "w3"]
    assert rows["image"].tolist() == [b"\1", b"\2", b"\3"]
    assert rows["vector"].tolist() == [[1, 2.5], [2, 3.5], [3, 4.5]]
    assert rows["matrix"][0].tolist() == [[1, 1], [2, 3], [4, 5]]
    assert np.isnan(rows["missing"]).tolist() == [False, False, True]  # The first row of the second row group.
    assert rows["id"].flags.writeable


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array([1, None, 3]), "'x' has rows without a value"),
        (pa.array([[1], [2, 3], [4]]), "lists of different lengths"),
    ],
)
def test_columns_that_are_no_arrays_are_refused(tmp_path: Path, values: Any, why: str) -> None:
    pq.write_table(pa.table({"x": values, "y": [1, 2, 3]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"{why}.*leave the column out by columns="):
        ParquetSource(tmp_path).farandole_read([(0, 3)])
    assert list(ParquetSource(tmp_path, columns=["y"]).farandole_read([(0, 3)])) == ["y"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_lists_that_differ_between_row_groups_are_refused(tmp_path: Path, shuffle: bool) -> None:
    write(tmp_path / "data", [[2, 3]], x=lambda ids: pa.array([[1] * len(ids) for _ in ids]))
    with pytest.raises(ValueError, match="lists of different lengths"):
        ParquetSource(tmp_path / "data", shuffle=shuffle).farandole_read([(0, 5)])


def test_files_of_a_folder_count_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "data", [[2]])
    (tmp_path / "data" / "_SUCCESS").touch()
    (tmp_path / "data" / "notes.txt").touch()
    write(tmp_path / "data" / "_temporary", [[5]])
    write(tmp_path / "data" / "more", [[3]])
    assert len(ParquetSource(tmp_path / "data")) == 5
    assert len(ParquetSource(f"file://{tmp_path}/data")) == 5
    assert len(ParquetSource([tmp_path / "data" / "part-0.parquet", tmp_path / "data" / "more"])) == 5


def test_file_systems_of_fsspec_and_pyarrow(tmp_path: Path) -> None:
    import fsspec

    write(tmp_path / "data", UNEQUAL)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "data"), "/parquet-test", recursive=True)
    below = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
    for source in (
        ParquetSource("memory:///parquet-test"),
        ParquetSource("/parquet-test", filesystem=memory),
        ParquetSource("data", filesystem=below),
    ):
        assert source.farandole_read([(4, 7), (9, 10)])["id"].tolist() == [4, 5, 6, 9]


def test_what_is_no_parquet_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.parquet").write_bytes(b"no Parquet")
    write(tmp_path / "none", [[0]])
    write(tmp_path / "data", [[2]])
    write(tmp_path / "other", [[2]], more=lambda ids: pa.array(ids))
    for path, why in (
        (tmp_path / "nowhere", "there is no file or folder at"),
        (tmp_path / "empty", "there are no Parquet files"),
        (tmp_path / "broken.parquet", "broken.parquet is not a Parquet file"),
        (tmp_path / "none", "have no rows"),
        ([tmp_path / "data", tmp_path / "other"], "differ from those of"),
        ([], "needs a path"),
        (None, "needs a path: pass a file, a folder, or a list of them, not None"),
        (5, "needs a path"),
        (b"data", "needs a path"),
        ([tmp_path / "data", None], "needs a path"),
        ("nosuch://bucket", "there is no file system for nosuch"),
    ):
        with pytest.raises(ValueError, match=why):
            ParquetSource(path)
    with pytest.raises(ValueError, match="no column 'label': there are id"):
        ParquetSource(tmp_path / "data", columns=["id", "label"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"columns": 5}, "columns must be a list of names, but is 5"),
        ({"columns": []}, "columns= is empty: omit it to read all columns"),
        ({"columns": [5]}, "no column 5: there are id"),
        ({"filesystem": "s3"}, "filesystem='s3' is not a file system of pyarrow or fsspec"),
        ({"seed": "7"}, "seed must be a whole number, but is '7'"),
        ({"seed": 1.5}, r"seed must be a whole number, but is 1\.5"),
        ({"window": 0}, "window must be a whole number from 1 up, but is 0"),
        ({"window": 1.5}, r"window must be a whole number from 1 up, but is 1\.5"),
        ({"window": None}, "window must be a whole number from 1 up, but is None"),
        ({"shuffle": "false"}, "shuffle must be True or False, but is 'false'"),
    ],
)
def test_wrong_arguments_of_a_source_are_refused(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    write(tmp_path / "data", [[2]])
    with pytest.raises(ValueError, match=why):
        ParquetSource(tmp_path / "data", **arguments)


def test_a_file_that_has_changed_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "data", [[4, 4]])
    source = ParquetSource(tmp_path / "data")
    write(tmp_path / "data", [[5, 4]])
    with pytest.raises(RuntimeError, match="has changed since its footer was read"):
        source.farandole_read([(0, 1)])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranges", [(), ((4, 4),)])
def test_no_rows_are_columns_without_rows(tmp_path: Path, ranges: Any, shuffle: bool) -> None:
    pairs = pa.list_(pa.float32())
    write(tmp_path / "data", [[0, 5]], vector=lambda ids: pa.array([[each, 1.5] for each in ids], pairs))
    source = ParquetSource(tmp_path / "data", shuffle=shuffle)
    for _ in range(2):
        rows = source.farandole_read(ranges)
        assert {name: (each.shape, each.dtype.name) for name, each in rows.items()} == {
            "id": ((0,), "int64"),
            "vector": ((0, 2), "float32"),
        }
        source.farandole_read([(2, 4)])
    with pytest.raises(IndexError, match="no rows 6 to 6"):
        source.farandole_read([(6, 6)])


def test_a_source_can_be_sent_to_another_process(tmp_path: Path) -> None:
    write(tmp_path / "data", UNEQUAL)
    source = ParquetSource(tmp_path / "data", shuffle=True)
    source.set_epoch(3)
    rows = source.farandole_read([(0, 20)])["id"].tolist()
    assert pickle.loads(pickle.dumps(source)).farandole_read([(0, 20)])["id"].tolist() == rows


# --- Batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5])
def test_batches_share_out_each_row_once_and_ranks_have_equally_many(tmp_path: Path, size: int) -> None:
    rows = write(tmp_path / "data", UNEQUAL)
    ranks = [
        Batches(ParquetSource(tmp_path / "data", shuffle=True), batch_size=3, rank=rank, size=size)
        for rank in range(size)
    ]
    for _ in range(2):
        read = [[batch["id"].tolist() for batch in batches] for batches in ranks]
        assert {len(each) for each in read} == {len(ranks[0])}
        assert sorted(row for each in read for batch in each for row in batch) == list(range(rows))
    assert ranks[0].epoch == 2


def test_a_resumed_training_goes_on_with_its_epoch(tmp_path: Path) -> None:
    write(tmp_path / "data", UNEQUAL)
    source = ParquetSource(tmp_path / "data", shuffle=True)
    batches = Batches(source, batch_size=8)
    epochs = [[batch["id"].tolist() for batch in batches] for _ in range(2)]
    resumed = Batches(source, batch_size=8)
    resumed.epoch = 1
    assert [batch["id"].tolist() for batch in resumed] == epochs[1]


def test_batches_that_not_all_workers_would_have_are_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "data", UNEQUAL)
    source = ParquetSource(tmp_path / "data")
    with pytest.raises(ValueError, match=r"has rows for 1 of 4 workers: pass drop_last=True"):
        Batches(source, batch_size=1, rank=0, size=4)
    assert len(Batches(source, batch_size=1, rank=0, size=4, drop_last=True)) == rows // 4
    with pytest.raises(ValueError, match="an epoch has no step"):
        Batches(source, batch_size=20, rank=0, size=4, drop_last=True)
    with pytest.raises(ValueError, match=f"{rows} rows cannot be shared by {rows + 1} workers.*: use fewer workers"):
        Batches(source, batch_size=2, rank=0, size=rows + 1)
    with pytest.raises(ValueError, match="the size of ConstantWorkerBatch must be at least 1, but is 0"):
        Batches(source, batch_size=0)


def test_wrong_arguments_of_batches_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "data", UNEQUAL)
    source = ParquetSource(tmp_path / "data")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"source": [1, 2]}, r"source must be a ParquetSource, but is \[1, 2\]"),
        ({"rank": 2, "size": 2}, "2 is not a rank of 2 workers"),
        ({"rank": "0"}, "rank must be a whole number, but is '0'"),
        ({"rank": 0, "size": 2.0}, r"size must be a whole number from 1 up, but is 2\.0"),
        ({"collate": "rows"}, "collate must be a function, but is 'rows'"),
        ({"drop_last": "no"}, "drop_last must be True or False, but is 'no'"),
    ]
    for arguments, why in wrong:
        with pytest.raises(ValueError, match=why):
            Batches(**{"source": source, "batch_size": 2, **arguments})
    with pytest.raises(ValueError, match=r"epoch must be a whole number from 0 up, but is 1\.5"):
        Batches(source, batch_size=2).epoch = 1.5  # type: ignore[assignment]


def test_keras_trains_on_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    rows = write(tmp_path / "data", UNEQUAL, x=lambda ids: pa.array([[each, 1.0] for each in ids]))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    source = ParquetSource(tmp_path / "data", shuffle=True)
    batches = Batches(source, batch_size=4, collate=lambda rows: (rows["x"], rows["id"]))
    history = model.fit(batches.forever(), steps_per_epoch=len(batches), epochs=2, shuffle=False, verbose=0)
    assert len(batches) == -(-rows // 4)
    assert len(history.history["loss"]) == 2


# --- in a job ----------------------------------------------------------------------------------------------------


def read_footers_once(folder: str) -> tuple[int, int, str]:
    """Return the number of rows, how many files this rank has opened for it, and the error for another path."""
    import farandole.numpy as hvd
    from farandole.parquet import ParquetSource

    opened = 0

    class Counting(pyarrow.fs.LocalFileSystem):
        def open_input_file(self, path: str) -> Any:
            nonlocal opened
            opened += 1
            return super().open_input_file(path)

    hvd.init()
    rows = len(ParquetSource(folder, filesystem=Counting()))
    try:
        ParquetSource(f"{folder}/nowhere")
    except ValueError as error:
        return rows, opened, str(error)
    raise AssertionError("a path that is not there was taken")


def test_rank_0_reads_the_footers_and_all_ranks_know_what_is_wrong(tmp_path: Path) -> None:
    write(tmp_path / "data", UNEQUAL)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    first, second = farandole.run(read_footers_once, (str(tmp_path / "data"),), num_proc=2)
    assert (first[:2], second[:2]) == ((33, 4), (33, 0))
    assert first[2] == second[2]
    assert "there is no file or folder at" in first[2]


TRAINING = """
import os, signal, sys, torch
import farandole.torch as hvd
from farandole.parquet import ParquetSource

folder, rows = sys.argv[1], int(sys.argv[2])
hvd.init()
loader = hvd.elastic.ElasticLoader(ParquetSource(folder + "/data", shuffle=True, seed=2), global_batch_size=4)
model = torch.nn.Embedding(rows, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
loop = hvd.elastic.steps(loader, epochs=2, model=model, optimizer=optimizer)
for batch in loop:
    # Before backward(), whose gradients the others could use although this worker has not written down its rows.
    if loop.step == 3 and hvd.rank() == 1 and not os.path.exists(folder + "/killed"):
        open(folder + "/killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(batch["id"]).mean().backward()
    optimizer.step()  # From here on, the step counts.
    with open(f"{folder}/used-{os.getpid()}", "a") as file:
        print(*batch["id"].tolist(), file=file)
"""


def test_each_row_is_used_once_in_an_epoch_when_a_worker_is_killed(tmp_path: Path) -> None:
    rows = write(tmp_path / "data", [[8, 4], [2], [14, 4, 8]])
    (tmp_path / "train.py").write_text(TRAINING)
    run = [sys.executable, "-m", "farandole", "run", "-np", "2", "--min-np", "1", "--max-np", "2"]
    command = [*run, sys.executable, str(tmp_path / "train.py"), str(tmp_path), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "killed").exists()
    used = Counter(int(row) for path in tmp_path.glob("used-*") for row in path.read_text().split())
    assert used == dict.fromkeys(range(rows), 2)
