"""PyTorch's CUDA build on the fake GPU: the environment of processes, and a mode that runs operators on the CPU.

See tests/gpu_fake/README.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu_device import FakeGpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_SOURCES = Path(__file__).resolve().parents[1] / "gpu_fake"

# Operators that need no kernel: the allocator's, and those that only ask.
_NO_KERNEL = {
    "empty",
    "empty_strided",
    "_local_scalar_dense",
    "record_stream",
    "_pin_memory",
    "is_pinned",
    "set_",
    "resize_",
}


def variables(libraries: Path, folder: Path, devices: int, time: str = "random") -> dict[str, str]:
    """Return the variables of a process whose PyTorch should find fake GPUs.

    Args:
        libraries: the folder with libcuda.so.1 and libnccl.so.2.
        folder: the folder in which the runtime's library is built, if it does not exist.
        devices: the number of GPUs in the machine.
        time: the mode that determines when streams run; see the README.
    """
    runtime = folder / "libfake_cudart.so"
    if not runtime.exists():
        _build(libraries, runtime)
    return {
        **FakeGpu(libraries, Path()).environment(devices=devices, time=time),
        "LD_PRELOAD": f"{runtime}:{libraries}/libnccl.so.2",
        "FAKE_GPU_MEMORY": str(1 << 28),
        "FAKE_GPU_DELAY_US": "200",
    }


def _build(libraries: Path, runtime: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    spec = util.find_spec("nvidia")
    headers = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    found = [include for each in headers for include in each.glob("cu[0-9]*/include") if (include / "crt").exists()]
    if compiler is None or not found:
        pytest.skip("there is no C++ compiler, or PyTorch's packages of CUDA are not installed")
    command = [
        *(compiler, "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{_SOURCES}", "-isystem", str(found[0])),
        *(str(_SOURCES / "cudart" / "cudart.cc"), "-o", str(runtime), "-Wl,--no-as-needed"),
        *(str(libraries / "libnccl.so.2"), str(libraries / "libcuda.so.1"), f"-Wl,-rpath,{libraries}"),
    ]
    subprocess.run(command, check=True, env=os.environ)


class OnHost(TorchDispatchMode):
    """Runs operators of CUDA tensors on the CPU, with their values in the order of the current stream.

    The results are written to the GPU in that stream's order. PyTorch itself creates views and copies bytes.
    """

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if not _needs_kernel(function, arguments, named):
            return function(*arguments, **named)
        host: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def fetch(value: Any) -> Any:
            if not _is_on_gpu(value):
                return value
            if id(value) not in host:
                host[id(value)] = value, _bytes_of(value).cpu()
            flat = host[id(value)][1]
            return flat.as_strided(value.size(), value.stride(), 0)

        given = {name: value for name, value in named.items() if name != "device"}
        here, named_here = tree_map(fetch, (tuple(arguments), given))
        result = _carried_out(function, here, named_here)
        written = _written(function, arguments, named)
        for number in written & host.keys():
            tensor, flat = host[number]
            _bytes_of(tensor).copy_(flat)
        where = {flat.data_ptr(): tensor for number, (tensor, flat) in host.items() if number in written}

        def bring(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return where.get(value.data_ptr()) if value.data_ptr() in where else _on_gpu(value)

        return tree_map(bring, result)


def _carried_out(function: Any, arguments: Any, named: Any) -> Any:
    """Return an operator's result on the CPU, which lacks operators with half inputs and float results, and the
    reverse.
    """
    name = function._schema.name
    if name in ("aten::_softmax", "aten::_log_softmax") and arguments[2]:
        return function(arguments[0].float(), arguments[1], False)
    if name in ("aten::_softmax_backward_data", "aten::_log_softmax_backward_data"):
        gradient, output, dim, dtype = arguments
        return function(gradient, output, dim, output.dtype).to(dtype)
    return function(*arguments, **named)


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def _needs_kernel(function: Any, arguments: Any, named: Any) -> bool:
    if function.namespace != "aten" or function._schema.name.partition("::")[2] in _NO_KERNEL:
        return False
    found: list[torch.Tensor] = []
    tree_map(lambda value: found.append(value) if _is_on_gpu(value) else None, (tuple(arguments), dict(named)))
    made = named.get("device") is not None and torch.device(named["device"]).type == "cuda"
    if not found:
        return made and function._schema.name not in ("aten::_to_copy",)
    name = function._schema.name
    if name in ("aten::copy_", "aten::_to_copy", "aten::_copy_from"):
        return not _moves_bytes(function, arguments, named)
    # A view: it returns its argument.
    returns = function._schema.returns
    return not (returns and returns[0].alias_info is not None and not returns[0].alias_info.is_write)


def _moves_bytes(function: Any, arguments: Any, named: Any) -> bool:
    """Return whether a copy needs no kernel, because types and layouts are equal."""
    if function._schema.name == "aten::_to_copy":
        (source,) = arguments[:1]
        return (
            named.get("dtype") in (None, source.dtype)
            and source.is_contiguous()
            and source.is_cuda != (torch.device(named.get("device") or source.device).type == "cuda")
        )
    target, source = arguments[:2]
    same = target.dtype == source.dtype and target.size() == source.size() and target.stride() == source.stride()
    return same and target.is_contiguous()


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional view of the memory from a tensor's first element to its last."""
    return tensor.detach().as_strided((_extent(tensor),), (1,), tensor.storage_offset())


def _on_gpu(value: torch.Tensor) -> torch.Tensor:
    if 0 in value.stride() and value.numel() > 1:
        value = value.contiguous()
    result = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cuda")
    _bytes_of(result).copy_(value.as_strided((_extent(value),), (1,), value.storage_offset()))
    return result


def _written(function: Any, arguments: Any, named: Any) -> set[int]:
    """Return the ids of the tensors that an operator writes to."""
    written: set[int] = set()
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = arguments[index] if index < len(arguments) else named.get(argument.name)
            tree_map(lambda each: written.add(id(each)) if isinstance(each, torch.Tensor) else None, value)
    return written
