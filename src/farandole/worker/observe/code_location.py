"""The present location of a thread in its program, in one line for people."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from functools import cache
from types import FrameType

from farandole.base.installed import PACKAGE_FOLDER

_INSTALLED = ("/site-packages/", "/dist-packages/")
# An answer must come at once, so a deep recursion is not followed to its end.
_MOST_FRAMES = 1000


def code_location(thread: int | None = None) -> str:
    """Return the present line of a thread, such as `train.py:42 in load_batch: batch = next(loader)`.

    This is the innermost line of the user's program, and of a file if there is one: frameworks generate functions that
    have no file. If it has called a library other than this package, the library's line is added.

    Args:
        thread: the `ident` of the thread; the main thread by default. It should not be the calling one.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0 if thread is None else thread)
    if frame is None:
        return "its thread has ended"
    frames = list(_outwards(frame))
    of_program = [each for each in frames if not _is_library(each.f_code.co_filename)]
    in_files = (each for each in of_program if not each.f_code.co_filename.startswith("<"))
    own = next(in_files, next(iter(of_program), None))
    if own is None:
        return _describe(frames[0])
    inner = frames[0].f_code
    if own is frames[0] or inner.co_filename.startswith(("<", *_ours())):
        return _describe(own)
    return f"{_describe(own)} (now in {_short(inner.co_filename)}:{frames[0].f_lineno} in {inner.co_name})"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _describe(frame: FrameType) -> str:
    code = frame.f_code
    place = f"{_short(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
    line = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return f"{place}: {line}" if line else place


def _short(path: str) -> str:
    """Return a short form of a path: relative to the working directory, or to its package's folder."""
    for folder in (*_library_folders(), *_working_directory()):
        if path.startswith(folder + os.sep):
            return path[len(folder) + 1 :]
    for mark in _INSTALLED:
        path = path.rpartition(mark)[2]
    return path


def _working_directory() -> tuple[str, ...]:
    """Return the working directory; empty if it has been removed."""
    try:
        return (os.getcwd(),)
    except OSError:
        return ()


def _is_library(path: str) -> bool:
    return (
        path.startswith(("<frozen ", *(folder + os.sep for folder in _library_folders())))
        or any(mark in path for mark in _INSTALLED)
        or path.startswith(_ours())
    )


@cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of Python's own modules."""
    return tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


def _ours() -> tuple[str, ...]:
    """Return the folder of this package and, if it is in use, that of the package `horovod`."""
    horovod = getattr(sys.modules.get("horovod"), "__file__", None)
    packages = (PACKAGE_FOLDER, horovod and os.path.dirname(horovod))
    return tuple(package + os.sep for package in packages if package)
