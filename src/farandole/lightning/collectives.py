"""The part of both strategies that Lightning calls: the worker's device, and collectives of `farandole.torch`."""

from __future__ import annotations

from typing import Any

import torch

import farandole.torch as hvd
from farandole.errors import InvalidRequestError
from farandole.worker.core.basics import current

_OPS = {
    "avg": hvd.Average,
    "mean": hvd.Average,
    "sum": hvd.Sum,
    "min": hvd.Min,
    "max": hvd.Max,
    "product": hvd.Product,
}


class Collectives:
    """The part that the strategies for `Trainer` and `Fabric` share.

    A worker that joins an elastic job belongs to no world until it enters the loop of steps: until then it is alone.

    Attributes:
        is_alone: whether this worker calls no collectives, because the others have ended the training.
    """

    is_alone = False
    parallel_devices: Any

    @property
    def root_device(self) -> torch.device:
        """Return the device of this worker: if Lightning trains on GPUs, that of `hvd.local_device()`."""
        devices = self.parallel_devices or [torch.device("cpu")]
        return hvd.local_device() if devices[0].type == "cuda" else devices[0]

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait until all workers have called this."""
        if not self._makes_none():
            hvd.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object that rank `src` passed."""
        return obj if self._makes_none() else hvd.broadcast_object(obj, root_rank=src)

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return a tensor reduced over all workers. A value that is not a tensor is returned unchanged.

        Args:
            tensor: the tensor of this worker.
            group: not used: there is one group.
            reduce_op: "mean", "sum", "min", "max" or "product", or torch's `ReduceOp`.

        Raises:
            ValueError: there is no such operation.
        """
        if not isinstance(tensor, torch.Tensor) or self._makes_none():
            return tensor
        name = "mean" if reduce_op is None else str(reduce_op).rpartition(".")[2].lower()
        if name not in _OPS:
            raise InvalidRequestError(f"reduce_op={reduce_op!r} is not available: use one of {', '.join(_OPS)}.")
        if _OPS[name] == hvd.Average and not (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.float()
        return hvd.allreduce(tensor, op=_OPS[name])

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Return the tensors of all workers, which have the same shape, along a new first dimension.

        Args:
            tensor: the tensor of this worker.
            group: not used: there is one group.
            sync_grads: whether the result can be differentiated.
        """
        stacked = tensor.unsqueeze(0)
        if self._makes_none():
            return stacked
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            return hvd.allgather(stacked)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether the decision is True on all workers, or with `all=False` on at least one."""
        votes = self.all_reduce(torch.tensor(int(decision)), reduce_op="min" if all else "max")
        return bool(votes)

    def _makes_none(self) -> bool:
        return self.is_alone or current().only_arrived


def gather_for_metric(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Return the tensors of all workers, by rank, for TorchMetrics. Their shapes may differ."""
    return [each.to(tensor.device) for each in hvd.allgather_object(tensor.detach().cpu())]


def is_more_than_one() -> bool:
    """Return whether metrics must be combined over workers, for TorchMetrics."""
    return hvd.size() > 1 and not current().only_arrived
