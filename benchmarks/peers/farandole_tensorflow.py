"""farandole in TensorFlow and, by the same workers, TensorFlow without it and `farandole.numpy`."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from benchmarks.gradients import resnet50_shapes
from benchmarks.keras_training import TRAININGS, peak_memory
from benchmarks.peers.base import WORKER, Call, Launch, Peer, Setup, check, proven, worker_environment

NAME = "farandole with TensorFlow"
# Ops of one function, each of which takes the result of the one before.
CHAIN = 20


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    return None if importlib.util.find_spec("tensorflow") else "TensorFlow is not installed"


def launches(setup: Setup) -> list[Launch]:
    """Return one `farandole run`."""
    command = (sys.executable, "-m", "farandole", "run", "-np", str(setup.topology.size), *WORKER)
    return [Launch(command, {**worker_environment(setup), "TF_CPP_MIN_LOG_LEVEL": "2"})]


def import_tensorflow() -> Any:
    """Import TensorFlow, and let it compute with as many threads as a worker has cores."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["OMP_NUM_THREADS"]))
    return tf


class TensorflowPeer(Peer):
    """A worker of farandole's world."""

    def __init__(self) -> None:
        self._tf = import_tensorflow()
        import farandole.tensorflow as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def barrier(self) -> None:
        import farandole.numpy

        farandole.numpy.barrier()

    def leave(self) -> None:
        self._hvd.shutdown()

    # --- one tensor ----------------------------------------------------------------------------------------------

    def numpy(self, bytes: int) -> Call:
        """Return one allreduce of a NumPy array."""
        import numpy

        import farandole.numpy as fnp

        array = numpy.full(bytes // 4, self.rank + 1, numpy.float32)

        def call() -> None:
            fnp.allreduce_(array, op=fnp.Sum, name="numpy")

        return proven(call, self.size, "numpy", array)

    def function(self, bytes: int) -> Call:
        """Return a `tf.function` with one allreduce."""
        tf, hvd = self._tf, self._hvd
        tensor = tf.fill([bytes // 4], float(self.rank + 1))

        @tf.function
        def reduce(given: Any) -> Any:
            return hvd.allreduce(given, op=hvd.Sum, name="function")

        check(float(reduce(tensor)[-1]), self.size * (self.size + 1) / 2, "function")
        return lambda: reduce(tensor)

    def eager(self, bytes: int) -> Call:
        """Return one allreduce in eager mode."""
        hvd = self._hvd
        tensor = self._tf.fill([bytes // 4], float(self.rank + 1))
        check(float(hvd.allreduce(tensor, op=hvd.Sum)[-1]), self.size * (self.size + 1) / 2, "eager")
        return lambda: hvd.allreduce(tensor, op=hvd.Sum, name="eager")

    def chain(self, bytes: int) -> Call:
        """Return a `tf.function` with several allreduces, one after another, each of which counts as a call."""
        tf, hvd = self._tf, self._hvd
        tensor = tf.fill([bytes // 4], float(self.rank + 1))

        @tf.function
        def reduce(given: Any) -> Any:
            for index in range(CHAIN):
                given = hvd.allreduce(given, name=f"chain.{index}")
            return given

        check(float(reduce(tensor)[-1]), (self.size + 1) / 2, "chain")

        def call() -> None:
            reduce(tensor)

        call.times = CHAIN  # type: ignore[attr-defined]
        return call

    def addition(self, bytes: int) -> Call:
        """Return a `tf.function` that adds 1: the cost of any call of TensorFlow."""
        tf = self._tf
        tensor, function = tf.zeros([bytes // 4]), tf.function(lambda given: given + 1.0)
        function(tensor)
        return lambda: function(tensor)

    # --- many tensors --------------------------------------------------------------------------------------------

    def gradients(self, grouped: bool) -> Call:
        """Return a `tf.function` that reduces tensors of ResNet-50's shapes."""
        tf, hvd = self._tf, self._hvd
        tensors = [tf.fill(shape, float(self.rank + 1)) for shape in resnet50_shapes()]

        @tf.function
        def reduce(given: list[Any]) -> list[Any]:
            if grouped:
                return hvd.grouped_allreduce(given, op=hvd.Sum, name="grouped")  # type: ignore[no-any-return]
            return [hvd.allreduce(each, op=hvd.Sum, name=f"gradient.{index}") for index, each in enumerate(given)]

        for result in reduce(tensors):
            check(float(tf.reshape(result, [-1])[-1]), self.size * (self.size + 1) / 2, "gradients")
        return lambda: reduce(tensors)

    # --- trainings -----------------------------------------------------------------------------------------------

    def fit(self, model: str, batch: int, distributed: bool, everywhere: bool = True) -> Call:
        """Return `model.fit`.

        Args:
            model: a name of `TRAININGS`.
            batch: the samples of one worker's step.
            distributed: whether the workers share gradients.
            everywhere: whether all ranks train; otherwise only rank 0 does, and the others return at once.
        """
        import keras

        import farandole.keras

        def optimizer() -> Any:
            plain = keras.optimizers.SGD(0.01)
            return farandole.keras.DistributedOptimizer(plain) if distributed else plain

        if not everywhere and self.rank > 0:
            return lambda: None
        return TRAININGS[model].make_fit(keras, optimizer, batch, self.barrier if everywhere else lambda: None)

    def fit_memory(self, model: str, batch: int, distributed: bool) -> Call:
        """Return a call that returns the peak of this worker's memory in `model.fit`."""
        call = self.fit(model, batch, distributed)
        return lambda: peak_memory(call)


def join() -> TensorflowPeer:
    """Enter the world that the launcher made."""
    return TensorflowPeer()
