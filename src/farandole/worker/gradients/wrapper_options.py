"""The checked options of a distributed optimizer or gradient tape, for TensorFlow and Keras."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.compression import NoneCompressor, check_compression
from farandole.worker.core.basics import current, has_step_loop
from farandole.worker.core.dtype import Adasum, Average, Sum
from farandole.worker.core.group import ProcessSet


@dataclass(frozen=True)
class WrapperOptions:
    """The options for reducing the gradients of an optimizer or a tape."""

    op: int
    compression: Any
    sparse_as_dense: bool
    predivide: float
    groups: int | tuple[tuple[Any, ...], ...] | None
    process_set: ProcessSet
    scale_local: bool
    passes: int = 1
    """The number of backward passes in one step."""
    average_passes: bool = False
    """Whether the gradients of these passes are averaged instead of summed."""
    device_dense: str = ""
    """The device on which TensorFlow places the ops for dense gradients."""
    device_sparse: str = ""
    """The device on which TensorFlow places the ops for `tf.IndexedSlices`."""

    @property
    def prescale(self) -> float:
        """The factor before the reduction."""
        return 1.0 / self.predivide

    @property
    def postscale(self) -> float:
        """The factor after the reduction."""
        return self.predivide * self.sum_of_passes

    @property
    def sum_of_passes(self) -> float:
        """The factor that Keras' mean over the passes is multiplied by."""
        return 1.0 if self.average_passes else float(self.passes)

    def is_local(self) -> bool:
        """Return whether gradients are not reduced: this rank is permanently alone, or is not in the set."""
        session = current()
        if not self.process_set.included():
            return True
        # In an elastic job, a world of one may grow.
        return len(self.process_set.ranks) == 1 and session.notices is None and not has_step_loop()


def checked(
    what: str,
    *,
    op: int,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int,
    groups: int | Sequence[Sequence[Any]] | None,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    device_dense: str = "",
    device_sparse: str = "",
) -> WrapperOptions:
    """Return the options of the user's call, such as DistributedOptimizer.

    Raises:
        ValueError: an option is not valid, or init() has not been called.
    """
    current().group_of(process_set, what)
    if op not in (Average, Sum, Adasum):
        raise InvalidRequestError(f"op currently only supports Average, Sum and Adasum, not {op!r}.")
    compression = NoneCompressor if compression is None else compression
    check_compression(compression)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidRequestError("gradient_predivide_factor not supported with op != Average")
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise InvalidRequestError(
            f"backward_passes_per_step must be an integer of at least 1, not {backward_passes_per_step!r}."
        )
    if op == Adasum and average_aggregated_gradients:
        raise InvalidRequestError("Adasum does not support average_aggregated_gradients == True")
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if os.environ.get("TF_CONFIG"):
        warnings.warn(
            "TF_CONFIG is set, which tells tf.distribute of workers. farandole ignores it: its workers are those that "
            "the launcher has started. Unset TF_CONFIG, or do not use farandole.",
            RuntimeWarning,
            stacklevel=3,
        )
    return WrapperOptions(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        predivide=float(gradient_predivide_factor),
        groups=_groups(groups),
        process_set=process_set,
        scale_local=scale_local_gradients,
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )


def _groups(groups: Any) -> int | tuple[tuple[Any, ...], ...] | None:
    if groups is None or groups == 0:
        return None
    if isinstance(groups, (list, tuple)):
        if not all(isinstance(group, (list, tuple)) for group in groups):
            raise InvalidRequestError("groups should be a positive integer or a list of lists of variables.")
        flat = [id(variable) for group in groups for variable in group]
        if len(set(flat)) != len(flat):
            raise InvalidRequestError("groups has a variable more than once; put each into one group.")
        return tuple(tuple(group) for group in groups)
    if not isinstance(groups, int) or isinstance(groups, bool) or groups < 0:
        raise InvalidRequestError(
            f"groups should be a positive integer or a list of lists of variables, not {groups!r}."
        )
    return groups
