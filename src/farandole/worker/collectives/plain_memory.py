"""The smallest front end: memory of the process, without a framework, for data that is sent as bytes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

from farandole.worker.collectives.compression import NoneCompressor
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.dtype import SIZES, DType


class Block:
    """Memory with an element type and a shape.

    Attributes:
        dtype: the type of its elements.
        shape: the number of elements of each dimension.
        data: the memory.
    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: DType, shape: Sequence[int], data: bytearray | None = None) -> None:
        """Create a block of given memory, or of new memory, which is zero."""
        self.dtype = dtype
        self.shape = tuple(shape)
        self.data = bytearray(math.prod(self.shape) * SIZES[dtype]) if data is None else data

    @classmethod
    def of_bytes(cls, data: bytearray) -> Block:
        """Return a block with a copy of bytes."""
        return cls(DType.U8, (len(data),), data)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return len(self.data)


class PlainMemory(FrontEnd[Block]):
    """The front end of blocks, all of which the engine can use in place."""

    noun = "block"
    requirement = "any."
    no_compression = NoneCompressor

    def dtype(self, tensor: Block) -> DType:
        """Return the block's element type."""
        return tensor.dtype

    def type_name(self, tensor: Block) -> str:
        """Return the name of the block's element type."""
        return tensor.dtype.name

    def is_ready(self, tensor: Block) -> bool:
        """Return True."""
        return True

    def address(self, tensor: Block) -> int:
        """Return the address of the block's first byte. Code that uses the address must keep the block alive."""
        return ctypes.addressof((ctypes.c_char * tensor.nbytes).from_buffer(tensor.data))

    def stage(self, tensor: Block) -> Block:
        """Return the block itself."""
        return tensor

    def empty(self, like: Block, shape: Sequence[int]) -> Block:
        """Return a new block."""
        return Block(like.dtype, shape)

    def deliver(self, result: Block, like: Block) -> Block:
        """Return the block itself."""
        return result

    def assign(self, output: Block, result: Block) -> None:
        """Copy the content of a block of equal size."""
        output.data[:] = result.data

    def copy(self, tensor: Block) -> Block:
        """Return a copy."""
        return Block(tensor.dtype, tensor.shape, bytearray(tensor.data))

    def zeros(self, like: Block) -> Block:
        """Return a new block, which is zero."""
        return Block(DType.F32, (math.prod(like.shape),))

    def whole_numbers(self, numbers: Sequence[int], like: object) -> Block:
        """Return a block of int64."""
        return Block(DType.I64, (len(numbers),), bytearray((ctypes.c_int64 * len(numbers))(*numbers)))
