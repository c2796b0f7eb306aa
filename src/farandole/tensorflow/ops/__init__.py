"""The ops of which the functions that users call are made: those of the plugin library, or the slower Python ones.

Each function makes one TensorFlow op, in whichever way TensorFlow works at the moment: at once, in the graph of a
`tf.function`, or in a graph of `tf.compat.v1`. The functions are those of `python_ops`, which says what each returns.

The Python ones are taken where the plugin cannot be used, and in a loop of `elastic.steps`: when a world ends there,
they make a call again in the next one.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from farandole.tensorflow import plugin
from farandole.tensorflow.ops import python_ops
from farandole.tensorflow.ops.plugin_ops import PluginOps
from farandole.worker.core import basics

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_in_place",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank",
    "local_size",
    "process_set_included",
    "rank",
    "reducescatter",
    "size",
]


def _of_plugin() -> PluginOps | None:
    loaded = plugin.loaded()
    if loaded is not None:
        importlib.import_module("farandole.tensorflow.gradients")  # tells TensorFlow of them
        return PluginOps(loaded.ops)
    warnings.warn(
        f"farandole's ops for TensorFlow cannot be used: {plugin.why_not()} Slower Python functions are taken.",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


_PLUGIN_OPS = _of_plugin()


def chosen() -> Any:
    """Return what makes the ops at the moment: an instance of `PluginOps`, or the module `python_ops`."""
    session = basics.session_if_any()
    # In a process that a worker has started, there is no engine, and Python says what to do.
    is_in_child = session is None and basics.is_initialized()
    if _PLUGIN_OPS is None or is_in_child or (session is not None and session.trainings > 0):
        return python_ops
    return _PLUGIN_OPS


def _refuse_compilation() -> None:
    """Say at the call, while a function is traced, what TensorFlow would say of the graph in many lines."""
    if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "A collective cannot be compiled by XLA, and this tf.function has jit_compile=True. Compile the part before"
            " it, such as the forward and backward pass, in a tf.function of its own, and call the collective outside"
            " of that; in Keras, pass jit_compile=False to compile().",
        )


def __getattr__(name: str) -> Any:
    if name in __all__:
        _refuse_compilation()
        return getattr(chosen(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
