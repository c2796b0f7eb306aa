"""The calls behind TensorFlow's functions for collectives; `functions` has the functions.

Each works in eager mode, in a `tf.function`, and in a graph of `tf.compat.v1`. Ranks' calls match by name: in a graph,
the default is derived from the tensor's name, so that ranks that trace in another order still match; in eager mode,
unnamed calls match by their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.tensorflow import checks, ops
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.ops.gradients import call_name
from farandole.tensorflow.sparse import allreduce_slices
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.arguments import several
from farandole.worker.collectives.declaration import COMPRESSION, PLAIN, Collective, Form, Options, Parameter, Received
from farandole.worker.collectives.dialect import Dialect
from farandole.worker.collectives.forms import Runner
from farandole.worker.core.group import ProcessSet, global_process_set


class TensorFlowDialect(Dialect):
    """The dialect of TensorFlow's functions."""

    framework = "tensorflow"
    requirement = "a tensor, or what `tf.convert_to_tensor` makes one of; an allreduce takes `tf.IndexedSlices`, too."
    failure = "tf.errors.OpError: the ranks' {tensor}s do not fit together, or a worker was lost."
    has_gradients = True
    has_in_place = False
    has_later = False
    no_compression = Compression.none
    further = (
        COMPRESSION,  # Of which the casts only.
        Parameter("device_dense", "str", "", "the device on which the op is placed."),
        Parameter("device_sparse", "str", "", "the same, for `tf.IndexedSlices`."),
        Parameter(
            "ignore_name_scope",
            "bool",
            False,
            "whether the name counts without the name scope in which the call is made.",
        ),
    )
    everywhere = ("ignore_name_scope",)

    def whole_numbers(self, numbers: Any, like: Any) -> Any:
        """Return the argument, which is already a tensor."""
        return numbers


DIALECT: Any = TensorFlowDialect()


def runner(collective: Collective, form: Form) -> Runner:
    """Return the function that carries out a form of a collective."""
    return _grouped_runner(collective, form) if form.grouped else _plain_runner(collective)


def _plain_runner(collective: Collective) -> Runner:
    def run(
        tensor: Any,
        name: str | None,
        process_set: ProcessSet,
        options: Options,
        compression: Any = Compression.none,
        *,
        device_dense: str = "",
        device_sparse: str = "",
        ignore_name_scope: bool = False,
    ) -> Any:
        collective.settle(options)
        if collective is ALLREDUCE and isinstance(tensor, tf.IndexedSlices):
            return _reduced_slices(tensor, name, process_set, options, device_sparse, ignore_name_scope)
        with tf.device(device_dense or None):
            tensor = checks.accepted(collective, tensor, options)
            chosen = _with_tensors(options)
            compressed, context = compression.compress(tensor)
            (output,), counts = ops.run(
                collective,
                PLAIN,
                [compressed],
                chosen,
                name=call_name(name, collective, PLAIN, [tensor]),
                process_set=process_set,
                ignore_name_scope=ignore_name_scope,
            )
            if collective.returns is not None:
                return collective.returns(DIALECT, Received(output, counts[0]), options)
            return compression.decompress(output, context)

    return run


def _grouped_runner(collective: Collective, form: Form) -> Runner:
    function = form.function(collective.name)

    def run(
        tensors: Any,
        name: str | None,
        process_set: ProcessSet,
        options: Options,
        compression: Any = Compression.none,
        *,
        device_dense: str = "",
        device_sparse: str = "",
        ignore_name_scope: bool = False,
    ) -> list[Any]:
        tensors = several(function, tensors, DIALECT.noun)
        if not tensors:
            return []
        collective.settle(options)
        results: list[Any] = [None] * len(tensors)
        dense, sparse = [], []
        # All of them before the first call: where one is wrong, the other ranks would wait for the rest.
        for index, tensor in enumerate(tensors):
            if collective is ALLREDUCE and isinstance(tensor, tf.IndexedSlices):
                sparse.append((index, _slices(tensor, options)))
            else:
                dense.append((index, checks.accepted(collective, tensor, options)))
        for index, slices in sparse:
            own_name = None if name is None else f"{name}_{index + 1}of{len(tensors)}"
            results[index] = _reduced_slices(slices, own_name, process_set, options, device_sparse, ignore_name_scope)
        if dense:
            with tf.device(device_dense or None):
                given = [tensor for _, tensor in dense]
                pairs = [compression.compress(tensor) for tensor in given]
                outputs, _ = ops.run(
                    collective,
                    form,
                    [tensor for tensor, _ in pairs],
                    options,
                    name=call_name(name, collective, form, given),
                    process_set=process_set,
                    ignore_name_scope=ignore_name_scope,
                )
                for (index, _), output, (_, context) in zip(dense, outputs, pairs, strict=True):
                    results[index] = compression.decompress(output, context)
        return results

    return run


def _with_tensors(options: Options) -> Options:
    """Return options in which those that are inputs of an op are tensors."""
    if options.get("splits") is None:
        return options
    return {**options, "splits": checks.splits_of(options["splits"])}


# --- sparse tensors ----------------------------------------------------------------------------------------------


def _slices(tensor: Any, options: Options) -> Any:
    scaled = (options["prescale"], options["postscale"]) != (1.0, 1.0)
    return checks.slices(tensor, options["op"], scaled=scaled)


def _reduced_slices(
    tensor: Any,
    name: str | None,
    process_set: ProcessSet,
    options: Options,
    device: str,
    ignore_name_scope: bool,
) -> Any:
    with tf.device(device or None):
        slices = _slices(tensor, options)
        return allreduce_slices(
            slices,
            op=options["op"],
            name=call_name(name, ALLREDUCE, PLAIN, [slices.values]),
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )


# --- in place ------------------------------------------------------------------------------------------------------


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assign the root's values to variables, and return the values."""
    variables = several("broadcast_", variables, "variable")
    for variable in variables:
        checks.writable(variable)
    return ops.broadcast_in_place(variables, root_rank=root_rank, name=name, process_set=process_set)
