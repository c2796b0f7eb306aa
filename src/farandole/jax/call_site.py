"""The description of a collective in a traced function: the parameters of the primitive `farandole_collective`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from farandole.base.request_kind import Kind, Rows
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.core.dtype import Sum, WireForm

SCOPE = "jax."
"""The prefix of the names of all calls of this front end; see `FrontEnd.scope`."""
# Of the engine's options, those that are fields of a `CallSite`; of the compression, see there.
_OPTIONS = ("op", "prescale", "postscale", "root")


@dataclass(frozen=True)
class CallSite:
    """The options of a collective that a traced function calls: everything except its arrays.

    They do not depend on the rank, so that all ranks compile the same program.

    Attributes:
        kind: the operation that the engine carries out.
        grouped: whether it is one of the grouped functions, whose members have names of their own.
        name: the name by which ranks' calls match, after the operation; None: it is derived from the program.
        group: the native number of the process set.
        size: the number of its ranks when the function was traced; it determines the shapes of results.
        op: the operation of a reduction.
        root: the root of a collective that has one; also see `only_at_root`.
        prescale: the factor before a reduction.
        postscale: the factor after a reduction.
        compression: the form in which the arrays of an allreduce are sent.
        compression_ratio: the ratio of `WireForm.TOPK`.
        has_residuals: whether, in a compressed reduction, the arrays are followed by a residual for each, which it
            updates.
        further: other options of the engine, by name.
        only_at_root: whether all ranks except the root get zeros from a reduction.
        has_plain_gradient: whether its gradient is its transpose, as for losses that are summed over the ranks. The
            gradients that users get are Horovod's, which for three collectives are multiples of it.
    """

    kind: Kind
    grouped: bool = False
    name: str | None = None
    group: int = 0
    size: int = 1
    op: int = Sum
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    compression: WireForm = WireForm.NONE
    compression_ratio: float = 0.0
    has_residuals: bool = False
    further: tuple[tuple[str, float], ...] = ()
    only_at_root: bool = False
    has_plain_gradient: bool = False

    @property
    def operation(self) -> str:
        """Return the prefix of the names by which ranks' calls match."""
        return f"{'grouped_' * self.grouped}{self.kind.function}"

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the result for an array of this shape."""
        if self.kind.rows is Rows.GATHERED:
            return (shape[0] * self.size, *shape[1:])
        if self.kind.rows is Rows.SHARED:
            return (shape[0] // self.size, *shape[1:])
        return tuple(shape)

    def is_identity(self, dtypes: Sequence[Any]) -> bool:
        """Return whether the result needs no engine: in a world of one, it is the input, perhaps times a factor.

        Args:
            dtypes: the element types of the arrays.
        """
        if self.size != 1 or self.group != 0 or self.has_residuals or self.compression is not WireForm.NONE:
            return False
        if self.root != 0 and (self.only_at_root or "root" in self.options()):
            return False
        # For other element types, the engine rounds in its own way.
        return self.prescale == self.postscale == 1.0 or all(dtype.name in ("float32", "float64") for dtype in dtypes)

    def options(self) -> dict[str, float]:
        """Return the options of the requests, by the engine's names."""
        options = dict(self.further)
        declared = {each.option for each in COLLECTIVES[self.kind.function].parameters}
        options.update((name, getattr(self, name)) for name in _OPTIONS if name in declared)
        if self.compression is not WireForm.NONE:
            options.update(compression=self.compression, compression_ratio=self.compression_ratio)
        return options

    def of_part(self, part: str, **changes: object) -> CallSite:
        """Return the call site of a related collective, such as that of the gradient.

        Args:
            part: the suffix of the new name.
            changes: fields that differ from those of this call site.
        """
        if changes.get("kind", self.kind) is not self.kind:
            changes["further"] = ()
        name = None if self.name is None else f"{self.name}.{part}"
        return replace(self, name=name, **changes)  # type: ignore[arg-type]
