"""The program of a worker in a test's world: it runs the calls that the test sends, one after another."""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
from functools import partial
from multiprocessing.connection import Client, Connection
from typing import Any, NamedTuple

from farandole.control.launcher.call import traceback_of
from farandole.errors import HorovodInternalError


class Answer(NamedTuple):
    """The outcome of a call in one worker."""

    payload: bytes
    """(True, result) or (False, exception), pickled."""
    traceback: str = ""
    """The text of the exception, if the function raised one."""
    is_consequence: bool = False
    """Whether the exception is a consequence of another worker's failure."""


def serve(address: str) -> None:
    """Connect to the test, and run its calls until it closes the connection."""
    with Client(address, "AF_UNIX") as connection:
        connection.send(int(os.environ["FARANDOLE_RANK"]))
        while True:
            try:
                call, seconds = connection.recv()
            except EOFError:
                return
            _answer(connection, call, seconds)


def _answer(connection: Connection, call: bytes, seconds: float) -> None:
    from farandole.base import portable

    faulthandler.dump_traceback_later(seconds)
    try:
        function, args, kwargs = pickle.loads(call)
        answer = Answer(portable.dump_result(function(*args, **kwargs)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest.fail and pytest.skip raise errors that are not Exceptions.
        _register_outcomes()
        answer = Answer(portable.dump_exception(error), traceback_of(error), isinstance(error, HorovodInternalError))
    finally:
        faulthandler.cancel_dump_traceback_later()
    connection.send(answer)


def _register_outcomes() -> None:
    """Pickle pytest's exceptions for skipped and failed tests by their names.

    They pretend to be Python's own, so that cloudpickle would send a copy of their class, which is another one.
    """
    from farandole.base import portable

    if "pytest" in sys.modules:
        import pytest

        for name in ("skip", "fail"):
            portable.register(getattr(pytest, name).Exception, partial(_outcome_by_name, name))


def _outcome_by_name(name: str, outcome: Any) -> Any:
    return (_outcome, (name, outcome.msg)) if type(outcome).__module__ == "builtins" else None


def _outcome(name: str, message: str) -> BaseException:
    import pytest

    made: BaseException = getattr(pytest, name).Exception(message)
    return made
