"""This package as it is installed here: its folder, its version, and how child processes find it."""

from __future__ import annotations

import os
import sys
from functools import cache

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@cache
def own_version() -> str:
    """Return the version of the installed package; "0+not.installed" if it runs from a source tree."""
    # What is installed is written in the name of a folder. importlib.metadata, which knows more cases, takes as long to
    # load as all the rest of an agent.
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("farandole-") and name.endswith(".dist-info"):
                return name[len("farandole-") : -len(".dist-info")]
    from importlib import metadata

    try:
        return metadata.version("farandole")
    except metadata.PackageNotFoundError:
        return "0+not.installed"


def not_installed(module: str, error: ImportError, extra: str) -> ModuleNotFoundError:
    """Return the error of a module of ours that needs a package which is not installed.

    Args:
        module: the name of our module.
        error: the error of the import of the package.
        extra: what to install, in the brackets of `pip install 'farandole[...]'`.
    """
    package = (error.name or "").partition(".")[0]
    return ModuleNotFoundError(
        f"{module} needs {package}, which is not installed here. Run: pip install 'farandole[{extra}]'", name=package
    )


def own_environment() -> dict[str, str]:
    """Return an environment in which Python, started in any directory, imports this package from the same place."""
    listed = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(PACKAGE_FOLDER), *listed])}
