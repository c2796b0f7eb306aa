"""`horovod.runner.common.util.settings`: what `gloo_run` is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class BaseSettings:
    """The settings that every way to launch has in common.

    Horovod's users make these objects; of their fields, `gloo_run` uses those that say something about a job on this
    machine, and passes over the others.
    """

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | None = None
    start_timeout: Any = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Any = None
    elastic: bool = False
    prefix_output_with_timestamp: bool = False


@dataclass
class Settings(BaseSettings):
    """The same for a fixed list of hosts, `name:slots,name:slots`."""

    hosts: str | None = None
