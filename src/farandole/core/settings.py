"""The one reader of the environment on a worker.

Every setting is one field of `Settings`. The field's name gives the variable (`fusion_threshold` is read from
`FARANDOLE_FUSION_THRESHOLD`); where Horovod has the same setting, its variable is read when ours is not set.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from farandole.errors import SettingError
from farandole.wire.address import parse_address

PREFIX = "FARANDOLE_"
# Horovod's levels and ours, as the numbers of the C ABI.
LOG_LEVELS = {"trace": 1, "debug": 1, "info": 2, "warning": 3, "error": 4, "fatal": 4, "off": 5}
TRANSPORTS = ("auto", "shm", "tcp")
RESUMES = ("auto", "never")
# How long a worker may say nothing, where the others go on without it, and where the job ends with it.
ELASTIC_SILENCE_SECONDS = 1.0
SILENCE_SECONDS = 5.0


def _text(value: str) -> str:
    return value


def _count(value: str) -> int:
    number = int(value)
    if number < 0:
        raise ValueError("a number that is not negative")
    return number


def _positive_count(value: str) -> int:
    number = int(value)
    if number <= 0:
        raise ValueError("a number above 0")
    return number


def _positive_seconds(value: str) -> float:
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError("a number of seconds above 0")
    return number


def _seconds(value: str) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError("a number of seconds that is not negative")
    return number


def _switch(value: str) -> bool:
    word = value.lower()
    if word in ("true", "yes", "on", "false", "no", "off"):
        return word in ("true", "yes", "on")
    # Any number above 0 is on, as for Horovod.
    return int(word) > 0


def _cores(value: str) -> tuple[int, ...]:
    return tuple(_count(core) for core in value.split(","))


def _names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _roster(value: str) -> str:
    if any(parse_address(address)[1] == 0 for address in value.split(",")):
        raise ValueError("a port that others can know")
    return value


def _secret(value: str) -> bytes:
    return bytes.fromhex(value)


def _log_level(value: str) -> int:
    return LOG_LEVELS[value.lower()]


def _transport(value: str) -> str:
    if value.lower() not in TRANSPORTS:
        raise ValueError
    return value.lower()


def _resume(value: str) -> str:
    if value.lower() not in RESUMES:
        raise ValueError
    return value.lower()


def _setting(default: Any, parse: Callable[[str], Any], expects: str, horovod: str | None = None) -> Any:
    return field(default=default, metadata={"parse": parse, "expects": expects, "horovod": horovod})


@dataclass(frozen=True)
class Settings:
    """What the environment of a worker says. `Settings()` is what an empty environment says."""

    roster: str | None = _setting(None, _roster, "host:port, with an IPv6 host in brackets; several with commas")
    """Address of the roster service; of several, separated by commas, the first that answers is taken. None: a world of
    one, without any network, unless somebody else's launcher has started this worker."""
    secret: bytes = field(
        default=b"", repr=False, metadata={"parse": _secret, "expects": "hexadecimal digits", "horovod": None}
    )
    """The job's secret, in hexadecimal; every connection proves it."""
    job: str = _setting("", _text, "the id that farandole run gave the job")
    """Set by our launcher, which serves the roster then. Without it, but with a roster and a size, rank 0 serves it."""
    job_key: str = _setting("", _text, "any text")
    """What tells this job from others of the same user, where what started it does not."""
    rank: int = _setting(0, _count, "a rank")
    """This worker's number, by which the roster knows it."""
    listen: str = _setting("", _text, "addresses, separated by commas")
    """Addresses that other hosts' workers may connect to. Empty is workers of this host only or, where somebody else's
    launcher has started them on several, all addresses of `network`."""
    network: tuple[str, ...] = _setting((), _names, "interfaces, addresses or networks, separated by commas")
    """Which of this machine's addresses workers use who find that out themselves; empty is all of them."""
    start_timeout: float = _setting(30.0, _positive_seconds, "a number of seconds above 0", "HOROVOD_START_TIMEOUT")
    """Seconds within which all workers must have met."""
    fusion_threshold: int | None = _setting(None, _count, "a number of bytes", "HOROVOD_FUSION_THRESHOLD")
    """Most bytes that are fused into one bucket; 0 fuses nothing, None is 128 MiB. Rank 0's value counts for all."""
    chunk_bytes: int | None = _setting(None, _count, "a number of bytes")
    """What the workers of a host together have on its way through shared memory at a time; None is 1 MiB.
    Rank 0's value counts for all, as for the next three; what is set is not tuned."""
    small_bytes: int | None = _setting(None, _count, "a number of bytes")
    """Up to this size, every worker of a host reduces everything instead of its slice; None is 16 KiB."""
    ring_bytes: int | None = _setting(None, _count, "a number of bytes")
    """Above this size, hosts send few bytes rather than few messages; None is 64 KiB."""
    link_chunk_bytes: int | None = _setting(None, _count, "a number of bytes")
    """The piece of a message that is pipelined between two hosts; None is 256 KiB."""
    autotune: bool = _setting(False, _switch, "0 or 1", "HOROVOD_AUTOTUNE")
    """Look for the fastest of the values above while training goes on, and keep them. Rank 0's setting counts."""
    autotune_log: str | None = _setting(None, _text, "a path", "HOROVOD_AUTOTUNE_LOG")
    """Table (CSV) into which rank 0 writes every sample that autotuning takes."""
    autotune_warmup_samples: int = _setting(3, _count, "a number of samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES")
    """Samples at the beginning whose speed does not count."""
    autotune_steps_per_sample: int = _setting(
        10, _positive_count, "a number of steps above 0", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"
    )
    """Steps that one sample is made of."""
    autotune_max_samples: int = _setting(
        40, _positive_count, "a number of samples above 0", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
    )
    """Samples that the search may take."""
    tuning: str | None = _setting(None, _text, "a path")
    """File with what autotuning found: used as it is or, with autotuning, verified and kept there. None: not used or,
    with autotuning, a file of this set of hosts in the user's cache."""
    transport: str = _setting("auto", _transport, "one of auto, shm, tcp")
    """How workers of one host are connected: shared memory where it works (auto), or one way only."""
    algorithm: str = _setting("auto", _text, "the name of an algorithm")
    """One collective algorithm for everything, for tests and measurements."""
    host_key: str = _setting("", _text, "any text")
    """Workers with different keys never share memory; empty: found by trying."""
    arena_bytes: int = _setting(0, _count, "a number of bytes")
    """Address space of the shared arena; 0 is 64 GiB."""
    staging_bytes: int = _setting(0, _count, "a number of bytes")
    """What the arena lends to tensors outside of it; 0 is 8 MiB."""
    elastic: bool = _setting(False, _switch, "0 or 1", "HOROVOD_ELASTIC")
    """Whether workers of this job come and go. Set by our launcher."""
    grace: float = _setting(30.0, _positive_seconds, "a number of seconds above 0")
    """Seconds that a worker of such a job takes at most to leave in good order after SIGTERM; then it ends."""
    roster_patience: float = _setting(600.0, _positive_seconds, "a number of seconds above 0")
    """Seconds for which a worker of such a job looks for its roster when that is lost. Meanwhile it trains on."""
    elastic_keep_gradients: bool = _setting(True, _switch, "0 or 1")
    """Whether a worker of such a job keeps its own gradients until the step counts, so that only collectives are done
    again when the world breaks. It costs the memory of the gradients; without it, the step is done again."""
    elastic_state_at_once: int = _setting(8 << 20, _count, "a number of bytes")
    """Up to this size the state goes to a newcomer while the others wait; what is larger, while they train."""
    failure_deadline: float | None = _setting(None, _positive_seconds, "a number of seconds above 0")
    """Seconds of silence after which a worker counts as lost; None: see `silence_seconds`."""
    spin_seconds: float = _setting(0.0, float, "a number of seconds")
    """How long a wait looks before it sleeps; 0 is the default of 20 microseconds, below 0 is not at all."""
    thread_affinity: tuple[int, ...] = _setting(
        (), _cores, "numbers of cores, separated by commas", "HOROVOD_THREAD_AFFINITY"
    )
    """Cores for the engine's threads, one for each local rank; workers without one run them wherever."""
    stall_warning_seconds: float = _setting(60.0, _seconds, "a number of seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS")
    """Seconds after which rank 0 warns that some ranks wait for others, and says which; 0 is never."""
    stall_shutdown_seconds: float = _setting(
        0.0, _seconds, "a number of seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
    )
    """Seconds of such waiting after which all requests fail on all ranks; 0 is never. May be below the warning's."""
    stall_check_disable: bool = _setting(False, _switch, "0 or 1", "HOROVOD_STALL_CHECK_DISABLE")
    """Neither warn of ranks that wait for others, nor end the world for it."""
    progress: float = _setting(0.0, _seconds, "a number of seconds")
    """Seconds between two reports to the launcher of how this worker gets on, for its status line; 0 is never."""
    timeline: str | None = _setting(None, _text, "a path, or DYNAMIC", "HOROVOD_TIMELINE")
    """File into which rank 0 writes what all ranks do, from `init()` on; DYNAMIC: once `start_timeline` says so."""
    timeline_mark_cycles: bool = _setting(False, _switch, "0 or 1", "HOROVOD_TIMELINE_MARK_CYCLES")
    """Also mark in it when a round of agreement has been heard of."""
    timeline_limit_mb: int = _setting(256, _count, "a number of megabytes")
    """Size at which that file is full, and recording ends."""
    checkpoint_seconds: float = _setting(600.0, _positive_seconds, "a number of seconds above 0")
    """Seconds between two checkpoints that are written there."""
    checkpoint_dir: str | None = _setting(None, _text, "a path")
    """Directory into which elastic training writes checkpoints; None: none are written."""
    resume: str = _setting("never", _resume, "one of auto, never")
    """Whether elastic training begins with the newest good checkpoint of that directory, if there is any (auto)."""
    log_level: int = _setting(0, _log_level, f"one of {', '.join(LOG_LEVELS)}", "HOROVOD_LOG_LEVEL")
    """What the native core writes to standard error; warning by default."""
    library: str | None = _setting(None, _text, "the path of libfarandole.so")
    """Where the native library is; None is the one that came with this package."""

    @property
    def silence_seconds(self) -> float:
        """How long a worker of this job may say nothing before it counts as lost.

        Where the others go on without it, what is lost by a mistake is little, and so is the patience. Where the whole
        job ends with it, healthy processes are given the time for which they are held up now and then: while a large
        one forks, while its machine is moved to another host, while the disk with its code does not answer.
        """
        if self.failure_deadline is not None:
            return self.failure_deadline
        return ELASTIC_SILENCE_SECONDS if self.elastic else SILENCE_SECONDS

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `environment` (by default this process's), at the moment of the call.

        An empty variable counts as not set.

        Raises:
            SettingError: a value cannot be used; the message names the variable and what it should be.

        Example:
            >>> Settings.from_environment({"HOROVOD_FUSION_THRESHOLD": "0"}).fusion_threshold
            0
        """
        environment = os.environ if environment is None else environment
        values = {}
        for setting in fields(cls):
            for variable in variables_of(setting):
                if environment.get(variable):
                    values[setting.name] = _parse(setting, variable, environment[variable])
                    break
        return cls(**values)


def variables_of(setting: Field[Any]) -> tuple[str, ...]:
    """Return the variables that a setting is read from, the first that is set wins."""
    horovod = setting.metadata["horovod"]
    ours = PREFIX + setting.name.upper()
    return (ours,) if horovod is None else (ours, horovod)


def _parse(setting: Field[Any], variable: str, text: str) -> Any:
    try:
        return setting.metadata["parse"](text)
    except (ValueError, KeyError):
        # The secret is the one value that must not get into a log.
        shown = "a value" if setting.name == "secret" else repr(text)
        default = "" if setting.default in (MISSING, None, "", b"") else f" (default: {setting.default})"
        raise SettingError(
            f"{variable} is {shown}, but should be {setting.metadata['expects']}{default}. Correct it or unset it."
        ) from None
