"""The reduced gradients of the step that counted last, for ranks that have not got them when the world breaks.

They are not copied: a gradient that lies in its place (see `arena_views`) stays there until the next step's is reduced,
unless somebody writes over it. PyTorch counts that; what goes by `.data` is not counted, and so looked for once, in the
first step in which gradients have places.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from farandole.torch.entries import Bundle, Entry


class Reduced:
    """Reduced gradients, where they are; what `farandole.core.retry.Gradients` asks for."""

    def __init__(self, bundles: Sequence[Bundle]) -> None:
        """Keep none yet of these bundles."""
        self._bundles = bundles
        self._kept: list[tuple[Entry, torch.Tensor]] = []
        self._versions: list[int] = []
        self._checksums: list[int] | None = None

    def keep(self, *, examine: bool = False) -> None:
        """Keep those of a step that counts.

        Args:
            examine: when asked whether they are intact, look at each number of those that lie in places.
        """
        # In every step, so it is short.
        reduced = [(entry, entry.parameter.grad) for bundle in self._bundles for entry in bundle.entries]
        self._kept = [(entry, gradient) for entry, gradient in reduced if gradient is not None]
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
        return {entry.name: _unfolded(gradient) for entry, gradient in self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the gradients be those that another rank has kept."""
        for bundle in self._bundles:
            for entry in bundle.entries:
                if entry.name in state:
                    _adopt(entry, _folded(state[entry.name]))
        self.keep()

    def _sums(self) -> list[int]:
        return [_checksum(gradient) for entry, gradient in self._kept if gradient is entry.place]


def _adopt(entry: Entry, gradient: torch.Tensor) -> None:
    if entry.place is not None:
        entry.place.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        entry.store(entry.place)
    elif gradient.is_sparse:
        entry.parameter.grad = gradient.to(entry.parameter.device)
    else:
        entry.store(gradient.to(entry.parameter.device))


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
