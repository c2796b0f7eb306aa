"""Train the digits with Lightning in an elastic job: lightning_elastic.py FOLDER KILLED.

KILLED is the number of the worker that is killed in one step, `all` for the three first ones, once there is a
checkpoint of the loop of steps, or `none`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from digits_module import Digits, dataset
from lightning.pytorch.callbacks import ModelCheckpoint

import farandole.torch as hvd
from farandole.lightning import FarandoleStrategy
from farandole.worker.elastic.world_changes import pending_change

EPOCHS, BATCH, FIRST = 4, 60, 3
KILLED_IN, WAITS_IN = 40, 50
WORKER = int(os.environ["FARANDOLE_WORKER"])
SECONDS = 120
FOLDER, KILLED = sys.argv[1:]
NORMALIZED = "NORMALIZED" in os.environ


class Numbered(torch.utils.data.Dataset[Any]):
    """The digits, each with its number."""

    def __init__(self) -> None:
        self.digits = dataset()

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> Any:
        return *self.digits[index], index


class Recorded(Digits):
    """Digits that records the samples of each step that counts, and when it is validated."""

    def __init__(self) -> None:
        super().__init__()
        if NORMALIZED:
            self.body.insert(1, torch.nn.BatchNorm1d(32))
        self.calls = 0
        self.counted: list[tuple[int, int, list[int]]] = []
        self.validated: list[tuple[int, int]] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """Return the loss; a worker is killed in one step, and the others wait for its successor in a later one."""
        self.calls += 1
        step = self.trainer.global_step
        if step == KILLED_IN and KILLED == "all" and WORKER < FIRST:
            wait_for(lambda: list(Path(os.environ["FARANDOLE_CHECKPOINT_DIR"]).glob("step-*")))
            os.kill(os.getpid(), signal.SIGKILL)
        if step == KILLED_IN and KILLED == str(WORKER):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == WAITS_IN and hvd.size() == 2:
            wait_for(pending_change)
        loss = super().training_step(batch[:2], index)
        self.log("loss", loss, sync_dist=True, on_step=False, on_epoch=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record a step that counts."""
        self.counted.append((self.trainer.current_epoch, self.trainer.global_step, batch[2].tolist()))

    def on_validation_epoch_end(self) -> None:
        """Record a validation."""
        self.validated.append((self.trainer.current_epoch, self.trainer.global_step))


def wait_for(happened: Callable[[], object]) -> None:
    """Wait for a fact."""
    end = time.monotonic() + SECONDS
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)


def main() -> None:
    """Train, and print what this worker has done."""
    lightning.seed_everything(0, verbose=False)
    module = Recorded()
    trainer = lightning.Trainer(
        strategy=FarandoleStrategy(global_batch_size=BATCH),
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        sync_batchnorm=NORMALIZED,
        callbacks=[ModelCheckpoint(FOLDER, filename="{epoch}", save_top_k=-1)],
    )
    loader = torch.utils.data.DataLoader(Numbered(), batch_size=20, shuffle=True)
    validation = torch.utils.data.DataLoader(dataset(), batch_size=600)
    trainer.fit(module, loader, validation)
    report = {
        "worker": WORKER,
        "calls": module.calls,
        "counted": module.counted,
        "validated": module.validated,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "rate": trainer.optimizers[0].param_groups[0]["lr"],
        "weights": [each.double().sum().item() for each in module.state_dict().values()],
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
