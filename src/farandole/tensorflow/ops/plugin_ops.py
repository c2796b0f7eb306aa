"""The ops of the plugin library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.worker.collectives import barrier as blocking
from farandole.worker.collectives.arguments import factor as as_factor
from farandole.worker.collectives.arguments import whole
from farandole.worker.collectives.declaration import Collective, Form, Options
from farandole.worker.collectives.differentiation import Outcome
from farandole.worker.core.basics import identity, is_initialized
from farandole.worker.core.group import ProcessSet, check_process_set


def _text(factor: float) -> str:
    """Return a number as an attribute: a text, because TensorFlow has no attributes of double precision."""
    return repr(as_factor(factor))


# How an op has the options of a request: the name of its attribute, and the functions to and from the attribute's type.
# Other options are inputs.
_ATTRIBUTES: Mapping[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "op": ("reduce_op", whole, int),
    "prescale": ("prescale", _text, float),
    "postscale": ("postscale", _text, float),
    "root": ("root_rank", whole, int),
}


def options_of(op: Any, collective: Collective) -> Options:
    """Return the options of an existing op, except those that are inputs."""
    options = {}
    for each in collective.parameters:
        if each.option is not None and each.option in _ATTRIBUTES:
            attribute, _, read = _ATTRIBUTES[each.option]
            options[each.option] = read(op.get_attr(attribute))
    return options


class PluginOps:
    """The ops of the plugin, as `farandole.tensorflow.ops` describes them; each method makes one op."""

    def __init__(self, ops: Any) -> None:
        """Use these functions, which TensorFlow has generated for the library."""
        self._ops = ops

    def run(
        self,
        collective: Collective,
        form: Form,
        tensors: Sequence[Any],
        options: Options,
        *,
        name: str | None,
        process_set: ProcessSet,
        ignore_name_scope: bool = False,
    ) -> Outcome:
        """Return the result of a collective."""
        group = _id(process_set, collective.name.capitalize())
        return self.run_in_group(collective, form, tensors, options, name, group, ignore_name_scope)

    def run_in_group(
        self,
        collective: Collective,
        form: Form,
        tensors: Sequence[Any],
        options: Options,
        name: str | None,
        group: int,
        ignore_name_scope: bool = False,
    ) -> Outcome:
        """Do the same as `run`, in the process set with a number."""
        make = getattr(self._ops, f"farandole_{form.operation(collective.name)}")
        attributes, inputs = {}, []
        for option, value in options.items():
            if option in _ATTRIBUTES:
                attribute, write, _ = _ATTRIBUTES[option]
                attributes[attribute] = write(value)
            else:
                inputs.append([] if value is None else [value])
        made = make(
            list(tensors) if form.grouped else tensors[0],
            *inputs,
            process_set_id=group,
            **attributes,
            **_names(name, ignore_name_scope),
        )
        if not collective.receives_rows:
            return Outcome(list(made) if form.grouped else [made], ())
        results, counts = made
        rows = list(results) if form.grouped else [results]
        return Outcome(
            [_with_rows(each, tensor) for each, tensor in zip(rows, tensors, strict=True)],
            [counts[index] for index in range(len(rows))],
        )

    # --- without tensors -----------------------------------------------------------------------------------------

    def join(self) -> Any:
        """Wait until all ranks have no more data; return the last of them (int32)."""
        if tf.executing_eagerly():
            return tf.constant(blocking.join(), tf.int32)
        return self._ops.farandole_join()

    def barrier(self, process_set: ProcessSet) -> Any:
        """Wait until all ranks of the process set have called this."""
        return self._ops.farandole_barrier(process_set_id=_id(process_set, "Barrier"))

    def size(self, process_set_id: int = 0) -> Any:
        """Return the number of ranks in a process set at the time when the op runs, as an int32 scalar."""
        return self._ops.farandole_size(process_set_id=process_set_id)

    def rank(self) -> Any:
        """Return the rank at the time when the op runs, as an int32 scalar."""
        return self._ops.farandole_rank()

    def local_size(self) -> Any:
        """Return the number of workers on this host at the time when the op runs (int32)."""
        return self._ops.farandole_local_size()

    def local_rank(self) -> Any:
        """Return the rank on this host at the time when the op runs (int32)."""
        return self._ops.farandole_local_rank()

    def process_set_included(self, process_set_id: int = 0) -> Any:
        """Return 1 if this rank is in a process set when the op runs, else 0 (int32)."""
        return self._ops.farandole_process_set_included(process_set_id=process_set_id)


def _id(process_set: ProcessSet, kind: str) -> int:
    check_process_set(process_set, kind.lower())
    identifier = process_set.process_set_id
    # If it is not known yet, because init() is called after the graph is built, the op raises an error when it runs.
    if identifier is None or (identifier and is_initialized() and identifier not in identity().groups):
        raise InvalidRequestError(
            f"{kind}: Process set provided does not exist, or has not been registered. "
            "Pass it to init() or add_process_set() on all ranks first."
        )
    return identifier


def _names(name: str | None, ignore_name_scope: bool) -> dict[str, Any]:
    """Return the arguments that name an op: in a graph its node, by whose name calls match; in eager mode, its key."""
    if name is None:
        return {}
    if tf.executing_eagerly():
        return {"tensor_name": name}
    return {"name": name, "ignore_name_scope": int(ignore_name_scope)}


def _with_rows(rows: Any, tensor: Any) -> Any:
    """Set the shape of a tensor whose number of rows is not known yet."""
    if not tf.executing_eagerly() and tensor.shape.rank:
        rows.set_shape([None, *tensor.shape[1:]])
    return rows
