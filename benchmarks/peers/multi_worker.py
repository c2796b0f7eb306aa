"""`tf.distribute.MultiWorkerMirroredStrategy`: TensorFlow's own collectives, over gRPC.

`fit` is that of tf_keras, since Keras 3 does not take a strategy of several workers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from contextlib import ExitStack
from typing import Any

from benchmarks.gradients import resnet50_shapes
from benchmarks.keras_training import TRAININGS, peak_memory
from benchmarks.peers.base import WORKER, Call, Launch, Peer, Setup, Unsupported, check, worker_environment
from benchmarks.peers.farandole_tensorflow import import_tensorflow

NAME = "MultiWorkerMirroredStrategy"


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    return None if importlib.util.find_spec("tensorflow") else "TensorFlow is not installed"


def launches(setup: Setup) -> list[Launch]:
    """Return one command for each rank, with TF_CONFIG."""
    with ExitStack() as stack:
        # All stay open until all are known, so that no port is used twice.
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(setup.topology.size)]
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    common = {**worker_environment(setup), "TF_CPP_MIN_LOG_LEVEL": "2"}
    return [
        Launch(
            WORKER,
            {
                **common,
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}},
                ),
            },
        )
        for rank in range(setup.topology.size)
    ]


class MultiWorkerPeer(Peer):
    """A worker of the strategy."""

    def __init__(self) -> None:
        self._tf = tf = import_tensorflow()
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        self.rank, self.size = task["index"], self._strategy.num_replicas_in_sync
        self._meet = self._summing([tf.zeros([1])])

    def barrier(self) -> None:
        self._meet()

    def _summing(self, tensors: list[Any]) -> Call:
        """Return a `tf.function` that sums tensors over all workers."""
        tf, strategy = self._tf, self._strategy

        def on_this_worker(given: list[Any]) -> Any:
            # It sums only tensors with a device, which arguments do not have.
            own = [tf.identity(each) for each in given]
            return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, own)

        function = tf.function(lambda given: strategy.run(on_this_worker, (given,)))
        return lambda: function(tensors)

    def function(self, bytes: int) -> Call:
        """Return a `tf.function` with one allreduce."""
        call = self._summing([self._tf.fill([bytes // 4], float(self.rank + 1))])
        check(float(call()[0][-1]), self.size * (self.size + 1) / 2, "function")
        return call

    def gradients(self) -> Call:
        """Return a `tf.function` that sums tensors of ResNet-50's shapes."""
        call = self._summing([self._tf.fill(shape, float(self.rank + 1)) for shape in resnet50_shapes()])
        for result in call():
            check(float(self._tf.reshape(result, [-1])[-1]), self.size * (self.size + 1) / 2, "gradients")
        return call

    def fit(self, model: str, batch: int) -> Call:
        """Return `model.fit`, with batches of that size for each worker."""
        try:
            import tf_keras
        except ImportError as error:
            raise Unsupported("fit needs tf_keras, as Keras 3 does not take this strategy") from error

        with self._strategy.scope():
            # The strategy gives each worker a part of this batch size.
            call = TRAININGS[model].make_fit(
                tf_keras, lambda: tf_keras.optimizers.SGD(0.01), batch * self.size, self.barrier
            )
        call.note = "fit of tf_keras, as Keras 3 does not take this strategy"  # type: ignore[attr-defined]
        return call

    def fit_memory(self, model: str, batch: int) -> Call:
        """Return a call that returns the peak of this worker's memory in `model.fit`."""
        call = self.fit(model, batch)
        return lambda: peak_memory(call)


def join() -> MultiWorkerPeer:
    """Enter the strategy's cluster."""
    return MultiWorkerPeer()
