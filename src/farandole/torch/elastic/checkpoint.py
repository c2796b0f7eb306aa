"""Checkpoints of PyTorch's state, based on `farandole.worker.elastic.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch

from farandole.errors import InvalidRequestError
from farandole.torch.collectives.tensors import RAW_STREAMS
from farandole.torch.elastic.tensor_files import open_format
from farandole.torch.optimizer_state import load_in_place
from farandole.worker.elastic.checkpoint.checkpoint_base import CheckpointBase
from farandole.worker.elastic.checkpoint.tensor_files import TensorFiles, Tensors


class Checkpoint(CheckpointBase):
    """A directory of checkpoints, which a training writes to and resumes from.

    Example:
        >>> checkpoint = Checkpoint("checkpoints", every_steps=100)
        >>> state = {"model": model, "optimizer": optimizer, "epoch": 3}
        >>> first = checkpoint.load(state) or 0
        >>> for step in range(first + 1, 201):
        ...     if checkpoint.due(step):
        ...         begun = checkpoint.save(state, step, rank=hvd.rank(), size=hvd.size())
        >>> checkpoint.wait()
        True
    """

    @staticmethod
    def _open_format(name: str) -> TensorFiles:
        return open_format(name)

    def _state_of(self, value: Any) -> Any:
        return value.state_dict() if hasattr(value, "state_dict") else value

    def _identify(self, value: Any) -> Hashable | None:
        if not isinstance(value, torch.Tensor):
            return None
        _check_kind(value)
        if value.numel() == 0:
            return id(value)
        return value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg()

    def _describe(self, tensor: Any) -> tuple[str, tuple[int, ...], int]:
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.numel() * tensor.element_size()

    def _copied(self, sources: Tensors, before: Tensors) -> tuple[dict[str, Any], Callable[[], None]]:
        """Copy tensors; tensors of a GPU are copied in a separate stream, without waiting."""
        copies: dict[str, Any] = {}
        on_gpus: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for name, tensor in sources.items():
            source = tensor.detach()
            copies[name] = copy = _buffer(before.get(name), source)
            if _is_on_gpu(source):
                on_gpus.setdefault(source.device, []).append((copy, source))
            else:
                copy.copy_(source)
        on_their_way = [_begin_copies(device, pairs) for device, pairs in on_gpus.items()]

        def wait() -> None:
            try:
                for each in on_their_way:
                    each.copied.synchronize()
            except RuntimeError as error:
                raise OSError(f"the copy from the memory of a GPU has failed: {error}") from error
            finally:
                on_their_way.clear()

        return copies, wait

    def _fits(self, target: Any, value: Any) -> bool:
        return not isinstance(target, torch.Tensor) or getattr(value, "shape", None) == target.shape

    def _shape_of(self, target: Any) -> str:
        return f"the shape {tuple(target.shape)}"

    def _put(self, into: MutableMapping[str, Any], name: str, target: Any, value: Any) -> None:
        if isinstance(target, torch.optim.Optimizer):
            load_in_place(target, _on_devices(target, value))
        elif hasattr(target, "load_state_dict"):
            target.load_state_dict(value)
        elif isinstance(target, torch.Tensor):
            with torch.no_grad():
                target.copy_(value)
        else:
            into[name] = value


def _on_devices(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with each parameter's tensors on the device that PyTorch's loader chooses; files do not record
    devices.

    The step counter stays on the CPU unless a kernel of the device increments it.
    """
    devices = {
        number: (parameter.device, group.get("capturable") or group.get("fused"))
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=False)
        for number, parameter in zip(saved["params"], group["params"], strict=False)
        if parameter.device.type != "cpu"
    }

    def moved(value: Any, number: Any, key: Any = None) -> Any:
        device, counts = devices[number]
        if isinstance(value, torch.Tensor):
            return value if key == "step" and not counts else value.to(device)
        if type(value) is dict:
            return {name: moved(each, number, name) for name, each in value.items()}
        return [moved(each, number) for each in value] if type(value) is list else value

    return {**state, "state": {key: moved(v, key) if key in devices else v for key, v in state["state"].items()}}


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda or tensor.device.type in RAW_STREAMS


class _OnTheirWay(NamedTuple):
    """Copies from a GPU that have been begun.

    Attributes:
        copied: the event that marks their end.
        snapshot: the GPU's memory that they are made of, which must live until then; empty if that is the training's.
    """

    copied: Any
    snapshot: Sequence[torch.Tensor]


def _begin_copies(device: torch.device, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> _OnTheirWay:
    """Begin to copy tensors from a GPU, each to a buffer of pinned memory.

    Later work in the current stream may change the tensors: it runs after a copy within the GPU or, if there is no room
    for that, after the copies to the host, which take much longer.
    """
    backend = getattr(torch, device.type)
    current, side = backend.current_stream(device), backend.Stream(device=device)
    sources = [source for _, source in pairs]
    snapshot = _copy_on_gpu(device, sources)
    side.wait_stream(current)
    with backend.stream(side):
        for (copy, _), source in zip(pairs, snapshot or sources, strict=True):
            copy.copy_(source, non_blocking=True)
    if not snapshot:
        current.wait_stream(side)
    return _OnTheirWay(side.record_event(), snapshot)


def _copy_on_gpu(device: torch.device, sources: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Copy tensors within their GPU, in the current stream; return no tensors if there is no room for them."""
    if not _has_room(device, sum(source.nbytes for source in sources)):
        return ()
    try:
        return [source.clone(memory_format=torch.contiguous_format) for source in sources]
    except torch.cuda.OutOfMemoryError:  # of any kind of device
        # Other processes have taken the memory meanwhile, such as ranks that share this GPU and save at the same step;
        # or PyTorch may not use all that is free (`set_per_process_memory_fraction`).
        return ()


def _has_room(device: torch.device, nbytes: int) -> bool:
    """Return whether a checkpoint can take memory of a GPU that the training does not need.

    Memory that PyTorch's allocator keeps does not count as free, because the training has needed it before. Of what is
    free, half is left to others.
    """
    free, _ = getattr(torch, device.type).mem_get_info(device)
    return bool(free >= 2 * nbytes)


def _buffer(before: Any, source: torch.Tensor) -> torch.Tensor:
    if before is not None and before.shape == source.shape and before.dtype == source.dtype:
        return before
    return torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=_is_on_gpu(source))


def _check_kind(tensor: torch.Tensor) -> None:
    kind = ""
    if hasattr(tensor, "full_tensor"):
        kind = "a distributed tensor, of which this rank has only a part; give its full_tensor()"
    elif tensor.layout != torch.strided:
        kind = "sparse; give its to_dense(), or its indices() and values()"
    elif tensor.is_quantized:
        kind = "quantized; give its int_repr() and its scales"
    elif tensor.device.type == "meta":
        kind = "on the meta device, and so has no values; give it some, or omit it"
    if kind:
        raise InvalidRequestError(f"a tensor of shape {tuple(tensor.shape)} cannot be saved: it is {kind}.")
