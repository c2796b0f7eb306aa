"""Files of the best model."""

from __future__ import annotations

from typing import Any

from farandole.errors import InvalidRequestError
from farandole.keras.keras_in_use import KERAS


class BestModelCheckpoint(KERAS.callbacks.ModelCheckpoint):
    """Saves the model whenever it is better than before.

    The file can be named later, by the attribute `filepath`; what prepares a training for others does that.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        save_weights_only: bool = False,
        filepath: str | None = None,
    ) -> None:
        """Make one; the arguments are those of Keras' `ModelCheckpoint`."""
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath=f"best{ending}" if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: str | None = filepath

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that there is a file to write to."""
        if self.filepath is None:
            raise InvalidRequestError("BestModelCheckpoint has no file yet: set its filepath before fit().")
        super().on_train_begin(logs)
