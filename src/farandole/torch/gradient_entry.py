"""A parameter's gradient: `param.grad`, and its place in the arena."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import torch

from farandole.torch.collectives import DTYPES, native_dtype
from farandole.torch.collectives.tensors import RAW_STREAMS
from farandole.worker.core.dtype import DType
from farandole.worker.gradients.buckets import Layout
from farandole.worker.gradients.entry import Entry
from farandole.worker.gradients.views import View


class GradientEntry(Entry):
    """The entry of one parameter.

    Attributes:
        parameter: the parameter that the gradient belongs to.
        sparse_as_dense: whether a sparse gradient is sent dense.
        sparse_dim: the number of sparse dimensions of the last sparse gradient; None if there has been none.
        in_view: a tensor that is the entry's `view`, and the parameter's gradient; None without one. In a bucket on a
            GPU, it has the strides of the parameter, which many operations on both require.
        in_own_view: a tensor that is its `own_view`; None without one.
        address: the original address of `in_view`. Its present one differs if the gradient's memory was replaced: by an
            assignment to its `.data`, here or by the user, or by a conversion of the model, such as `model.half()`.
        kind: the element type and shape of the view.
        references: the number of references to `in_view` while it is not a parameter's gradient: the attribute, the
            argument of the counting function, and those of the reduced gradients of the last step.
        storage: PyTorch's object for the memory of `in_view`; None without one.
        owners: the number of PyTorch's objects that share this memory, if the user has none.
        version: PyTorch's count of writes to the parameter's gradient when it was sent; None if there was none.
    """

    __slots__ = (
        "address",
        "in_own_view",
        "in_view",
        "kind",
        "owners",
        "parameter",
        "references",
        "sparse_as_dense",
        "sparse_dim",
        "storage",
        "version",
    )

    def __init__(self, name: str, parameter: torch.nn.Parameter, sparse_as_dense: bool) -> None:
        super().__init__(name)
        self.parameter = parameter
        self.sparse_as_dense = sparse_as_dense
        self.sparse_dim: int | None = None
        self.in_view: torch.Tensor | None = None
        self.in_own_view: torch.Tensor | None = None
        self.address = 0
        self.kind = parameter.dtype, parameter.shape
        self.references = 2
        self.storage: torch.UntypedStorage | None = None
        self.owners = 0
        self.version: int | None = None

    # --- what the gradient is --------------------------------------------------------------------------------------

    @property
    def trained(self) -> bool:
        return self.parameter.requires_grad

    @property
    def travels_sparse(self) -> bool:
        """Whether the gradient is sent sparse. If this rank has no gradient, it is sent as the last one was."""
        if self.sparse_as_dense:
            return False
        gradient = self.parameter.grad
        return self.sparse_dim is not None if gradient is None else gradient.is_sparse

    @property
    def dtype(self) -> DType | None:
        return DTYPES.get(self.parameter.dtype)

    @property
    def device(self) -> torch.device | None:
        """A GPU that the engine knows; PyTorch gives each device a number."""
        device = self.parameter.device
        return device if device.type in RAW_STREAMS else None

    def layout(self) -> Layout:
        parameter = self.parameter
        dtype = native_dtype(torch.empty(0, dtype=parameter.dtype, device="cpu"))
        return Layout(dtype, tuple(parameter.shape), parameter.numel() * parameter.element_size())

    def note_version(self) -> None:
        """Record that the gradient is sent as it is now."""
        gradient = self.parameter.grad
        self.version = None if gradient is None else gradient._version

    def has_changed(self) -> bool:
        """Return whether the gradient has changed since it was sent, except by assignments of None or to `.data`."""
        gradient = self.parameter.grad
        return gradient is not None and gradient._version != self.version

    # --- on the way through the arena ------------------------------------------------------------------------------

    def wants_view(self) -> bool:
        parameter = self.parameter
        return (
            parameter.grad is not None
            and (parameter.is_cpu or self.device is not None)
            and (self.sparse_as_dense or self.sparse_dim is None)
        )

    def attach(self) -> None:
        parameter = self.parameter
        self.kind = parameter.dtype, parameter.shape
        in_view = self.look_into_view()
        self.in_own_view = None if self.own_view is None else _tensor(self.own_view, *self.kind)
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            parameter.grad = in_view.copy_(gradient)

    def detach(self) -> None:
        self.in_view = self.in_own_view = self.storage = None

    def is_in_use(self) -> bool:
        """Return whether the user has an earlier gradient or an alias of it, such as `parameter.grad.data`."""
        if self.parameter.grad is self.in_view:
            return False  # PyTorch then also accumulates into the memory of an alias.
        return self.storage is not None and _count_owners(self.storage._cdata) > self.owners

    def put(self, share: float) -> bool:
        # For each gradient of each step, so it is as short as it can be.
        assert self.in_view is not None
        if getrefcount(self.in_view) > self.references and self.parameter.grad is not self.in_view:
            # The user has kept the gradient of an earlier step, which gets separate memory.
            self.in_view.data = self.in_view.clone()
        in_view = self.in_view
        if in_view.data_ptr() != self.address:
            in_view = self.look_into_view()
        if self.in_own_view is not None:
            return self._put_beside(self.in_own_view, share)
        try:
            return self._put_into(in_view, share)
        except RuntimeError:
            if share != 1.0 or self.kind == (self.parameter.dtype, self.parameter.shape):
                raise
            return False  # The parameter has got another type or shape.

    def look_into_view(self) -> torch.Tensor:
        """Set `in_view` to a new tensor in the view's memory, and return it."""
        assert self.view is not None
        if isinstance(self.view.buffer, torch.Tensor):
            in_view = self.in_view = _tensor_in(self.view.buffer, self.view.offset, self.parameter)
        else:
            in_view = self.in_view = _tensor(self.view, *self.kind)
        self.address = in_view.data_ptr()
        # Kept, so that it exists when its owners are counted.
        self.storage = in_view.untyped_storage()
        self.owners = _count_owners(self.storage._cdata)
        return in_view

    def look_into_twin(self, twin: torch.Tensor) -> None:
        """Set `in_own_view` to the piece of a device bucket's twin at the view's offset in the bucket."""
        assert self.view is not None
        self.in_own_view = _tensor_in(twin, self.view.offset, self.parameter)

    def _put_into(self, in_view: torch.Tensor, share: float) -> bool:
        parameter = self.parameter
        if not parameter.requires_grad:
            return False
        gradient = parameter.grad
        if gradient is None and self.sparse_dim is None:
            self.absent = True
            parameter.grad = in_view.zero_()
        elif gradient is None or gradient.is_sparse:
            if self.travels_sparse:
                return False
            parameter.grad = in_view.copy_(self.dense())
        elif gradient is not in_view:
            self.sparse_dim = None
            # After create_graph=True a gradient requires gradients; what is reduced does not.
            parameter.grad = in_view.copy_(gradient.detach() if gradient.requires_grad else gradient)
        if share == 0.0:
            in_view.zero_()
        elif share != 1.0:
            in_view.mul_(share)
        return True

    def scale(self, factor: float) -> None:
        origin = self.in_view if self.in_own_view is None else self.in_own_view
        assert origin is not None
        origin.mul_(factor)
        self.note_version()

    def take_back(self) -> None:
        assert self.in_view is not None
        # The user may have put another tensor there meanwhile.
        if self.parameter.grad is not self.in_view or self.sparse_dim is not None:
            self.store(self.in_view)

    def lies_in_view(self, gradient: Any) -> bool:
        in_view = self.in_view
        return in_view is not None and gradient is in_view and in_view.data_ptr() == self.address

    def _put_beside(self, own: torch.Tensor, share: float) -> bool:
        gradient = self.parameter.grad
        if gradient is None and self.sparse_dim is None:
            self.absent = True
            own.zero_()
        elif gradient is None or gradient.is_sparse:
            _copy_weighted(self.dense(), share, own)
        else:
            self.sparse_dim = None
            _copy_weighted(gradient.detach() if gradient.requires_grad else gradient, share, own)
        self.parameter.grad = self.in_view
        return True

    # --- on the general way ----------------------------------------------------------------------------------------

    def dense(self) -> torch.Tensor:
        """Return the gradient, made dense; zeros if this rank has none."""
        parameter = self.parameter
        gradient = parameter.grad
        if gradient is None:
            self.absent = self.sparse_dim is None
            gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format, requires_grad=False)
        elif gradient.is_sparse:
            self.sparse_dim = gradient.sparse_dim()
            return gradient.detach().to_dense()
        else:
            self.sparse_dim = None
            gradient = gradient.detach()
        # After create_graph=True a gradient requires gradients; what is reduced does not.
        parameter.grad = gradient
        return gradient

    def store(self, reduced: torch.Tensor) -> None:
        """Set the gradient to the reduced one, sparse if it was sparse before."""
        parameter = self.parameter
        if self.sparse_dim is not None:
            parameter.grad = reduced.to_sparse(self.sparse_dim)
        elif reduced is self.in_view or parameter.grad is None:
            parameter.grad = reduced
        elif reduced is not parameter.grad:
            parameter.grad.copy_(reduced)

    def keep(self) -> None:
        gradient = self.parameter.grad
        if gradient is not None:
            self.kept = gradient.detach().clone()

    def restore(self) -> None:
        self.parameter.grad = self.kept.clone()

    def weight(self, share: float) -> None:
        gradient = self.parameter.grad
        if gradient is None or share == 1.0:
            return
        self.parameter.grad = torch.zeros_like(gradient) if share == 0.0 else gradient.detach() * share

    # --- for ranks that lack a reduced gradient --------------------------------------------------------------------

    def state_of(self, gradient: torch.Tensor) -> Any:
        """Return a gradient, or the parts of a sparse one."""
        if not gradient.is_sparse:
            return gradient
        return {"indices": gradient._indices(), "values": gradient._values(), "shape": gradient.shape}

    def adopt(self, state: Any) -> None:
        gradient, parameter = _gradient_of(state), self.parameter
        if self.in_view is not None:
            self.in_view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            self.store(self.in_view)
        elif gradient.is_sparse:
            parameter.grad = gradient.to(parameter.device)
        else:
            self.store(gradient.to(parameter.device))

    def let_go(self) -> None:
        self.references = 2


