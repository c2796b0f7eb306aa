"""Tracebacks without this package's frames: users can change only their own code."""

from __future__ import annotations

import os
from types import TracebackType

from farandole.base.installed import PACKAGE_FOLDER

_PACKAGE = PACKAGE_FOLDER + os.sep


def hide_own_frames(error: BaseException) -> None:
    """Remove this package's frames from the tracebacks of an error and of its causes.

    A traceback that has no other frames is not changed.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _of_others(each.__traceback__) or each.__traceback__
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


def _of_others(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept
