"""The settings of a `RayExecutor`, with Horovod's names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from farandole.control.launcher.arguments import check_flag, check_path, read_number
from farandole.errors import SpecError


@dataclass
class RaySettings:
    """Settings of a `RayExecutor`. The settings for ssh and the key have no effect: Ray starts the workers.

    Raises:
        SpecError: a value is not valid.
    """

    timeout_s: float = 300.0
    """Seconds that a call to the cluster may take while the workers are started."""
    placement_group_timeout_s: float = 100.0
    """Seconds to wait for the resources of all workers."""
    nics: Iterable[str] | None = None
    """Network interfaces between workers; None: all that reach the other workers."""
    verbose: int = 1
    key: Any = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    elastic: bool = False
    start_timeout: float | None = None
    """Seconds that workers wait for each other in `init()`; None: the default."""
    discovery: Any = None
    """An object with `find_available_hosts_and_slots()`, for elastic jobs with `override_discovery=False`."""
    min_num_proc: int | None = None
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600.0
    cooldown_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_s", "placement_group_timeout_s", "elastic_timeout"):
            read_number(name, getattr(self, name), "seconds")
        if self.start_timeout is not None:
            read_number("start_timeout", self.start_timeout, "seconds")
        check_flag("elastic", self.elastic)
        if isinstance(self.nics, str):
            raise SpecError(f"nics={self.nics!r} is text", f"give a list of network interfaces: nics=[{self.nics!r}]")
        if self.nics is not None:
            self.nics = _read_names(self.nics)  # It is read by each worker.
        if self.discovery is not None and not hasattr(self.discovery, "find_available_hosts_and_slots"):
            raise SpecError(
                f"discovery={self.discovery!r:.80} cannot find hosts",
                "give an object with find_available_hosts_and_slots(), which returns slots by the names of hosts",
            )


def _read_names(given: Any) -> list[str]:
    names = list(given) if isinstance(given, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise SpecError(
            f"nics={given!r:.80} is not a list of network interfaces", "give their names, for example nics=['eth0']"
        )
    return names


def write_identity_file(path: str | None, text: str | None) -> None:
    """Write a private key where Horovod's users expect it, unless the file exists.

    Raises:
        SpecError: the path is not a path, or the key is not text.
    """
    check_path("ssh_identity_file", path)
    if text is not None and not isinstance(text, str):
        # It is a secret.
        raise SpecError(f"ssh_str is a {type(text).__name__}, not text", "give the private key, or omit it")
    if path and text and not os.path.exists(path):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
