"""Saving the best model."""

from __future__ import annotations

from typing import Any

from farandole.errors import InvalidRequestError
from farandole.keras.keras_in_use import KERAS


class BestModelCheckpoint(KERAS.callbacks.ModelCheckpoint):
    """Saves the model when it is better than before.

    The path can be set later, by the attribute `filepath`, for example by code that prepares a training.
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
        """Create the callback, with the arguments of Keras' `ModelCheckpoint`."""
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
        """Check that the path is set."""
        if self.filepath is None:
            raise InvalidRequestError("BestModelCheckpoint has no file yet: set its filepath before fit().")
        super().on_train_begin(logs)
