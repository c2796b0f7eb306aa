"""Python processes that this one starts, and what they need to import farandole from the same place."""

from __future__ import annotations

import os

import farandole


def own_environment() -> dict[str, str]:
    """Return an environment in which any directory will do to import what is imported here."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(farandole.__file__)))
    listed = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, *listed])}
