"""Broadcasting the values of variables: in eager mode, in functions, and in graphs of `tf.compat.v1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.numpy import variables as values
from farandole.tensorflow import ops
from farandole.tensorflow.errors import translated
from farandole.tensorflow.reduction import names_in_graphs
from farandole.worker.core.group import ProcessSet, global_process_set


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign the root's values to variables.

    Args:
        variables: variables of TensorFlow or Keras; the same ones on all ranks.
        root_rank: the rank, in the world, whose values all ranks get.
        process_set: the ranks that take part.
        inplace: ignored: a variable adopts the memory into which its value was received.

    Returns:
        In a graph, the op that does it; in eager mode None, when it is done.

    Raises:
        ValueError: the argument is not a list of variables or, in eager mode, the ranks' variables differ in number,
            shape or type.

    Example:
        >>> hvd.broadcast_variables(model.variables, root_rank=0)
    """
    values.check_variables(variables)
    variables = list(variables)
    if tf.executing_eagerly():
        with translated():
            values.broadcast_variables(variables, root_rank, process_set)
        return None
    own = [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]
    name = names_in_graphs("broadcast_variables", process_set)()
    return tf.group(*ops.broadcast_in_place(own, root_rank=root_rank, name=name, process_set=process_set))


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that assigns the root's values to all global variables of the graph.

    Raises:
        RuntimeError: in eager mode, in which there are no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution, in which there are no global "
            "variables. Use hvd.broadcast_variables(model.variables, root_rank) and the same for the optimizer's."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """A hook that assigns the root's values to all global variables as soon as there is a session.

    So all workers begin with the same values: random ones, or those of a checkpoint that the root has loaded.

    Example:
        >>> hooks = [hvd.BroadcastGlobalVariablesHook(0)]  # doctest: +SKIP
        >>> with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:  # doctest: +SKIP
        ...     session.run(train)
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Create the hook.

        Args:
            root_rank: the rank whose values all ranks get.
            device: the device of the ops; "": TensorFlow's choice.
        """
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the op to the graph, unless it is already there."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device or None):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the op."""
        session.run(self.bcast_op)
