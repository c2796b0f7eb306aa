"""Batch normalisation over the batches of all ranks.

With n values of a channel on all ranks together, mean m and variance v over them, and i = 1 / sqrt(v + eps):

    y = (x - m) * i * weight + bias
    dx = (dy - sum(dy) / n - (x - m) * i^2 * sum(dy * (x - m)) / n) * i * weight

(Ioffe and Szegedy, "Batch Normalization", 2015). The sums run over all ranks: one allreduce forward (counts, sums and
sums of squares), one backward. Both use float64, so that the variance can be computed as a difference. `weight` and
`bias` get this rank's part of the gradient, which `DistributedOptimizer` reduces like any other.

Ranks may have batches of different sizes, or none.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from farandole.errors import InvalidRequestError
from farandole.torch.collectives import allreduce
from farandole.torch.no_compile import no_compile
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import Sum
from farandole.worker.core.group import ProcessSet, global_process_set

# Modules of different ranks match by the order in which they are used first: it is the same on all ranks of a process
# set, and one of them may construct modules that the others do not have, such as those of a copy of the model.
_numbers: dict[int, Iterator[int]] = defaultdict(itertools.count)


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation [N, C, ...] by the mean and variance of all ranks' batches together.

    It works on every device. Without other ranks (evaluation with running statistics, one rank, a rank outside the
    process set) it is the plain batch normalisation. In training, and in evaluation without running statistics, all
    ranks of the process set must take part in each forward and each backward pass; a rank that has called `join` need
    not.

    Args:
        num_features: the number of channels, C.
        eps: a number that is added to the variance.
        momentum: the momentum of the running statistics; None: the plain average.
        affine: whether to have a learned weight and bias.
        track_running_stats: whether to keep running statistics for the evaluation.
        process_set: the ranks that share statistics.
        device: the device of parameters and buffers.
        dtype: the type of parameters and buffers.

    Example:
        >>> model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_set = process_set
        self._name: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles: everything except the name, which is unique to each module."""
        return {**self.__dict__, "_name": None}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise a batch.

        Raises:
            ValueError: the batch does not have the right shape, or all ranks together have a single value of a channel.
            HorovodInternalError: the ranks' batches do not match, or a worker was lost.
        """
        self._check_input_dim(input)
        needs_batch = self.training or self.running_mean is None
        if not needs_batch or current().world.size == 1 or not self._is_member():
            return super().forward(input)
        return self._synchronized(input)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InvalidRequestError(f"SyncBatchNorm expected at least 2D input, but got {input.dim()}D.")
        if input.shape[1] != self.num_features:
            raise InvalidRequestError(
                f"SyncBatchNorm has {self.num_features} features, but its input of shape {tuple(input.shape)} has "
                f"{input.shape[1]}."
            )

    def _is_member(self) -> bool:
        current().group_of(self.process_set, "SyncBatchNorm")
        return bool(self.process_set.included())

    @no_compile
    def _synchronized(self, input: torch.Tensor) -> torch.Tensor:
        if self._name is None:
            self._name = f"sync_batch_norm.{next(_numbers[self.process_set.process_set_id or 0])}"
        with torch.no_grad():
            mean, variance, count = _statistics(input, f"{self._name}.forward", self.process_set)
            if self.training and self.running_mean is not None:
                self._track(mean, variance, count)
        return _Normalise.apply(
            input, self.weight, self.bias, mean, variance, count, self.eps, self._name, self.process_set
        )

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Return the module with all batch normalisations inside it replaced by this class.

        Parameters and buffers are reused, so optimizers that refer to them remain valid.

        Args:
            module: any module: a batch normalisation, or one that contains some, at any depth.
            process_set: the ranks that share statistics.

        Raises:
            ValueError: a lazy batch normalisation does not know its features yet.
        """
        replaced: dict[torch.nn.Module, torch.nn.Module] = {}
        # A module that is used in two places stays one.
        for path, child in list(module.named_modules(remove_duplicate=False)):
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                if child not in replaced:
                    replaced[child] = _from_plain(cls, child, process_set)
                parent, _, name = path.rpartition(".")
                if path:
                    setattr(module.get_submodule(parent), name, replaced[child])
        return replaced.get(module, module)


