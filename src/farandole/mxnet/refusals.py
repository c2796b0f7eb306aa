"""Checks that raise an error at the call if the engine would refuse it later.

The engine sees a request only when MXNet has computed its arrays. An unnamed call that it refused then would have been
counted on this rank only, so that later unnamed calls would not match those of other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.numpy.arrays import DTYPES
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import OPS, Adasum, DType
from farandole.worker.core.request_options import options_of
from farandole.worker.core.session import Session

_FLOATS = frozenset((DType.F16, DType.BF16, DType.F32, DType.F64))
_COMPRESSIBLE = _FLOATS - {DType.F64}
_NAMES = {number: str(dtype) for dtype, number in DTYPES.items()}


def check(session: Session, requests: Sequence[NativeRequest]) -> None:
    """Raise ValueError if the engine would refuse one of a call's requests, whatever the other ranks do."""
    group = requests[0].group
    ranks = range(session.world.size) if group == 0 else session.ranks_by_group()[group]
    if session.world.rank not in ranks:
        raise InvalidRequestError(
            f"rank {session.world.rank} is not a member of the provided process set (its ranks are {list(ranks)})."
        )
    for request in requests:
        options = options_of(request)
        if "root" in options and options["root"] not in ranks:
            raise InvalidRequestError(
                f"{Kind(request.kind).name.lower()} received invalid root rank {options['root']:g}: the ranks of the "
                f"process set are {list(ranks)}."
            )
        if "op" in options:
            _check_reduction(request, options)


def _check_reduction(request: NativeRequest, options: Mapping[str, float]) -> None:
    if options["op"] not in OPS:
        raise InvalidRequestError(
            f"{options['op']:g} is not a valid reduction; pass op=hvd.Average, Sum, Adasum, Min, Max or Product."
        )
    if options["op"] == Adasum and request.dtype not in _FLOATS:
        raise InvalidRequestError("Adasum is for floating-point arrays. Use hvd.Sum, or pass array.astype('float32').")
    if options.get("compression") and request.dtype not in _COMPRESSIBLE:
        raise InvalidRequestError(
            f"this compression is for float16 and float32, not for {_NAMES[DType(request.dtype)]}. Pass "
            "array.astype('float32'), or send it without compression."
        )
