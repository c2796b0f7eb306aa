"""Arguments of the wrong type are errors before anything starts."""

from __future__ import annotations

import io
from typing import Any

import pytest

from farandole.control.launcher.arguments import read_count
from farandole.errors import SpecError
from farandole.spark.backend import SparkBackend
from farandole.spark.driver import Options
from farandole.spark.horovod_runner import HorovodRunner
from farandole.spark.store import HDFSStore, Store


def _read(ports: Any) -> Options:
    return Options.read(1.0, None, None, None, 0, False, None, ports)


@pytest.mark.parametrize("ports", [5000, "5000", ["5000"], [2.5], [-1], [65536], [], None])
def test_invalid_ports_are_an_error(ports: Any) -> None:
    with pytest.raises(SpecError, match="ports="):
        _read(ports)


def test_valid_ports_are_accepted() -> None:
    assert _read(range(5000, 5002)).ports == (5000, 5001)
    assert _read((0,)).ports == (0,)


@pytest.mark.parametrize("stream", [5, "out.txt", io.BytesIO()])
def test_streams_that_take_no_text_are_an_error(stream: Any) -> None:
    for given in ((stream, None), (None, stream)):
        with pytest.raises(SpecError, match="is not a stream of text"):
            Options.read(1.0, None, *given, 0, False, None, [0])
    assert Options.read(1.0, None, io.StringIO(), None, 0, False, None, [0])


@pytest.mark.parametrize("count", ["2", 2.0, 0, -1, [2]])
def test_invalid_number_of_workers_is_an_error(count: Any) -> None:
    with pytest.raises(SpecError, match="num_proc="):
        read_count("num_proc", count)
    with pytest.raises(SpecError, match="num_proc="):
        SparkBackend(count)


@pytest.mark.parametrize("elastic", [3, "12", (1,), (1, 2, 3), (0, 2), ("1", 2), (2, 1)])
def test_wrong_limits_of_an_elastic_backend_are_an_error(elastic: Any) -> None:
    with pytest.raises(SpecError, match=r"elastic=.* \(hint: give "):
        SparkBackend(elastic=elastic)
    assert SparkBackend(elastic=(1, 2)).num_processes() == 1


def test_wrong_variables_and_options_of_a_backend_are_an_error() -> None:
    with pytest.raises(SpecError, match="env is a list, not a mapping"):
        SparkBackend(2, env=["A"])  # type: ignore[arg-type]
    for given in ({"start_time": 5}, {"kwargs": {}}, {"elastic_timeout": 5}):
        with pytest.raises(TypeError, match=rf"SparkBackend has no option '{next(iter(given))}': there are executable"):
            SparkBackend(2, **given)
    assert SparkBackend(2, env={"A": "1", "B": None}, start_timeout=5)  # type: ignore[dict-item]
    assert SparkBackend(2, elastic=(1, 2), elastic_timeout=5)


@pytest.mark.parametrize("verbose", ["2", None, 1.5])
def test_level_of_messages_that_is_not_an_integer_is_an_error(verbose: Any) -> None:
    with pytest.raises(SpecError, match=r"verbose=.* is not a level"):
        Options.read(1.0, None, None, None, verbose, False, None, [0])


def test_number_of_workers_of_a_runner_is_an_integer() -> None:
    with pytest.raises(SpecError, match="np='2' is not a number of workers"):
        HorovodRunner(np="2")  # type: ignore[arg-type]
    assert HorovodRunner(np=-1)


@pytest.mark.parametrize("path", [None, 5, b"store", "", "/"])
def test_what_is_not_the_path_of_a_store_is_an_error(path: Any) -> None:
    for kind in (Store.create, HDFSStore):
        with pytest.raises(ValueError, match="is not a folder for a Store: give a path"):
            kind(path)


def test_wrong_arguments_of_a_store_are_an_error() -> None:
    for given, why in (
        ({"train_path": 5}, "5 is not a folder for a Store"),
        ({"storage_options": ["key"]}, "storage_options is a list, not a dict"),
        ({"checkpoint_filename": "../last"}, "checkpoint_filename='../last' is not the name of a file"),
    ):
        with pytest.raises(ValueError, match=why):
            Store.create("/shared", **given)


@pytest.mark.parametrize("run", ["../x", "..", ".", "", "a/b", "/a", "*", "a[0]", "a\0", 5, None])
def test_runs_whose_folder_would_be_another_one_are_an_error(run: Any) -> None:
    store = Store.create("memory://store", save_runs=False)
    for path_of in (store.get_run_path, store.get_checkpoint_path, store.get_logs_path, store.get_checkpoints):
        with pytest.raises(ValueError, match=r"run_id=.* is not a name"):
            path_of(run)
    assert store.get_run_path("my run-7.b") == "memory://store/runs/my run-7.b"


def test_valid_number_of_workers_is_accepted() -> None:
    assert read_count("num_proc", 2) == 2
