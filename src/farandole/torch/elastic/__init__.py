"""Elastic training for PyTorch."""

from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from farandole.torch.elastic.checkpoint import Checkpoint
from farandole.torch.elastic.loader import ElasticLoader
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.elastic.state import TorchState
from farandole.torch.elastic.steps import steps
from farandole.worker.elastic.adaptive_batch import AdaptiveBatch
from farandole.worker.elastic.batches import ConstantGlobalBatch, ConstantWorkerBatch, KeepRate, LinearScaling, ScaledBy
from farandole.worker.elastic.run_decorator import run
from farandole.worker.elastic.state import ObjectState, State

__all__ = [
    "AdaptiveBatch",
    "Checkpoint",
    "ConstantGlobalBatch",
    "ConstantWorkerBatch",
    "ElasticLoader",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KeepRate",
    "LinearScaling",
    "ObjectState",
    "ScaledBy",
    "State",
    "TorchState",
    "run",
    "steps",
]
