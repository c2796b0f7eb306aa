"""`TorchState`: the models, optimizers, samplers and other values of a training, which are the same on all workers.

The type of an attribute decides how: a *handler* saves, restores and syncs it in place, so that all references to the
object remain valid. Values without a handler are Python objects, which are replaced. The registry lists the types of
each handler; the first that fits is used.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from farandole.torch.elastic.sampler import ElasticSampler
from farandole.torch.objects import broadcast_object
from farandole.torch.optimizer_state import broadcast_optimizer_state, load_in_place
from farandole.torch.parameters import broadcast_parameters
from farandole.worker.core.basics import rank
from farandole.worker.elastic.state import Kept, ObjectState, check_names


class StateHandler(Kept):
    """Manages one attribute. `sync` is followed by `save`."""

    def __init__(self, value: Any) -> None:
        """Manage this value."""
        self.value = value

    def set_value(self, value: Any) -> None:
        """Manage another value instead, which counts as committed."""
        self.value = value
        self.save()


@runtime_checkable
class Stateful(Protocol):
    """A learning rate schedule, a gradient scaler, or any other object with a state dict."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Load a state."""


class StatefulHandler(StateHandler):
    """Manages any value that has a state dict."""

    def __init__(self, value: Any) -> None:
        """Manage this value, which counts as committed."""
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Commit the current value."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Restore the committed value."""
        # A copy, because the object may keep the loaded value, and its next step would change the committed one.
        self._load(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Get rank 0's value."""
        self._load(broadcast_object(self.value.state_dict()))

    def _load(self, state: dict[str, Any]) -> None:
        self.value.load_state_dict(state)


class ModelStateHandler(StatefulHandler):
    """Manages a model's parameters and buffers."""

    def sync(self) -> None:
        """Get rank 0's parameters and buffers."""
        state = self.value.state_dict()
        broadcast_parameters(state, root_rank=0)
        self._load(state)  # The broadcast wrote tensors in place; the rest of the state must be loaded.


class OptimizerStateHandler(StatefulHandler):
    """Manages an optimizer's state and options, and keeps the objects that schedulers share with it."""

    def sync(self) -> None:
        """Get rank 0's state and options."""
        broadcast_optimizer_state(self.value, root_rank=0)

    def _load(self, state: dict[str, Any]) -> None:
        load_in_place(self.value, state)


class SamplerStateHandler(StatefulHandler):
    """Manages an `ElasticSampler`."""

    def reset(self) -> None:
        """Divide the remaining samples among the present workers."""
        self.value.reset()


Registry = Sequence[tuple[type, type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (Stateful, StatefulHandler),
]


def get_handler_registry() -> Registry:
    """Return pairs of a type and the handler for it."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Set the pairs from which states that are created from now on choose their handlers."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """The state of a PyTorch training.

    Its attributes are the arguments of its constructor. If one that has a handler is assigned, the new value counts as
    committed.

    Example:
        >>> state = hvd.elastic.TorchState(model, optimizer, epoch=0)
        >>> state.epoch += 1
        >>> state.commit()
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        """Create a state.

        Args:
            model: the model, if there is one; further models can be passed by keyword.
            optimizer: its optimizer, plain or distributed.
            kwargs: further attributes with their initial values: models, optimizers, `ElasticSampler`s, other objects
                with a state dict, and picklable Python objects.

        Raises:
            ValueError: an attribute has the name of a method.
        """
        attributes = {"model": model, "optimizer": optimizer, **kwargs}
        check_names(self, attributes)
        self._handlers = {}
        objects = {name: value for name, value in attributes.items() if not self._handle(name, value)}
        super().__init__(broadcast_object, rank, **objects)

    def save(self) -> None:
        """Make the current values the committed ones."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Return to the committed values."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Broadcast the values of rank 0 to all workers, and commit them. A collective."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Divide the remaining samples again."""
        for handler in self._handlers.values():
            handler.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; if the old or the new value has a handler, the new one counts as committed."""
        saved = self.__dict__.get("_saved_state", {})
        if name in saved and self._handle(name, value):
            del saved[name]
        elif name in self.__dict__.get("_handlers", {}) and not self._handle(name, value):
            del self._handlers[name]
            saved[name] = value
        super().__setattr__(name, value)

    def _handle(self, name: str, value: Any) -> bool:
        """Create a handler for an attribute, if there is one for its type; return whether there is."""
        kind = next((handler for of, handler in _registry if isinstance(value, of)), None)
        if kind is None:
            return False
        if type(self._handlers.get(name)) is kind:
            self._handlers[name].set_value(value)
        else:
            self._handlers[name] = kind(value)
        object.__setattr__(self, name, value)
        return True
