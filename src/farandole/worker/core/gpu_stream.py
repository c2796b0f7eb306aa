"""The stream of a GPU in which a tensor is computed."""

from __future__ import annotations

from typing import NamedTuple


class GpuStream(NamedTuple):
    """A stream of a GPU, as the driver knows it.

    Attributes:
        device: the number of the GPU in this process, from 0.
        address: the `CUstream`, of the GPU's primary context; 0 is its default stream.
    """

    device: int
    address: int
