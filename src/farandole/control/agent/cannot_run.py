"""The message that replaces a traceback if this Python cannot run the agent. Older Pythons can run this file."""

import sys
from typing import NoReturn


def exit_with(error: Exception) -> NoReturn:
    """Print the error with the affected Python, in the form that `launcher.targets.ssh` parses, and exit."""
    version = ".".join(map(str, sys.version_info[:3]))
    kind = type(error).__name__
    sys.exit("farandole: Python {} at {} cannot run it: {}: {}".format(version, sys.executable, kind, error))  # noqa: UP032
