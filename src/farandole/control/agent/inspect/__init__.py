"""Inspects one host in well under a second, without loading a framework or the native library.

`python -m farandole.control.agent.inspect` prints the facts as one JSON document; with `--import` every framework is
also imported, each in its own process. Each part fails separately: `Facts.unknown` lists what could not be determined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from farandole.control.agent.inspect import gpus, hardware, network, software, surroundings
from farandole.control.agent.inspect.facts import (
    Cache,
    Clock,
    Facts,
    Gpus,
    Kernel,
    Limits,
    Memory,
    Processor,
    Software,
    Surroundings,
    System,
)
from farandole.control.agent.inspect.view import HostView

_Part = TypeVar("_Part")


def inspect(view: HostView | None = None, *, try_import: bool = False) -> Facts:
    """Return the facts about this host.

    Args:
        view: the host to inspect; by default this one.
        try_import: also import every installed framework, which takes seconds.
    """
    view = HostView() if view is None else view
    _ask_ahead(view)

    def part(name: str, look: Callable[[HostView], _Part], otherwise: _Part) -> _Part:
        try:
            return look(view)
        # A file of an unusual machine may have any content; if one part cannot be read, the others are still worth
        # knowing.
        except Exception as error:
            view.unknown[name] = f"{type(error).__name__}: {error}"
            return otherwise

    return Facts(
        clock=part("clock", hardware.clock, Clock()),
        system=part("system", hardware.system, System()),
        processor=part("processor", hardware.processor, Processor()),
        memory=part("memory", hardware.memory, Memory()),
        cache=part("cache", hardware.cache, Cache()),
        limits=part("limits", surroundings.limits, Limits()),
        kernel=part("kernel", surroundings.kernel, Kernel()),
        network=part("network", network.interfaces, ()),
        rdma=part("rdma", network.rdma, ()),
        surroundings=part("surroundings", surroundings.surroundings, Surroundings()),
        gpus=part("gpus", gpus.gpus, Gpus()),
        programs=part("programs", software.programs, ()),
        software=part("software", software.software, Software()),
        frameworks=part("frameworks", lambda view: software.frameworks(view, try_import), ()),
        unknown=view.unknown,
    )


def _ask_ahead(view: HostView) -> None:
    """Start all programs whose output is needed, so that they run while files are read."""
    for question in (software.library_question(), *software.program_questions(view), *gpus.questions(view)):
        view.programs.start(*question)
