"""The ops behind the functions that users call: those of the plugin library, or slower ones in Python.

Each function makes one TensorFlow op: in eager mode, in the graph of a `tf.function`, or in a graph of `tf.compat.v1`.
The functions without tensors are those of `python_ops`.

The Python ops are used if the plugin cannot be used, and in a loop of `elastic.steps`, in which they repeat a call in
the next world if its world breaks.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from farandole.tensorflow import plugin
from farandole.tensorflow.ops import plugin_gradients, python_ops
from farandole.tensorflow.ops.assignment import assigned
from farandole.tensorflow.ops.plugin_ops import PluginOps
from farandole.worker.collectives.broadcast import BROADCAST
from farandole.worker.collectives.declaration import PLAIN, Collective, Form, Options
from farandole.worker.collectives.differentiation import Outcome
from farandole.worker.core import basics
from farandole.worker.core.group import ProcessSet

_WITHOUT_TENSORS = ("barrier", "join", "local_rank", "local_size", "process_set_included", "rank", "size")


def _of_plugin() -> PluginOps | None:
    loaded = plugin.loaded()
    if loaded is not None:
        plugin_gradients.register(loaded.ops)
        return PluginOps(loaded.ops)
    warnings.warn(
        f"farandole's ops for TensorFlow cannot be used: {plugin.why_not()} Slower Python functions are used instead.",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


_PLUGIN_OPS = _of_plugin()


def chosen() -> Any:
    """Return the present implementation of the ops: an instance of `PluginOps`, or the module `python_ops`."""
    session = basics.session_if_any()
    # A child process of a worker has no engine; the Python ops raise an error with the next step.
    is_in_child = session is None and basics.is_initialized()
    if _PLUGIN_OPS is None or is_in_child or basics.has_step_loop():
        return python_ops
    return _PLUGIN_OPS


def _refuse_compilation() -> None:
    """Raise the error at the call, while a function is traced; TensorFlow's own report of the graph is long."""
    if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "A collective cannot be compiled by XLA, and this tf.function has jit_compile=True. Compile the part before"
            " it, such as the forward and backward pass, in a tf.function of its own, and call the collective outside"
            " of that; in Keras, pass jit_compile=False to compile().",
        )


@tf.autograph.experimental.do_not_convert
def run(
    collective: Collective,
    form: Form,
    tensors: Sequence[Any],
    options: Options,
    *,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Outcome:
    """Return the result of a collective; gradients flow through it.

    Args:
        collective: the collective to call.
        form: whether it takes one tensor or several; no tensor is overwritten.
        tensors: the inputs.
        options: the settled options; those that are tensors are also inputs of the op.
        name: the name by which ranks' calls match; None: they match by their order.
        process_set: the ranks that take part.
        ignore_name_scope: in a graph, whether the name is used without its scope.
    """
    outcome: Outcome = _chosen_for_call().run(
        collective,
        form,
        tensors,
        options,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    return outcome


def broadcast_in_place(
    variables: Sequence[Any], *, root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Any]:
    """Assign the root's values to the variables, and return the values."""
    base = name or "broadcast"
    written = []
    for index, variable in enumerate(variables):
        key = f"{base}_{index + 1}of{len(variables)}"
        tensor = tf.convert_to_tensor(variable)
        value = run(BROADCAST, PLAIN, [tensor], {"root": root_rank}, name=key, process_set=process_set).outputs[0]
        written.append(assigned(variable, value))
    return written


def _chosen_for_call() -> Any:
    _refuse_compilation()
    return chosen()


def __getattr__(name: str) -> Any:
    if name in _WITHOUT_TENSORS:
        return getattr(_chosen_for_call(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
