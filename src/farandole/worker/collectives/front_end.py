"""A front end's description of its tensors; everything else about collectives is the same for all front ends.

A tensor that the engine can use in place, in host memory or on a GPU, is *ready*. Any other is *staged*: copied to a
ready tensor before the call, and the result is copied from there after it.
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
from farandole.worker.core.gpu_stream import GpuStream
from farandole.worker.core.handle import Call, Launched, Pending
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission

Tensor = TypeVar("Tensor")
Function = TypeVar("Function", bound=Callable[..., Any])


class FrontEnd(Dialect, ABC, Generic[Tensor]):
    """The adapter of one framework. Tensors have `shape`, `dtype` and `nbytes`; everything else is defined here.

    A front end without devices, gradients and a compiler defines only the abstract methods.

    Attributes:
        scope: the prefix of its calls' names, so that the same name in two front ends of a process does not clash.
            PyTorch's calls have the same names as in Horovod.
        converts: whether users may pass values other than tensors, which `accept` converts.
        splits: the kind of tensor that alltoall's `splits` must be; None: any integers.
        submits_in_order: whether requests are submitted in the order of the program's calls.
    """

    scope = ""
    submits_in_order = True
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
        """Return the framework's name of the tensor's type, for messages."""

    @abstractmethod
    def is_ready(self, tensor: Tensor) -> bool:
        """Return whether the engine can use the tensor in place, in host memory."""

    @abstractmethod
    def address(self, tensor: Tensor) -> int:
        """Return the address of a ready tensor's memory."""

    @abstractmethod
    def stage(self, tensor: Tensor) -> Tensor:
        """Return a ready tensor with the same content: the tensor itself if it is ready."""

    @abstractmethod
    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a ready tensor in host memory of this shape and of the type of `like`."""

    @abstractmethod
    def deliver(self, result: Tensor, like: Tensor) -> Tensor:
        """Return the result in a ready tensor as a tensor on the device of `like`: itself if it is already there."""

    @abstractmethod
    def assign(self, output: Tensor, result: Tensor) -> None:
        """Copy a ready tensor's content into a tensor."""

    @abstractmethod
    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy."""

    @abstractmethod
    def zeros(self, like: Tensor) -> Tensor:
        """Return float32 zeros, as many as `like` has elements, as a residual of `Feedback`."""

    @abstractmethod
    def whole_numbers(self, numbers: Sequence[int], like: Any) -> Tensor:
        """Return a 1-D tensor of int32, or int64 if that is too small, on the device of `like` if it is a tensor."""

    # --- what only some front ends have ----------------------------------------------------------------------------

    def address_if_like(self, tensor: Tensor, dtype: Any, shape: Any) -> int:
        """Return the address of a ready tensor of this `dtype` and `shape`, as the framework has them, else 0.

        It must be quick, and may return 0 for some tensors that would do; then the call takes longer. The engine may
        read and write the memory.
        """
        return 0

    is_traced: Callable[[], bool] | None = None
    """A function that returns whether the framework's compiler follows the call instead of making it; None: it never
    does.
    """

    def beside(self, tensor: Tensor, dtype: Any, shape: Any) -> tuple[int, Tensor, int] | None:
        """Return the addresses of a tensor and of a new one like it, with the new one between them.

        Returns:
            None where `address_if_like` returns 0.
        """
        address = self.address_if_like(tensor, dtype, shape)
        if not address:
            return None
        result = self.empty_like(tensor)
        return address, result, self.address(result)

    def stream_of(self, tensor: Tensor) -> GpuStream | None:
        """Return the stream in which the calling thread computes with a ready tensor; None: it is in host memory."""
        return None

    def empty_beside(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a ready tensor of this shape, in the memory and of the type of a ready tensor."""
        return self.empty(tensor, shape)

    def accept(self, given: Any, in_place: bool) -> Tensor:
        """Convert a user's argument to a tensor.

        Args:
            given: the value that the user passed.
            in_place: whether the result should overwrite it.

        Raises:
            ValueError: the argument cannot be converted to a tensor.
        """
        tensor: Tensor = given
        return tensor

    def spread(self, given: Any) -> tuple[Any, Callable[[Iterable[Tensor]], Any]]:
        """Return the argument of a grouped function, as `several` takes it, and a function that makes its result.

        A front end with structures of tensors returns a list of the tensors in the structure.
        """
        return given, list

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Return a ready tensor of the shape and type of a ready one."""
        return self.empty(tensor, tensor.shape)  # type: ignore[attr-defined]

    def empty_likes(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the result of `empty_like` for each of several tensors."""
        return [self.empty_like(tensor) for tensor in tensors]

    def check_together(self, tensors: Sequence[Tensor]) -> None:
        """Raise an error if tensors cannot be sent in one call."""

    def ready_dtype(self, tensor: Tensor) -> DType | None:
        """Return the element type of a ready tensor with which the engine calculates; None for any other tensor.

        See `dtype` and `is_ready`.
        """
        dtype = self.dtype(tensor) if self.is_ready(tensor) else None
        return dtype if isinstance(dtype, DType) else None

    def instead_of(self, tensor: Tensor) -> str:
        """Return a sentence on what a user can do with a tensor whose type cannot be reduced."""
        return "Convert it to a type such as float32 first."

    def note_write(self, tensor: Tensor) -> None:
        """Record that the engine has overwritten a tensor."""

    def note_writes(self, tensors: Sequence[Tensor]) -> None:
        """Do the same as `note_write`, for several tensors."""

    def call_of(
        self,
        session: Session,
        requests: Sequence[NativeRequest],
        ready: Sequence[Tensor],
        finish: Callable[[Sequence[int]], Any],
    ) -> Call:
        """Return a call of requests that are submitted together.

        Args:
            session: the session whose engine receives them.
            requests: the requests, whose inputs and outputs `finish` keeps alive.
            ready: the tensors that the requests read.
            finish: a function that makes the result from the native handles.
        """
        submission = Submission(requests)
        submitted_in = self._streams_of(ready)
        if not submitted_in:
            return Pending(session.engine, submission, finish)
        # If the result is used in another stream than the call was made in, that one waits, too: what comes next in it
        # may be given the memory of tensors of this call, to which the engine must have written by then.
        return Launched(session.engine, submission, finish, lambda: submitted_in | self._streams_of(ready))

    def _streams_of(self, ready: Sequence[Tensor]) -> set[GpuStream]:
        return {stream for tensor in ready if (stream := self.stream_of(tensor)) is not None}

    def outside_graphs(self, function: Function) -> Function:
        """Return the function, wrapped so that it causes a graph break in the framework's compiler."""
        return function

    def is_tracked(self, tensor: Tensor) -> bool:
        """Return whether gradients should flow through a tensor."""
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
        """Return a call that reduces tensors compressed by PowerSGD, as `compressed_call` describes."""
        raise InvalidRequestError(NO_POWERSGD)
