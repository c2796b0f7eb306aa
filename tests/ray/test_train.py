"""farandole in the workers of Ray Train, on a real cluster."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.ray.conftest import SECONDS, until
from tests.ray.jobs import SAMPLES, dataset, living, train_and_record, what_is_wrong


def run_config(folder: Path, failures: int) -> Any:
    from ray.train import FailureConfig, RunConfig

    return RunConfig(storage_path=str(folder / "storage"), failure_config=FailureConfig(max_failures=failures))


def fit(train: Any, folder: Path, failures: int = 0, elastic: bool = False, **config: Any) -> Any:
    """Fit with two workers."""
    from ray.train import ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from farandole.ray.train import FarandoleConfig

    return DataParallelTrainer(
        train,
        train_loop_config={"folder": str(folder), **config},
        backend_config=FarandoleConfig(elastic=elastic),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(folder, failures),
    ).fit()


def sums(config: dict[str, Any]) -> float:
    import ray.train

    import farandole.numpy as hvd

    hvd.init()
    total = hvd.allreduce([float(hvd.rank() + 1)], op=hvd.Sum)[0]
    context = ray.train.get_context()
    assert (hvd.rank(), hvd.size()) == (context.get_world_rank(), context.get_world_size())
    assert (hvd.local_rank(), hvd.local_size()) == (context.get_local_rank(), context.get_local_world_size())
    Path(config["folder"], f"sum.{hvd.rank()}.{total}").touch()
    ray.train.report({"total": float(total)})
    return float(total)


def test_workers_of_ray_train_are_one_world(cluster: Any, tmp_path: Path) -> None:
    assert fit(sums, tmp_path).return_value == 3.0
    assert sorted(each.name for each in tmp_path.glob("sum.*")) == ["sum.0.3.0", "sum.1.3.0"]


def test_torch_trainer_takes_the_configuration(cluster: Any, tmp_path: Path) -> None:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    from farandole.ray.train import FarandoleConfig

    trainer = TorchTrainer(
        sums,
        train_loop_config={"folder": str(tmp_path)},
        torch_config=FarandoleConfig(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=run_config(tmp_path, 0),
    )
    assert trainer.fit().return_value == 3.0


def dies_once(config: dict[str, Any]) -> None:
    import farandole.numpy as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1 and not Path(config["folder"], "died").exists():
        Path(config["folder"], "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()


def test_all_workers_of_a_fixed_world_start_again(cluster: Any, tmp_path: Path) -> None:
    fit(dies_once, tmp_path, failures=1)
    (tmp_path / "died").unlink()
    from ray.train import WorkerGroupError

    with pytest.raises(WorkerGroupError):
        fit(dies_once, tmp_path)


def record(config: dict[str, Any]) -> None:
    train_and_record(config["folder"])


def raises_once(config: dict[str, Any]) -> None:
    folder = Path(config["folder"])

    def raises(number: int) -> None:
        if number == 5 and len(list(folder.glob("book.*"))) == 2 and not (folder / "raised").exists():
            (folder / "raised").touch()
            raise ValueError("as told")

    train_and_record(config["folder"], pause=0.05, before_step=raises)


@pytest.mark.parametrize(("train", "killed"), [(record, True), (raises_once, False)], ids=["killed", "raised"])
def test_survivors_train_on_while_ray_train_replaces_a_worker(
    cluster: Any, tmp_path: Path, train: Any, killed: bool
) -> None:
    replaced_while_training(tmp_path, train, killed)


def replaced_while_training(folder: Path, train: Any, killed: bool, **config: Any) -> Any:
    """Fit with two workers, of which one fails, until its replacement trains; return the result of Ray Train."""
    failure: list[BaseException] = []
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(fit(train, folder, failures=3, elastic=True, **config))
        except BaseException as error:
            failure.append(error)

    # A failing test does not wait for it.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        until(lambda: failure or len(living(folder)) == 2)
        assert not failure, failure
        first = set(living(folder))
        if killed:
            os.kill(min(first), signal.SIGKILL)
        # A third process has taken a step.
        until(lambda: failure or len(list(folder.glob("pid.*"))) >= 3)
        assert not failure, failure
        survivors = first & set(living(folder))
        until(lambda: failure or len(living(folder)) >= 2)
    finally:
        (folder / "finish").touch()
    thread.join(SECONDS)
    assert not thread.is_alive() and not failure, failure
    assert len(survivors) == 1, "the other one has trained on in its process"
    assert what_is_wrong(folder) == []
    return result[0]


def reports(config: dict[str, Any]) -> None:
    import ray.train

    import farandole.ray
    import farandole.torch as hvd

    folder = Path(config["folder"])
    book = open(folder / f"reports.{os.getpid()}", "a", buffering=1)

    def say(number: int) -> None:
        if number % 5 == 0:
            taken = farandole.ray.report({"step": number, "size": hvd.size()})
            book.write(f"{number} {taken}\n")

    train_and_record(config["folder"], before_step=say)
    (folder / "kept").mkdir(exist_ok=True)
    assert farandole.ray.report({"last": True}, ray.train.Checkpoint.from_directory(str(folder / "kept")))


def test_reports_go_on_when_a_worker_has_been_replaced(cluster: Any, tmp_path: Path) -> None:
    """Ray's own report would wait for the replacement, which waits for a step."""
    result = replaced_while_training(tmp_path, reports, True)
    assert result.metrics == {"last": True} and result.checkpoint is not None
    books = [dict(line.split() for line in each.read_text().splitlines()) for each in tmp_path.glob("reports.*")]
    assert len(books) == 3
    survivor = max(books, key=len)
    assert "False" in survivor.values(), "while the worker was not replaced"
    newcomer = max(books, key=lambda book: min(map(int, book)))
    assert set(newcomer.values()) == {"True"} and newcomer.items() <= survivor.items()


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_row_of_a_dataset_has_one_position(cluster: Any, shuffle: bool) -> None:
    from farandole.ray.data import DatasetSource

    source = DatasetSource(dataset(), shuffle=shuffle)
    orders = []
    for epoch in range(2):
        source.set_epoch(epoch)
        cut = [source.farandole_read([(begin, min(begin + 9, SAMPLES))]) for begin in range(0, SAMPLES, 9)]
        orders.append([float(number) for piece in cut for number in piece["number"]])
        assert sorted(orders[-1]) == list(range(SAMPLES))
    assert (orders[0] != orders[1]) is shuffle
    with pytest.raises(ValueError, match="the data have no column 'label': there are number"):
        DatasetSource(dataset(), columns=["label"])


def record_dataset(config: dict[str, Any]) -> None:
    train_and_record(config["folder"], config["source"], pause=0.02)


def test_rows_of_a_dataset_are_used_once_though_a_worker_is_replaced(cluster: Any, tmp_path: Path) -> None:
    from farandole.ray.data import DatasetSource

    replaced_while_training(tmp_path, record_dataset, True, source=DatasetSource(dataset(), shuffle=True))
