"""Allreduce with a compression that is a part of it (see `farandole.worker.collectives.compression`).

The engine implements int8 and top-k, and stores the unsent rest in a residual, which is the user's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.calls import call_of_members, member
from farandole.worker.collectives.compression import Feedback, Int8, PowerSGD, Recipe, TopK
from farandole.worker.collectives.declaration import Collective, Options, Tensor
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.dtype import Average, Sum
from farandole.worker.core.group import global_process_set
from farandole.worker.core.handle import Call
from farandole.worker.core.session import Session


def check_compressible(op: int) -> None:
    """Raise ValueError if a reduction with this operation cannot be compressed."""
    if op not in (Average, Sum):
        raise InvalidRequestError(
            "Compression.int8, .topk and .powersgd are for op=hvd.Average and op=hvd.Sum only; use another compression."
        )


def check_compressed_call(collective: Collective, compression: Recipe | Feedback, name: str | None) -> None:
    """Raise ValueError if a call cannot have this compression.

    Only an allreduce can; and a compression that keeps residuals by name needs a name.
    """
    if collective is not ALLREDUCE:
        raise InvalidRequestError(
            "Compression.int8, .topk and .powersgd are for allreduce only; use another compression for "
            f"{collective.name}."
        )
    if name is None and isinstance(compression, Feedback):
        raise InvalidRequestError(
            "a compression with feedback keeps residuals by name: pass name= to the call, the same one each time."
        )


def compressed_call(
    front: FrontEnd[Tensor],
    session: Session,
    compression: Recipe | Feedback,
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor | None],
    names: Sequence[str],
    options: Options,
    group: int,
) -> Call:
    """Return a call that reduces each tensor into its output (None: a new one), under its full name.

    The result is the outputs.

    Args:
        front: the front end that the tensors belong to.
        session: the session whose world makes the call.
        compression: the form in which tensors are sent.
        tensors: the inputs.
        outputs: the output of each input.
        names: the full name of each input.
        options: the options of the allreduce.
        group: the native number of the process set.

    Raises:
        ValueError: this compression does not support the reduction or a tensor's type.
    """
    check_compressible(options["op"])
    recipe, memory = (compression.recipe, compression) if isinstance(compression, Feedback) else (compression, None)
    if isinstance(recipe, PowerSGD):
        return front.powersgd_call(session, recipe, memory, tensors, outputs, names, options, group)
    assert isinstance(recipe, (Int8, TopK))
    fields = {**options, "compression": recipe.form, "compression_ratio": recipe.ratio}
    members = [
        member(
            session,
            group,
            name,
            front,
            ALLREDUCE,
            tensor,
            output,
            fields,
            global_process_set,  # An allreduce's request is the same for every set.
            residual=_residual(front, memory, name, tensor),
        )
        for tensor, output, name in zip(tensors, outputs, names, strict=True)
    ]
    return call_of_members(session, front, members)


def _residual(front: FrontEnd[Tensor], memory: Feedback | None, name: str, tensor: Tensor) -> Tensor | None:
    """Return the part of this name's tensor that has not been sent: initially, and after a change of size, zeros."""
    if memory is None:
        return None
    residual: Tensor | None = memory.states.get(name)
    if residual is None or residual.shape[0] != math.prod(tensor.shape):
        residual = memory.states[name] = front.zeros(tensor)
    return residual
