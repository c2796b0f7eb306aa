"""The reduction of the gradients of one step, for the optimizer of the Module API and for gluon's trainer.

Each gradient is reduced in place as soon as MXNet has computed it, under a name that is the same on all ranks. The
gradients of the first layers have the highest priority, because the next step needs these weights first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mxnet as mx

from farandole.errors import InvalidRequestError
from farandole.mxnet.arrays import Arrays
from farandole.mxnet.functions import allreduce_, grouped_allreduce_
from farandole.mxnet.sent import Sent
from farandole.worker.collectives.calls import member_names
from farandole.worker.collectives.compressed import compressed_call
from farandole.worker.collectives.compression import Feedback, NoneCompressor, Recipe, check_compression
from farandole.worker.core.basics import current
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet
from farandole.worker.core.handle import Call, HandleTable
from farandole.worker.core.session import Session
from farandole.worker.gradients.grouping import grouped

_front = Arrays()


@dataclass(frozen=True)
class Reduction:
    """The reduction that a user asks for, with its options checked.

    Attributes:
        op: Average, or Sum if the optimizer divides.
        predivide: the divisor of the gradients before the sum; after it, they are divided by the rest.
        num_groups: the number of groups of gradients, each of which is sent as one; 0: each gradient by itself.
        compression: the form in which the gradients are sent.
        process_set: the ranks that take part.
        prefix: the prefix of the gradients' names.
    """

    op: int
    predivide: float
    num_groups: int
    compression: Any
    process_set: ProcessSet
    prefix: str

    @classmethod
    def checked(cls, what: str, **asked: Any) -> Reduction:
        """Return the checked options of a class or function that the user calls, such as DistributedOptimizer.

        Raises:
            ValueError: an option is not valid, or init() has not been called.
        """
        made = cls(**asked)
        current().group_of(made.process_set, what)
        if not made.predivide > 0:
            raise InvalidRequestError(f"gradient_predivide_factor must be a number above 0, not {made.predivide!r}.")
        if not isinstance(made.num_groups, int) or made.num_groups < 0:
            raise InvalidRequestError(f"num_groups must be a whole number, 0 or more, not {made.num_groups!r}.")
        if made.compression is None:
            return cls(**{**asked, "compression": NoneCompressor})
        check_compression(made.compression)
        if isinstance(made.compression, Recipe):
            return cls(**{**asked, "compression": made.compression.with_feedback()})
        return made

    @property
    def is_local(self) -> bool:
        """Whether there is nothing to reduce: this rank is alone, or not in the process set."""
        return not self.process_set.included() or len(self.process_set.ranks) == 1

    def run(self, names: Sequence[Any], gradients: Sequence[mx.nd.NDArray]) -> None:
        """Reduce gradients in place.

        Args:
            names: the name of each gradient, the same on all ranks.
            gradients: the gradients from the first layer to the last.
        """
        if self.is_local:
            return
        compressed = [self._compressed(gradient) for gradient in gradients]
        arrays = [array for array, _ in compressed]
        full_names = [f"{self.prefix}{name}" for name in names]
        if self.num_groups:
            self._in_groups(full_names, arrays)
        else:
            for place, (name, array) in enumerate(zip(full_names, arrays, strict=True)):
                self._reduce(name, [array], -place)
        for gradient, (array, context) in zip(gradients, compressed, strict=True):
            if array is not gradient:
                self.compression.decompress(array, context).copyto(gradient)

    def _in_groups(self, names: Sequence[str], arrays: Sequence[mx.nd.NDArray]) -> None:
        for group in grouped(range(len(arrays)), self.num_groups) or ():
            name = f"{names[group[0]]}..{names[group[-1]]}"
            self._reduce(name, [arrays[place] for place in group], -group[0])

    def _compressed(self, gradient: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        if isinstance(self.compression, Feedback):
            return gradient, None  # A part of the reduction; see `_reduce`.
        compressed: tuple[mx.nd.NDArray, Any] = self.compression.compress(gradient)
        return compressed

    def _reduce(self, name: str, arrays: list[mx.nd.NDArray], priority: int) -> None:
        prescale = 1.0 / self.predivide
        postscale = self.predivide if self.op == Average else 1.0
        if isinstance(self.compression, Feedback):
            self._reduce_compressed(name, arrays, priority, prescale, postscale)
        elif len(arrays) == 1:
            allreduce_(arrays[0], None, name, priority, prescale, postscale, self.process_set, self.op)
        else:
            grouped_allreduce_(arrays, None, name, priority, prescale, postscale, self.process_set, self.op)

    def _reduce_compressed(
        self, name: str, arrays: list[mx.nd.NDArray], priority: int, prescale: float, postscale: float
    ) -> None:
        sent = [Sent(array, priority, in_place=True) for array in arrays]
        options = {"op": self.op, "prescale": prescale, "postscale": postscale}

        def make(session: Session, group: int, full_name: str) -> Call:
            names = [full_name] if len(sent) == 1 else member_names(full_name, len(sent))
            return compressed_call(_front, session, self.compression, sent, sent, names, options, group)

        current().carry_out(HandleTable.run, "allreduce", name, self.process_set, make, scope=_front.scope)
