"""`farandole`, whose line about a new world always tells how the lost workers ended.

The launcher waits half a second for the agents' reports; on a busy machine this may be too short, and then the line has
the other workers' observations.
"""

from __future__ import annotations

import sys
from typing import Any

from farandole.control.cli import main
from farandole.control.launcher.daemon import launch_request
from farandole.control.launcher.start import launch as start
from farandole.control.launcher.supervise import messages
from farandole.control.launcher.supervise.outcome import JobOutcome

_SECONDS = 20.0


async def launch(*arguments: Any, **options: Any) -> JobOutcome:
    """Run a job, in its daemon."""
    messages.ENDS_SECONDS = _SECONDS
    return await start.launch(*arguments, **options)


if __name__ == "__main__":
    launch_request.LaunchRequest.__init__.__defaults__ = (False, None, "patient:launch")  # type: ignore[misc]
    sys.exit(main.main())
