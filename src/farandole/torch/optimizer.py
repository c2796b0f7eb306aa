"""`DistributedOptimizer`: any PyTorch optimizer, stepping with gradients that are reduced over all workers."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from farandole.core.basics import current
from farandole.core.dtype import OPS, Average
from farandole.core.errors import InvalidRequestError
from farandole.core.group import ProcessSet, global_process_set
from farandole.torch.compression import Compression
from farandole.torch.reducer import GradientReducer

Named = tuple[str, torch.nn.Parameter]


class _Distributed(torch.optim.Optimizer):
    """What is put in front of the wrapped optimizer's class."""

    _reducer: GradientReducer | None
    _parameter_names: dict[torch.nn.Parameter, str]
    _synchronized: bool
    _should_synchronize: bool
    backward_passes_per_step: int

    def synchronize(self) -> None:
        """Wait until all gradients are reduced. Parameters without a gradient here take part with zeros.

        Raises:
            HorovodInternalError: a gradient could not be reduced.
        """
        if self._reducer is not None:
            self._reducer.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step()` not synchronize, because `synchronize()` was called before.

        Example:
            >>> optimizer.synchronize()  # doctest: +SKIP
            >>> torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # doctest: +SKIP
            >>> with optimizer.skip_synchronize():  # doctest: +SKIP
            ...     optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes make one step, from the next step on."""
        _check_passes(passes)
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Synchronize, then do the wrapped optimizer's step.

        With a closure, the gradients of each of its calls are reduced before the optimizer sees them.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are reduced already; put the step into "
                    "`with optimizer.skip_synchronize():`.",
                    stacklevel=2,
                )
            if self._pending or (closure is None and not self._synchronized):
                self.synchronize()
        self._synchronized = False
        if closure is None:
            return super().step()
        return super().step(self._synchronizing(closure))

    # The base class wraps a class's step to run the user's step hooks; the wrapped class's step does that already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients; `set_to_none` as in PyTorch.

        Raises:
            AssertionError: gradients are on their way.
        """
        if self._pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). The gradients are still being reduced; finish them first."
            )
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, and forget backward passes that made no step."""
        if self._reducer is not None:
            self._reducer.reset()
        self._synchronized = False
        super().load_state_dict(state_dict)

    @property
    def _pending(self) -> bool:
        return self._reducer is not None and self._reducer.pending

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def synchronized() -> Any:
            loss = closure()
            if self._reducer is not None:
                self._reducer.finish()
            return loss

        return synchronized if self._should_synchronize else closure


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the optimizer, made to step with gradients reduced over all workers.

    Gradients are reduced while the backward pass runs, each as soon as it is there. The result is an instance of a
    subclass of the optimizer's class, under the same name, and shares its `param_groups` and state.

    Args:
        optimizer: any optimizer of PyTorch's interface.
        named_parameters: `model.named_parameters()`; ranks' gradients match by name. Without it they match by their
            place in the optimizer's groups.
        compression: how gradients travel, such as `Compression.bf16`.
        backward_passes_per_step: gradients of that many backward passes are summed locally, then reduced once.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: with Average, divide by this before the sum and by size / this after it.
        num_groups: deprecated; see `groups`.
        groups: reduce gradients in this many groups of neighbours, or in these groups; None is each by itself.
        sparse_as_dense: make sparse gradients dense.
        process_set: which ranks reduce; on others the optimizer is local.

    Raises:
        ValueError: an argument is wrong.

    Example:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())  # doctest: +SKIP
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # doctest: +SKIP
    """
    current()
    if op not in OPS:
        raise InvalidRequestError(f"op is one of Average, Sum, Min, Max and Product, not {op!r}.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidRequestError("gradient_predivide_factor not supported with op != Average")
    _check_passes(backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = _named_parameters(optimizer, named_parameters)
    bundles = _bundles([(name, parameter) for name, parameter in named if parameter.requires_grad], groups)
    distributed = _wrap(optimizer)
    distributed.backward_passes_per_step = backward_passes_per_step
    distributed._parameter_names = {parameter: name for name, parameter in named}
    distributed._synchronized = False
    distributed._should_synchronize = True
    distributed._reducer = None
    if process_set.included():
        distributed._reducer = GradientReducer(
            bundles,
            passes=backward_passes_per_step,
            op=op,
            prescale=1.0 / gradient_predivide_factor,
            postscale=gradient_predivide_factor,
            compression=compression,
            process_set=process_set,
            sparse_as_dense=sparse_as_dense,
        )
    return distributed


def _wrap(optimizer: torch.optim.Optimizer) -> _Distributed:
    """Return an instance of a new subclass that shares all that the optimizer has.

    Its `__init__` is not run again: what a subclass of the user's does there is none of our business.
    """
    wrapped = type(optimizer)
    namespace = {"__module__": wrapped.__module__, "__doc__": wrapped.__doc__}
    cls: type[_Distributed] = type(wrapped.__name__, (_Distributed, wrapped), namespace)
    distributed = cls.__new__(cls)
    # A scheduler puts a `step` that is bound to the wrapped optimizer on it; ours must not be hidden by that.
    distributed.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    return distributed


def _check_passes(passes: int) -> None:
    if passes <= 0:
        raise InvalidRequestError(f"backward_passes_per_step must be > 0, not {passes}.")


def _named_parameters(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Named] | None) -> list[Named]:
    """Return the optimizer's parameters with names, in the order of its groups."""
    if named_parameters is None:
        return [
            (f"allreduce.noname.{group_index}.{index}", parameter)
            for group_index, group in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
        ]
    named = list(named_parameters)
    if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in named):
        raise InvalidRequestError(
            "named_parameters should be a sequence of tuples (name, parameter), such as model.named_parameters()."
        )
    repeated = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if repeated:
        raise InvalidRequestError(
            f"Parameter names in named_parameters must be unique. Found more than once: {', '.join(repeated)}. "
            "Prefix the names of each model."
        )
    names = {parameter: name for name, parameter in named}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    unnamed = sum(parameter not in names for parameter in parameters)
    if unnamed:
        raise InvalidRequestError(
            f"named_parameters was specified, but one or more model parameters were not named: {unnamed} of "
            f"{len(parameters)} that the optimizer has. Pass the names of all, or none."
        )
    return [(names[parameter], parameter) for parameter in parameters]


def _bundles(named: list[Named], groups: int | Sequence[Sequence[torch.nn.Parameter]] | None) -> list[list[Named]]:
    """Return which parameters are reduced together."""
    if groups is None:
        return [[entry] for entry in named]
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise InvalidRequestError(f"groups should be a non-negative integer or a list of lists, not {groups}.")
        return _split(named, groups) if groups else [[entry] for entry in named]
    return _explicit(named, groups)


def _split(named: list[Named], count: int) -> list[list[Named]]:
    """Return `count` nearly equal runs, the larger ones first."""
    size, larger = divmod(len(named), count)
    ends = [size * (index + 1) + min(index + 1, larger) for index in range(count)]
    return [run for begin, end in zip([0, *ends], ends, strict=False) if (run := named[begin:end])]


def _explicit(named: list[Named], groups: Any) -> list[list[Named]]:
    names = {parameter: name for name, parameter in named}
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise InvalidRequestError("groups should be a non-negative integer or a list of lists of torch.Tensor.")
    flat = [parameter for group in groups for parameter in group]
    if not all(isinstance(parameter, torch.Tensor) for parameter in flat):
        raise InvalidRequestError("groups must consist of torch.Tensor: pass lists of the model's parameters.")
    if len(set(flat)) != len(flat):
        raise InvalidRequestError("groups has a parameter more than once; put each into one group.")
    together = [[(names[parameter], parameter) for parameter in group if parameter in names] for group in groups]
    grouped = set(flat)
    alone = [[entry] for entry in named if entry[1] not in grouped]
    return [group for group in together if group] + alone