def _from_plain(cls: type[SyncBatchNorm], plain: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
    if isinstance(plain, torch.nn.modules.lazy.LazyModuleMixin):
        raise InvalidRequestError(
            f"{type(plain).__name__} does not know its features yet: run one batch through the model, then convert it."
        )
    # On the meta device, no memory is allocated for parameters that are replaced at once.
    converted = cls(
        plain.num_features,
        plain.eps,
        plain.momentum,
        plain.affine,
        plain.track_running_stats,
        process_set,
        device="meta",
    )
    converted.weight, converted.bias = plain.weight, plain.bias
    converted.running_mean, converted.running_var = plain.running_mean, plain.running_var
    converted.num_batches_tracked = plain.num_batches_tracked
    converted.train(plain.training)
    return converted


def convert_sync_batchnorm(module: torch.nn.Module, process_set: ProcessSet = global_process_set) -> torch.nn.Module:
    """Return the module with `SyncBatchNorm` in place of every batch normalisation."""
    return SyncBatchNorm.convert_sync_batchnorm(module, process_set)


# --- arithmetic ------------------------------------------------------------------------------------------------


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the type for computations, which is not a 16-bit one."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _all_but_channels(tensor: torch.Tensor) -> list[int]:
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _by_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return values [C] in a shape that fits a batch."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _statistics(batch: torch.Tensor, name: str, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return mean [C] and biased variance [C] over all ranks' batches, and the number of values of a channel."""
    batch = _wide(batch)
    channels = batch.shape[1]
    own = batch.numel() // channels if channels else 0
    if own:
        variance, mean = torch.var_mean(batch, _all_but_channels(batch), correction=0)
    else:
        variance = mean = batch.new_zeros(channels)
    mean, variance = mean.double(), variance.double()
    sums = torch.cat([mean, variance + mean.square(), mean.new_ones(1)]) * own
    sums = allreduce(sums, name=name, op=Sum, process_set=process_set)
    count = int(sums[-1])
    if count < 2:
        raise InvalidRequestError(
            f"Expected more than 1 value per channel when training, but all ranks together have {count}."
        )
    mean, squares = (sums[:-1] / count).chunk(2)
    variance = (squares - mean.square()).clamp_(min=0)
    return mean.to(batch.dtype), variance.to(batch.dtype), count


class _Normalise(torch.autograd.Function):
    """The formulas in the module's docstring, as a function of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        count: int,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.save_for_backward(batch, weight, bias, mean, variance)
        ctx.how = count, eps, name, process_set
        if not batch.numel():
            return torch.empty_like(batch)
        scale, shift = (None if each is None else each.to(mean.dtype) for each in (weight, bias))
        return torch.nn.functional.batch_norm(batch, mean, variance, scale, shift, training=False, eps=eps)

    @staticmethod
    @no_compile
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        batch, weight, bias, mean, variance = ctx.saved_tensors
        count, eps, name, process_set = ctx.how
        if torch.is_grad_enabled():
            # The user wants the gradient's gradient. What is saved does not know how it depends on the batch.
            own = _gradients_with_graph(ctx.needs_input_grad, batch, weight, bias, gradient, eps, process_set)
            return (*own, None, None, None, None, None, None)
        dims = _all_but_channels(batch)
        gradient = _wide(gradient)
        centred = _wide(batch) - _by_channel(mean, batch)
        inverse = torch.rsqrt(variance + eps)
        sum_gradient, sum_product = gradient.sum(dims), (gradient * centred).sum(dims)
        d_batch = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([sum_gradient, sum_product]).double()
            sums = allreduce(sums, name=f"{name}.backward", op=Sum, process_set=process_set) / count
            mean_gradient, mean_product = sums.to(mean.dtype).chunk(2)
            scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
            gradient = gradient - _by_channel(mean_gradient, batch)
            gradient.sub_(centred.mul_(_by_channel(inverse.square() * mean_product, batch)))
            d_batch = gradient.mul_(_by_channel(scale, batch)).to(batch.dtype)
        d_weight = (sum_product * inverse).to(weight.dtype) if ctx.needs_input_grad[1] else None
        d_bias = sum_gradient.to(bias.dtype) if ctx.needs_input_grad[2] else None
        return d_batch, d_weight, d_bias, None, None, None, None, None, None


def _gradients_with_graph(
    needed: tuple[bool, ...],
    batch: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    gradient: torch.Tensor,
    eps: float,
    process_set: ProcessSet,
) -> list[torch.Tensor | None]:
    """Return the gradients of batch, weight and bias, which can be differentiated again."""
    inputs = [each for each, wanted in zip((batch, weight, bias), needed, strict=False) if wanted and each is not None]
    output = _normalised(batch, weight, bias, eps, process_set)
    found = iter(torch.autograd.grad(output, inputs, gradient, create_graph=True))
    return [next(found) if wanted else None for wanted in needed[:3]]


def _normalised(
    batch: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, process_set: ProcessSet
) -> torch.Tensor:
    """Normalise with differentiable operations only."""
    wide = batch.double()
    dims = _all_but_channels(batch)
    own = wide.new_full((1,), batch.numel() // batch.shape[1])
    sums = torch.cat([wide.sum(dims), wide.square().sum(dims), own])
    sums = allreduce(sums, op=Sum, process_set=process_set)
    mean, squares = (sums[:-1] / sums[-1].detach()).chunk(2)
    output = (wide - _by_channel(mean, batch)) * _by_channel(torch.rsqrt(squares - mean.square() + eps), batch)
    if weight is not None:
        output = output * _by_channel(weight, batch)
    if bias is not None:
        output = output + _by_channel(bias, batch)
    return output.to(batch.dtype)
