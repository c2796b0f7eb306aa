"""A front end's description of its tensors; all else about collectives is the same for all front ends.

The engine reads and writes host memory only. A tensor that the engine can use where it is is *ready*; another one is
*staged*: copied to a host tensor before the call, and the result copied from there after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.compression import NO_POWERSGD, Feedback, PowerSGD
from farandole.worker.collectives.dialect import Dialect
from farandole.worker.collectives.differentiation import DifferentiableCall
from farandole.worker.collectives.rows import Int32Only
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import DType, ElementType
from farandole.worker.core.handle import Call, Pending
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission

Tensor = TypeVar("Tensor")
Function = TypeVar("Function", bound=Callable[..., Any])


class FrontEnd(Dialect, ABC, Generic[Tensor]):
    """The adapter of one framework. Tensors have `shape`, `dtype` and `nbytes`; all else is asked for here.

    A front end that has neither devices nor gradients nor a compiler answers the abstract methods only.

    Attributes:
        scope: begins the names of its calls, so that one name in two front ends of a process is two names. Torch's
            calls have the names that they have in Horovod.
        converts: whether users may pass something else than tensors, which `accept` makes tensors of.
        splits: of alltoall: which tensors must be of int32; None: any whole numbers will do.
    """

    scope = ""
    converts = False
    splits: Int32Only | None = None

    # --- a tensor and its memory ---------------------------------------------------------------------------------

    @abstractmethod
    def dtype(self, tensor: Tensor) -> ElementType:
        """Return the tensor's element type for the engine.

        Raises:
            ValueError: the tensor cannot be sent.
        """

    @abstractmethod
    def type_name(self, tensor: Tensor) -> str:
        """Return what the framework calls the tensor's type, for messages."""

    @abstractmethod
    def is_ready(self, tensor: Tensor) -> bool:
        """Return whether the engine can read and write the tensor where it is."""

    @abstractmethod
    def address(self, tensor: Tensor) -> int:
        """Return where the memory of a ready tensor begins."""

    @abstractmethod
    def stage(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """Return a ready tensor of the same content, and the event after which it has it (None: it has it now).

        The tensor itself, if it is ready.
        """

    @abstractmethod
    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a ready tensor of this shape and of the type of `like`."""

    @abstractmethod
    def deliver(self, host: Tensor, like: Tensor) -> Tensor:
        """Return a result that is in a host tensor as a new tensor where `like` is, or the host tensor itself."""

    @abstractmethod
    def assign(self, output: Tensor, host: Tensor) -> None:
        """Copy a host tensor's content into a tensor."""

    @abstractmethod
    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy."""

    @abstractmethod
    def zeros(self, like: Tensor) -> Tensor:
        """Return ready float32 zeros, as many as `like` has elements: a residual. See `Feedback`."""

    @abstractmethod
    def whole_numbers(self, numbers: Sequence[int], like: Any) -> Tensor:
        """Return a 1-D tensor of int32, or int64 if that is too small, on the device of `like` if it is a tensor."""

    # --- what not every front end has ------------------------------------------------------------------------------

    def accept(self, given: Any, in_place: bool) -> Tensor:
        """Return the tensor that a user's argument stands for.

        Args:
            given: the value that the user passed.
            in_place: whether the result is to be written over it.

        Raises:
            ValueError: it stands for none.
        """
        tensor: Tensor = given
        return tensor

    def spread(self, given: Any) -> tuple[Iterable[Any], Callable[[Iterable[Tensor]], Any]]:
        """Return the tensors that a user gave to a grouped function, and what makes the function's result of theirs."""
        return given, list

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Return a ready tensor of the shape and type of a ready one."""
        return self.empty(tensor, tensor.shape)  # type: ignore[attr-defined]

    def empty_likes(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what `empty_like` returns for each of several tensors."""
        return [self.empty_like(tensor) for tensor in tensors]

    def check_together(self, tensors: Sequence[Tensor]) -> None:
        """Raise an error if tensors cannot travel in one call."""

    def ready_dtype(self, tensor: Tensor) -> DType | None:
        """Return the element type of a ready tensor with which the engine calculates; None for any other tensor.

        See `dtype` and `is_ready`.
        """
        dtype = self.dtype(tensor) if self.is_ready(tensor) else None
        return dtype if isinstance(dtype, DType) else None

    def instead_of(self, tensor: Tensor) -> str:
        """Return what a user can do with a tensor whose type cannot be reduced, in a sentence."""
        return "Convert it to a type such as float32 first."

    def note_write(self, tensor: Tensor) -> None:
        """As `note_writes`, for one tensor."""
        self.note_writes((tensor,))

    def note_writes(self, tensors: Sequence[Tensor]) -> None:
        """Record that the engine has written over tensors."""

    def call_of(
        self,
        session: Session,
        requests: Sequence[NativeRequest],
        events: Sequence[Any],
        finish: Callable[[Sequence[int]], Any],
    ) -> Call:
        """Return a call of requests that are submitted together, as soon as all events have happened.

        Args:
            session: the session whose engine receives the tensor.
            requests: their inputs and outputs are held by `finish`.
            events: the device events that the inputs wait for, from `stage`.
            finish: makes the result from the native handles.
        """
        return Pending(session.engine, Submission(requests), finish)

    def outside_graphs(self, function: Function) -> Function:
        """Return the function in such a way that the framework's compiler leaves its graph for it."""
        return function

    def is_tracked(self, tensor: Tensor) -> bool:
        """Return whether gradients are to flow through a tensor."""
        return False

    def differentiate(self, call: DifferentiableCall, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run a call so that gradients flow through it, and return its outputs."""
        raise NotImplementedError

    def powersgd_call(
        self,
        session: Session,
        recipe: PowerSGD,
        memory: Feedback | None,
        tensors: Sequence[Tensor],
        outputs: Sequence[Tensor | None],
        names: Sequence[str],
        options: dict[str, Any],
        group: int,
    ) -> Call:
        """Return a call that reduces tensors, compressed by PowerSGD. See `compressed_call`."""
        raise InvalidRequestError(NO_POWERSGD)
