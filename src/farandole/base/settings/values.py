"""From a setting's text to its value: what each parser takes it says in its error."""

from __future__ import annotations

import math

from farandole.base.metrics.address import parse_metrics_address
from farandole.base.wire.address import parse_address

# Horovod's levels and ours, as the numbers of the C ABI.
LOG_LEVELS = {"trace": 1, "debug": 1, "info": 2, "warning": 3, "error": 4, "fatal": 4, "off": 5}
TRANSPORTS = ("auto", "shm", "tcp")
RESUMES = ("auto", "never")
BACKENDS = ("native", "mpi")
LOG_FORMATS = ("text", "json")


def text(value: str) -> str:
    """Take any text."""
    return value


def count(value: str) -> int:
    """Read a whole number that is not negative."""
    number = int(value)
    if number < 0:
        raise ValueError("a number that is not negative")
    return number


def positive_count(value: str) -> int:
    """Read a whole number above 0."""
    number = int(value)
    if number <= 0:
        raise ValueError("a number above 0")
    return number


def seconds(value: str) -> float:
    """Read a finite number of seconds that is not negative."""
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError("a number of seconds that is not negative")
    return number


def positive_seconds(value: str) -> float:
    """Read a finite number of seconds above 0."""
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError("a number of seconds above 0")
    return number


def switch(value: str) -> bool:
    """Read a truth value: a word, or a number, of which those above 0 are true, as for Horovod."""
    word = value.lower()
    if word in ("true", "yes", "on", "false", "no", "off"):
        return word in ("true", "yes", "on")
    return int(word) > 0


def cores(value: str) -> tuple[int, ...]:
    """Read numbers of cores, separated by commas."""
    return tuple(count(core) for core in value.split(","))


def names(value: str) -> tuple[str, ...]:
    """Read names, separated by commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def roster(value: str) -> str:
    """Take addresses, separated by commas, each with a port."""
    if any(parse_address(address)[1] == 0 for address in value.split(",")):
        raise ValueError("a port that others can know")
    return value


def metrics_address(value: str) -> str:
    """Take a port, or a host and a port."""
    parse_metrics_address(value)
    return value


def log_format(value: str) -> str:
    """Read how lines of the log are written."""
    return _one_of(LOG_FORMATS, value)


def secret(value: str) -> bytes:
    """Read hexadecimal digits."""
    return bytes.fromhex(value)


def log_level(value: str) -> int:
    """Read a level's name as its number in the C ABI."""
    return LOG_LEVELS[value.lower()]


def transport(value: str) -> str:
    """Read the name of a transport."""
    return _one_of(TRANSPORTS, value)


def backend(value: str) -> str:
    """Read the name of a backend, or what Horovod calls its own: what is not MPI there is native here."""
    name = value.lower()
    return "native" if name in ("gloo", "ccl") else _one_of(BACKENDS, name)


def resume(value: str) -> str:
    """Read from where a training begins."""
    return _one_of(RESUMES, value)


def _one_of(choices: tuple[str, ...], value: str) -> str:
    if value.lower() not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return value.lower()
