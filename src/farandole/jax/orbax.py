"""Checkpoints in Orbax's format, which one rank writes and reads for all: only this rank needs access to the files.

Orbax (`orbax-checkpoint`) is not a dependency; it is imported when one of these functions is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax

from farandole.errors import CheckpointError, InvalidRequestError
from farandole.jax.training import broadcast_parameters
from farandole.jax.trees import Tree
from farandole.worker.collectives.objects import broadcast_object
from farandole.worker.core.basics import rank
from farandole.worker.core.group import ProcessSet, global_process_set


def save(path: str | os.PathLike[str], tree: Any, *, process_set: ProcessSet = global_process_set) -> None:
    """Write arrays as an Orbax checkpoint, and return on all ranks when it is complete.

    The first rank of the process set writes its own arrays, as `orbax.checkpoint.StandardCheckpointer` does.

    Args:
        path: the path of a folder that does not exist yet, on this rank.
        tree: arrays in any structure, the same on all ranks.
        process_set: the ranks that take part.

    Raises:
        CheckpointError: the checkpoint was not written, because Orbax is not installed, or for the reason in the
            message; on all ranks.

    Example:
        >>> hvd.orbax.save("/checkpoints/100", {"params": params, "optimizer": state})  # doctest: +SKIP
    """

    def write() -> None:
        with _orbax().StandardCheckpointer() as checkpointer:
            checkpointer.save(os.path.abspath(path), tree)
            checkpointer.wait_until_finished()

    _on_first(write, f"the Orbax checkpoint {os.fspath(path)} was not written", process_set)


def restore(path: str | os.PathLike[str], like: Tree, *, process_set: ProcessSet = global_process_set) -> Tree:
    """Return the arrays of an Orbax checkpoint, the same on all ranks.

    The first rank of the process set reads them, and the others get them from it.

    Args:
        path: the path of the checkpoint, on this rank.
        like: arrays of the same shapes and types in the same structure, on all ranks, such as fresh parameters.
        process_set: the ranks that take part.

    Raises:
        CheckpointError: the checkpoint cannot be read, or does not match `like`; on all ranks, with the reason.
        ValueError: the ranks' `like` differ.

    Example:
        >>> tree = hvd.orbax.restore("/checkpoints/100", {"params": params, "optimizer": state})  # doctest: +SKIP
    """

    def read() -> Any:
        shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), like)
        with _orbax().StandardCheckpointer() as checkpointer:
            return checkpointer.restore(os.path.abspath(path), shapes)

    found = _on_first(read, f"the Orbax checkpoint {os.fspath(path)} cannot be restored", process_set)
    return broadcast_parameters(like if found is None else found, process_set.ranks[0], process_set)


def _on_first(action: Callable[[], Any], problem: str, process_set: ProcessSet) -> Any:
    """Return the result of an action on the first rank, and None on the others. If it raises an error, all ranks raise
    one.
    """
    result, reason = None, ""
    is_first = rank() == process_set.ranks[0]
    if is_first:
        try:
            result = action()
        except InvalidRequestError as error:
            reason = str(error)
        except Exception as error:  # Orbax has no errors of its own.
            reason = f"{type(error).__name__}: {error}"
    # With the path of the rank that has used it.
    message = f"{problem}: rank {process_set.ranks[0]} says: {reason}" if reason else ""
    message = broadcast_object(message, process_set.ranks[0], "orbax", process_set)
    if message:
        raise CheckpointError(message)
    return result


def _orbax() -> Any:
    if importlib.util.find_spec("orbax") is None:
        raise InvalidRequestError("Orbax is not installed here. Run: pip install orbax-checkpoint")
    return importlib.import_module("orbax.checkpoint")
