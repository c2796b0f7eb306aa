"""What a client asks its daemon to run."""

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
    """As the client sees it: with its folder and its environment."""
    verbose: bool = False
    observe: Callable[[Console], Observer] | None = None
    """Returns the observer that is told of failures at once; a function or class that can be imported."""
    launch: str = "farandole.control.launcher.start.launch:launch"
    """What runs the job. A name instead of the function, so that a client need not import all of it."""


def show_here(color: str, *, again: bool = False) -> Show:
    """Return what lets a daemon show a job on this process's standard output and error, as they look now."""
    looks = [look_of(descriptor, color, os.environ) for descriptor in (OUT, ERR)]
    out, err = (Looks(look.colors, look.terminal is not None) for look in looks)
    return Show(out, err, again)


def look_behind(descriptor: int, looks: Looks) -> Look:
    """Return how a stream is to look that a client has handed over."""
    if not looks.terminal:
        return Look(looks.colors)
    return Look(looks.colors, os.fstat(descriptor).st_rdev, lambda: terminal_size(descriptor))
