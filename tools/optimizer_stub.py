"""The stub of PyTorch's `DistributedOptimizer`, which returns the user's class with additional methods.

Python has no type for "both of these classes". So the stub has a class for each of torch's own optimizers; an optimizer
of any other class is returned with its own class.
"""

from __future__ import annotations

import inspect
import textwrap

# Those of the oldest PyTorch that is supported; a class stands before the one that it is derived from in some version.
OPTIMIZERS = (
    *("ASGD", "Adadelta", "Adagrad", "AdamW", "Adam", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    "SparseAdam",
)
# In some versions an Adam as well, for which the result is another class.
_IGNORED = {"AdamW": "  # type: ignore[overload-overlap]"}
_HEAD = """\
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

"""


def optimizer_stub() -> str:
    """Return the text of the stub."""
    from farandole.torch.optimizer import DistributedOptimizer

    parameters = list(inspect.signature(DistributedOptimizer).parameters.values())[1:]
    rest = "".join(f"    {each.name}: {each.annotation} = {_default(each)},\n" for each in parameters)
    classes = "".join(f"class {name}(_Reduces, torch.optim.{name}): ...\n" for name in OPTIMIZERS)
    overloads = "".join(
        f"@overload\ndef DistributedOptimizer({_IGNORED.get(name, '')}\n    optimizer: torch.optim.{name},\n{rest})"
        f" -> {name}: ...\n"
        for name in OPTIMIZERS
    )
    text = textwrap.indent(f'"""{inspect.cleandoc(DistributedOptimizer.__doc__ or "")}\n"""', "    ")
    last = f"@overload\ndef DistributedOptimizer(\n    optimizer: Wrapped,\n{rest}) -> Wrapped:\n{text}\n"
    return f"{_HEAD}{classes}\n{overloads}{last}"


def _default(parameter: inspect.Parameter) -> str:
    names = {"op": "Average", "process_set": "global_process_set", "compression": "..."}
    return names.get(parameter.name, repr(parameter.default))
