"""What a reducer knows of each gradient.

Each parameter has a *slot*; the slots that are submitted together form a *bundle* (one parameter, unless the user asked
for groups).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole.core.submission import Submission
from farandole.torch.naming import Named


class Slot:
    """One parameter and the way of its gradient."""

    __slots__ = ("absent", "bundle", "missing_passes", "name", "parameter", "place", "sparse_dim")

    def __init__(self, bundle: Bundle, name: str, parameter: torch.nn.Parameter) -> None:
        self.bundle = bundle
        self.name = name
        self.parameter = parameter
        self.place: torch.Tensor | None = None
        self.missing_passes = 0
        # Of the last sparse gradient; None if there has been none.
        self.sparse_dim: int | None = None
        # In this step zeros stand for a gradient that this rank does not have.
        self.absent = False


class Bundle:
    """The slots that are submitted together."""

    __slots__ = ("launched", "missing", "nbytes", "slots", "submission")

    def __init__(self, named: Sequence[Named]) -> None:
        self.slots = [Slot(self, name, parameter) for name, parameter in named]
        self.missing = 0
        self.launched = False
        # If all gradients have a place: made once, used in every step. And how large they are together.
        self.submission: Submission | None = None
        self.nbytes = 0
