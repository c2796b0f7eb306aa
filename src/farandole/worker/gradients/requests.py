"""The requests of gradients with views of the arena: made once, used in every step."""

from __future__ import annotations

from farandole.base.request_kind import Kind
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import DType
from farandole.worker.core.request import make_request
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission
from farandole.worker.gradients.entry import Bundle, Entry
from farandole.worker.gradients.reduce_options import ReduceOptions


def prepare(bundle: Bundle, options: ReduceOptions, session: Session) -> None:
    """Make the requests of a bundle, if all of its entries have a view."""
    if any(entry.view is None for entry in bundle.entries):
        return
    bundle.submission = Submission([_request(entry, options, session) for entry in bundle.entries])
    bundle.nbytes = sum(entry.view.nbytes for entry in bundle.entries if entry.view is not None)


def request_of(
    name: str, dtype: DType, shape: tuple[int, ...], input: int, output: int, options: ReduceOptions, session: Session
) -> NativeRequest:
    """Return a request that reduces the memory at one address into the memory at another one."""
    return make_request(
        Kind.ALLREDUCE,
        name,
        dtype=dtype,
        op=options.op,
        group=options.group(session),
        shape=shape,
        prescale=options.prescale,
        postscale=options.postscale,
        input=input,
        output=output,
    )


def _request(entry: Entry, options: ReduceOptions, session: Session) -> NativeRequest:
    assert entry.view is not None
    layout = entry.layout()
    origin = entry.view if entry.own_view is None else entry.own_view
    return request_of(
        f"allreduce.{entry.name}", layout.dtype, layout.shape, origin.address, entry.view.address, options, session
    )
