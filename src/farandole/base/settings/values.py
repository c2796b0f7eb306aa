"""Parsers of settings: from text to value. The error of each parser describes valid texts."""

from __future__ import annotations

import ipaddress
import math

from farandole.base.metrics.address import parse_metrics_address
from farandole.base.wire.address import parse_address

# Horovod's levels and farandole's, with the numbers of the C ABI.
LOG_LEVELS = {"trace": 1, "debug": 1, "info": 2, "warning": 3, "error": 4, "fatal": 4, "off": 5}
TRANSPORTS = ("auto", "shm", "tcp")
RESUMES = ("auto", "never")
BACKENDS = ("native", "mpi")
GPU_MODES = ("auto", "nccl", "staged")
LOG_FORMATS = ("text", "json")
# The engine and messages between workers have whole numbers of 64 bits, and the engine has some of 32.
MOST = (1 << 63) - 1
MOST_SMALL = (1 << 31) - 1
# About 30 years. The clocks of sockets and of the engine overflow at about ten times as much.
MOST_SECONDS = 1_000_000_000
# The sizes of an arena that the engine accepts: its first pages, and the address space of a process.
LEAST_ARENA = 2 * 4096
MOST_ARENA = 1 << 47


class TooLarge(ValueError):
    """A number is above the largest one that can be used; its text is `at most` that number."""


def text(value: str) -> str:
    """Return any text unchanged."""
    return value


def count(value: str) -> int:
    """Parse a whole number of at least 0 that fits into 63 bits."""
    number = int(value)
    if number < 0:
        raise ValueError("a number that is not negative")
    if number > MOST:
        raise TooLarge(f"at most {MOST}")
    return number


def arena_size(value: str) -> int:
    """Parse the size of an arena in bytes; 0 is the default."""
    number = count(value)
    if 0 < number < LEAST_ARENA:
        raise ValueError(f"at least {LEAST_ARENA}")
    if number > MOST_ARENA:
        raise TooLarge(f"at most {MOST_ARENA}")
    return number


def small_count(value: str) -> int:
    """Parse a whole number of at least 0 that fits into 31 bits."""
    number = count(value)
    if number > MOST_SMALL:
        raise TooLarge(f"at most {MOST_SMALL}")
    return number


def positive_count(value: str) -> int:
    """Parse a whole number above 0 that fits into 31 bits."""
    number = small_count(value)
    if number == 0:
        raise ValueError("a number above 0")
    return number


def any_seconds(value: str) -> float:
    """Parse a number of seconds, which may be negative."""
    number = float(value)
    if math.isnan(number):
        raise ValueError("a number of seconds")
    if abs(number) > MOST_SECONDS:
        raise TooLarge(f"at most {MOST_SECONDS}")
    return number


def seconds(value: str) -> float:
    """Parse a number of seconds of at least 0."""
    number = any_seconds(value)
    if number < 0:
        raise ValueError("a number of seconds that is not negative")
    return number


def positive_seconds(value: str) -> float:
    """Parse a number of seconds above 0."""
    number = any_seconds(value)
    if number <= 0:
        raise ValueError("a number of seconds above 0")
    return number


def switch(value: str) -> bool:
    """Parse a truth value: a word, or a number, which is true above 0, as in Horovod."""
    word = value.lower()
    if word in ("true", "yes", "on", "false", "no", "off"):
        return word in ("true", "yes", "on")
    return int(word) > 0


def cores(value: str) -> tuple[int, ...]:
    """Parse numbers of cores, separated by commas."""
    return tuple(count(core) for core in value.split(","))


def names(value: str) -> tuple[str, ...]:
    """Parse names, separated by commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def addresses(value: str) -> str:
    """Check IP addresses in numbers, separated by commas."""
    for address in filter(None, value.split(",")):
        ipaddress.ip_address(address)
    return value


def roster(value: str) -> str:
    """Check addresses, separated by commas, each with a port."""
    if any(parse_address(address)[1] == 0 for address in value.split(",")):
        raise ValueError("a port other than 0")
    return value


def metrics_address(value: str) -> str:
    """Check a port, or a host and a port."""
    parse_metrics_address(value)
    return value


def log_format(value: str) -> str:
    """Parse the format of log lines."""
    return _one_of(LOG_FORMATS, value)


def secret(value: str) -> bytes:
    """Parse hexadecimal digits."""
    return bytes.fromhex(value)


def log_level(value: str) -> int:
    """Parse the name of a log level, and return its number in the C ABI."""
    return LOG_LEVELS[value.lower()]


def transport(value: str) -> str:
    """Parse the name of a transport."""
    return _one_of(TRANSPORTS, value)


def backend(value: str) -> str:
    """Parse the name of a backend. Horovod's backends other than MPI are `native` here."""
    name = value.lower()
    return "native" if name in ("gloo", "ccl") else _one_of(BACKENDS, name)


def gpu_mode(value: str) -> str:
    """Parse how tensors of GPUs are reduced: `auto`, `nccl` or `staged`."""
    return _one_of(GPU_MODES, value.lower())


def resume(value: str) -> str:
    """Parse whether training resumes from a checkpoint: `auto` or `never`."""
    return _one_of(RESUMES, value)


def _one_of(choices: tuple[str, ...], value: str) -> str:
    if value.lower() not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return value.lower()
