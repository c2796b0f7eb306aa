"""Where a tensor's bytes are for the engine, which reads and writes host memory only.

A CPU tensor is used where it is. A CUDA tensor is copied to pinned host memory on the caller's current stream; the
copy is ready when its event has happened, and the way back is again a copy on the stream that is current then. So
Python never waits for the device, except at the user's own `synchronize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.handle import Call, Deferred, Pending
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Submission


def to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """Return a host tensor of the same content, and the event after which it has it (None: it has it now)."""
    if tensor.device.type == "cpu":
        return tensor, None
    if tensor.device.type != "cuda":
        return tensor.cpu(), None
    host = host_like(tensor, tensor.shape)
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return host, event


def host_like(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return an empty host tensor of the tensor's type, from which a copy to the tensor's device is quick."""
    # The device is said because users may have set another one as the default, here and in the other files.
    return torch.empty(shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.device.type == "cuda")


def from_host(host: torch.Tensor, output: torch.Tensor) -> None:
    """Copy a result to its place, on the current stream of its device, unless it is there already."""
    if host is not output:
        output.copy_(host, non_blocking=True)


def call_of(
    session: Session,
    requests: Sequence[NativeRequest],
    events: Sequence[torch.cuda.Event | None],
    finish: Callable[[Sequence[int]], Any],
) -> Call:
    """Return a call of requests that are submitted together, as soon as all events have happened.

    Args:
        session: the session whose engine receives the tensor.
        requests: their inputs and outputs are in host memory, held by `finish`.
        events: the device events that the inputs wait for.
        finish: makes the result from the native handles.
    """
    call = Pending(session.engine, Submission(requests), finish)
    waited_for = [event for event in events if event is not None]
    if not waited_for:
        return call

    def inputs_ready() -> None:
        for event in waited_for:
            event.synchronize()

    return Deferred(session.submitter, inputs_ready, call)
