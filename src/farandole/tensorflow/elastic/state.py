"""`TensorFlowState` and `TensorFlowKerasState`: variables, which are the same on all workers.

The values are sent as arrays, so that a sync creates no ops: it works in eager mode, and in a session whose graph is
final.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import farandole.numpy as arrays
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.objects import broadcast_object
from farandole.worker.core.basics import rank
from farandole.worker.elastic.variables import check_built, variables_of
from farandole.worker.elastic.variables_state import ModelState, VariablesState


class TensorFlowState(VariablesState):
    """The state of a list of variables, in eager mode or in a session.

    Example:
        >>> state = hvd.elastic.TensorFlowState([tf.Variable(1.0)], epoch=0)
        >>> state.epoch += 1
        >>> state.commit()
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        """Create a state.

        Args:
            variables: the variables; None: all global variables of the graph.
            session: the session in which a graph's variables have their values; None: the default session, when it is
                needed.
            kwargs: further attributes with their initial values, which must be picklable.

        Raises:
            ValueError: an attribute has the name of a method, or a graph's variables have no session.
        """
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self.session = session
        super().__init__(broadcast_object, rank, _broadcast, **kwargs)

    def _read(self) -> list[Any]:
        if tf.executing_eagerly():
            return [np.array(variable.numpy()) for variable in self.variables]
        return [np.array(value) for value in _session(self.session).run(self.variables)]

    def _write(self, values: Sequence[Any]) -> None:
        _assign(self.variables, values, self.session)


class TensorFlowKerasState(ModelState):
    """The state of a Keras model and its optimizer.

    Example:
        >>> state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, epoch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        """Create a state.

        Args:
            model: a Keras model, which must be built.
            optimizer: the optimizer; None: the one that the model was compiled with.
            backend: the backend of tf_keras without eager mode, whose `get_session()` returns the session.
            kwargs: further attributes with their initial values, which must be picklable.

        Raises:
            ValueError: the model is not built, or an attribute has the name of a method.
        """
        check_built("model", model)
        self.backend = backend
        super().__init__(
            model, optimizer, bcast_object=broadcast_object, get_rank=rank, bcast_array=_broadcast, **kwargs
        )

    def _variables(self) -> list[Any]:
        if tf.executing_eagerly():
            return super()._variables()
        return [*self.model.variables, *(variables_of(self.optimizer) or ())]

    def _read(self) -> list[Any]:
        if tf.executing_eagerly():
            return [np.array(variable.numpy()) for variable in self._variables()]
        return [np.array(value) for value in _session(self._own_session()).run(self._variables())]

    def _write(self, values: Sequence[Any]) -> None:
        _assign(self._variables(), values, self._own_session())

    def _own_session(self) -> Any:
        return None if self.backend is None or tf.executing_eagerly() else self.backend.get_session()


def _broadcast(value: Any, name: str) -> Any:
    return arrays.broadcast(value, 0, name=name)


def _session(given: Any) -> Any:
    session = tf.compat.v1.get_default_session() if given is None else given
    if session is None:
        raise InvalidRequestError(
            "without eager mode, variables have their values in a session, and there is none: pass session=, or use "
            "the state in `with tf.compat.v1.Session() as session:`."
        )
    return session


def _assign(variables: Sequence[Any], values: Sequence[Any], session: Any) -> None:
    if tf.executing_eagerly():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return
    session = _session(session)
    # Feeding what a variable is initialized with makes no new op, as assigning would.
    fed = {variable.initializer.inputs[1]: value for variable, value in zip(variables, values, strict=True)}
    session.run([variable.initializer for variable in variables], feed_dict=fed)
