"""The optimizer of op=Adasum: each rank takes its own step, and the steps are combined.

Adasum adds the parts in which the ranks' vectors differ and averages those that they share (Maleki et al., "Scaling
Distributed Training with Adaptive Summation", MLSys 2021). It works on *deltas*, the changes of a parameter by a step,
because only those contain the optimizer's momentum and scaling:

    start = p;  p is stepped with this rank's gradient;  p = start + adasum(p - start)

The learning rate need not grow with the number of ranks. The optimizer's state, such as momentum, differs between
ranks. Gradients are not reduced, so they can be clipped, accumulated and unscaled as in one process. If a gradient
scaler finds that those of one rank have overflowed, that rank skips its own step, and adds a change of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from farandole.torch.collectives import allreduce_call
from farandole.torch.naming import Named, name_last_group
from farandole.torch.no_compile import no_compile
from farandole.torch.optimizer_state import refuse_copy, same_containers
from farandole.torch.parameters import parameters_digest
from farandole.torch.step_count import count_step
from farandole.torch.tensor_gradients import take_over
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import Adasum
from farandole.worker.core.group import ProcessSet
from farandole.worker.gradients.parameter_check import ParameterCheck

_OF_SCALER = ("found_inf", "grad_scale")
"""Attributes that PyTorch's `GradScaler` sets before it calls `step()`, and deletes after it."""


class DeltaReducer:
    """Combines the steps of all ranks."""

    def __init__(self, named: Sequence[Named], compression: Any, process_set: ProcessSet) -> None:
        """Create a reducer for these parameters.

        Args:
            named: parameters with the names by which the ranks' deltas match.
            compression: the compression of the deltas.
            process_set: the ranks that take part.
        """
        self._named: list[Named] = []
        self._compression = compression
        self._process_set = process_set
        self.add(named)

    def add(self, named: Sequence[Named]) -> None:
        """Add parameters whose steps are reduced."""
        self._named += named
        for _, parameter in named:
            take_over(parameter)

    def begin(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """Return (name, parameter, copy of its value) of all trained parameters."""
        return [
            (name, parameter, parameter.detach().clone(memory_format=torch.contiguous_format))
            for name, parameter in self._named
            if parameter.requires_grad
        ]

    @no_compile
    def finish(self, starts: Sequence[tuple[str, torch.Tensor, torch.Tensor]]) -> None:
        """Replace the changes by this rank's step since `begin` by the combined changes of all ranks' steps.

        Raises:
            HorovodInternalError: the ranks' parameters do not match, or a worker was lost.
        """
        session = current()
        if not starts or session.world.size == 1:
            return
        # The step may have given a parameter other memory.
        stepped = [parameter.detach() for _, parameter, _ in starts]
        pairs = [self._compression.compress(now - start) for now, (_, _, start) in zip(stepped, starts, strict=True)]
        sent = [tensor.contiguous() for tensor, _ in pairs]
        names = [f"allreduce.{name}" for name, _, _ in starts]
        group = session.group_of(self._process_set, "DistributedOptimizer")
        session.handles.run(allreduce_call(session, sent, sent, names, Adasum, 1.0, 1.0, group))
        for now, (_, _, start), tensor, (_, context) in zip(stepped, starts, sent, pairs, strict=True):
            now.copy_(start.add_(self._compression.decompress(tensor, context)))


class AdasumOptimizer(torch.optim.Optimizer):
    """The first base class of a wrapped optimizer for op=Adasum."""

    # None on ranks outside the process set, where the optimizer is local.
    _deltas: DeltaReducer | None
    _check: ParameterCheck | None = None
    _parameter_names: dict[torch.nn.Parameter, str]
    backward_passes_per_step: int
    # PyTorch's GradScaler then calls step() for overflowed gradients, too: the other ranks wait for this one's change.
    _step_supports_amp_scaling = True

    __reduce_ex__ = refuse_copy

    def synchronize(self) -> None:
        """Do nothing: gradients are not reduced here, and `step()` waits for the deltas."""

    def skip_synchronize(self) -> Any:
        """Raise an error: a step without reduction would let the ranks' parameters drift apart.

        Raises:
            AssertionError: always.
        """
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer. Gradients are this rank's own: "
            "clip or unscale them before step() as on one process."
        )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes in one step. Any number works, because gradients are summed locally."""
        self.backward_passes_per_step = passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the wrapped optimizer's step with this rank's gradients; then combine the ranks' steps."""
        if self._check is not None:
            self._check.step(lambda: parameters_digest(self._parameter_names))
        starts = [] if self._deltas is None else self._deltas.begin()
        loss = self._own_step(closure)
        if self._deltas is not None:
            self._deltas.finish(starts)
        count_step()
        return loss

    # The base class wraps a class's step to run the user's step hooks; the wrapped class's step does that already.
    step.hooked = True  # type: ignore[attr-defined]

    def _own_step(self, closure: Callable[[], Any] | None) -> Any:
        plain = super().step if closure is None else partial(super().step, closure)
        if self._wrapped_class_unscales():
            return plain()
        # Classes that do not handle these attributes refuse a step while they are there.
        given: dict[str, Any] = {name: vars(self).pop(name) for name in _OF_SCALER if name in vars(self)}
        try:
            if given.get("found_inf", 0):
                return None
            self._unscale(given.get("grad_scale"))
            return plain()
        finally:
            vars(self).update(given)

    def _wrapped_class_unscales(self) -> bool:
        """Return whether the wrapped class itself handles a gradient scaler, as fused optimizers do."""
        name = "_step_supports_amp_scaling"
        return bool(vars(self).get(name, getattr(super(), name, False)))

    def _unscale(self, scale: torch.Tensor | None) -> None:
        if scale is None:
            return  # There is no scaler, or the script has unscaled the gradients.
        # Rounded as in GradScaler.unscale_().
        inverse = float(scale.double().reciprocal().float())
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.grad is not None:
                parameter.grad.mul_(inverse)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict. Schedulers keep their effect."""
        with same_containers(self):
            super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, whose steps are also combined. All ranks must add the same one."""
        super().add_param_group(param_group)
        named = name_last_group(self, self._parameter_names)
        if self._deltas is not None:
            self._deltas.add(named)
