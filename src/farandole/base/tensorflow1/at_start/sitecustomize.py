"""Run by Python at its start, before the user's script: installs the hook, then runs the next `sitecustomize`."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _install() -> None:
    try:
        from farandole.base.tensorflow1 import hook, is_asked_for
    except ImportError:
        return  # A Python without farandole, such as another program's that the script starts.
    if is_asked_for():
        hook.install()


def _run_the_next_one() -> None:
    """Run the `sitecustomize` of the machine or the user, which this one hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    if (spec := PathFinder.find_spec("sitecustomize", sys.path)) is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_install()
_run_the_next_one()
