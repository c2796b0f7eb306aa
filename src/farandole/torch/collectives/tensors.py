"""PyTorch's tensors, in the form that the engine uses. It uses tensors in host memory and in CUDA's memory in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from farandole.errors import HorovodInternalError, InvalidRequestError
from farandole.torch.collectives.autograd import differentiate
from farandole.torch.collectives.powersgd import powersgd_call
from farandole.torch.no_compile import no_compile
from farandole.worker.collectives.compression import Feedback, NoneCompressor, PowerSGD
from farandole.worker.collectives.declaration import Options
from farandole.worker.collectives.differentiation import DifferentiableCall
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.collectives.rows import Int32Only
from farandole.worker.core.dtype import DType, ElementType, OpaqueType
from farandole.worker.core.gpu_stream import GpuStream
from farandole.worker.core.handle import Call
from farandole.worker.core.session import Session

DTYPES = {
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.bool: DType.BOOL,
}

# Functions for the current stream of a GPU, by the type of PyTorch's device, for devices that CUDA's driver knows
# under the same number. A build for ROCm also calls its devices "cuda", but they have another driver.
RAW_STREAMS: dict[str, Callable[[int], int]] = {}
if torch.version.cuda is not None:
    RAW_STREAMS["cuda"] = torch._C._cuda_getCurrentRawStream


def current_stream(device: torch.device) -> Any:
    """Return the current stream of a GPU, as PyTorch's object."""
    return getattr(torch, device.type).current_stream(device)


def gpu_stream(device: torch.device) -> GpuStream:
    """Return the current stream of a GPU, in the engine's form."""
    return GpuStream(device.index, RAW_STREAMS[device.type](device.index))


_STRIDED = torch.strided
_PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
_increment_version = torch.autograd.graph.increment_version

Function = TypeVar("Function", bound=Callable[..., Any])


