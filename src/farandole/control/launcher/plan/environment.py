"""The environment variables of workers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from farandole.base.metrics.address import parse_metrics_address
from farandole.base.tensorflow1 import START_FOLDER, is_asked_for
from farandole.base.wire.address import format_address
from farandole.control.agent.worker_cleanup import WORKER_VARIABLE
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.worker_settings import settings_environment
from farandole.control.launcher.plan.model import LOOPBACK, UNKNOWN, Identity, Site, all_local
from farandole.control.roster.events import Place
from farandole.errors import SettingError, SpecError

# Horovod's numbers under farandole's names, Horovod's own, and torch.distributed's.
PLACE_PREFIXES = ("FARANDOLE_", "HOROVOD_")


def common_environment(
    spec: LaunchSpec, directory: str, identity: Identity, sites: Mapping[str, Site]
) -> dict[str, str]:
    """Return the variables that every worker gets in addition to those it inherits."""
    variables = {
        "FARANDOLE_JOB": identity.job,
        "FARANDOLE_SECRET": identity.secret,
    }
    variables |= settings_environment({"start_timeout": spec.start_timeout, **spec.settings}, directory)
    if "FARANDOLE_METRICS" in variables:
        # The user's port belongs to the launcher, which tells each worker where to serve its own metrics.
        variables["FARANDOLE_METRICS"] = str(parse_metrics_address(variables["FARANDOLE_METRICS"]).with_port(0))
    carrier = "mpi" if spec.settings.get("backend") == "mpi" else "gloo"
    master, _, port = _master(spec, identity, sites).rpartition(":")
    variables |= {
        "HOROVOD_CONTROLLER": carrier,
        "HOROVOD_CPU_OPERATIONS": carrier,
        "MASTER_ADDR": master.strip("[]"),
        "MASTER_PORT": port,
        "PYTHONUNBUFFERED": "1",
    }
    return variables


def with_python_path(environment: dict[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the workers' variables, with a PYTHONPATH if their scripts are for TensorFlow 1.

    Args:
        environment: the variables that every worker gets.
        inherited: the variables that workers inherit.

    Raises:
        SpecError: the variable that asks for it is not valid.
    """
    both = {**inherited, **environment}
    try:
        if not is_asked_for(both):
            return environment
    except SettingError as error:
        raise SpecError(str(error), "farandole config shows where the value comes from") from None
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [START_FOLDER, both.get("PYTHONPATH")]))}


def _master(spec: LaunchSpec, identity: Identity, sites: Mapping[str, Site]) -> str:
    host = LOOPBACK if all_local(sites) else UNKNOWN
    return spec.master or identity.master or f"{host}:{UNKNOWN}"


def master_address(site: Site, port: int) -> str:
    """Return the host:port on rank 0's host at which scripts that also use torch.distributed can rendezvous."""
    first = next((addresses[0] for _, addresses in site.networks if addresses), LOOPBACK)
    return format_address(first, port)


# Variables that describe a machine or a login, and are wrong or dangerous on another.
_BOUND_TO_ONE_HOST = re.compile(
    r"HOME|USER|LOGNAME|SHELL|SHLVL|PWD|OLDPWD|_|HOST|HOSTNAME|HOSTTYPE|MACHTYPE|OSTYPE|MAIL|TERM|TERM_.*|COLORTERM"
    r"|TMPDIR|TMP|TEMP|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|XDG_.*|DBUS_.*|SSH_.*|GPG_.*|SUDO_.*|WINDOWID|LS_COLORS"
    r"|STY|TMUX.*|VTE_.*|BASH_FUNC_.*"
)


def inherited_elsewhere(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that workers on other machines inherit: all except those that only concern this machine."""
    return {name: value for name, value in environment.items() if not _BOUND_TO_ONE_HOST.fullmatch(name)}


def place_variables(rank: int, size: int, place: Place) -> dict[str, str]:
    """Return the variables for a worker's place, under the names of farandole, Horovod and torch.distributed."""
    numbers = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
        "CROSS_RANK": place.cross_rank,
        "CROSS_SIZE": place.cross_size,
        "HOSTNAME": place.hostname,
    }
    variables = {f"{prefix}{name}": str(value) for prefix in PLACE_PREFIXES for name, value in numbers.items()}
    return {
        **variables,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }


def place_of(worker: int, slot: int, size: int) -> dict[str, str]:
    """Return the variables for a worker's place, as far as they are known before its first world."""
    # A newcomer's number may exceed the size: scripts that read it only use it to distinguish workers.
    place = {"RANK": worker, "SIZE": max(size, worker + 1), "LOCAL_RANK": slot}
    variables = {f"{prefix}{name}": str(value) for prefix in PLACE_PREFIXES for name, value in place.items()}
    return {
        **variables,
        "RANK": str(worker),
        "WORLD_SIZE": variables["FARANDOLE_SIZE"],
        "LOCAL_RANK": str(slot),
        WORKER_VARIABLE: str(worker),
        "FARANDOLE_ELASTIC": "1",
        "HOROVOD_ELASTIC": "1",
        # Progress decides whether failed workers are worth another start.
        "FARANDOLE_PROGRESS": "1",
    }
