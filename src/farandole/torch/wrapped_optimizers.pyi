# Rendered from farandole.torch.optimizer by `make fix` (tools/stubs.py). Do not edit.
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

import torch

from farandole.torch.naming import Named
from farandole.torch.reduces_gradients import ReducesGradients
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet, global_process_set

Wrapped = TypeVar("Wrapped", bound=torch.optim.Optimizer)

class _Reduces(ReducesGradients):
    backward_passes_per_step: int
    def synchronize(self) -> None: ...
    def skip_synchronize(self) -> AbstractContextManager[Any]: ...
    def set_backward_passes_per_step(self, passes: int) -> None: ...

class ASGD(_Reduces, torch.optim.ASGD): ...
class Adadelta(_Reduces, torch.optim.Adadelta): ...
class Adagrad(_Reduces, torch.optim.Adagrad): ...
class AdamW(_Reduces, torch.optim.AdamW): ...
class Adam(_Reduces, torch.optim.Adam): ...
class Adamax(_Reduces, torch.optim.Adamax): ...
class LBFGS(_Reduces, torch.optim.LBFGS): ...
class NAdam(_Reduces, torch.optim.NAdam): ...
class RAdam(_Reduces, torch.optim.RAdam): ...
class RMSprop(_Reduces, torch.optim.RMSprop): ...
class Rprop(_Reduces, torch.optim.Rprop): ...
class SGD(_Reduces, torch.optim.SGD): ...
class SparseAdam(_Reduces, torch.optim.SparseAdam): ...

@overload
def DistributedOptimizer(
    optimizer: torch.optim.ASGD,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> ASGD: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.Adadelta,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Adadelta: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.Adagrad,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Adagrad: ...
@overload
def DistributedOptimizer(  # type: ignore[overload-overlap]
    optimizer: torch.optim.AdamW,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> AdamW: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.Adam,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Adam: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.Adamax,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Adamax: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.LBFGS,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> LBFGS: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.NAdam,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> NAdam: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.RAdam,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> RAdam: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.RMSprop,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> RMSprop: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.Rprop,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Rprop: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.SGD,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> SGD: ...
@overload
def DistributedOptimizer(
    optimizer: torch.optim.SparseAdam,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> SparseAdam: ...
@overload
def DistributedOptimizer(
    optimizer: Wrapped,
    named_parameters: Iterable[Named] | None = None,
    compression: Any = ...,
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
