"""Values separated into tensors, whose bytes are sent separately, and a skeleton, which is pickled.

The skeleton is the pickle of the value without its tensors, so everything else arrives unchanged, at any depth: types,
containers, and which places share one tensor.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]
import torch


class Place(NamedTuple):
    """A tensor of a skeleton, without its values.

    Attributes:
        dtype: the tensor's element type.
        shape: its dimensions.
        device: the type of its device, such as "cuda".
        is_parameter: whether it is an instance of `torch.nn.Parameter`.
        requires_grad: whether gradients are computed for it; true only for a leaf of autograd's graph.
    """

    dtype: torch.dtype
    shape: torch.Size
    device: str
    is_parameter: bool
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """The size of the tensor's elements, in bytes."""
        return self.shape.numel() * self.dtype.itemsize

    def on_own_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor on the sender's type of device, or unchanged if this process has no such device."""
        is_there = self.device in (tensor.device.type, "cpu")
        return tensor if is_there or not is_available(self.device) else tensor.to(self.device)


class Skeleton(NamedTuple):
    """A value without its tensors.

    Attributes:
        pickled: the pickled value, with numbers instead of tensors.
        places: the tensors by their numbers.
    """

    pickled: bytes
    places: tuple[Place, ...]

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the value with these tensors: one for each place, of its type and shape."""
        return _Joiner(io.BytesIO(self.pickled), self.places, tensors).load()


def take_apart(value: Any) -> tuple[Skeleton, list[torch.Tensor]]:
    """Return a value's skeleton and its tensors.

    Sparse tensors, and instances of subclasses other than `Parameter`, remain in the skeleton.
    """
    file = io.BytesIO()
    splitter = _Splitter(file)
    splitter.dump(value)
    return Skeleton(file.getvalue(), tuple(map(_place, splitter.tensors))), splitter.tensors


def tensors_by_path(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], torch.Tensor]:
    """Return the tensors in nested mappings, lists and tuples, by the keys and indices that lead to them."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    return {place: each for key, item in items for place, each in tensors_by_path(item, (*path, key)).items()}


def is_available(device_type: str) -> bool:
    """Return whether this process has a device of this type."""
    module = getattr(torch, device_type, None)
    return module is not None and hasattr(module, "is_available") and module.is_available()


def _place(tensor: torch.Tensor) -> Place:
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return Place(tensor.dtype, tensor.shape, tensor.device.type, is_parameter, tensor.requires_grad and tensor.is_leaf)


class _Splitter(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of a tensor; None for any other value, which is pickled."""
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            return None
        if value.is_quantized or value.device.type == "meta":
            return None
        if id(value) not in self._numbers:
            # The list keeps the tensor alive, and so its identity its own.
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._numbers[id(value)]


class _Joiner(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, places: Sequence[Place], tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._places = places
        self._tensors = tensors
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, number: int) -> torch.Tensor:
        """Return the tensor of a number, the same object each time."""
        if number not in self._made:
            place, tensor = self._places[number], self._tensors[number]
            if place.is_parameter:
                tensor = torch.nn.Parameter(tensor, place.requires_grad)
            elif place.requires_grad:
                tensor.requires_grad_()
            self._made[number] = tensor
        return self._made[number]
