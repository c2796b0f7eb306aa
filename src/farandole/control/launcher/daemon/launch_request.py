"""The request of a client to its daemon to run a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farandole.control.launcher.daemon.client_protocol import Looks, Show
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.terminal import Look, look_of, terminal_size

if TYPE_CHECKING:
    from farandole.control.launcher.output.console import Console
    from farandole.control.launcher.supervise.outcome import Observer

OUT, ERR = 1, 2


@dataclass(frozen=True)
class LaunchRequest:
    """One job to run."""

    spec: LaunchSpec
    machine: Machine
    """This machine as the client sees it: with its working directory and its environment."""
    verbose: bool = False
    observe: Callable[[Console], Observer] | None = None
    """Returns the observer that is notified of failures at once; a function or class that can be imported."""
    launch: str = "farandole.control.launcher.start.launch:launch"
    """The name of the function that runs the job: with a name, a client need not import the function's module."""


def show_here(color: str, *, again: bool = False) -> Show:
    """Return the message with which a daemon shows a job on this process's standard output and error."""
    looks = [look_of(descriptor, color, os.environ) for descriptor in (OUT, ERR)]
    out, err = (Looks(look.colors, look.terminal is not None) for look in looks)
    return Show(out, err, again)


def look_behind(descriptor: int, looks: Looks) -> Look:
    """Return the look of a stream that a client has sent."""
    if not looks.terminal:
        return Look(looks.colors)
    return Look(looks.colors, os.fstat(descriptor).st_rdev, lambda: terminal_size(descriptor))
