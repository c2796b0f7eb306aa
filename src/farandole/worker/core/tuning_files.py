"""Files that keep the results of autotuning for later jobs, one for each set of hosts, read and written by rank 0.

A file is used when the user asks for it: with `--autotune`, which starts with its values and compares them with the
defaults, or with `--tuning FILE`, which uses the values without a comparison.

In elastic jobs, the values found on a set of hosts are used only in worlds with an equal set; other worlds start with
the defaults.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farandole.base.installed import own_version
from farandole.base.settings.table import Settings
from farandole.base.wire.rendezvous import World
from farandole.errors import FarandoleError, SettingError
from farandole.worker.core.engine import Engine
from farandole.worker.core.user_log import tell_user


def use_kept(settings: Settings, world: World, engine: Engine) -> None:
    """Make the next world start with the values that an earlier job found, if this job should use them.

    Raises:
        SettingError: the file that the user named cannot be used, and there will be no other world.
    """
    if world.rank != 0:
        return  # Rank 0's values count for all.
    if settings.elastic:
        engine.keep({})  # The previous world may have started with the values of its hosts.
    path = file_for(settings, world)
    if path is None or (settings.autotune and not path.exists()):
        return
    try:
        if not settings.elastic or _is_for(path, world):
            engine.keep(read(path))
    except (SettingError, FarandoleError) as error:
        # An elastic job does not end because its new rank 0 is on a host without that file.
        if settings.tuning and not settings.elastic:
            raise SettingError(f"the results of autotuning cannot be used: {error}") from error
        tell_user("warning", f"{error} {'Autotuning starts anew.' if settings.autotune else 'The defaults are used.'}")


def _is_for(path: Path, world: World) -> bool:
    """Return whether a file's values were found on hosts with these numbers of workers; tell the user if they were not.

    Raises:
        SettingError: it cannot be read, or is not such a file.
    """
    found_on = _read(path).get("workers_by_host")
    if found_on == slots_of(world):
        return True
    tell_user(
        "info", f"the values in {path} were found with other workers on each host: {found_on}, not {slots_of(world)}"
    )
    return False


def file_for(settings: Settings, world: World) -> Path | None:
    """Return the file for the results of this world; None: they are neither used nor saved."""
    if settings.tuning:
        return Path(settings.tuning)
    if not settings.autotune:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "farandole" / "tuning" / f"{name_of(world, processor())}.json"


def name_of(world: World, cpu: str) -> str:
    """Return the name of a set of hosts: workers on each, processor, version of farandole.

    Example:
        >>> world = World(1, 0, 3, (), 0, 2, 0, 2, ("a", "a", "b"))
        >>> name_of(world, "Some CPU @ 2.0 GHz").partition("-v")[0]
        '2+1-some-cpu-2.0-ghz'
    """
    slots = "+".join(str(count) for count in slots_of(world))
    return f"{slots}-{re.sub(r'[^a-z0-9.]+', '-', cpu.lower()).strip('-')}-v{own_version()}"


def slots_of(world: World) -> list[int]:
    """Return the number of workers of each host."""
    return list(Counter(world.hostnames).values())


def processor() -> str:
    """Return the model of this machine's processor."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # No Linux, or a closed /proc.
    return os.uname().machine


def read(path: Path) -> dict[str, int]:
    """Return the knobs in a file.

    Raises:
        SettingError: it cannot be read, or is not such a file.
    """
    return dict(_read(path)["knobs"])


def _read(path: Path) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        if not all(isinstance(value, int) and value >= 0 for value in kept["knobs"].values()):
            raise ValueError("a knob is not a number")
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}. Autotuning writes this file.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingError(f"{path} is not a valid file of autotuning. Remove it, and tune again.") from error
    return kept


def write(path: Path, world: World, knobs: Mapping[str, int], gain: float) -> None:
    """Write knobs to a file, atomically, so that no other job reads an incomplete one.

    Raises:
        OSError: it cannot be written.
    """
    kept: dict[str, Any] = {
        "farandole": own_version(),
        "workers_by_host": slots_of(world),
        "processor": processor(),
        "gain": round(gain, 3),
        "knobs": dict(knobs),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(kept, indent=2) + "\n")
    unfinished.replace(path)
