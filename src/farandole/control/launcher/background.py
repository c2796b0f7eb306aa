"""Background tasks, which run until they are done or their owner ends them; errors of what nothing awaits."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class Background:
    """Tasks that are not awaited, and must not outlive their owner, such as a job or a daemon."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. An error of it goes to the loop's exception handler at once."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # Asyncio itself would report it only when nothing refers to the task any more.
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "a background task failed", "exception": error})

    async def end(self) -> None:
        """Cancel the remaining tasks, and return when they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def errors_are_told(say_once: Callable[[str], None]) -> Iterator[None]:
    """Tell the user about errors of tasks and callbacks that nothing awaits; they are bugs of the launcher.

    Asyncio writes them to the standard error of the process, which is a log file if this is a job daemon.

    Args:
        say_once: prints a text for people, unless it has been printed before.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
        else:
            say_once(_text_of(error))

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


def _text_of(error: BaseException) -> str:
    (what, *_) = traceback.format_exception_only(error)
    return (
        f"error: part of the launcher has failed: {what}{''.join(traceback.format_exception(error))}"
        "hint: this is a bug in farandole: report it with these lines. If the job does not go on or does not end, "
        "Ctrl-C, or farandole stop, ends it"
    )
