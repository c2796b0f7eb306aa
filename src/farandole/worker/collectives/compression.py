"""Compressions: changes to a tensor before it travels, which are undone after.

There are two sorts. A `Compressor` makes a smaller tensor, which is reduced as any other; users write their own. A
`Recipe` is a part of the reduction: what the ranks send cannot simply be added up. The reduction of a recipe is in
`farandole.worker.collectives.compressed`; what each does is in docs/how-to/compression.md.
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
    """Tensors travel as they are."""

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
        """Return this compression with a memory: what it does not send, it adds to the next tensor of the same name.

        `DistributedOptimizer` does this by itself.

        Example:
            >>> memory = hvd.Compression.int8.with_feedback()
            >>> for gradient in gradients:
            ...     total = hvd.allreduce(gradient, name="gradient", compression=memory)
        """
        return Feedback(self)


class Feedback:
    """A recipe and its memory, which belongs to one user: an optimizer, or a loop.

    Attributes:
        recipe: the steps of the compression.
        states: the remembered state of each tensor, by its full name.
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
        """Discard all that was not sent. Call it only when no call is in flight."""
        self.states.clear()
        self.open.clear()


@dataclass(frozen=True)
class Int8(Recipe):
    """Elements travel as one byte each, with a scale for each 256: about a quarter of float32."""

    form: ClassVar[WireForm] = WireForm.INT8
    ratio: ClassVar[float] = 0.0


@dataclass(frozen=True)
class TopK(Recipe):
    """Only the elements of largest magnitude travel, as pairs of place and value.

    Attributes:
        ratio: the part of each tensor's elements that is sent, rounded up.
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
    """Matrices travel as the product of two thin ones; what has fewer than two dimensions travels as it is.

    Attributes:
        rank: the number of columns of the thin matrices.
    """

    rank: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise InvalidRequestError(f"the rank of PowerSGD must be a whole number above 0, not {self.rank!r}.")


NO_POWERSGD = (
    "PowerSGD is for farandole.torch only: what all ranks compute from the sums has to have the same bits on every "
    "processor, which the products of other frameworks do not promise. Use Compression.int8 or Compression.topk(...)."
)


class WithoutPowerSGD(type):
    """The type of a `Compression` that lacks PowerSGD, and says so where it is asked for."""

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(NO_POWERSGD if name == "powersgd" else f"{cls.__name__} has no {name!r}")
