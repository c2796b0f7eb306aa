"""`steps`: the loop of steps of an elastic training, for JAX."""

from __future__ import annotations

from typing import Any

from farandole.errors import InvalidRequestError
from farandole.jax.elastic import in_loop
from farandole.jax.elastic.checkpoint import Checkpoint
from farandole.jax.elastic.loader import ElasticLoader
from farandole.jax.elastic.trained import Training
from farandole.worker.core.basics import current
from farandole.worker.elastic.adaptive_batch import AdaptiveBatch
from farandole.worker.elastic.step_loop import Loop, loop_of, require_kept_gradients


def steps(
    loader: ElasticLoader,
    *,
    epochs: int = 1,
    batches: AdaptiveBatch | None = None,
    checkpoint: Checkpoint | None = None,
    **things: Any,
) -> Loop:
    """Iterate over the batches of a training whose workers may die, join and leave.

    A step is one iteration of the loop. It counts as a whole, on all workers, when all ranks' gradients are reduced: by
    `hvd.distributed(optimizer)`, `hvd.distributed_grad` or `hvd.elastic.reduce_gradients`, eagerly or in a compiled
    function. If the world breaks before, the survivors reduce their gradients again, so that each sample is used once
    in an epoch. Newcomers get the state between two steps, from the others' memory.

    In a job with a fixed number of workers, the steps are the same, and a lost worker is an error.

    Args:
        loader: the loader of the samples.
        epochs: the number of epochs of this loop, in all worlds together.
        batches: adapts the batch of all workers to the noise of the gradients; then the loader's batch size is not
            used. Functions are compiled for each size. The loop does not change the learning rate: multiply it by
            `Loop.rate_factor`.
        checkpoint: checkpoints, for the case that all workers are lost; by default, those of
            `farandole run --checkpoint-dir`. With `--resume auto`, training starts from the last one.
        things: the trained objects, under any names: `TrainState`s.

    Returns:
        A loop to iterate over once. Its `stop()` ends the training after the current step, on all workers.

    Raises:
        ValueError: an argument is not a TrainState, or the loader is not an `ElasticLoader`.

    Example:
        >>> state = hvd.elastic.TrainState(params=params, optimizer=optimizer.init(params))
        >>> loader = hvd.elastic.ElasticLoader((images, labels), global_batch_size=32)
        >>> for batch in hvd.elastic.steps(loader, epochs=2, state=state):
        ...     state.params, state.optimizer = step(state.params, state.optimizer, batch)
    """
    if not isinstance(loader, ElasticLoader):
        raise InvalidRequestError(
            f"steps() cannot load samples from a {type(loader).__name__}: pass hvd.elastic.ElasticLoader(...)."
        )
    require_kept_gradients("JAX", "function")
    training = Training(things, checkpoint or Checkpoint.of_next_loop(current()))
    return loop_of(loader, training, epochs=epochs, rate=None, batches=batches, passes=in_loop.one_pass)
