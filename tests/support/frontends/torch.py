"""farandole.torch for the conformance tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fake_gpu_device import DEVICE, FakeGpu

from frontends.front_end import COMMON, DTYPES, WORLDS_OF_MPI, FrontEnd


class Torch(FrontEnd):
    """farandole.torch."""

    name = "torch"
    module = "torch"
    runtime = "torch"
    worlds = (
        *((size, "shm") for size in (1, 2, 3, 4)),
        *((size, "tcp") for size in (2, 3)),
        (4, "tree"),
        *WORLDS_OF_MPI,
    )
    has = frozenset(
        {
            *COMMON,
            "broadcast in place",
            "gradients",
            "handles",
            "in place",
            "feedback",
            "recipes",
            "sparse rows",
            "torch",
            "int32 splits",
        }
    )

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import torch

        array = np.asarray(values).astype(DTYPES[dtype], order="C")
        return torch.from_numpy(array).to(getattr(torch, dtype))

    def array(self, tensor: Any) -> np.ndarray:
        import torch

        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy().copy()

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def unsendable(self) -> list[tuple[Any, str]]:
        import torch

        return [
            (torch.ones(3, 4).t(), "Tensor is required to be contiguous."),
            (torch.ones(2, 2).to_sparse(), "not supported"),
            (torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8), "its scale would not be sent with it"),
        ]

    def unreducible(self) -> list[tuple[Any, str]]:
        import torch

        return [
            (torch.ones(2, dtype=torch.complex64), "Tensor type torch.ComplexFloatTensor is not supported in "),
            (torch.ones(2, dtype=torch.uint16), "calculates with the elements. Convert it"),
        ]

    def opaque(self, rank: int) -> dict[str, Any]:
        import torch

        numbers = torch.arange(12).reshape(6, 2) + 12 * rank
        names = ["complex32", "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"]
        tensors = {name: numbers.to(getattr(torch, name)) for name in names}
        conjugate = (numbers * (1 + 2j)).conj()
        assert conjugate.is_conj()
        return {**tensors, "conjugate": conjugate}

    def elements(self, tensor: Any) -> np.ndarray:
        import torch

        if tensor.is_complex():
            return tensor.to(torch.complex128).resolve_conj().numpy()
        return tensor.to(torch.float64).numpy()

    def unwritable(self) -> list[tuple[Any, str]]:
        import torch

        return [(torch.ones(3, 4)[:, :2], "Tensor is required to be contiguous.")]

    def reduced_rows(
        self, indices: list[int], rows: np.ndarray, total: int, *, name: str, op: int
    ) -> tuple[np.ndarray, int]:
        import torch

        places = torch.tensor([indices], dtype=torch.int64)
        tensor = torch.sparse_coo_tensor(places, self.tensor(rows), (total, rows.shape[1]), check_invariants=True)
        output = self.hvd.sparse_allreduce_async(tensor, name=name, op=op)()
        return output.to_dense().numpy(), output._nnz()

    def reduced(self, tensor: Any, op: str) -> Any:
        return {"Min": tensor.amin, "Max": tensor.amax, "Product": tensor.prod}[op](0)

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        import torch

        tensor = torch.tensor(np.asarray(values), requires_grad=True)
        function(tensor).backward()
        return self.array(tensor.grad)

    def derivative(self, function: Any, tensor: Any) -> Any:
        import torch

        return torch.autograd.grad(function(tensor), tensor, create_graph=True)[0]

    def pullbacks(self, function: Any, values: Any, cotangents: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        import torch

        tensor = torch.tensor(np.asarray(values), requires_grad=True)
        outputs = function(tensor)
        found = []
        for number, given in enumerate(cotangents):
            chosen = [
                (output, torch.tensor(each)) for output, each in zip(outputs, given, strict=True) if each is not None
            ]
            (gradient,) = torch.autograd.grad(
                [output for output, _ in chosen],
                tensor,
                [each for _, each in chosen],
                retain_graph=number + 1 < len(cotangents),
            )
            found.append(self.array(gradient))
        return found


class OnFakeGpu(Torch):
    """farandole.torch with tensors on the fake GPU, whose streams run asynchronously. Each rank has a GPU.

    Attributes:
        mode: the setting `gpu`.
    """

    name = "torch-fakegpu"
    runtime = "torch on a fake GPU"
    mode = "staged"
    worlds = ((1, "shm"), (2, "tcp"), (3, "shm"), (4, "shm"))
    has = frozenset(
        {*COMMON, "broadcast in place", "feedback", "gradients", "handles", "in place", "int32 splits", "recipes"}
    )
    is_thorough = False
    has_other_worlds = False  # What is not right when a world ends, the native tests of requests on GPUs show.

    def prepare(self) -> None:
        FakeGpu.of_environment().load_for_farandole()

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        return super().tensor(values, dtype).to(DEVICE)

    def array(self, tensor: Any) -> np.ndarray:
        return super().array(tensor.cpu())

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        import torch

        tensor = torch.tensor(np.asarray(values), device=DEVICE, requires_grad=True)
        function(tensor).backward()
        return self.array(tensor.grad)

    def unsendable(self) -> list[tuple[Any, str]]:
        import torch

        return [(torch.ones(3, 4, device=DEVICE).t(), "Tensor is required to be contiguous.")]

    def unreducible(self) -> list[tuple[Any, str]]:
        import torch

        return [(torch.ones(2, dtype=torch.uint16, device=DEVICE), "calculates with the elements. Convert it")]

    def opaque(self, rank: int) -> dict[str, Any]:
        return {name: tensor.to(DEVICE) for name, tensor in super().opaque(rank).items() if not tensor.is_complex()}

    def elements(self, tensor: Any) -> np.ndarray:
        return super().elements(tensor.cpu())

    def unwritable(self) -> list[tuple[Any, str]]:
        import torch

        return [(torch.ones(3, 4, device=DEVICE)[:, :2], "Tensor is required to be contiguous.")]


class ByNccl(OnFakeGpu):
    """The same with the fake NCCL, which rounds after each addition, and multiplies by 1/size for an average."""

    name = "torch-nccl"
    runtime = "torch on a fake GPU, by NCCL"
    mode = "nccl"
    has = OnFakeGpu.has - {"rounded once"}
