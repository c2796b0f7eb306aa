"""Collectives on values: Python's numbers, NumPy's arrays, and tensors of Keras' backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.errors import FarandoleError
from farandole.keras import backends, sessions
from farandole.worker.collectives.compression import NoneCompressor
from farandole.worker.collectives.declaration import Collective, Form, Options, Parameter
from farandole.worker.collectives.dialect import Dialect
from farandole.worker.collectives.forms import Runner
from farandole.worker.core.group import ProcessSet


class KerasDialect(Dialect):
    """The dialect of Keras' functions."""

    framework = "keras"
    noun = "value"
    argument = "value"
    requirement = (
        "a number, an array or a tensor; the result is a tensor. With Keras 2 in a session of TensorFlow 1, the result "
        "is an array or a number, unless the value is a tensor."
    )
    has_grouped = False
    has_in_place = False
    has_later = False
    no_compression = None
    further = (
        Parameter(
            "compression",
            "Any",
            None,
            "the compression of the {tensor}, such as `Compression.fp16`; None: it is sent as it is.",
        ),
    )


def runner(collective: Collective, form: Form) -> Runner:
    """Return the function that carries out a collective in the backend that Keras uses."""

    def run(value: Any, name: str | None, process_set: ProcessSet, options: Options, compression: Any = None) -> Any:
        collective.settle(options)
        keys = {each.name: each.option or each.name for each in collective.parameters}
        how = {"name": name, **{argument: options[key] for argument, key in keys.items() if key in options}}
        if "compression" in keys:
            how["compression"] = NoneCompressor if compression is None else compression
        return _with_value(value, lambda given: backends.chosen().call(collective.name, given, how))

    return run


def _with_value(value: Any, collective: Callable[[Any], Any]) -> Any:
    """Return the result of a collective for a value: in a session of Keras 2, a number or an array, not an op."""
    if not sessions.is_on() or sessions.is_in_graph(value):
        return collective(value)
    return sessions.evaluated(lambda: collective(value))


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of the backend's; None if it did not come from a collective.

    Example:
        >>> translate(ValueError("something else")) is None
        True
    """
    return backends.chosen().translate(error)
