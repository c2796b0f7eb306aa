"""What a reducer knows of each gradient.

Each parameter has an *entry*; the entries that are submitted together form a *bundle* (one parameter, unless the user
asked for groups).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole.core.submission import Submission
from farandole.torch.naming import Named


class Entry:
    """One parameter and the way of its gradient."""

    __slots__ = (
        "absent",
        "bundle",
        "kept",
        "local",
        "missing_passes",
        "name",
        "parameter",
        "place",
        "sparse_as_dense",
        "sparse_dim",
    )

    def __init__(self, bundle: Bundle, name: str, parameter: torch.nn.Parameter, sparse_as_dense: bool) -> None:
        self.bundle = bundle
        self.name = name
        self.parameter = parameter
        self.sparse_as_dense = sparse_as_dense
        self.place: torch.Tensor | None = None
        # Where this rank's own gradient is kept until the step counts: beside its place or, on the general way, a copy.
        self.local: torch.Tensor | None = None
        self.kept: torch.Tensor | None = None
        self.missing_passes = 0
        # Of the last sparse gradient; None if there has been none.
        self.sparse_dim: int | None = None
        # In this step zeros stand for a gradient that this rank does not have.
        self.absent = False

    @property
    def travels_sparse(self) -> bool:
        """Say whether its gradient goes as rows; if this rank has none, as the last one did."""
        if self.sparse_as_dense:
            return False
        gradient = self.parameter.grad
        return self.sparse_dim is not None if gradient is None else gradient.is_sparse

    def dense(self) -> torch.Tensor:
        """Return the gradient, made dense; zeros if this rank has none."""
        parameter = self.parameter
        gradient = parameter.grad
        if gradient is None:
            self.absent = self.sparse_dim is None
            gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format, requires_grad=False)
        elif gradient.is_sparse:
            self.sparse_dim = gradient.sparse_dim()
            return gradient.detach().to_dense()
        else:
            self.sparse_dim = None
            gradient = gradient.detach()
        # After create_graph=True a gradient requires gradients; what is reduced does not.
        parameter.grad = gradient
        return gradient

    def store(self, reduced: torch.Tensor) -> None:
        """Let the gradient be the reduced one, sparse if it was sparse before."""
        parameter = self.parameter
        if self.sparse_dim is not None:
            parameter.grad = reduced.to_sparse(self.sparse_dim)
        elif reduced is self.place or parameter.grad is None:
            parameter.grad = reduced
        elif reduced is not parameter.grad:
            parameter.grad.copy_(reduced)


class Bundle:
    """The entries that are submitted together."""

    __slots__ = ("broken", "entries", "generation", "kept", "launched", "missing", "nbytes", "share", "submission")

    def __init__(self, named: Sequence[Named], *, sparse_as_dense: bool) -> None:
        self.entries = [Entry(self, name, parameter, sparse_as_dense) for name, parameter in named]
        self.missing = 0
        self.launched = False
        # In which world, and by what this rank's gradients were multiplied there.
        self.generation = 0
        self.share = 1.0
        # Its gradients were not reduced, because that world broke.
        self.broken = False
        # This rank's own gradients of this step are kept.
        self.kept = False
        # If all gradients have a place: made once, used in every step. And how large they are together.
        self.submission: Submission | None = None
        self.nbytes = 0
