"""`horovod.spark`: names, arguments and defaults."""

from __future__ import annotations

import importlib
import inspect

import horovod.spark
import pytest
from horovod.spark import conf


def defaults(function: object) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return {each.name: None if each.default is each.empty else each.default for each in parameters}


def test_arguments_of_run() -> None:
    names = "fn args kwargs num_proc start_timeout use_mpi use_gloo extra_mpi_args env stdout stderr verbose nics"
    expected = dict.fromkeys([*names.split(), "prefix_output_with_timestamp", "executable"])
    assert defaults(horovod.spark.run) == {**expected, "args": (), "verbose": 1, "prefix_output_with_timestamp": False}
    assert list(defaults(horovod.spark.run)) == list(expected)


def test_arguments_of_run_elastic() -> None:
    names = "fn args kwargs num_proc min_num_proc max_num_proc start_timeout elastic_timeout reset_limit env stdout"
    expected = dict.fromkeys([*names.split(), "stderr", "verbose", "nics", "prefix_output_with_timestamp"])
    expected |= dict.fromkeys(["min_np", "max_np"])
    found = defaults(horovod.spark.run_elastic)
    assert found == {**expected, "args": (), "verbose": 1, "prefix_output_with_timestamp": False}
    assert list(found) == list(expected)


@pytest.mark.parametrize("arguments", [{"use_mpi": True}, {"extra_mpi_args": "-x A"}])
def test_mpi_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cannot be started by mpirun"):
        horovod.spark.run(print, **arguments)


def test_pairs_for_the_configuration() -> None:
    pairs = {name: value for name, value in vars(conf).items() if name.startswith("SPARK_CONF_")}
    settings = pairs.pop("SPARK_CONF_DEFAULT_VALUES")
    assert len(pairs) == 15
    for name, (key, value) in pairs.items():
        assert key in settings, name
        if "REUSE" in name:
            assert value == ("1" if "DONT" in name else str(2**31 - 1)), name


@pytest.mark.parametrize(
    ("missing", "instead"),
    [
        ("horovod.spark.data_loaders", "horovod.spark.torch.TorchEstimator"),
        ("horovod.spark.common.cache", "prepare_data removes its files"),
        ("horovod.spark.tensorflow.compute_worker", "run python -m horovod.tensorflow.data.compute_worker"),
    ],
)
def test_what_is_there_instead_of_a_missing_module_is_told(missing: str, instead: str) -> None:
    with pytest.raises(ImportError, match=instead):
        importlib.import_module(missing)


def test_stores_and_backends_have_horovods_places() -> None:
    from horovod.spark.common.backend import SparkBackend
    from horovod.spark.common.store import DBFSLocalStore, LocalStore, Store

    assert isinstance(Store.create("/data"), LocalStore)
    for prefix in ("dbfs:/data", "dbfs:///data/", "/dbfs/data", "file:///dbfs/data"):
        store = Store.create(prefix)
        assert isinstance(store, DBFSLocalStore) and store.get_runs_path() == "file:///dbfs/data/runs"
    with pytest.raises(ValueError, match="s3:/bucket is not a URL"):
        Store.create("s3:/bucket")
    assert SparkBackend(3).num_processes() == 3
    with pytest.raises(ValueError, match="num_proc=0 is not a number of workers"):
        SparkBackend(0)
