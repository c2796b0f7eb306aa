"""Elastic training for JAX."""

from farandole.jax.elastic.checkpoint import Checkpoint
from farandole.jax.elastic.in_loop import reduce_gradients
from farandole.jax.elastic.loader import ElasticLoader
from farandole.jax.elastic.steps import steps
from farandole.jax.elastic.train_state import TrainState
from farandole.worker.elastic.adaptive_batch import AdaptiveBatch
from farandole.worker.elastic.batches import ConstantGlobalBatch, ConstantWorkerBatch

__all__ = [
    "AdaptiveBatch",
    "Checkpoint",
    "ConstantGlobalBatch",
    "ConstantWorkerBatch",
    "ElasticLoader",
    "TrainState",
    "reduce_gradients",
    "steps",
]
