"""Checkpoints of PyTorch's state, based on `farandole.worker.elastic.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping, Sequence
from typing import Any

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
        events = [_begin_copies(device, pairs) for device, pairs in on_gpus.items()]

        def wait() -> None:
            try:
                for event in events:
                    event.synchronize()
            except RuntimeError as error:
                raise OSError(f"the copy from the memory of a GPU has failed: {error}") from error

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


def _begin_copies(device: torch.device, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Begin to copy tensors from a GPU, each to a buffer of pinned memory; return an event that marks their end.

    Later work in the current stream runs after the copies, so it may change the tensors.
    """
    backend = getattr(torch, device.type)
    current, side = backend.current_stream(device), backend.Stream(device=device)
    side.wait_stream(current)
    with backend.stream(side):
        for copy, source in pairs:
            copy.copy_(source, non_blocking=True)
    current.wait_stream(side)
    return side.record_event()


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
