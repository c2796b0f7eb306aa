"""Elastic training for TensorFlow."""

from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from farandole.tensorflow.elastic.checkpoint import Checkpoint
from farandole.tensorflow.elastic.in_loop import reduce_gradients
from farandole.tensorflow.elastic.loader import ElasticLoader
from farandole.tensorflow.elastic.run_decorator import run
from farandole.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState
from farandole.tensorflow.elastic.steps import steps
from farandole.worker.elastic.adaptive_batch import AdaptiveBatch
from farandole.worker.elastic.batches import ConstantGlobalBatch, ConstantWorkerBatch, KeepRate, LinearScaling, ScaledBy
from farandole.worker.elastic.state import ObjectState, State

__all__ = [
    "AdaptiveBatch",
    "Checkpoint",
    "ConstantGlobalBatch",
    "ConstantWorkerBatch",
    "ElasticLoader",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KeepRate",
    "LinearScaling",
    "ObjectState",
    "ScaledBy",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "reduce_gradients",
    "run",
    "steps",
]
