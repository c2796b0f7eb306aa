"""Answers the question what this worker is doing, when others wait for it."""

from __future__ import annotations

import threading

from farandole.core.engine import Engine
from farandole.errors import FarandoleError
from farandole.observe.whereabouts import whereabouts

# Only so that nobody has to reason about a wait without an end: questions and the end of the world come at once.
WAIT_SECONDS = 3600.0


def answer_questions(engine: Engine, thread: threading.Thread) -> threading.Thread:
    """Start the thread that answers, in one line each time, until the engine's world ends.

    The wait is native and without Python's lock. The answer needs that lock: when the program holds it in native code,
    none comes, and the other ranks are told so.

    Args:
        engine: gets the questions.
        thread: the one that trains.
    """
    observer = threading.Thread(target=_answer, args=(engine, thread), name="farandole-observer", daemon=True)
    observer.start()
    return observer


def _answer(engine: Engine, thread: threading.Thread) -> None:
    try:
        while True:
            question = engine.wait_question(WAIT_SECONDS)
            if question is not None:
                engine.answer(question, whereabouts((thread if thread.is_alive() else threading.main_thread()).ident))
    except FarandoleError:
        pass  # The world has ended, or there is none: nobody asks any more.
