"""The gradients of the plugin's ops, which are registered by the names of the ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from farandole.tensorflow.ops.gradients import Differentiable, Members
from farandole.tensorflow.ops.plugin_ops import PluginOps, options_of
from farandole.tensorflow.plugin import op_name
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import PLAIN, Collective, Form, Options
from farandole.worker.collectives.differentiation import Outcome
from farandole.worker.core import basics

_WITHOUT_GRADIENT = ("Barrier", "Join", "LocalRank", "LocalSize", "ProcessSetIncluded", "Rank", "Size")


@cache
def register(library: Any) -> None:
    """Register the gradients of the plugin library's ops with TensorFlow, once."""
    ops = PluginOps(library)
    for collective in COLLECTIVES.values():
        for form in (PLAIN, Form(grouped=True)) if collective.has_grouped else (PLAIN,):
            tf.RegisterGradient(op_name(collective, form))(_gradient_of(ops, collective, form))
    for name in _WITHOUT_GRADIENT:
        tf.no_gradient(f"Farandole{name}")


def _gradient_of(ops: PluginOps, collective: Collective, form: Form) -> Any:
    receives = collective.receives_rows

    def gradient(op: Any, *given: Any) -> list[Any]:
        group = op.get_attr("process_set_id")
        count = len(op.outputs) - receives
        inputs = list(op.inputs)
        counts = op.outputs[-1] if receives else ()

        def run(
            collective: Collective, form: Form, tensors: Sequence[Any], options: Options, name: str | None
        ) -> Outcome:
            return ops.run_in_group(collective, form, tensors, options, name, group)

        call = Differentiable(
            collective,
            options_of(op, collective),
            _members(ops, group),
            inputs[:count],
            [counts[index] for index in range(count)] if receives else (),
            run,
        )
        return [*call.gradients(given[:count]), *[None] * (len(inputs) - count)]

    return gradient


def _members(ops: PluginOps, group: int) -> Members:
    def position() -> Any:
        if group == 0:
            return ops.rank()
        ranks = basics.current().ranks_by_group()[group]
        return tf.math.count_nonzero(tf.less(list(ranks), ops.rank()), dtype=tf.int32)

    return Members(lambda: ops.size(group), position, ops.rank)
