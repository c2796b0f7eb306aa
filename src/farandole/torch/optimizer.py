"""`DistributedOptimizer`: any PyTorch optimizer, whose steps use gradients that are reduced over all workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from farandole.errors import InvalidRequestError
from farandole.torch.adasum import AdasumOptimizer, DeltaReducer
from farandole.torch.collectives import allreduce
from farandole.torch.compression import Compression, Feedback, Recipe
from farandole.torch.gradient_entry import GradientEntry
from farandole.torch.naming import Named, can_be_trained, check_optimizer, name_last_group, parameter_names
from farandole.torch.optimizer_state import refuse_copy, same_containers
from farandole.torch.parameters import BROADCAST_ADVICE, parameters_digest
from farandole.torch.step_count import count_step
from farandole.torch.tensor_gradients import GradientReducer, TensorGradients
from farandole.worker.collectives.compressed import check_compressible
from farandole.worker.collectives.compression import check_compression
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import OPS, Adasum, Average, Sum
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.grouping import grouped
from farandole.worker.gradients.parameter_check import ParameterCheck
from farandole.worker.gradients.reduce_options import ReduceOptions

Wrapped = TypeVar("Wrapped", bound=torch.optim.Optimizer)
"""The class of a user's optimizer: the wrapper is an instance of a subclass."""

# Why `zero_grad()` is refused, with one backward pass for each step and with several.
_IN_FLIGHT = "The gradients are still being reduced; finish them first."
_PASSES_LOST = (
    "The gradients of the backward passes since the last step would be lost. After fewer than backward_passes_per_step "
    "passes, such as at the end of an epoch, optimizer.step() uses those that there are, if all ranks call it. To "
    "discard them, call optimizer.synchronize() first, on all ranks."
)
_CHANGED = (
    "gradients were changed while they were being reduced, as by torch.nn.utils.clip_grad_norm_, GradScaler.unscale_ "
    "or model.zero_grad(set_to_none=False) after loss.backward(): each rank may now have other gradients, and train "
    "another model. Call optimizer.synchronize() before they are changed, and put the step into "
    "`with optimizer.skip_synchronize():`."
)


class Passes(Protocol):
    """The passes of a step that takes several iterations of a loop, as `torch.elastic.gradient_passes` counts them."""

    is_partial: bool
    holds: bool

    def stepped(self) -> None:
        """Record that the optimizer has taken its step."""


