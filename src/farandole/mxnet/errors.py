"""Converts farandole's errors to MXNet's and back.

A collective in MXNet's engine fails like any of its operations: the first wait for its result, or for a value computed
from it, raises an `mxnet.base.MXNetError`. Its text begins with the name of farandole's error.
"""

from __future__ import annotations

import re

from mxnet.base import MXNetError

from farandole.errors import (
    FarandoleError,
    HorovodInternalError,
    InvalidRequestError,
    MismatchError,
    ShutDownError,
    StalledError,
    WorkerLostError,
)

_KINDS = {
    kind.__name__: kind
    for kind in (HorovodInternalError, InvalidRequestError, MismatchError, ShutDownError, StalledError, WorkerLostError)
}
_SENTENCE = re.compile(rf"({'|'.join(_KINDS)}): ([^\n]*)")
_RANK = re.compile(r" \(lost rank: (\d+)\)$")


def sentence(error: Exception) -> str:
    """Return the text of an error, from which `translate` can recreate it.

    Example:
        >>> sentence(WorkerLostError("rank 3 was lost.", 3))
        'WorkerLostError: rank 3 was lost. (lost rank: 3)'
    """
    name = type(error).__name__ if type(error).__name__ in _KINDS else HorovodInternalError.__name__
    rank = getattr(error, "rank", None)
    return f"{name}: {error}{'' if rank is None else f' (lost rank: {rank})'}"


def translate(error: BaseException) -> FarandoleError | None:
    """Return farandole's error for one of MXNet's; None if it did not come from a collective.

    Example:
        >>> translate(MXNetError("MXNetError: MismatchError: shapes differ."))
        MismatchError('shapes differ.')
    """
    found = _SENTENCE.search(str(error)) if isinstance(error, MXNetError) else None
    if found is None:
        return None
    kind, text = _KINDS[found[1]], found[2]
    rank = _RANK.search(text)
    for about_a_rank in (WorkerLostError, ShutDownError):
        if kind is about_a_rank:
            return about_a_rank(_RANK.sub("", text), None if rank is None else int(rank[1]))
    return kind(text)
