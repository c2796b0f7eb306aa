"""Compressions: changes to a tensor before it is sent, which are undone afterwards.

There are two kinds. A `Compressor` makes a smaller tensor, which is reduced like any other; users may write their own.
A `Recipe` is a part of the reduction, because the sent data cannot simply be summed. The reduction of a recipe is in
`farandole.worker.collectives.compressed`; docs/how-to/compression.md describes them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

from farandole.errors import InvalidRequestError
from farandole.worker.core.dtype import WireForm


class Compressor:
    """The interface of a compression; a subclass is accepted wherever `compression=` is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor as it was before `compress`, except for precision."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself."""
        return tensor


class Recipe:
    """A lossy compression of sums and averages that is a part of the reduction."""

    def with_feedback(self) -> Feedback:
        """Return this compression with a memory: the part that it does not send is added to the next tensor of the same
        name.

        `DistributedOptimizer` does this itself.

        Example:
            >>> memory = hvd.Compression.int8.with_feedback()
            >>> for gradient in gradients:
            ...     total = hvd.allreduce(gradient, name="gradient", compression=memory)
        """
        return Feedback(self)


class Feedback:
    """A recipe and its memory, which belongs to one optimizer or loop.

    Attributes:
        recipe: the compression.
        states: the state that is kept for each tensor, by its full name.
        open: the calls whose second round has not begun yet (PowerSGD).
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.states: dict[str, Any] = {}
        self.open: deque[Any] = deque()

    def with_feedback(self) -> Feedback:
        """Return itself."""
        return self

    def forget(self) -> None:
        """Discard all unsent data. Call this only when no call is in flight."""
        self.states.clear()
        self.open.clear()


@dataclass(frozen=True)
class Int8(Recipe):
    """Sends one byte for each element, and a scale for each 256 elements: about a quarter of float32."""

    form: ClassVar[WireForm] = WireForm.INT8
    ratio: ClassVar[float] = 0.0


@dataclass(frozen=True)
class TopK(Recipe):
    """Sends only the elements of largest magnitude, as pairs of index and value.

    Attributes:
        ratio: the fraction of each tensor's elements that is sent, rounded up.
    """

    ratio: float = 0.01
    form: ClassVar[WireForm] = WireForm.TOPK

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise InvalidRequestError(
                f"the ratio of elements to send must be above 0 and at most 1, not {self.ratio!r}."
            )


@dataclass(frozen=True)
class PowerSGD(Recipe):
    """Sends matrices as the product of two thin ones, and tensors of fewer than two dimensions unchanged.

    Attributes:
        rank: the number of columns of the thin matrices.
    """

    rank: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise InvalidRequestError(f"the rank of PowerSGD must be a whole number above 0, not {self.rank!r}.")


def is_compression(value: Any) -> bool:
    """Return whether a value can be passed as `compression=`."""
    return hasattr(value, "compress") or isinstance(value, (Recipe, Feedback))


def check_compression(value: Any) -> None:
    """Refuse what is not a compression. A rank that is alone would never use it, and not notice.

    Raises:
        InvalidRequestError: it is not.
    """
    if not is_compression(value):
        raise InvalidRequestError(
            f"compression must be one of hvd.Compression, such as hvd.Compression.fp16, not {value!r:.80}."
        )


NO_POWERSGD = (
    "PowerSGD is for farandole.torch only: what all ranks compute from the sums has to have the same bits on every "
    "processor, which the products of other frameworks do not promise. Use Compression.int8 or Compression.topk(...)."
)


class WithoutPowerSGD(type):
    """The metaclass of a `Compression` without PowerSGD, which raises an error if it is used."""

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(NO_POWERSGD if name == "powersgd" else f"{cls.__name__} has no {name!r}")
