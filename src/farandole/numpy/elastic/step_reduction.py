"""The reduction of a step's gradients, which counts as a whole and survives the loss of workers.

All gradients of a call are given to a reducer (`farandole.gradients`), which keeps this rank's own ones until the step
counts, and makes the reduction once more in the next world when its own has broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole.gradients.reduce_options import ReduceOptions
from farandole.gradients.reducer import Reducer
from farandole.numpy.elastic.array_gradients import ArrayEntry, ArrayGradients


class Reductions:
    """The reducers of the program: one for each list of gradients that are reduced together, in whatever session.

    Attributes:
        count: how many reductions have been made.
    """

    def __init__(self) -> None:
        self.count = 0
        self._reducers: dict[Any, tuple[Reducer, list[ArrayEntry]]] = {}

    def reduce(self, names: Sequence[str], gradients: Sequence[Any], options: ReduceOptions) -> list[Any]:
        """Return copies of the reduced gradients."""
        self.count += 1
        arrays = [np.asarray(gradient) for gradient in gradients]
        like = tuple((name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True))
        key = like, options.op, options.prescale, options.postscale, options.process_set.process_set_id
        if key not in self._reducers:
            self._reducers[key] = _reducer_of(names, arrays, options)
        reducer, entries = self._reducers[key]
        for entry, array in zip(entries, arrays, strict=True):
            entry.gradient = array
        reducer.finish()
        # A framework may take an array's memory for a tensor's; the next step writes to what is in the arena.
        return [entry.gradient.copy() for entry in entries]


def _reducer_of(
    names: Sequence[str], arrays: Sequence[Any], options: ReduceOptions
) -> tuple[Reducer, list[ArrayEntry]]:
    entries = [ArrayEntry(name, array) for name, array in zip(names, arrays, strict=True)]
    return Reducer(ArrayGradients(options), [[entry] for entry in entries], options, passes=1), entries
