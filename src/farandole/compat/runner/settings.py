"""`horovod.runner.common.util.settings`: the settings of `gloo_run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class BaseSettings:
    """The settings that all ways to launch share.

    Horovod's users create these objects; `gloo_run` uses the fields that apply to a job of farandole, and ignores the
    others.
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
    """The settings for a fixed list of hosts, `name:slots,name:slots`."""

    hosts: str | None = None
