"""`horovod.spark.lightning`: Horovod's names; inputs are converted to floating-point numbers, as with Horovod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from farandole.spark import lightning
from farandole.spark.lightning import LightningModel as TorchModel

__all__ = ["TorchEstimator", "TorchModel"]


class TorchEstimator(lightning.LightningEstimator):
    """Trains a LightningModule on the rows of a DataFrame, whose integers are converted to floating-point numbers.

    Otherwise the same as `farandole.spark.lightning.LightningEstimator`.
    """

    PARAMETERS: ClassVar[Mapping[str, Any]] = {
        **lightning.LightningEstimator.PARAMETERS,
        "float_inputs": (True, "whether integers in feature_cols become floating-point numbers"),
    }
