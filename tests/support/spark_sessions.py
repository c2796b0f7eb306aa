"""Spark on this machine, and the processes of jobs on it, for tests."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Spark alone takes minutes to start on a crowded machine.
SECONDS = 300.0
# Tests run little of Spark's code often enough for the better compilers of Java and of SQL to be worth their time.
_LITTLE_COMPILING = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": _LITTLE_COMPILING,
    "spark.executor.extraJavaOptions": _LITTLE_COMPILING,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


def start_spark(master: str, folder: Path) -> Any:
    """Start a SparkSession whose files are in a folder, and return it."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Executors write below Spark's installation otherwise.
    os.environ["SPARK_WORKER_DIR"] = os.environ["SPARK_LOCAL_DIRS"] = str(folder)
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def is_free(port: int) -> bool:
    """Return whether no process of this machine listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def processes_with(variable: str) -> list[int]:
    """Return the processes, other than this one, whose environment has a variable NAME=value."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue  # It has ended.
    return found


def wait_until(holds: Callable[[], Any], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