class _Distributed(torch.optim.Optimizer):
    """The first base class of a wrapped optimizer.

    Attributes:
        passes: the passes, if a step takes several iterations of a loop: in all except the last, this optimizer does
            nothing.
    """

    passes: Passes | None = None
    _reducer: GradientReducer | None
    _check: ParameterCheck | None = None
    _parameter_names: dict[torch.nn.Parameter, str]
    _process_set: ProcessSet
    _op: int
    _sparse_as_dense: bool
    _synchronized: bool
    _should_synchronize: bool
    backward_passes_per_step: int

    __reduce_ex__ = refuse_copy

    def synchronize(self) -> None:
        """Wait until all gradients are reduced. Parameters without a gradient here take part with zeros.

        Raises:
            HorovodInternalError: a gradient could not be reduced.
        """
        if self.passes is not None and self.passes.is_partial:
            return
        if self._reducer is not None:
            self._finish(self._reducer, steps=False)
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step()` not synchronize, because `synchronize()` was already called.

        Example:
            >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            >>> model(torch.ones(1, 4)).sum().backward()
            >>> optimizer.synchronize()
            >>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            >>> with optimizer.skip_synchronize():
            ...     optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes in one step, from the next step on."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, then take the wrapped optimizer's step.

        With a closure, the gradients of each of its calls are reduced before the optimizer uses them. `LBFGS` decides
        by the loss how often it calls the closure, so it gets the loss of all ranks: their sum with op=Sum, else their
        average.
        """
        if self.passes is not None:
            if self.passes.is_partial:
                return None
            self.passes.stepped()
        if self._should_synchronize:
            # Gradients that came after synchronize() are new: a scaler may have skipped the step between.
            if self._synchronized and not self._pending:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are reduced already; put the step into "
                    "`with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
            if self._reducer is not None and (self._pending or (closure is None and not self._synchronized)):
                self._finish(self._reducer)
        if self._check is not None:
            self._check.step(lambda: parameters_digest(self._parameter_names))
        self._synchronized = False
        if self._reducer is not None and self._reducer.step_is_lost:
            self._reducer.step_is_lost = False
            self.zero_grad()
            return None
        result = super().step() if closure is None else super().step(self._synchronizing(closure))
        count_step()
        return result

    # The base class wraps a class's step to run the user's step hooks; the wrapped class's step does that already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients; `set_to_none` as in PyTorch.

        Raises:
            AssertionError: gradients are being reduced, or those of backward passes since the last step would be lost.
        """
        if self.passes is not None and self.passes.holds:
            return
        if self._pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                f"optimizer.synchronize(). {_IN_FLIGHT if self.backward_passes_per_step == 1 else _PASSES_LOST}"
            )
        super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, whose gradients are also reduced. All ranks must add the same one."""
        super().add_param_group(param_group)
        named = name_last_group(self, self._parameter_names)
        if self._reducer is not None:
            self._reducer.add(_entries([[each] for each in named], self._sparse_as_dense))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, and discard backward passes since the last step. Schedulers keep their effect."""
        if self._reducer is not None:
            self._reducer.reset()
        self._synchronized = False
        with same_containers(self):
            super().load_state_dict(state_dict)

    @property
    def _pending(self) -> bool:
        return self._reducer is not None and self._reducer.pending

    def _finish(self, reducer: GradientReducer, *, steps: bool = True) -> None:
        if reducer.has_changed():
            warnings.warn(_CHANGED, stacklevel=3)
        reducer.finish(steps)

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def synchronized() -> Any:
            loss = closure()
            if self._reducer is None:
                return loss
            self._finish(self._reducer)
            return self._loss_of_all(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return synchronized if self._should_synchronize else closure

    def _loss_of_all(self, loss: Any) -> torch.Tensor:
        loss = torch.as_tensor(loss).detach().contiguous()
        op = Sum if self._op == Sum else Average
        return allreduce(loss, name="closure.loss", op=op, process_set=self._process_set)


def DistributedOptimizer(
    optimizer: Wrapped,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Wrapped:
    """Return an optimizer whose steps use gradients reduced over all workers.

    Gradients are reduced while the backward pass runs, each as soon as it is ready; on a GPU, several together as soon
    as all of them are ready. The result is an instance of a subclass of the optimizer's class, under the same name, and
    shares its `param_groups` and state.

    Args:
        optimizer: any optimizer of PyTorch's interface.
        named_parameters: `model.named_parameters()`; ranks' gradients match by name. Without it, they match by their
            places in the optimizer's groups.
        compression: the form in which gradients are sent, such as `Compression.bf16`. The residuals that
            `Compression.int8`, `.topk` and `.powersgd` do not send are added to the next step's gradients;
            `load_state_dict` discards them.
        backward_passes_per_step: number of backward passes whose gradients are summed locally, then reduced once.
        op: Average, Sum, Min, Max or Product. With Adasum, each rank takes its own step, and the *changes* of the
            parameters are reduced: see `farandole.torch.adasum`.
        gradient_predivide_factor: with Average, divide by this before the sum and by size / this after it.
        num_groups: deprecated; pass the number as `groups`.
        groups: the number of groups of neighbours, or lists of parameters, whose gradients are reduced together, the
            others as without groups. None: each by itself, or on a GPU in buckets of up to 25 MiB.
        sparse_as_dense: whether sparse gradients are sent dense. Otherwise their rows are gathered, uncompressed. A
            parameter's gradient stays sparse either way.
        process_set: the ranks that reduce; on others the optimizer is local.

    Raises:
        ValueError: an argument is not valid.

    Example:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    """
    session = current()
    if isinstance(optimizer, (_Distributed, AdasumOptimizer)):
        raise InvalidRequestError("this optimizer is a DistributedOptimizer already; wrap the original one, once.")
    check_optimizer(optimizer, "DistributedOptimizer")
    if op not in OPS:
        raise InvalidRequestError(f"op must be one of Average, Sum, Adasum, Min, Max and Product, not {op!r}.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidRequestError("gradient_predivide_factor not supported with op != Average")
    check_compression(compression)
    if isinstance(compression, (Recipe, Feedback)):
        check_compressible(op)
    _check_passes(backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = parameter_names(optimizer, named_parameters)
    named = [(names[parameter], parameter) for group in optimizer.param_groups for parameter in group["params"]]
    named = [entry for entry in named if can_be_trained(entry[1])]
    bundles = _bundles(named, groups)
    session.group_of(process_set, "DistributedOptimizer")
    session.dropped.finish()
    distributed: Any
    # In an elastic job, a world of one may grow.
    if op == Adasum and (session.world.size > 1 or session.notices is not None):
        distributed = _wrap(optimizer, AdasumOptimizer)
        distributed._deltas = DeltaReducer(named, compression, process_set) if process_set.included() else None
    else:
        distributed = _wrap(optimizer, _Distributed)
        distributed._process_set, distributed._op = process_set, op
        distributed._sparse_as_dense = sparse_as_dense
        distributed._synchronized = False
        distributed._should_synchronize = True
        distributed._reducer = None
        if process_set.included():
            options = ReduceOptions(op, 1.0 / gradient_predivide_factor, gradient_predivide_factor, process_set)
            gradients = TensorGradients(options, compression)
            distributed._reducer = GradientReducer(
                gradients,
                _entries(bundles, sparse_as_dense),
                options,
                passes=backward_passes_per_step,
                make_memory=gradients.flat_memory if gradients.uses_buckets else None,
            )
    if named and process_set.included():
        distributed._check = ParameterCheck(named[0][0], process_set, BROADCAST_ADVICE)
    distributed.backward_passes_per_step = backward_passes_per_step
    distributed._parameter_names = names
    result: Wrapped = distributed
    return result


def _wrap(optimizer: torch.optim.Optimizer, front: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an instance of a new subclass of `front` and the optimizer's class that shares the optimizer's attributes.

    Its `__init__` is not called: that of a user's class may have effects that must not happen twice.
    """
    wrapped = type(optimizer)
    namespace = {"__module__": wrapped.__module__, "__doc__": wrapped.__doc__}
    cls: type[torch.optim.Optimizer] = type(wrapped.__name__, (front, wrapped), namespace)
    distributed = cls.__new__(cls)
    # A scheduler adds a `step` that is bound to the wrapped optimizer; it must not hide the subclass's `step`.
    distributed.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    # That scheduler does not see the subclass's steps, and would warn that none came before its own.
    vars(optimizer)["_opt_called"] = True
    return distributed


