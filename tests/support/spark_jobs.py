"""The functions of workers in tests' jobs on Spark, and finding and killing the processes of such a job."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_sessions import SECONDS, wait_until

import farandole.spark

# --- what runs in the workers ---------------------------------------------------------------------------------------


def place(word: str, *, number: int = 0) -> dict[str, Any]:
    import farandole.numpy as hvd

    hvd.init()
    print("out", hvd.rank())
    print("err", hvd.rank(), file=sys.stderr)
    total = hvd.allreduce([1.0], op=hvd.Sum)
    return {
        "place": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()),
        "total": float(total[0]),
        "given": (word, number),
        "variables": {name: os.environ.get(name) for name in ("MARK", "OF_DRIVER", "OF_EXECUTOR")},
        "folder": os.environ["HOROVOD_SPARK_WORK_DIR"],
        "devices": farandole.spark.get_available_devices(),
    }


def fail() -> None:
    import farandole.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("no such thing")
    hvd.barrier()


def wait_for_its_end(folder: Path) -> None:
    """Report this process's id to the test, once in a job, and wait until the test kills it."""
    try:
        with open(folder / "victim", "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    time.sleep(SECONDS)


def train_fixed(folder: str) -> None:
    """Make rank 1 wait until it is killed, and rank 0 wait for rank 1."""
    import farandole.numpy as hvd

    hvd.init()
    Path(f"{folder}/begun-{os.getpid()}").touch()
    if hvd.rank() == 1:
        wait_for_its_end(Path(folder))
    hvd.barrier()


# --- killed processes -----------------------------------------------------------------------------------------------


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def dialer_of(worker: int) -> int:
    return parent_of(parent_of(worker))


def python_worker_of(worker: int) -> int:
    return parent_of(dialer_of(worker))


def executor_of(worker: int) -> int:
    return parent_of(parent_of(python_worker_of(worker)))


def kill_when_ready(folder: Path, find: Callable[[int], int]) -> None:
    """Kill a process in a thread, as soon as a worker waits for its end."""

    def work() -> None:
        wait_until(lambda: (folder / "victim").exists() and (folder / "victim").read_text(), "no worker has come")
        os.kill(find(int((folder / "victim").read_text())), signal.SIGKILL)

    threading.Thread(target=work).start()
