"""TensorFlow's data service on the workers of one job, used by a process that is in none of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import Nursery, WorkerFailed, World, ship


def serve(filename: str, dispatchers: int, side: str, timeout: int = 30) -> str:
    """Be a worker of a data service until it is shut down. Run by a worker."""
    from farandole.tensorflow.data.compute_worker import main

    main(dispatchers, side, filename, timeout)
    return "was shut down"


def train(filename: str, side: str) -> Any:
    """Read data that the service prepares, and shut it down. Run by a process of another job."""
    import os
    import stat

    import tensorflow as tf

    from farandole.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

    config = TfDataServiceConfig.read(filename, wait_for_file_creation=True)
    assert stat.S_IMODE(os.stat(filename).st_mode) == 0o600  # The key is in it.
    assert TfDataServiceConfig.from_dict(config.to_dict()) == config
    dataset = tf.data.Dataset.range(20).map(lambda number: number * 2)
    try:
        if side == "compute":
            numbers = list(dataset.send_to_data_service(config, rank=0).as_numpy_iterator())
        else:
            with pytest.raises(RuntimeError, match="use tf_data_service"):
                dataset.send_to_data_service(config, rank=0)
            with tf_data_service(config, rank=0) as address:
                distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
                numbers = list(dataset.apply(distribute).as_numpy_iterator())
    finally:
        config.compute_client().shutdown()
    return sorted(int(number) for number in numbers)


@pytest.mark.parametrize("side", ["compute", "training"])
def test_training_reads_data_that_another_job_prepares(tensorflow_nursery: Nursery, tmp_path: Path, side: str) -> None:
    ship(train)
    world, trainer = World(tensorflow_nursery, 2), tensorflow_nursery.fork({"FARANDOLE_LISTEN": "127.0.0.1"})
    try:
        world.start(serve, str(tmp_path / "service.json"), 1, side)
        trainer.send(train, (str(tmp_path / "service.json"), side))
        assert trainer.receive() == list(range(0, 40, 2))
        assert world.collect() == ["was shut down"] * 2
    finally:
        trainer.close()
        world.close()


def read_some_of_many(filename: str, rank: int) -> int:
    """Read the first of elements that never end, and shut the service down. Run by a process of another job."""
    import itertools

    import tensorflow as tf

    from farandole.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

    config = TfDataServiceConfig.read(filename, wait_for_file_creation=True)
    dataset = tf.data.Dataset.range(5).repeat()
    try:
        with tf_data_service(config, rank) as address:
            distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
            # It lives on, as that of model.fit does: the workers go on with it until they are stopped.
            elements = dataset.apply(distribute).as_numpy_iterator()
            read = list(itertools.islice(elements, 200))
    finally:
        if rank == 0:
            config.compute_client().shutdown()
    return len(read)


@pytest.mark.parametrize("side", ["compute", "training"])
def test_workers_that_need_their_dispatchers_word_end_before_it(
    tensorflow_nursery: Nursery, tmp_path: Path, side: str
) -> None:
    ship(read_some_of_many)
    world, trainer = World(tensorflow_nursery, 2), tensorflow_nursery.fork({"FARANDOLE_LISTEN": "127.0.0.1"})
    try:
        # The seconds for which a worker asks a dispatcher that is gone: more than the wait for an answer.
        world.start(serve, str(tmp_path / "service.json"), 1, side, 1000)
        trainer.send(read_some_of_many, (str(tmp_path / "service.json"), 0))
        assert trainer.receive() == 200
        assert world.collect() == ["was shut down"] * 2
    finally:
        trainer.close()
        world.close()


def test_the_number_of_dispatchers_divides_the_size(tensorflow_nursery: Nursery, tmp_path: Path) -> None:
    world = World(tensorflow_nursery, 2)
    try:
        with pytest.raises(WorkerFailed, match=r"\(2\) must be a multiple of number of dispatchers \(3\)"):
            world.run(serve, str(tmp_path / "service.json"), 3, "compute")
    finally:
        world.close()


def meet() -> list[str]:
    """Go through what the meeting point answers. Run by a worker."""
    import threading

    from farandole.base.wire.errors import AuthenticationFailed
    from farandole.tensorflow.data.meeting_point import ComputeClient, ComputeService

    service = ComputeService(2, 2, b"key" * 8, ["127.0.0.1"])
    client = ComputeClient(service.addresses(), b"key" * 8)
    failures = []

    def fails(call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")

    fails(client.wait_for_dispatcher_registration, 0, 0.05)
    fails(client.register_dispatcher, 2, "grpc://a:1")
    client.register_dispatcher(1, "grpc://a:1")
    client.register_dispatcher(1, "grpc://a:1")
    fails(client.register_dispatcher, 1, "grpc://b:1")
    assert client.wait_for_dispatcher_registration(1, 5) == "grpc://a:1"
    for worker in (0, 0, 1):
        client.register_worker_for_dispatcher(0, worker)
    client.wait_for_dispatcher_worker_registration(0, 5)
    fails(client.end_dispatcher, 0, 0.05)
    client.wait_for_dispatcher_end(0)
    stopping = [threading.Thread(target=client.worker_has_stopped, args=(0, worker)) for worker in (0, 1)]
    for thread in stopping:
        thread.start()
    client.end_dispatcher(0, 5)
    service.wait_for_workers(5)
    assert all(thread.is_alive() for thread in stopping), "they wait for the end of the service"
    # In Horovod the workers of one dispatcher counted for all.
    fails(client.wait_for_dispatcher_worker_registration, 1, 0.05)
    fails(ComputeClient(service.addresses(), b"another key").shutdown)
    waiting = threading.Thread(target=client.wait_for_shutdown)
    waiting.start()
    client.shutdown()
    for thread in (waiting, *stopping):
        thread.join(20)
        assert not thread.is_alive()
    service.shutdown()
    service.shutdown()
    assert AuthenticationFailed.__name__ in failures[-1]
    return failures


def test_early_wrong_or_unauthenticated_requests_fail(tensorflow_nursery: Nursery) -> None:
    ship(meet)
    worker = tensorflow_nursery.fork({})
    try:
        worker.send(meet, ())
        failures = worker.receive()
    finally:
        worker.close()
    assert [failure.partition(":")[0] for failure in failures] == [
        "TimeoutError",
        "IndexError",
        "ValueError",
        "TimeoutError",
        "TimeoutError",
        "AuthenticationFailed",
    ]
    assert "dispatcher 0 to register" in failures[0]
    assert "workers of dispatcher 0 to stop" in failures[3]
    assert "workers for dispatcher 1 to register" in failures[4]
    assert "does not have the key" in failures[5]
