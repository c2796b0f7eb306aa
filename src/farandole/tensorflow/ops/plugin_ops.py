"""The ops of the plugin library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.tensorflow.ops.assignment import assigned
from farandole.worker.collectives import barrier as blocking
from farandole.worker.core.basics import identity, is_initialized
from farandole.worker.core.group import ProcessSet


class PluginOps:
    """Each method makes one op; what they return, and when, is said in `farandole.tensorflow.ops`."""

    def __init__(self, ops: Any) -> None:
        """Make ops of these functions, which TensorFlow has made for the library."""
        self._ops = ops

    # --- reductions ----------------------------------------------------------------------------------------------

    def allreduce(
        self,
        tensor: Any,
        *,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        ignore_name_scope: bool = False,
    ) -> Any:
        """Return the reduction of all ranks' tensors."""
        return self._ops.farandole_allreduce(
            tensor,
            reduce_op=op,
            prescale=_text(prescale),
            postscale=_text(postscale),
            process_set_id=_id(process_set, "Allreduce"),
            **_names(name, ignore_name_scope),
        )

    def grouped_allreduce(
        self,
        tensors: Sequence[Any],
        *,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        ignore_name_scope: bool = False,
    ) -> list[Any]:
        """Return the reductions of several tensors, which travel together."""
        return list(
            self._ops.farandole_grouped_allreduce(
                list(tensors),
                reduce_op=op,
                prescale=_text(prescale),
                postscale=_text(postscale),
                process_set_id=_id(process_set, "Allreduce"),
                **_names(name, ignore_name_scope),
            )
        )

    def reducescatter(
        self,
        tensor: Any,
        *,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        ignore_name_scope: bool = False,
    ) -> Any:
        """Return this rank's rows of the reduction."""
        return self._ops.farandole_reducescatter(
            tensor,
            reduce_op=op,
            prescale=_text(prescale),
            postscale=_text(postscale),
            process_set_id=_id(process_set, "Reducescatter"),
            **_names(name, ignore_name_scope),
        )

    def grouped_reducescatter(
        self,
        tensors: Sequence[Any],
        *,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        ignore_name_scope: bool = False,
    ) -> list[Any]:
        """Return this rank's rows of the reductions of several tensors, which travel together."""
        return list(
            self._ops.farandole_grouped_reducescatter(
                list(tensors),
                reduce_op=op,
                prescale=_text(prescale),
                postscale=_text(postscale),
                process_set_id=_id(process_set, "Reducescatter"),
                **_names(name, ignore_name_scope),
            )
        )

    # --- moving rows ---------------------------------------------------------------------------------------------

    def allgather(
        self, tensor: Any, *, name: str | None, process_set: ProcessSet, ignore_name_scope: bool = False
    ) -> tuple[Any, Any]:
        """Return all ranks' rows, and how many came from each rank (int64)."""
        rows, counts = self._ops.farandole_allgather(
            tensor, process_set_id=_id(process_set, "Allgather"), **_names(name, ignore_name_scope)
        )
        return _with_rows(rows, tensor), counts[0]

    def grouped_allgather(
        self, tensors: Sequence[Any], *, name: str | None, process_set: ProcessSet, ignore_name_scope: bool = False
    ) -> list[tuple[Any, Any]]:
        """Return, for each tensor, what `allgather` does."""
        results, counts = self._ops.farandole_grouped_allgather(
            list(tensors), process_set_id=_id(process_set, "Allgather"), **_names(name, ignore_name_scope)
        )
        return [
            (_with_rows(rows, tensor), counts[index])
            for index, (rows, tensor) in enumerate(zip(results, tensors, strict=True))
        ]

    def broadcast(
        self,
        tensor: Any,
        *,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
        ignore_name_scope: bool = False,
    ) -> Any:
        """Return the root's tensor."""
        return self._ops.farandole_broadcast(
            tensor,
            root_rank=root_rank,
            process_set_id=_id(process_set, "Broadcast"),
            **_names(name, ignore_name_scope),
        )

    def broadcast_in_place(
        self, variables: Sequence[Any], *, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> list[Any]:
        """Give the variables the root's values, and return these."""
        base = name or "broadcast"
        written = []
        for index, variable in enumerate(variables):
            key = f"{base}_{index + 1}of{len(variables)}"
            value = self.broadcast(
                tf.convert_to_tensor(variable), root_rank=root_rank, name=key, process_set=process_set
            )
            written.append(assigned(variable, value))
        return written

    def alltoall(
        self,
        tensor: Any,
        splits: Any | None,
        *,
        name: str | None,
        process_set: ProcessSet,
        ignore_name_scope: bool = False,
    ) -> tuple[Any, Any]:
        """Return the rows that came from all ranks, and how many came from each (int32)."""
        rows, counts = self._ops.farandole_alltoall(
            tensor,
            [] if splits is None else [splits],
            process_set_id=_id(process_set, "Alltoall"),
            **_names(name, ignore_name_scope),
        )
        return _with_rows(rows, tensor), counts[0]

    # --- without tensors -----------------------------------------------------------------------------------------

    def join(self) -> Any:
        """Wait until all ranks have no more data; return the last of them (int32)."""
        if tf.executing_eagerly():
            return tf.constant(blocking.join(), tf.int32)
        return self._ops.farandole_join()

    def barrier(self, process_set: ProcessSet) -> Any:
        """Wait until all ranks of the process set are here."""
        return self._ops.farandole_barrier(process_set_id=_id(process_set, "Barrier"))

    def size(self, process_set_id: int = 0) -> Any:
        """Return the number of ranks in a process set, as it is when the op runs (int32)."""
        return self._ops.farandole_size(process_set_id=process_set_id)

    def rank(self) -> Any:
        """Return the rank, as it is when the op runs (int32)."""
        return self._ops.farandole_rank()

    def local_size(self) -> Any:
        """Return the number of workers on this host, as it is when the op runs (int32)."""
        return self._ops.farandole_local_size()

    def local_rank(self) -> Any:
        """Return the rank on this host, as it is when the op runs (int32)."""
        return self._ops.farandole_local_rank()

    def process_set_included(self, process_set_id: int = 0) -> Any:
        """Return 1 if this rank is in a process set when the op runs, else 0 (int32)."""
        return self._ops.farandole_process_set_included(process_set_id=process_set_id)


def _text(factor: float) -> str:
    """Return a number as an attribute: TensorFlow has none of double precision, but texts."""
    return repr(float(factor))


def _id(process_set: ProcessSet, kind: str) -> int:
    identifier = process_set.process_set_id
    # Where it is not known yet, because init() comes after the graph is made, the op says so when it runs.
    if identifier is None or (identifier and is_initialized() and identifier not in identity().groups):
        raise InvalidRequestError(
            f"{kind}: Process set provided does not exist, or has not been registered. "
            "Pass it to init() or add_process_set() on all ranks first."
        )
    return identifier


def _names(name: str | None, ignore_name_scope: bool) -> dict[str, Any]:
    """Return the arguments that name an op: in a graph its node, by which calls match; in eager mode, its key."""
    if name is None:
        return {}
    if tf.executing_eagerly():
        return {"tensor_name": name}
    return {"name": name, "ignore_name_scope": int(ignore_name_scope)}


def _with_rows(rows: Any, tensor: Any) -> Any:
    """Say the shape of rows of which nobody knows yet how many there are."""
    if not tf.executing_eagerly() and tensor.shape.rank:
        rows.set_shape([None, *tensor.shape[1:]])
    return rows
