"""A worker's messages to the user: on standard error, or by the logger `farandole`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

# Set by the agent (`control.agent.agent`): descriptor, device and inode of the pipe that is standard error at first.
STDERR_VARIABLE = "FARANDOLE_LAUNCHER_STDERR"

LOGGER = "farandole"


def launcher_stderr(environment: Mapping[str, str] = os.environ) -> int:
    """Return the file descriptor of the launcher's log, which is valid even if standard error is redirected; -1: none.

    A process may have inherited the variable without the descriptor, or may have opened another file with its number.
    """
    try:
        fd, device, inode = map(int, environment.get(STDERR_VARIABLE, "").split(":"))
        status = os.fstat(fd)
    except (ValueError, OSError):
        return -1
    return fd if (status.st_dev, status.st_ino) == (device, inode) else -1


def tell_user(level: str, text: str, rank: int = 0) -> None:
    """Print a message for the user, as the native core does, and log it to the logger `farandole` if `logging` is in
    use.

    Args:
        level: info, warning or error.
        text: one line.
        rank: the rank of the worker that logs it.
    """
    if not log_event(level, text, rank):
        print(f"farandole [rank {rank}] {level}: {text}", file=sys.stderr, flush=True)


def log_event(level: str, text: str, rank: int = 0) -> bool:
    """Log a message to the logger `farandole`; return whether it is shown, and need not be printed.

    It is shown if the program has added a handler to this logger, or if a handler above it writes to standard output or
    error. `logging` is not imported for this: a program that has not imported it has no handlers.
    """
    logging = sys.modules.get("logging")
    if logging is None:
        return False
    logger = logging.getLogger(LOGGER)
    null = logging.NullHandler
    if not any(type(handler) is null for handler in logger.handlers):
        logger.addHandler(null())  # Otherwise Python would print records without a handler.
    number = getattr(logging, level.upper())
    logger.log(number, text, extra={"rank": rank})
    own = any(type(handler) is not null for handler in logger.handlers)
    return own or (logger.isEnabledFor(number) and _is_shown(logger, number))


def _is_shown(logger: Any, level: int) -> bool:
    """Return whether a record of this level reaches a standard stream from this logger or from one above it."""
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    while logger is not None:
        for handler in logger.handlers:
            if level >= handler.level and getattr(handler, "stream", None) in streams:
                return True
        logger = logger.parent if logger.propagate else None
    return False


def log_as_json(level: str) -> None:
    """Write the records of the logger `farandole`, from this level on, as JSON objects to standard error, one a line.

    No-op if the program has added a handler to that logger.
    """
    import logging

    from farandole.worker.core.json_log import JsonFormatter

    logger = logging.getLogger(LOGGER)
    if any(type(handler) is not logging.NullHandler for handler in logger.handlers):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(level)
