"""Elastic training for PyTorch."""

from farandole.elastic.adaptive_batch import AdaptiveBatch
from farandole.elastic.batches import ConstantGlobalBatch, ConstantWorkerBatch, KeepRate, LinearScaling, ScaledBy
from farandole.elastic.run_decorator import run
from farandole.elastic.state import ObjectState, State
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from farandole.torch.elastic.checkpoint import Checkpoint
from farandole.torch.elastic.loader import ElasticLoader
from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.elastic.state import TorchState
from farandole.torch.elastic.steps import steps

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
