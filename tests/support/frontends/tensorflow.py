"""farandole.tensorflow for the conformance tests: in eager mode, in a `tf.function`, and in a session of TensorFlow 1.

All three run the same calls, in different contexts. Inputs and outputs are eager tensors, so that tests need not know
the context. TensorFlow's errors are translated to farandole's by `farandole.tensorflow.errors`, after a check that
their class is the documented one.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from frontends.front_end import COMMON, DTYPES, WORLDS_OF_MPI, Call, FrontEnd
from frontends.threads import Threads

COLLECTIVES = {
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reduce",
    "grouped_reducescatter",
    "join",
    "reduce",
    "reducescatter",
}
# TensorFlow's error for each of farandole's; see the table in docs/reference/tensorflow.md.
ERRORS = {
    "InvalidRequestError": "InvalidArgumentError",
    "MismatchError": "FailedPreconditionError",
    "NotInitializedError": "FailedPreconditionError",
    "ShutDownError": "UnknownError",
    "WorkerLostError": "UnknownError",
}


class _Module:
    """The module under test, with collectives that run in one of TensorFlow's ways."""

    def __init__(self, module: ModuleType, run: Callable[[Callable[[Any], Any], Any], Any]) -> None:
        self._module = module
        self._run = run

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        if name not in COLLECTIVES:
            return attribute

        def call(*arguments: Any, **options: Any) -> Any:
            import tensorflow as tf

            if not tf.executing_eagerly():  # within a function, or a graph, of the test's
                return attribute(*arguments, **options)
            return self._run(lambda given: attribute(*given[0], **given[1]), (arguments, options))

        return call


