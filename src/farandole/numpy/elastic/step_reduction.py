"""The reduction of a step's gradients, which counts as a whole and survives the loss of workers.

A reducer (`worker.gradients`) gets all gradients of a call. It keeps this rank's own ones until the step counts, and
repeats the reduction in the next world if its own breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.numpy.elastic.array_gradients import ArrayEntry, ArrayGradients
from farandole.worker.core.dtype import Average
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.reducer import Reducer


class Reductions:
    """The reducers of the program: one for each list of gradients that are reduced together, in all sessions.

    Attributes:
        count: the number of reductions so far.
        squares: while gradients are measured, the squared norms of this rank's own and of the reduced ones since they
            were set to 0; None: they are not measured.
    """

    def __init__(self) -> None:
        self.count = 0
        self.squares: tuple[float, float] | None = None
        self._reducers: dict[Any, tuple[Reducer, list[ArrayEntry]]] = {}

    def reduce(self, names: Sequence[str], gradients: Sequence[Any], options: ReduceOptions) -> list[Any]:
        """Return copies of the reduced gradients.

        Raises:
            InvalidRequestError: the gradients are measured, and `op` is not Average.
        """
        self.count += 1
        arrays = [np.asarray(gradient) for gradient in gradients]
        if self.squares is not None:
            _check_averaged(options)
        like = tuple((name, array.dtype, array.shape) for name, array in zip(names, arrays, strict=True))
        key = like, options.op, options.prescale, options.postscale, options.process_set.process_set_id
        if key not in self._reducers:
            self._reducers[key] = _reducer_of(names, arrays, options)
        reducer, entries = self._reducers[key]
        for entry, array in zip(entries, arrays, strict=True):
            entry.gradient = array
        reducer.finish()
        # A framework may take an array's memory for a tensor's; the next step writes to what is in the arena.
        reduced = [entry.gradient.copy() for entry in entries]
        if self.squares is not None:
            own, whole = self.squares
            self.squares = own + sum(map(_square, arrays)), whole + sum(map(_square, reduced))
        return reduced


class OnePass:
    """Measures gradients that are all computed at once: see `farandole.worker.elastic.batch_adaptation.GradientPasses`.

    The body of a loop takes its optimizer's step itself, so a step cannot have several passes.

    Args:
        reductions: the reductions of all gradients.
    """

    can_split = False

    def __init__(self, reductions: Reductions) -> None:
        self._reductions = reductions

    def split(self, data: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Return the data as a whole: there is one pass."""
        return [data]

    def begin(self, number: int, sizes: Sequence[int], *, measures: bool) -> None:
        self._reductions.squares = (0.0, 0.0) if measures else None

    def squares(self) -> tuple[float, float, float]:
        own, whole = self._reductions.squares or (0.0, 0.0)
        self._reductions.squares = None
        return own, own, whole


def _square(array: Any) -> float:
    flat = array.reshape(-1)
    if flat.dtype not in (np.float32, np.float64):
        flat = flat.astype(np.float32)
    return float(np.dot(flat, flat))


def _check_averaged(options: ReduceOptions) -> None:
    if options.op != Average or options.prescale != 1.0 or options.postscale != 1.0:
        raise InvalidRequestError(
            "AdaptiveBatch needs the average of all workers' gradients: reduce them with op=hvd.Average, which is the "
            "default, and without factors."
        )


def _reducer_of(
    names: Sequence[str], arrays: Sequence[Any], options: ReduceOptions
) -> tuple[Reducer, list[ArrayEntry]]:
    entries = [ArrayEntry(name, array) for name, array in zip(names, arrays, strict=True)]
    return Reducer(ArrayGradients(options), [[entry] for entry in entries], options, passes=1), entries
