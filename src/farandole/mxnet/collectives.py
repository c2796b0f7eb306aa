"""The calls that carry out the collectives of MXNet's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from farandole.mxnet.arrays import Arrays
from farandole.mxnet.sent import Sent
from farandole.worker.collectives.arguments import several
from farandole.worker.collectives.compression import Feedback, NoneCompressor, Recipe
from farandole.worker.collectives.declaration import Collective, Form, Options
from farandole.worker.collectives.forms import Forms, Runner
from farandole.worker.core.group import ProcessSet

FRONT = Arrays()
_forms = Forms(FRONT)


def runner(collective: Collective, form: Form) -> Runner:
    """Return the function that carries out a form of a collective on MXNet arrays."""
    return _in_place_runner(collective, form) if form.in_place else _runner(collective, form)


def _in_place_runner(collective: Collective, form: Form) -> Runner:
    carry_out, function = _forms.runner(collective, form), form.function(collective.name)

    def run(given: Any, name: str | None, process_set: ProcessSet, options: Options, *, priority: int) -> Any:
        collective.settle(options)
        if form.grouped:
            given = several(function, given, FRONT.noun)
        sent: Any = [Sent(array, priority, in_place=True) for array in (given if form.grouped else [given])]
        carry_out(sent if form.grouped else sent[0], name, process_set, options)
        return given

    return run


def _runner(collective: Collective, form: Form) -> Runner:
    carry_out, function = _forms.runner(collective, form), form.function(collective.name)

    def run(
        given: Any,
        name: str | None,
        process_set: ProcessSet,
        options: Options,
        compression: Any = NoneCompressor,
        *,
        priority: int,
    ) -> Any:
        collective.settle(options)
        options = {option: _plain(value) for option, value in options.items()}
        arrays = several(function, given, FRONT.noun) if form.grouped else [given]
        if isinstance(compression, (Recipe, Feedback)):
            sent = [Sent(array, priority) for array in arrays]
            return _unsent(carry_out(sent if form.grouped else sent[0], name, process_set, options, compression))
        # The casts take and give arrays of MXNet.
        pairs = [compression.compress(array) for array in arrays]
        sent = [Sent(array, priority) for array, _ in pairs]
        results = _unsent(carry_out(sent if form.grouped else sent[0], name, process_set, options))
        if form.grouped:
            return [compression.decompress(array, context) for array, (_, context) in zip(results, pairs, strict=True)]
        return compression.decompress(results, pairs[0][1])

    return run


def _plain(value: Any) -> Any:
    """Convert an option that may be an array to a value that all front ends accept."""
    return value.asnumpy() if isinstance(value, mx.nd.NDArray) else value


def _unsent(result: Sent | Sequence[Sent]) -> Any:
    """Return the arrays of a result, which is one tensor, a pair or a list."""
    if isinstance(result, Sent):
        return result.array
    arrays = [each.array for each in result]
    return tuple(arrays) if isinstance(result, tuple) else arrays
