"""`horovod.spark.torch`: inputs are converted to floating-point numbers, as with Horovod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from farandole.spark import torch
from farandole.spark.torch import TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


class TorchEstimator(torch.TorchEstimator):
    """Trains a PyTorch model on the rows of a DataFrame, whose integers are converted to floating-point numbers.

    Otherwise the same as `farandole.spark.torch.TorchEstimator`.
    """

    PARAMETERS: ClassVar[Mapping[str, Any]] = {
        **torch.TorchEstimator.PARAMETERS,
        "float_inputs": (True, "whether integers in feature_cols become floating-point numbers"),
    }
