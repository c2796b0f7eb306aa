"""Tracebacks that are shown to users."""

from __future__ import annotations

import traceback

import pytest

from farandole.control.launcher.job.host_list import parse_hosts
from farandole.worker.core.own_frames import hide_own_frames


def lines_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_the_inside_of_this_package_is_not_shown() -> None:
    def chained() -> None:
        try:
            parse_hosts("h1:two")
        except ValueError as error:
            raise RuntimeError("no hosts") from error

    with pytest.raises(RuntimeError) as caught:
        chained()
    assert "host_list.py" in lines_of(caught.value)
    hide_own_frames(caught.value)
    shown = lines_of(caught.value)
    assert "host_list.py" not in shown and "in chained" in shown
    assert "direct cause of the following exception" in shown and 'parse_hosts("h1:two")' in shown


def test_a_traceback_of_nothing_else_is_left() -> None:
    with pytest.raises(ValueError) as caught:
        parse_hosts("h1:two")
    trace = caught.value.__traceback__
    assert trace is not None
    error = caught.value.with_traceback(trace.tb_next)
    hide_own_frames(error)
    assert error.__traceback__ is trace.tb_next
