"""`horovod.runner.util.threads`: functions in threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls a function.

    Args:
        target: the function.
        args: its arguments, as a tuple.
        name: the thread's name.
        daemon: whether the process may end before the thread.
        silent: whether an exception ends the thread without a word.

    Raises:
        ValueError: `args` is not a tuple.
    """
    _check_tuple(args)

    def call() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Start a thread that calls a function once an event is set.

    Args:
        event: the event to wait for.
        func: the function.
        args: its arguments, as a tuple.
        stop: gives up waiting when it is set.
        check_stop_interval_s: seconds between looks at `stop`.
        daemon: whether the process may end before the thread; if not, there must be a `stop`.
        silent: whether an exception ends the thread without a word.

    Raises:
        ValueError: there is no event, `args` is not a tuple, or nothing could end the thread.
    """
    if event is None:
        raise ValueError("Event must not be None")
    _check_tuple(args)
    if stop is None and not daemon:
        raise ValueError("Stop event must be given for non-daemon event thread")

    def wait_and_call() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait_and_call, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call a function with each of several argument lists, in threads.

    Args:
        fn: the function.
        args_list: the arguments of each call.
        block_until_all_done: whether to wait for the results.
        max_concurrent_executions: most threads.

    Returns:
        The results by the position of their arguments; a call that raised has none. None if they are not waited for.
    """
    work: queue.SimpleQueue[tuple[int, Sequence[Any]]] = queue.SimpleQueue()
    for job in enumerate(args_list):
        work.put(job)
    results: dict[int, Any] = {}

    def run() -> None:
        while True:
            try:
                index, args = work.get_nowait()
            except queue.Empty:
                return
            results[index] = fn(*args)

    threads = [in_thread(run) for _ in range(min(max_concurrent_executions, len(args_list)))]
    if not block_until_all_done:
        return None
    for thread in threads:
        thread.join()
    return results


def _check_tuple(args: object) -> None:
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args)}, for a single argument use (arg,)")