_count_owners = torch._C._storage_Use_Count


def _tensor(view: View, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Return the memory of a view as a tensor of this type and shape. It keeps the memory alive."""
    if view.nbytes == 0:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    # A separate storage, not a slice of the bucket's: saving one gradient must not save the whole bucket.
    return torch.frombuffer(view.buffer, dtype=dtype, count=shape.numel(), offset=view.offset).view(shape)


def _tensor_in(buffer: torch.Tensor, offset: int, parameter: torch.Tensor) -> torch.Tensor:
    """Return a piece of a tensor, at an offset in bytes, with a parameter's shape and strides. It keeps the memory
    alive.
    """
    begin = offset // buffer.element_size()
    piece = buffer[begin : begin + parameter.numel()]
    # A separate storage, as above.
    alone = torch._C._from_dlpack(torch._C._to_dlpack(piece))
    return alone.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())


def _copy_weighted(gradient: torch.Tensor, share: float, out: torch.Tensor) -> None:
    """Copy a gradient, multiplied by `share`, to `out`; with a share of 0, it may have any value."""
    if share == 0.0:
        out.zero_()
    elif share == 1.0:
        out.copy_(gradient)
    else:
        torch.mul(gradient, share, out=out)


def _gradient_of(state: Any) -> torch.Tensor:
    if isinstance(state, torch.Tensor):
        return state
    return torch.sparse_coo_tensor(state["indices"], state["values"], state["shape"], check_invariants=False)
