"""Stores: paths below the prefix, and files on file systems of fsspec."""

from __future__ import annotations

from pathlib import Path

import pytest
from parquet_files import write

from farandole.spark.store import FilesystemStore, HDFSStore, LocalStore, Store


def test_paths_are_below_the_prefix_unless_given(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    assert type(store) is FilesystemStore is LocalStore
    here = f"file://{tmp_path}"
    assert store.get_train_data_path() == f"{here}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"{here}/intermediate_val_data.3"
    assert store.get_checkpoint_path("a") == f"{here}/runs/a/checkpoint"
    assert store.get_logs_path("a") == f"{here}/runs/a/logs"
    own = Store.create("memory://data", train_path="memory://else/train", checkpoint_filename="last")
    assert own.get_train_data_path(0) == "memory://else/train.0"
    assert own.get_checkpoint_path("a") == "memory://data/runs/a/last"


def test_hdfs_has_its_scheme() -> None:
    store = Store.create("hdfs://name:8020/data", user="me")
    assert isinstance(store, HDFSStore)
    assert store.get_run_path("a") == "hdfs://name:8020/data/runs/a"
    assert HDFSStore("/data").get_runs_path() == "hdfs:///data/runs"
    with pytest.raises(ValueError, match="is not on HDFS"):
        HDFSStore("s3://bucket/data")


@pytest.mark.parametrize("prefix", ["memory://store", ""])
def test_files_are_written_read_and_removed(tmp_path: Path, prefix: str) -> None:
    store = Store.create(prefix or str(tmp_path))
    path = f"{store.get_run_path('a')}/first.ckpt"
    store.write(path, b"one")
    store.write(path, b"two")
    store.write_text(f"{store.get_run_path('a')}/notes", "text")
    assert (store.read(path), store.exists(path)) == (b"two", True)
    assert [each.rpartition("/")[2] for each in store.get_checkpoints("a")] == ["first.ckpt"]
    assert store.get_checkpoints("no such run") == []
    store.remove(store.get_run_path("a"))
    store.remove(store.get_run_path("a"))
    assert not store.exists(path)


def test_parquet_data_are_known(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    write(tmp_path / "intermediate_train_data", [[3, 2]])
    (tmp_path / "intermediate_val_data").mkdir()
    assert store.is_parquet_dataset(store.get_train_data_path())
    assert not store.is_parquet_dataset(store.get_val_data_path())
    assert not store.is_parquet_dataset(store.get_test_data_path())
    assert len(store.source(store.get_train_data_path())) == 5


def test_file_system_without_a_package_is_told() -> None:
    with pytest.raises(ValueError, match=r"there is no file system for nosuch://a: .*Install the package"):
        Store.create("nosuch://a").exists("nosuch://a")
