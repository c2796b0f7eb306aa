"""Broadcasting variables of TensorFlow or Keras, which have `numpy()` and `assign(value)`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import farandole.numpy as arrays
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.objects import allgather_object
from farandole.worker.core.basics import rank
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.parameter_check import digest_of


def broadcast_variables(
    variables: Sequence[Any], root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Assign the root's values to variables. A collective.

    Args:
        variables: the variables, the same ones on all ranks.
        root_rank: the rank, in the world, whose values all ranks get.
        process_set: the ranks that take part.

    Raises:
        ValueError: the ranks' variables differ in number, shape or type, or the argument is not a list of variables.

    Example:
        >>> hvd.broadcast_variables(model.weights)  # doctest: +SKIP
    """
    check_variables(variables)
    values = [variable.numpy() for variable in variables]
    check_alike(
        [_described(*each) for each in zip(variables, values, strict=True)],
        root_rank,
        process_set,
        name="broadcast_variables",
        what="variables",
        same_names=False,
    )
    handles = [
        arrays.broadcast_async(value, root_rank, name=f"broadcast_variables.{index}", process_set=process_set)
        for index, value in enumerate(values)
    ]
    for variable, handle in zip(variables, handles, strict=True):
        variable.assign(arrays.synchronize(handle))


def check_variables(given: Any) -> None:
    """Raise ValueError if the argument `variables` is something else, such as a model or tensors."""
    wrong: Any = None if isinstance(given, Iterable) else given
    if wrong is None:
        wrong = next((each for each in given if not hasattr(each, "assign")), None)
    if wrong is not None:
        raise InvalidRequestError(
            f"broadcast_variables takes a list of variables, but got {type(wrong).__name__}. Pass model.variables."
        )


def _described(variable: Any, value: Any) -> tuple[str, str]:
    """Return the name of a variable, and its type and shape."""
    return str(getattr(variable, "path", None) or variable.name), f"{value.dtype.name}{list(value.shape)}"


def check_alike(
    mine: list[tuple[str, str]],
    root_rank: int,
    process_set: ProcessSet,
    *,
    name: str,
    what: str,
    same_names: bool = True,
) -> None:
    """Compare the values that the ranks are about to broadcast, so that no rank waits for one that others do not have.

    Args:
        mine: the name, and the type and shape, of each value on this rank.
        root_rank: the rank, in the world, whose values all ranks get.
        process_set: the ranks that take part.
        name: the name of the call.
        what: the word for the values in messages.
        same_names: whether names must be the same, too. Names that a framework counts may differ: a rank that has made
            another model before counts on from there.

    Raises:
        ValueError: a rank's values differ from the root's in number, name, type or shape; raised on all ranks.
    """
    every = allgather_object(mine, name=name, process_set=process_set)
    ranks = list(process_set.ranks)
    if root_rank not in ranks:
        raise InvalidRequestError(f"root_rank {root_rank} is not in the process set of ranks {ranks}.")
    root = every[ranks.index(root_rank)]
    compared = slice(None) if same_names else slice(1, None)
    for each, theirs in zip(ranks, every, strict=True):
        pairs = zip(theirs, root, strict=False)
        place = next(
            (index for index, pair in enumerate(pairs) if pair[0][compared] != pair[1][compared]),
            min(len(theirs), len(root)),
        )
        if place == len(theirs) == len(root):
            continue
        raise InvalidRequestError(
            f"rank {each} has {len(theirs)} {what}, and rank {root_rank} has {len(root)}; they differ from number "
            f"{place} on: {_at(theirs, place)} on rank {each}, {_at(root, place)} on rank {root_rank}. Make "
            f"the same model and optimizer on all workers. (This is rank {rank()}.)"
        )


def _at(variables: list[tuple[str, str]], place: int) -> str:
    return " ".join(variables[place]) if place < len(variables) else "none"


def digest(values: Iterable[Any]) -> int:
    """Return a hash of the bits of arrays.

    Args:
        values: arrays of any types, or values that `numpy.asarray` can convert.
    """
    return digest_of([_sum_of_words(np.asarray(value)) for value in values])


def _sum_of_words(array: np.ndarray[Any, Any]) -> int:
    flat = np.ascontiguousarray(array).reshape(-1)
    words = flat.view(f"i{flat.itemsize}" if flat.itemsize in (1, 2, 4, 8) else np.uint8)
    return int(words.sum(dtype=np.int64))
