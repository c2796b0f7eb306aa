"""`patient`, whose elastic jobs read the file of hosts fifty times a second: hosts may come and go as fast."""

from __future__ import annotations

import sys
from typing import Any

import patient

from farandole.cli import main
from farandole.launcher.discovery.discovery import FileHosts
from farandole.launcher.keeper import errand
from farandole.launcher.supervise.fixed import Outcome

_SECONDS = 0.02


async def launch(*arguments: Any, **options: Any) -> Outcome:
    """Run a job, in its keeper."""
    FileHosts.seconds = _SECONDS
    return await patient.launch(*arguments, **options)


if __name__ == "__main__":
    errand.Errand.__init__.__defaults__ = (False, None, "eager:launch")  # type: ignore[misc]
    sys.exit(main.main())
