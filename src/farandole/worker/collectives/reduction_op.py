"""The argument `op` of collectives that reduce, and the types that each operation applies to."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.framework import Framework
from farandole.worker.core.dtype import Average, DType, ElementType, Sum


def divisor(op: int, size: int) -> int:
    """Return the divisor of the sum of `size` ranks' tensors."""
    return size if op == Average else 1


def op_asked_for(op: int | None, average: bool | None, stacklevel: int) -> int:
    """Return the operation that `op` and Horovod's older argument `average` together select.

    Args:
        op: the operation; None: Average.
        average: Average or Sum; None: it was not given.
        stacklevel: the stack level of the warning that `average` is deprecated, as seen from the caller.

    Raises:
        ValueError: both were given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidRequestError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn(
        "average is deprecated: use op=hvd.Average or op=hvd.Sum.", DeprecationWarning, stacklevel=stacklevel + 1
    )
    return Average if average else Sum


def check_reducible(front: Framework, tensor: Any, dtype: ElementType, op: int) -> None:
    """Raise ValueError if tensors of this type cannot be reduced by this operation."""
    if dtype is DType.BOOL and op == Average:
        refuse_average_of_truth(front.type_name(tensor))


def refuse_average_of_truth(type_name: str) -> NoReturn:
    """Raise ValueError for booleans, whose type has this name."""
    raise InvalidRequestError(
        f"Tensor type {type_name} is not supported with op=hvd.Average. Use "
        'hvd.Sum or hvd.Max ("or"), or hvd.Min or hvd.Product ("and").'
    )
