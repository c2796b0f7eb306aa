"""The path and version of NVIDIA's library for collectives, found without importing a framework.

NCCL is not a dependency of this package: PyTorch's CUDA builds bring it as the package `nvidia-nccl-cu12` or
`nvidia-nccl-cu13`.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib import util
from pathlib import Path

NAME = "libnccl.so.2"
# Older ones lack what the backend needs.
OLDEST = 21900
# Loading it takes 20 ms; a slow disk may take much longer.
_SECONDS = 20.0

_ASK = """\
import ctypes, json, sys
asked, name = sys.argv[1:3]
try:
    library = ctypes.CDLL(asked or name)
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    used = [line.split()[-1] for line in open("/proc/self/maps") if "nccl" in line.rpartition("/")[2]]
    print(json.dumps({"version": number.value, "path": asked or (used or [name])[0]}))
except (OSError, AttributeError) as error:
    print(json.dumps({"error": str(error)}))
"""


def wheel_path(folders: Iterable[str] | None = None) -> str | None:
    """Return the path of the library that an installed package brings; None if there is no such package.

    Args:
        folders: the folders of the namespace package `nvidia`; None: those on the path of imports.
    """
    if folders is None:
        spec = util.find_spec("nvidia")
        folders = () if spec is None else spec.submodule_search_locations or ()
    for folder in map(Path, folders):
        # Packages of CUDA 13 share a folder `cu13`; so far, NCCL's is not among them.
        for found in (folder / "nccl" / "lib" / NAME, *sorted(folder.glob(f"cu[0-9]*/lib/{NAME}"), reverse=True)):
            if found.exists():
                return str(found)
    return None


def question(path: str) -> tuple[str, ...]:
    """Return the program that loads the library and prints its version and path, or an error, as JSON.

    Args:
        path: the library's path; "": the one that the loader finds.
    """
    return sys.executable, "-c", _ASK, path, NAME


def choose(asked: str = "") -> str:
    """Return the path of the library that this process should load.

    The whole process uses the library that is loaded first, which should be the framework's.

    Args:
        asked: the path that the user chose; "": none.

    Returns:
        "" for the library that is already loaded or, if none is, the one that the loader finds.
    """
    if asked or _loaded() is not None:
        return asked
    return wheel_path() or ""


@cache
def version(asked: str = "") -> int:
    """Return the version of the library that a worker would use, such as 23007 for NCCL 2.30.7; 0 if there is none.

    If this process has not loaded the library, a child process loads it, so that this one can still load the
    framework's.

    Args:
        asked: the path that the user chose; "": none.
    """
    library = None if asked else _loaded()
    if library is not None:
        number = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(number))
        return number.value
    try:
        done = subprocess.run(question(choose(asked)), stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
        return int(json.loads(done.stdout).get("version", 0))
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return 0


def _loaded() -> ctypes.CDLL | None:
    """Return the library if this process has loaded it."""
    try:
        return ctypes.CDLL(NAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def version_text(number: int) -> str:
    """Return a version number as text.

    Example:
        >>> version_text(23007), version_text(2708)
        ('2.30.7', '2.7.8')
    """
    # Up to 2.8, the numbers had a digit less.
    major, rest = divmod(number, 10000) if number >= 10000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
