"""Loading models from files, with distributed optimizers."""

from __future__ import annotations

from typing import Any

from farandole.keras.keras_in_use import KERAS
from farandole.keras.optimizer import DistributedOptimizer, is_distributed


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = None,
    legacy_opts: bool = False,
) -> Any:
    """Return a saved model, whose optimizer is a `DistributedOptimizer` with the state that it was saved with.

    Args:
        filepath: a file that `model.save` has written, with farandole or without.
        custom_optimizers: classes of optimizers that Keras does not have.
        custom_objects: other objects that Keras does not have, by name.
        compression: the same as for `DistributedOptimizer`.
        legacy_opts: ignored; older optimizers are recognized.

    Example:
        >>> model.save("digits.keras")
        >>> model = hvd.load_model("digits.keras")
    """
    known = {cls.__name__: cls for cls in custom_optimizers or ()} | dict(custom_objects or {})
    model = KERAS.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not is_distributed(optimizer):
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
    return model
