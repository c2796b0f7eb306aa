"""Answers stall queries: where a worker is in its program while others wait for it."""

from __future__ import annotations

import threading

from farandole.errors import FarandoleError
from farandole.worker.core.engine import Engine
from farandole.worker.core.user_log import log_event
from farandole.worker.observe.code_location import code_location

# The wait ends at once when there is a query or when the world ends. The limit exists so that no wait is without an
# end.
WAIT_SECONDS = 3600.0


class StallRecord:
    """The number of stall queries to this worker, and its location at the latest one.

    Written by the thread that answers; a reader may see a new count with the previous location.
    """

    def __init__(self) -> None:
        self.count = 0
        self.where = ""

    def add(self, where: str) -> None:
        """Record another query."""
        self.where = where
        self.count += 1


def answer_stall_queries(engine: Engine, thread: threading.Thread, record: StallRecord) -> threading.Thread:
    """Start the thread that answers, in one line each time, until the engine's world ends.

    The wait is native and does not hold Python's lock. The answer needs that lock: if native code of the program holds
    it, there is no answer, and the other ranks are told so.

    Args:
        engine: the engine that receives the queries.
        thread: the thread that trains.
        record: a function that records each query.
    """
    observer = threading.Thread(target=_answer, args=(engine, thread, record), name="farandole-observer", daemon=True)
    observer.start()
    return observer


def _answer(engine: Engine, thread: threading.Thread, record: StallRecord) -> None:
    try:
        while True:
            query = engine.wait_stall_query(WAIT_SECONDS)
            if query is not None:
                alive = thread if thread.is_alive() else threading.main_thread()
                where = code_location(alive.ident)
                engine.answer_stall_query(query, where)
                record.add(where)
                log_event("warning", f"other ranks wait for this one, which is at {where}")
    except FarandoleError:
        pass  # The world has ended, or there is none: there are no more queries.
