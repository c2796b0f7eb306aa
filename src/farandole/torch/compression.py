"""What is done to a tensor before it travels, and undone after.

There are two sorts. A `Compressor` makes a smaller tensor, which is reduced as any other; users write their own. A
`Recipe` is a part of the reduction: what the ranks send cannot simply be added up. The reduction of a recipe is in
`farandole.torch.collectives.compressed`; what each does is in docs/compression.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from farandole.core.dtype import WireForm
from farandole.errors import InvalidRequestError


class Compressor:
    """The interface of a compression; a subclass is accepted wherever `compression=` is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what travels, and what `decompress` will need."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor as it was before `compress`, but for precision."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor


class _CastCompressor(Compressor):
    """Floating-point tensors travel in a smaller type; others as they are."""

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor in the smaller type, and the type it had."""
        return (tensor.to(cls.wire_dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in the type it had."""
        return tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Floating-point tensors travel as float16: 11 bits of precision, at most 65504.

    Sums are added up in float32, so an average of what fits does fit. A value or a sum beyond 65504 arrives as
    infinity, which a gradient scaler sees; where nothing looks for it, take `bf16`.
    """

    wire_dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Floating-point tensors travel as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = torch.bfloat16


class Recipe:
    """A compression of sums and averages that is a part of the reduction, and loses some of what it is given."""

    def with_feedback(self) -> Feedback:
        """Return this compression with a memory: what it does not send, it adds to the next tensor of the same name.

        `DistributedOptimizer` does this by itself.

        Example:
            >>> memory = Compression.int8.with_feedback()
            >>> for gradient in gradients:  # doctest: +SKIP
            ...     hvd.allreduce(gradient, name="gradient", compression=memory)
        """
        return Feedback(self)


class Feedback:
    """A recipe and its memory, which belongs to one user: an optimizer, or a loop.

    Attributes:
        recipe: what is done.
        states: what is remembered of each tensor, by its full name.
        open: calls that have begun and need a push to go on.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.states: dict[str, Any] = {}
        self.open: deque[Any] = deque()

    def with_feedback(self) -> Feedback:
        """Return itself."""
        return self

    def forget(self) -> None:
        """Forget all that was not sent. Call it where no call is in flight."""
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
            raise InvalidRequestError(f"the ratio of elements to send is above 0 and at most 1, not {self.ratio!r}.")


@dataclass(frozen=True)
class PowerSGD(Recipe):
    """Matrices travel as the product of two thin ones; what has fewer than two dimensions travels as it is.

    Attributes:
        rank: how many columns the thin ones have.
    """

    rank: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise InvalidRequestError(f"the rank of PowerSGD is a whole number above 0, not {self.rank!r}.")


class Compression:
    """The compressions that come with farandole."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8()
    topk = TopK
    powersgd = PowerSGD
