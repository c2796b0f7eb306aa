"""`python -m tests.kubernetes [NODES]`: a cluster to play with; a shell in which `kubectl` works. `exit` ends it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.kubernetes import binaries
from tests.kubernetes.cluster import Cluster


def main() -> None:
    """Open a cluster, and a shell or the command after `--`."""
    words = sys.argv[1:]
    given, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    reason = binaries.why_not()
    if reason is not None:
        sys.exit(f"error: {reason}")
    with Cluster(int(given[0]) if given else 3) as cluster:
        environment = {**os.environ, "KUBECONFIG": str(cluster.control.kubeconfig)}
        sys.exit(subprocess.call(command or [os.environ.get("SHELL", "sh")], env=environment))


if __name__ == "__main__":
    main()
