"""The part of a job that runs in a Spark task: a host with one slot, which dials the launcher in the driver."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from farandole.control.agent.dialer_process import DialerProcess

# Names the GPUs of the task in the environment of its worker, separated by commas.
_DEVICES = "FARANDOLE_SPARK_DEVICES"


@dataclass(frozen=True)
class Slot:
    """The part of a task that is the same in all tasks of a job. It is sent with the closure.

    Attributes:
        launcher: host:port of the launcher.
        secret: the secret of the job.
        patience: seconds to try to reach the launcher.
        environment: variables for the worker; None removes one.
    """

    launcher: str
    secret: bytes
    patience: float
    environment: Mapping[str, str | None]

    def serve(self, name: str) -> int:
        """Run a worker of the launcher in this task until the launcher ends it; return the exit code of the dialer.

        Args:
            name: the name of this slot, which must be unique at any time.
        """
        devices = _devices_of_task()
        given = {name: value for name, value in self.environment.items() if value is not None}
        given |= {"HOROVOD_SPARK_WORK_DIR": os.getcwd(), _DEVICES: ",".join(devices)}
        removed = {name: os.environ.pop(name, None) for name, value in self.environment.items() if value is None}
        try:
            dialer = DialerProcess(
                self.launcher, self.secret, name, devices=devices, patience=self.patience, environment=given
            )
        finally:
            # Another task may run in this process later.
            os.environ.update({name: value for name, value in removed.items() if value is not None})
        try:
            code = dialer.wait()
            assert code is not None
            return code
        finally:
            dialer.end()

    def __call__(self, partition: int, _: Iterable[Any]) -> Iterator[int]:
        """Serve the launcher in the task of a partition."""
        yield self.serve(f"task-{partition}")


def _devices_of_task() -> list[str]:
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = {} if context is None else context.resources()
    return list(resources["gpu"].addresses) if "gpu" in resources else []


def get_available_devices() -> list[str]:
    """Return the addresses of the GPUs that Spark has given to this worker's task; an empty list without GPUs.

    In a worker, CUDA numbers these devices and those of the job's other workers on the machine from 0; use the device
    `local_rank()`.
    """
    return [each for each in os.environ.get(_DEVICES, "").split(",") if each]
