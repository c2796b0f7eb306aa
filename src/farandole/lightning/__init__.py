"""farandole for Lightning 2.x: importing it registers `strategy="farandole"` with `Trainer` and `Fabric`.

Example:
    >>> import lightning
    >>> import farandole.lightning
    >>> trainer = lightning.Trainer(strategy="farandole", accelerator="cpu")
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("lightning") is None:
    raise ModuleNotFoundError(
        "farandole.lightning needs Lightning, which is not installed here. Run: pip install 'farandole[lightning]'",
        name="lightning",
    )

from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.pytorch.strategies import StrategyRegistry

from farandole.lightning.environment import FarandoleEnvironment
from farandole.lightning.fabric_strategy import FabricStrategy
from farandole.lightning.strategy import FarandoleStrategy

__all__ = ["FabricStrategy", "FarandoleEnvironment", "FarandoleStrategy"]


def _register() -> None:
    for registry, strategy in ((StrategyRegistry, FarandoleStrategy), (STRATEGY_REGISTRY, FabricStrategy)):
        registry.register("farandole", strategy, description="gradients are reduced by farandole", override=True)


_register()
