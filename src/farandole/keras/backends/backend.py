"""The part of the optimizer wrapper that depends on the backend of Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from farandole.errors import FarandoleError
from farandole.worker.gradients.wrapper_options import WrapperOptions


class KerasBackend:
    """A backend in which calls need no special treatment, as for PyTorch and JAX.

    It is a `farandole.worker.gradients.wrapper_gradients.Backend` for optimizers.

    Attributes:
        compression: the compressions for its tensors.
    """

    def __init__(self, hvd: ModuleType) -> None:
        """Use a module of farandole for the backend."""
        self._hvd = hvd
        self.compression: Any = hvd.Compression

    # --- what differs ------------------------------------------------------------------------------------------------

    def tensor(self, value: Any) -> Any:
        """Convert a number, an array or a variable to a tensor."""
        raise NotImplementedError

    def translate(self, error: BaseException) -> FarandoleError | None:
        """Return farandole's error for one of the backend's; None if it is not from a collective."""
        return None

    def check_scope(self) -> None:
        """Raise InvalidRequestError in a context in which the backend itself reduces gradients."""

    def as_it_is(self, function: Any) -> Any:
        """Return a function that the backend does not rewrite within the user's functions."""
        return function

    def no_gradients(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is recorded for a backward pass."""
        return nullcontext()

    def dense(self, gradient: Any) -> Any:
        """Return a gradient as a dense tensor."""
        return gradient

    # --- what users call -----------------------------------------------------------------------------------------

    def call(self, function: str, value: Any, how: Mapping[str, Any]) -> Any:
        """Call a collective on a value, with these named arguments."""
        return getattr(self._hvd, function)(self.tensor(value), **how)

    # --- for optimizers ------------------------------------------------------------------------------------------

    def reduce(
        self,
        gradients: Sequence[Any],
        names: Sequence[str],
        bundles: list[list[int]] | None,
        *,
        op: int,
        options: WrapperOptions,
        scales: tuple[float, float],
    ) -> list[Any]:
        """Return the reduced gradients."""
        given = [self.dense(gradient) for gradient in gradients]
        results: list[Any] = [None] * len(given)
        for bundle in [list(range(len(given)))] if bundles is None else bundles:
            for kind in dict.fromkeys(given[index].dtype for index in bundle):
                same_type = [index for index in bundle if given[index].dtype == kind]
                with self.no_gradients():
                    reduced = self._hvd.grouped_allreduce(
                        [given[index] for index in same_type],
                        compression=options.compression,
                        op=op,
                        prescale_factor=scales[0],
                        postscale_factor=scales[1],
                        process_set=options.process_set,
                        name=f"{names[same_type[0]]}-{len(same_type)}",
                    )
                for index, result in zip(same_type, reduced, strict=True):
                    results[index] = result
        return results

    def scaled(self, gradient: Any, factor: Any) -> Any:
        """Return a gradient times a factor."""
        return gradient * factor

    def divided_by_ranks(self, gradient: Any, options: WrapperOptions) -> Any:
        """Return a gradient divided by the number of ranks that reduce."""
        return gradient / len(options.process_set.ranks)

    def stand_in(self, variable: Any) -> Any:
        """Return an empty tensor of a variable's type."""
        raise NotImplementedError

    def after(self, gradient: Any, results: Sequence[Any]) -> Any:
        """Return the gradient: this backend omits no calls."""
        return gradient

    def run_anyway(self, results: Sequence[Any]) -> None:
        """Do nothing: this backend omits no calls."""