def _check_passes(passes: int) -> None:
    if passes <= 0:
        raise InvalidRequestError(f"backward_passes_per_step must be > 0, not {passes}.")


def _bundles(named: list[Named], groups: Any) -> list[list[Named]]:
    """Return the groups of parameters that are reduced together; with a number of groups, frozen ones are omitted."""
    together, alone = named, []
    if isinstance(groups, (list, tuple)):
        _check_groups(groups)
    elif groups is not None:
        if not isinstance(groups, int) or isinstance(groups, bool) or groups <= 0:
            raise InvalidRequestError(
                f"groups should be a positive integer or a list of lists of torch.Tensor, not {groups!r}."
            )
        together = [entry for entry in named if entry[1].requires_grad]
        alone = [[entry] for entry in named if not entry[1].requires_grad]
    places = grouped([parameter for _, parameter in together], groups)
    if places is None:
        return [[entry] for entry in named]
    return [[together[place] for place in group] for group in places] + alone


def _check_groups(groups: Sequence[Any]) -> None:
    if not all(isinstance(group, (list, tuple)) for group in groups):
        raise InvalidRequestError("groups should be a positive integer or a list of lists of torch.Tensor.")
    flat = [parameter for group in groups for parameter in group]
    if not all(isinstance(parameter, torch.Tensor) for parameter in flat):
        raise InvalidRequestError("groups must consist of torch.Tensor: pass lists of the model's parameters.")
    if len(set(flat)) != len(flat):
        raise InvalidRequestError("groups has a parameter more than once; put each into one group.")


def _entries(bundles: list[list[Named]], sparse_as_dense: bool) -> list[list[GradientEntry]]:
    return [[GradientEntry(name, parameter, sparse_as_dense) for name, parameter in bundle] for bundle in bundles]


def is_distributed(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer is a `DistributedOptimizer` with an op other than Adasum."""
    return isinstance(optimizer, _Distributed)


def has_unused_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a backward pass has run since the last step or `synchronize()` of a distributed optimizer."""
    return isinstance(optimizer, _Distributed) and optimizer._pending
