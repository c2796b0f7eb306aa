"""`python -m tests.kubernetes.node OPTIONS`: a node, until SIGTERM or the end of the process that has started it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from tests.kubernetes.node.kubelet import Kubelet, NodeOptions


async def main() -> None:
    """Be the node that the options, as JSON, describe."""
    given = json.loads(sys.argv[1])
    options = NodeOptions(**{**given, "folder": Path(given["folder"])})
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await Kubelet(options).run(lambda: print("ready", flush=True))


if __name__ == "__main__":
    asyncio.run(main())