class Tensors(FrontEnd[torch.Tensor]):
    """The front end of PyTorch."""

    noun = "tensor"
    requirement = "contiguous; of the same element type on all ranks."
    has_gradients = True
    converts = True
    no_compression = NoneCompressor
    splits = Int32Only(torch.Tensor, torch.int32, "splits.to(torch.int32)")

    # --- a tensor and its memory ---------------------------------------------------------------------------------

    def accept(self, given: Any, in_place: bool) -> torch.Tensor:
        """Return the tensor.

        Raises:
            ValueError: the argument is not a tensor: only the user knows which type its elements should have.
        """
        if isinstance(given, torch.Tensor):
            return given
        raise InvalidRequestError(
            f"farandole.torch takes tensors of PyTorch, but got {type(given).__name__}. Pass torch.tensor(value)."
        )

    def dtype(self, tensor: torch.Tensor) -> ElementType:
        """Return the tensor's element type for the engine.

        Raises:
            ValueError: the tensor cannot be sent as it is.
        """
        if tensor.layout is not _STRIDED:
            raise InvalidRequestError(f"Tensor type {tensor.type()} is not supported. Pass tensor.to_dense().")
        if not tensor.is_contiguous():
            raise InvalidRequestError("Tensor is required to be contiguous. Pass tensor.contiguous().")
        dtype = DTYPES.get(tensor.dtype)
        return _opaque_type(tensor) if dtype is None else dtype

    def type_name(self, tensor: torch.Tensor) -> str:
        """Return PyTorch's name of the tensor's type."""
        return tensor.type()

    def is_ready(self, tensor: torch.Tensor) -> bool:
        """Return whether the engine can use the tensor in place."""
        return tensor.is_cpu and tensor.layout is _STRIDED and tensor.is_contiguous() and not _is_lazy(tensor)

    def ready_dtype(self, tensor: torch.Tensor) -> DType | None:
        """Return the element type of a tensor in host memory; `dtype` refuses tensors that are not contiguous."""
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None or not tensor.is_cpu or tensor.is_neg():
            return None
        self.dtype(tensor)
        return dtype

    def address_if_like(self, tensor: torch.Tensor, dtype: Any, shape: Any) -> int:
        """Return the address of a tensor of this type and shape in host memory, else 0."""
        if (
            type(tensor) in _PLAIN_TYPES
            and tensor.dtype is dtype
            and tensor.is_cpu
            and tensor.shape == shape
            and tensor.layout is _STRIDED
            and tensor.is_contiguous()
            and not tensor.is_neg()
        ):
            return tensor.data_ptr()
        return 0

    is_traced = staticmethod(torch.compiler.is_compiling)

    def instead_of(self, tensor: torch.Tensor) -> str:
        """Return a sentence on how such elements can be reduced."""
        if tensor.is_complex():
            return "Pass torch.view_as_real(tensor)."
        return super().instead_of(tensor)

    # PyTorch's own method, because it is called twice for every small tensor; its argument is `self`.
    address = staticmethod(torch.Tensor.data_ptr)  # type: ignore[assignment]

    def stage(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor or a copy, which is in host memory if the engine does not know the tensor's device.

        Raises:
            ValueError: the tensor has no elements that could be sent.
        """
        if tensor.is_meta:
            raise InvalidRequestError(
                "a tensor on the device meta has no elements. Give it memory first, as module.to_empty() does."
            )
        if _is_lazy(tensor):
            tensor = tensor.detach().resolve_conj().resolve_neg()
        return tensor if tensor.is_cpu or tensor.device.type in RAW_STREAMS else tensor.cpu()

    def stream_of(self, tensor: torch.Tensor) -> GpuStream | None:
        """Return the current stream of the tensor's GPU."""
        return None if tensor.is_cpu else gpu_stream(tensor.device)

    def empty(self, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a host tensor that can be copied quickly to the device of `like`."""
        # The device is named because the user may have set another one as the default, here and in the other files.
        return torch.empty(shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)

    def empty_beside(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return a tensor on the same device."""
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape on the same device."""
        return torch.empty_like(tensor, requires_grad=False)

    def empty_likes(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return host tensors of the same shapes, without a Python call for each, because there may be hundreds."""
        return [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]

    def deliver(self, result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor, or a copy on the device of `like`."""
        return result.to(like.device, non_blocking=True)

    def assign(self, output: torch.Tensor, result: torch.Tensor) -> None:
        """Copy the content, on the current stream of the tensor's device."""
        with torch.no_grad():
            output.copy_(result, non_blocking=True)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy through which no gradients flow."""
        return tensor.detach().clone()

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        """Return zeros of float32 in host memory."""
        return torch.zeros(like.numel(), dtype=torch.float32, device="cpu")

    def whole_numbers(self, numbers: Sequence[int], like: Any) -> torch.Tensor:
        """Return a tensor of int32, or of int64 if that is too small."""
        fits = max(numbers) <= torch.iinfo(torch.int32).max
        device = like.device if isinstance(like, torch.Tensor) else "cpu"
        return torch.tensor(numbers, dtype=torch.int32 if fits else torch.int64, device=device)

    # --- calls ---------------------------------------------------------------------------------------------------

    def check_together(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise HorovodInternalError if tensors of one call are on different devices."""
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            raise HorovodInternalError(
                f"Tensors in list must be on same device, but these are on {', '.join(sorted(map(str, devices)))}. "
                "Call once for each device."
            )

    def note_write(self, tensor: torch.Tensor) -> None:
        """Do the same as `note_writes` for one tensor, without a list, because every small call in place needs it."""
        if not tensor.is_inference():
            _increment_version(tensor)

    def note_writes(self, tensors: Sequence[torch.Tensor]) -> None:
        """Notify autograd of writes by the engine, so that it refuses stale saved values."""
        _increment_version([tensor for tensor in tensors if not tensor.is_inference()])

    def outside_graphs(self, function: Function) -> Function:
        """Exclude a function from `torch.compile`."""
        return no_compile(function)

    # --- gradients and compression -------------------------------------------------------------------------------

    def is_tracked(self, tensor: torch.Tensor) -> bool:
        """Return whether gradients flow through the tensor. Going through autograd costs more than a small call."""
        return tensor.requires_grad and torch.is_grad_enabled()

    def differentiate(self, call: DifferentiableCall, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run a call as a node of autograd's graph."""
        return differentiate(call, tensors)

    def powersgd_call(
        self,
        session: Session,
        recipe: PowerSGD,
        memory: Feedback | None,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor | None],
        names: Sequence[str],
        options: Options,
        group: int,
    ) -> Call:
        """Return a call that reduces tensors as products of thin matrices."""
        return powersgd_call(self, session, recipe, memory, tensors, outputs, names, options, group)


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether PyTorch changes the elements when it reads them, so that the memory does not have their values."""
    return tensor.is_neg() or tensor.is_conj()


def _opaque_type(tensor: torch.Tensor) -> OpaqueType:
    """Return a type whose elements are moved byte by byte.

    Raises:
        ValueError: the memory does not contain everything of them.
    """
    if tensor.is_quantized:
        raise InvalidRequestError(
            f"Tensor type {tensor.type()} is not supported: its scale would not be sent with it. Pass "
            "tensor.int_repr(), or use broadcast_object."
        )
    return OpaqueType(str(tensor.dtype).removeprefix("torch."), tensor.element_size())


# One is enough, because it has no state.
FRONT = Tensors()