class TensorFlow(Threads):
    """The common part of the three contexts."""

    module = "tensorflow"
    runtime = "tensorflow"
    has = frozenset({*COMMON, "broadcast in place", "gradients", "int32 splits", "sparse rows", "tensorflow"})

    @functools.cached_property
    def hvd(self) -> Any:
        return _Module(super().hvd, self.run)

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import tensorflow as tf

        return tf.cast(np.asarray(values).astype(DTYPES[dtype], order="C"), dtype)

    def array(self, tensor: Any) -> np.ndarray:
        array = np.asarray(tensor.numpy())
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array

    def dtype(self, tensor: Any) -> str:
        return tensor.dtype.name

    def unsendable(self) -> list[tuple[Any, str]]:
        import tensorflow as tf

        return [
            (tf.constant(["text"]), "Use broadcast_object"),
        ]

    def unreducible(self) -> list[tuple[Any, str]]:
        import tensorflow as tf

        return [
            (tf.constant([1j]), "calculates with the elements. Pass tf.math.real"),
            (tf.zeros([2], tf.uint32), "calculates with the elements. Cast it"),
        ]

    def opaque(self, rank: int) -> dict[str, Any]:
        import tensorflow as tf

        numbers = np.arange(12).reshape(6, 2) + 12 * rank
        names = ["uint16", "uint32", "uint64", "complex64", "complex128"]
        tensors = {name: tf.constant(numbers.astype(name)) for name in names}
        for dtype in (tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.float8_e5m2):
            tensors[dtype.name] = tf.cast(tf.constant(numbers % 7, tf.float32), dtype)
        tensors["qint8"] = tf.bitcast(tf.constant(numbers, tf.int8), tf.qint8)
        return tensors

    def elements(self, tensor: Any) -> np.ndarray:
        import tensorflow as tf

        if tensor.dtype == tf.qint8:
            return tf.bitcast(tensor, tf.int8).numpy()
        array = tensor.numpy()
        return array if array.dtype.kind in "uc" else array.astype(np.float32)

    # --- calls

    def run(self, function: Callable[[Any], Any], arguments: Any) -> Any:
        """Return the result of a function of tensors; raise farandole's error for TensorFlow's."""
        import tensorflow as tf

        from farandole.tensorflow.errors import translate

        parts = tf.nest.flatten(arguments)
        places = [place for place, part in enumerate(parts) if tf.is_tensor(part)]

        def of_tensors(*tensors: Any) -> Any:
            given = list(parts)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            return function(tf.nest.pack_sequence_as(arguments, given))

        try:
            return self._run(of_tensors, [parts[place] for place in places])
        except tf.errors.OpError as error:
            ours = translate(error)
            if ours is None:
                raise
            assert type(error).__name__ == ERRORS[type(ours).__name__], (error, ours)
            raise ours from error

    @abstractmethod
    def _run(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        """Return the result of a function of tensors."""

    def broadcast_in_place(self, tensor: Any, root_rank: int) -> Any:
        import tensorflow as tf

        variable = tf.Variable(tensor)
        (result,) = self.run(lambda _: self.hvd.broadcast_([variable], root_rank), ())
        np.testing.assert_array_equal(self.array(result), self.array(variable))
        return variable.read_value()

    def reduced_rows(
        self, indices: list[int], rows: np.ndarray, total: int, *, name: str, op: int
    ) -> tuple[np.ndarray, int]:
        import tensorflow as tf

        def reduce(given: Any) -> Any:
            slices = tf.IndexedSlices(given[0], given[1], dense_shape=tf.constant([total, rows.shape[1]]))
            reduced = self.hvd.allreduce(slices, name=name, op=op)
            assert isinstance(reduced, tf.IndexedSlices)
            return tf.convert_to_tensor(reduced), tf.shape(reduced.indices)[0]

        dense, stored = self.run(reduce, [self.tensor(rows), tf.constant(indices, tf.int64)])
        return self.array(dense), int(stored)

    # --- gradients

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        import tensorflow as tf

        return self.array(self.run(lambda given: self._derived(function, given[0]), [tf.constant(values)]))

    def _derived(self, function: Any, tensor: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensor)
            total = function(tensor)
        return tape.gradient(total, tensor)

    def derivative(self, function: Any, tensor: Any) -> Any:
        return self._derived(function, tensor)

    def pullbacks(self, function: Any, values: Any, cotangents: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        import tensorflow as tf

        def run(given: Any) -> list[Any]:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(given[0])
                outputs = function(given[0])
            return [
                tape.gradient(
                    [output for output, each in zip(outputs, row, strict=True) if each is not None],
                    given[0],
                    [tf.constant(each) for each in row if each is not None],
                )
                for row in cotangents
            ]

        return list(map(self.array, self.run(run, [tf.constant(values)])))

    def sum(self, tensor: Any) -> Any:
        import tensorflow as tf

        return tf.reduce_sum(tensor)

    def reduced(self, tensor: Any, op: str) -> Any:
        import tensorflow as tf

        return {"Min": tf.reduce_min, "Max": tf.reduce_max, "Product": tf.reduce_prod}[op](tensor, 0)


class Eager(TensorFlow):
    """Each call in eager mode."""

    name = "tensorflow"
    worlds = (*FrontEnd.worlds, *WORLDS_OF_MPI)

    def _run(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        return function(*tensors)


class Graph(TensorFlow):
    """Simultaneous calls are in one graph."""

    is_thorough = False

    def at_once(self, calls: Sequence[Call]) -> list[Any]:
        def all_of_them(arguments: Any) -> list[Any]:
            return [
                getattr(self.hvd, call[0])(tensor, **how) for call, (tensor, how) in zip(calls, arguments, strict=True)
            ]

        return self.run(all_of_them, [(tensor, how) for _, tensor, how in calls])


class Function(Graph):
    """A `tf.function` around each call."""

    name = "tensorflow_function"
    worlds = ((1, "shm"), (2, "tcp"))

    def _run(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        import tensorflow as tf

        return tf.function(function, autograph=False)(*tensors)


class Session(Graph):
    """A graph and a session of TensorFlow 1 around each call."""

    name = "tensorflow_session"
    worlds = ((1, "shm"), (3, "shm"))

    def opaque(self, rank: int) -> dict[str, Any]:
        # What a session gives are arrays of NumPy, which has no quantized types.
        return {name: tensor for name, tensor in super().opaque(rank).items() if name != "qint8"}

    def _run(self, function: Callable[..., Any], tensors: list[Any]) -> Any:
        import tensorflow as tf

        v1 = tf.compat.v1
        with tf.Graph().as_default() as graph:
            placeholders = [v1.placeholder(tensor.dtype, tensor.shape) for tensor in tensors]
            outputs = function(*placeholders)
        if not graph.get_operations():
            return outputs
        with v1.Session(graph=graph) as session:
            feed = {key: tensor.numpy() for key, tensor in zip(placeholders, tensors, strict=True)}
            results = session.run(outputs, feed)
        return tf.nest.map_structure(tf.convert_to_tensor, results)

    def broadcast_in_place(self, tensor: Any, root_rank: int) -> Any:
        import tensorflow as tf

        v1 = tf.compat.v1
        with tf.Graph().as_default() as graph:
            variable = v1.get_variable("variable", initializer=tensor.numpy(), use_resource=True)
            broadcast = self.hvd.broadcast_([variable], root_rank)
        with v1.Session(graph=graph) as session:
            session.run(v1.variables_initializer([variable]))
            (result,) = session.run(broadcast)
            value = session.run(variable)
        np.testing.assert_array_equal(result, value)
        return tf.convert_to_tensor(value)
