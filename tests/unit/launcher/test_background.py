"""Errors of background tasks, which nothing awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farandole.control.launcher.background import Background, errors_are_told


def told(cause: Callable[[Background], object]) -> list[str]:
    """Return the lines for people that an error in the background leads to."""
    lines: list[str] = []

    async def work() -> None:
        background = Background()
        with errors_are_told(lines.append):
            cause(background)
            for _ in range(5):
                await asyncio.sleep(0)
            await background.end()

    asyncio.run(work())
    return lines


async def fail() -> None:
    raise KeyError("h7")


async def wait() -> None:
    await asyncio.Event().wait()


def test_error_of_a_task_is_told_with_its_place_and_what_to_do() -> None:
    (line,) = told(lambda background: background.spawn(fail()))
    assert line.startswith("error: part of the launcher has failed: KeyError: 'h7'\n")
    assert "in fail" in line
    assert "\nhint: " in line


def test_error_of_a_callback_is_told() -> None:
    (line,) = told(lambda _: asyncio.get_running_loop().call_soon(lambda: [][0]))
    assert line.startswith("error: part of the launcher has failed: IndexError")


def test_task_that_is_cancelled_at_the_end_of_the_job_is_no_error() -> None:
    assert told(lambda background: background.spawn(wait())) == []
