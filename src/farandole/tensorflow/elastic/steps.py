"""`steps`: the loop of steps of an elastic training, for TensorFlow."""

from __future__ import annotations

from typing import Any

from farandole.errors import InvalidRequestError
from farandole.tensorflow.elastic import in_loop
from farandole.tensorflow.elastic.checkpoint import Checkpoint
from farandole.tensorflow.elastic.loader import ElasticLoader
from farandole.tensorflow.elastic.trained import Training, build
from farandole.worker.core.basics import current
from farandole.worker.elastic.adaptive_batch import AdaptiveBatch
from farandole.worker.elastic.batches import RatePolicy
from farandole.worker.elastic.step_loop import Loop, loop_of, require_kept_gradients


def steps(
    loader: ElasticLoader,
    *,
    epochs: int = 1,
    rate: RatePolicy | None = None,
    batches: AdaptiveBatch | None = None,
    checkpoint: Checkpoint | None = None,
    **things: Any,
) -> Loop:
    """Iterate over the batches of a training whose workers may die, join and leave.

    A step is one iteration of the loop. It counts as a whole, on all workers, when all ranks' gradients are reduced: in
    `tape.gradient` of a `DistributedGradientTape`, or in `apply_gradients` of a `DistributedOptimizer`. If the world
    breaks before, the survivors reduce their gradients again, so that each sample is used once in an epoch. The
    gradients are applied after the reduction, so no variable is changed by a part of a step. Newcomers get the state of
    `things` between two steps, from the others' memory.

    In a job with a fixed number of workers, the steps are the same, and a lost worker is an error.

    Args:
        loader: the loader of the samples.
        epochs: the number of epochs of this loop, in all worlds together.
        rate: the change of the learning rate with the number of workers, such as `LinearScaling()`; by default, the
            rate does not change.
        batches: adapts the batch of all workers to the noise of the gradients, and the learning rate to the batch; then
            the loader's batch size is not used. A `tf.function` is traced for each size, unless it has
            `reduce_retracing=True`.
        checkpoint: checkpoints, for the case that all workers are lost; by default, those of
            `farandole run --checkpoint-dir`. With `--resume auto`, training starts from the last one.
        things: the trained objects, under any names: models and optimizers of Keras, modules, variables and lists of
            them, and objects with `state_dict` and `load_state_dict`. Optimizers of Keras are built for the models'
            trainable variables.

    Returns:
        A loop to iterate over once. Its `stop()` ends the training after the current step, on all workers.

    Raises:
        ValueError: an object has no state, or no variables yet, or both rate and batches are given.

    Example:
        >>> optimizer.build(model.trainable_variables)
        >>> loader = hvd.elastic.ElasticLoader((x, y), global_batch_size=32)
        >>> @tf.function
        ... def train(x, y):
        ...     with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        ...         loss = loss_of(y, model(x, training=True))
        ...     gradients = tape.gradient(loss, model.trainable_variables)
        ...     optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        >>> for x, y in hvd.elastic.steps(loader, epochs=2, model=model, optimizer=optimizer):
        ...     train(x, y)
    """
    if not isinstance(loader, ElasticLoader):
        raise InvalidRequestError(
            f"steps() cannot load samples from a {type(loader).__name__}: pass hvd.elastic.ElasticLoader(...)."
        )
    require_kept_gradients("TensorFlow", "graph")
    build(things)
    training = Training(things, checkpoint or Checkpoint.of_next_loop(current()))
    return loop_of(loader, training, epochs=epochs, rate=rate, batches=batches, passes=in_loop.one_pass)
