"""The questions that the declaration of a collective asks of a front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from farandole.worker.collectives.rows import Int32Only


class Framework(Protocol):
    """A framework, as far as declarations know it; every `FrontEnd` is one.

    Attributes:
        splits: the kind of tensor that alltoall's `splits` must be; None: any whole numbers will do.
    """

    splits: Int32Only | None

    def type_name(self, tensor: Any) -> str:
        """Return the framework's name of the tensor's type, for messages."""

    def instead_of(self, tensor: Any) -> str:
        """Return a sentence on what a user can do with a tensor whose type cannot be reduced."""

    def whole_numbers(self, numbers: Sequence[int], like: Any) -> Any:
        """Return a 1-D tensor of int32, or int64 if that is too small, on the device of `like` if it is a tensor."""
