"""The gradient reducer's adapter for gradients that are arrays, and are all computed at once: TensorFlow's and JAX's.

Their tensors cannot be written to, so a gradient is copied twice: into the arena, where it is kept until the step
counts, and out of it, when it is reduced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.numpy.arrays import Arrays
from farandole.worker.collectives.calls import reducible_dtype
from farandole.worker.core.dtype import DType
from farandole.worker.core.handle import Pending
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission
from farandole.worker.gradients.buckets import Layout
from farandole.worker.gradients.entry import Bundle, Entry
from farandole.worker.gradients.general_call import GeneralCall
from farandole.worker.gradients.gradient_front_end import GradientReceiver
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.requests import request_of
from farandole.worker.gradients.views import View

_arrays = Arrays()


class ArrayEntry(Entry):
    """The entry of one gradient.

    Attributes:
        gradient: this rank's own gradient, which is only read, or the reduced one.
        in_view: an array that is the entry's `view`; None without one.
        in_own_view: an array that is its `own_view`; None without one.
    """

    __slots__ = ("_layout", "gradient", "in_own_view", "in_view")

    def __init__(self, name: str, gradient: Any) -> None:
        super().__init__(name)
        self.gradient = gradient
        self.in_view: Any = None
        self.in_own_view: Any = None
        self._layout = Layout(reducible_dtype(_arrays, gradient), gradient.shape, gradient.nbytes)

    @property
    def trained(self) -> bool:
        return True

    @property
    def travels_sparse(self) -> bool:
        return False

    @property
    def dtype(self) -> DType:
        return self._layout.dtype

    def layout(self) -> Layout:
        return self._layout

    def wants_view(self) -> bool:
        return True

    def attach(self) -> None:
        assert self.view is not None
        gradient = self.gradient
        self.in_view = _array(self.view, gradient)
        self.in_own_view = None if self.own_view is None else _array(self.own_view, gradient)
        self.in_view[...] = gradient
        self.gradient = self.in_view

    def detach(self) -> None:
        self.in_view = self.in_own_view = None

    def put(self, share: float) -> bool:
        target = self.in_view if self.in_own_view is None else self.in_own_view
        _copy_weighted(self.gradient, share, target)
        self.gradient = self.in_view
        return True

    def scale(self, factor: float) -> None:
        target = self.in_view if self.in_own_view is None else self.in_own_view
        _copy_weighted(target, factor, target)

    def take_back(self) -> None:
        self.gradient = self.in_view

    def lies_in_view(self, gradient: Any) -> bool:
        return gradient is self.in_view

    def keep(self) -> None:
        self.kept = self.gradient.copy()

    def restore(self) -> None:
        self.gradient = self.kept

    def weight(self, share: float) -> None:
        if share != 1.0:
            weighted = np.empty_like(self.gradient)
            _copy_weighted(self.gradient, share, weighted)
            self.gradient = weighted

    def state_of(self, gradient: Any) -> Any:
        return gradient

    def adopt(self, state: Any) -> None:
        if self.in_view is None:
            self.gradient = state
        else:
            self.in_view[...] = state
            self.gradient = self.in_view


class ArrayGradients:
    """Implements `worker.gradients.gradient_front_end.GradientFrontEnd` for arrays of NumPy."""

    uses_views = True

    def __init__(self, options: ReduceOptions) -> None:
        """Create the adapter."""
        self._options = options

    def watch(self, entry: Entry, reducer: weakref.ref[GradientReceiver]) -> Callable[[], None]:
        """Do nothing: all gradients are ready when the reduction begins."""
        return lambda: None

    def at_end_of_backward(self, callback: Callable[[], None]) -> bool:
        return False

    def dense_call(self, session: Session, entries: Sequence[Entry]) -> GeneralCall:
        mine = [entry for entry in entries if isinstance(entry, ArrayEntry)]
        own = [np.ascontiguousarray(entry.gradient) for entry in mine]
        reduced = [np.empty_like(array) for array in own]
        requests = [
            request_of(
                f"allreduce.{entry.name}",
                entry.dtype,
                entry.layout().shape,
                array.ctypes.data,
                output.ctypes.data,
                self._options,
                session,
            )
            for entry, array, output in zip(mine, own, reduced, strict=True)
        ]

        def finish(_: Any, held: Any = (own, reduced)) -> Any:
            # `held` keeps the memory alive that the engine uses until now.
            return held[1]

        def store(results: Any) -> None:
            for entry, result in zip(mine, results, strict=True):
                entry.gradient = result.reshape(entry.layout().shape)

        return GeneralCall(Pending(session.engine, Submission(requests), finish), store)

    def sparse_call(self, session: Session, entry: Entry) -> GeneralCall:
        """Raise an error: gradients are made dense before they are reduced here."""
        raise InvalidRequestError(f"the gradient of {entry.name} is sparse; make it dense.")

    def forget_residuals(self) -> None:
        """Do nothing: there are no residuals."""

    def present(self, bundles: Sequence[Bundle]) -> list[tuple[Entry, Any]]:
        entries: Any = [entry for bundle in bundles for entry in bundle.entries]
        return [(entry, entry.gradient) for entry in entries]

    def versions(self, gradients: Sequence[tuple[Entry, Any]]) -> list[int]:
        """Return no versions: the program gets only copies."""
        return [0] * len(gradients)


def _array(view: View, like: Any) -> Any:
    """Return the memory of a view as an array of another one's type and shape. It keeps the memory alive."""
    if view.nbytes == 0:
        return np.empty_like(like)
    return np.frombuffer(view.buffer, like.dtype, like.size, view.offset).reshape(like.shape)


def _copy_weighted(gradient: Any, share: float, out: Any) -> None:
    """Copy a gradient, multiplied by `share`, to `out`; with a share of 0, it may have any value."""
    if share == 0.0:
        out[...] = 0
    elif share == 1.0:
        out[...] = gradient
    else:
        np.multiply(gradient, share, out=out, casting="unsafe")
