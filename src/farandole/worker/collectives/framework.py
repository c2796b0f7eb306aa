"""The part of a front end that declarations of collectives use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from farandole.worker.collectives.rows import Int32Only


class Framework(Protocol):
    """The interface of a framework for declarations; every `FrontEnd` implements it.

    Attributes:
        splits: the kind of tensor that alltoall's `splits` must be; None: any integers.
    """

    splits: Int32Only | None

    def type_name(self, tensor: Any) -> str:
        """Return the framework's name of the tensor's type, for messages."""

    def instead_of(self, tensor: Any) -> str:
        """Return a sentence on what a user can do with a tensor whose type cannot be reduced."""

    def whole_numbers(self, numbers: Sequence[int], like: Any) -> Any:
        """Return a 1-D tensor of int32, or int64 if that is too small, on the device of `like` if it is a tensor."""
