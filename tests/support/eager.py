"""Like `patient`, but elastic jobs read the file of hosts fifty times a second, so that hosts can change quickly."""

from __future__ import annotations

import sys
from typing import Any

import patient

from farandole.control.cli import main
from farandole.control.launcher.daemon import launch_request
from farandole.control.launcher.discovery.discovery import FileHosts
from farandole.control.launcher.supervise.outcome import JobOutcome

_SECONDS = 0.02


async def launch(*arguments: Any, **options: Any) -> JobOutcome:
    """Run a job, in its daemon."""
    FileHosts.seconds = _SECONDS
    return await patient.launch(*arguments, **options)


if __name__ == "__main__":
    launch_request.LaunchRequest.__init__.__defaults__ = (False, None, "eager:launch")  # type: ignore[misc]
    sys.exit(main.main())
