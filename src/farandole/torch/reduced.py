"""The reduced gradients of the step that counted last, for ranks that have not got them when the world breaks.

They are not copied: a gradient that lies in its place (see `places`) stays there until the next step's is reduced,
unless somebody writes over it. PyTorch counts that; what goes by `.data` is not counted, and so looked for once, in the
first step in which gradients have places.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from farandole.torch.slots import Bundle, Slot


class Reduced:
    """Reduced gradients, where they are; what `farandole.core.again.Gradients` asks for."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        """Keep none yet of these bundles."""
        self._bundles = bundles
        self._kept: list[tuple[Slot, torch.Tensor]] = []
        self._versions: list[int] = []
        self._checksums: list[int] | None = None

    def keep(self, *, examine: bool = False) -> None:
        """Keep those of a step that counts.

        Args:
            examine: when asked whether they are intact, look at each number of those that lie in places.
        """
        # In every step, so it is short.
        reduced = [(slot, slot.parameter.grad) for bundle in self._bundles for slot in bundle.slots]
        self._kept = [(slot, gradient) for slot, gradient in reduced if gradient is not None]
        self._versions = [gradient._version for _, gradient in self._kept]
        self._checksums = self._sums() if examine else None

    def forget(self) -> None:
        """Keep none any more."""
        self._kept, self._versions, self._checksums = [], [], None

    def are_intact(self) -> bool:
        """Say whether nobody has changed them."""
        if self._versions != [gradient._version for _, gradient in self._kept]:
            return False
        return self._checksums is None or self._checksums == self._sums()

    def state_dict(self) -> dict[str, Any]:
        """Return them by the names of their parameters."""
        return {slot.name: _unfolded(gradient) for slot, gradient in self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the gradients be those that another rank has kept."""
        for bundle in self._bundles:
            for slot in bundle.slots:
                if slot.name in state:
                    _adopt(slot, _folded(state[slot.name]))
        self.keep()

    def _sums(self) -> list[int]:
        return [_checksum(gradient) for slot, gradient in self._kept if gradient is slot.place]


def _adopt(slot: Slot, gradient: torch.Tensor) -> None:
    if slot.place is not None:
        slot.place.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        slot.store(slot.place)
    elif gradient.is_sparse:
        slot.parameter.grad = gradient.to(slot.parameter.device)
    else:
        slot.store(gradient.to(slot.parameter.device))


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())) if tensor.nbytes else 0


def _unfolded(gradient: torch.Tensor) -> Any:
    """Return a gradient, or what a sparse one stores."""
    if not gradient.is_sparse:
        return gradient
    return {"indices": gradient._indices(), "values": gradient._values(), "shape": gradient.shape}


def _folded(state: Any) -> torch.Tensor:
    if isinstance(state, torch.Tensor):
        return state
    return torch.sparse_coo_tensor(state["indices"], state["values"], state["shape"], check_invariants=False)
