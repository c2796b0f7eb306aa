"""TensorFlow's data service in Horovod's form: a job of dispatchers and workers, which prepares another job's data.

`python -m horovod.tensorflow.data.compute_worker FILE` runs on the workers of this job and writes a file; the script of
the other job reads it and sends its datasets to the service.

TensorFlow's own connections, which carry the data, are neither encrypted nor authenticated: use them only in a network
that you trust.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import tensorflow as tf

from farandole.base.wire.address import format_address
from farandole.base.wire.errors import WireError
from farandole.errors import InvalidRequestError
from farandole.tensorflow.data.meeting_point import ComputeClient, listening_addresses
from farandole.worker.core.basics import identity, init, is_initialized, rank

_logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_HEARTBEAT_MILLISECONDS = 1000


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """The addresses of a data service.

    Attributes:
        dispatchers: the number of dispatchers: 1 for all ranks of the training, or one for each.
        workers_per_dispatcher: the number of workers of each dispatcher.
        dispatcher_side: the side on which dispatchers run: "compute" or "training".
        addresses: the addresses of the meeting point, by interface.
        key: the secret by which the processes authenticate each other.
        timeout: seconds that each process waits for the others.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes
    timeout: int = 60

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Return a client of the meeting point."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values."""
        return {**self.__dict__, "key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Return the configuration that `to_dict` has converted to plain values."""
        addresses = {
            interface: [(address, port) for address, port in some] for interface, some in config["addresses"].items()
        }
        return TfDataServiceConfig(
            dispatchers=config["dispatchers"],
            workers_per_dispatcher=config["workers_per_dispatcher"],
            dispatcher_side=config["dispatcher_side"],
            addresses=addresses,
            key=bytes.fromhex(config["key"]),
            timeout=config.get("timeout", 60),
        )

    def write(self, filename: str | os.PathLike[str]) -> None:
        """Write the configuration, atomically, to a file that only its user can read."""
        path = Path(filename)
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
            json.dump(self.to_dict(), file)
        os.replace(file.name, path)

    @staticmethod
    def read(
        filename: str | os.PathLike[str], wait_for_file_creation: bool = False, timeout: float = 600.0
    ) -> TfDataServiceConfig:
        """Read a file that `write` has written.

        Args:
            filename: the path of the file, which may not exist yet.
            wait_for_file_creation: whether to wait until the file exists.
            timeout: maximum number of seconds to wait.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        deadline = time.monotonic() + timeout
        while wait_for_file_creation and not os.path.exists(filename) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return TfDataServiceConfig.from_dict(json.loads(Path(filename).read_text()))


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Yield the address of the dispatcher of a rank of the training, once its workers have registered.

    If dispatchers run on the training side, this rank's dispatcher, or rank 0's for all, runs as long as the context.

    Args:
        compute_config: the configuration of the service.
        rank: this process's rank in the training's job.

    Raises:
        TimeoutError: the dispatcher or its workers did not register in time.

    Example:
        >>> with tf_data_service(config, hvd.rank()) as address:  # doctest: +SKIP
        ...     distribute = tf.data.experimental.service.distribute
        ...     model.fit(dataset.apply(distribute(processing_mode="distributed_epoch", service=address)))
    """
    compute = compute_config.compute_client(verbose=2)
    shares_one = compute_config.dispatchers == 1
    server = None
    try:
        if compute_config.dispatcher_side == "training" and (rank == 0 or not shares_one):
            server = _start_dispatcher(compute, rank)
        dispatcher = 0 if shares_one else rank
        address = compute.wait_for_dispatcher_registration(dispatcher, compute_config.timeout)
        compute.wait_for_dispatcher_worker_registration(dispatcher, compute_config.timeout)
        yield address
    finally:
        _stop_dispatcher(server, compute, 0 if shares_one else rank, compute_config.timeout)


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """Return a dataset whose elements the data service prepares; also available as a method of `tf.data.Dataset`.

    Args:
        dataset: the dataset that the service prepares.
        compute_config: the configuration of a service whose dispatchers run on the compute side.
        rank: this process's rank in the training's job.
        size: the size of the training's job; used for `round_robin`.
        processing_mode: the `processing_mode` of `tf.data.experimental.service.distribute`.
        reuse_dataset: whether all ranks share the prepared elements, so that each element goes to one of them.
        round_robin: whether the ranks get elements in turn.

    Raises:
        RuntimeError: the dispatchers run on the training side.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError("training side dispatcher not supported, use tf_data_service context manager instead")
    in_turns = reuse_dataset and round_robin
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if in_turns else None,
                num_consumers=size if in_turns else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Run a data service worker, and a dispatcher if this rank should have one, until the service is shut down."""
    if not is_initialized():
        init()
    index, workers = rank(), compute_config.workers_per_dispatcher
    dispatcher = index // workers
    compute = compute_config.compute_client(verbose=2)
    dispatch_server = worker_server = None
    try:
        if compute_config.dispatcher_side == "compute" and index % workers == 0:
            dispatch_server = _start_dispatcher(compute, dispatcher)
        address = compute.wait_for_dispatcher_registration(dispatcher, compute_config.timeout)
        worker_server = _start_worker(address, compute_config.timeout)
        compute.register_worker_for_dispatcher(dispatcher, index)
        _logger.info("worker %d works for dispatcher %d at %s", index, dispatcher, address)
        compute.wait_for_dispatcher_end(dispatcher)
        # While its dispatcher lives: otherwise it may be in a request that is tried again and again.
        _stop(worker_server)
        worker_server = None
        compute.worker_has_stopped(dispatcher, index)
    finally:
        _stop(worker_server)
        _stop_dispatcher(dispatch_server, compute, dispatcher, compute_config.timeout)


def _start_dispatcher(compute: ComputeClient, dispatcher: int) -> Any:
    server = tf.data.experimental.service.DispatchServer()
    # The dispatcher's address is "localhost", which names another machine on other hosts.
    protocol, _, port = server.target.partition("://localhost:")
    if not port:
        raise InvalidRequestError(f"TensorFlow's dispatcher has an address of an unknown form: {server.target}")
    address = f"{protocol}://{format_address(_own_address(), int(port))}"
    try:
        compute.register_dispatcher(dispatcher, address)
    except BaseException:
        _stop(server)
        raise
    _logger.info("dispatcher %d is at %s", dispatcher, address)
    return server


def _start_worker(dispatcher_address: str, timeout: float) -> Any:
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher_address.partition("://")[2],
        worker_address=format_address(_own_address(), 0).removesuffix(":0") + ":%port%",
        heartbeat_interval_ms=_HEARTBEAT_MILLISECONDS,
        dispatcher_timeout_ms=int(timeout * 1000),
    )
    server = tf.data.experimental.service.WorkerServer(config)
    server.start()
    return server


def _own_address() -> str:
    """Return the address at which the other processes of the service reach this machine."""
    return listening_addresses(own_networks())[0][1]


def own_networks() -> list[str] | None:
    """Return the addresses to which `FARANDOLE_LISTEN` restricts this job; None: no restriction."""
    listen = identity().settings.listen if is_initialized() else ""
    return listen.split(",") if listen else None


def _stop_dispatcher(server: Any, compute: ComputeClient, dispatcher: int, timeout: float) -> None:
    """Stop a dispatcher, if there is one, after its workers."""
    if server is None:
        return
    try:
        compute.end_dispatcher(dispatcher, timeout)
    except TimeoutError as error:
        _logger.warning("dispatcher %d stops before its workers: %s", dispatcher, error)
    except WireError:
        _logger.info("dispatcher %d stops; nobody is left where all have met", dispatcher)
    _stop(server)


def _stop(server: Any) -> None:
    if server is not None:
        # TensorFlow has no public function for this: join() alone waits until something else stops the server.
        server._stop()
        server.join()
