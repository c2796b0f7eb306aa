"""Features of Lightning that farandole's strategy lacks are refused before the training begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")


def test_optimizers_and_operations_that_do_not_fit_are_refused() -> None:
    import lightning
    import torch

    import farandole.torch as hvd
    from farandole.lightning import FarandoleStrategy

    class Model(lightning.LightningModule):
        def training_step(self, batch: Any, index: int) -> Any:
            return batch[0].sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))])

    with pytest.raises(ValueError, match="Adasum"):
        FarandoleStrategy(op=hvd.Adasum)
    strategy = FarandoleStrategy()
    with pytest.raises(ValueError, match="reduce_op='median' is not available: use one of avg, mean, sum"):
        strategy.reduce(torch.ones(1), reduce_op="median")
    loader = torch.utils.data.DataLoader([torch.ones(1)])
    options = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    with pytest.raises(ValueError, match="LBFGS"):
        lightning.Trainer(strategy=strategy, **options).fit(Model(), loader)


def test_device_of_both_strategies_is_that_of_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from farandole.lightning import FabricStrategy, FarandoleStrategy

    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("FARANDOLE_LOCAL_RANK", "3")
    for strategy in (FarandoleStrategy(), FabricStrategy()):
        assert strategy.root_device == torch.device("cpu"), "no device has been asked for"
        strategy.parallel_devices = [torch.device("cuda", each) for each in range(2)]
        assert strategy.root_device == chosen[-1] == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [("accumulate_grad_batches", 4, "smaller batch_size"), ("limit_train_batches", 10, "max_steps")],
)
def test_options_that_do_not_fit_a_changing_world_are_refused(option: str, value: int, instead: str) -> None:
    from farandole.lightning.strategy import _check_elastic

    usual = {
        "accumulate_grad_batches": 1,
        "limit_train_batches": 1.0,
        "overfit_batches": 0.0,
        "reload_dataloaders_every_n_epochs": 0,
        "ckpt_path": None,
    }
    _check_elastic(SimpleNamespace(**usual))
    with pytest.raises(ValueError, match=f"{option}={value}.*{instead}"):
        _check_elastic(SimpleNamespace(**{**usual, option: value}))
    with pytest.raises(ValueError, match="omit ckpt_path=, and start the job with --checkpoint-dir DIR --resume auto"):
        _check_elastic(SimpleNamespace(**{**usual, "ckpt_path": "epoch=1.ckpt"}))
