"""Horovod's name for farandole. There is nothing here but the name: see `farandole.compat`."""

from typing import Any

from farandole.compat import aliases

# Three numbers, as scripts expect them, and above the last of Horovod's own, 0.28.1.
__version__ = "0.29.0"

aliases.install()


def __getattr__(name: str) -> Any:
    return aliases.attribute(name)
