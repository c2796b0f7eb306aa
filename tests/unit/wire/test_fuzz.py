"""Frames changed by chance are refused with BadMessage, or understood; they are never more than that.

The chance is the same in each run. FARANDOLE_FUZZ_FRAMES: how many of each union of messages; `make fuzz` takes more.
"""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import pytest
from message_samples import of_struct, structs_of
from mutations import change_bytes, mutated

from farandole.base.wire import dialing, rendezvous
from farandole.base.wire.encoding import encode
from farandole.base.wire.errors import BadMessage
from farandole.base.wire.frames import Codec
from farandole.control.agent import protocol as agent
from farandole.control.launcher.daemon import client_protocol as daemon
from farandole.control.queue import protocol as queue
from farandole.worker.observe import timeline_messages as timeline

FRAMES = int(os.environ.get("FARANDOLE_FUZZ_FRAMES", "400"))
UNIONS = {
    "worker to roster": rendezvous.FromWorker,
    "roster to worker": rendezvous.FromRoster,
    "serve": rendezvous.Serve,
    "roster's server": rendezvous.FromServer,
    "dialing": dialing.Hello,
    "reception": dialing.Order,
    "bridge": dialing.Bridged,
    "launcher to agent": agent.ToAgent,
    "agent to launcher": agent.FromAgent,
    "client to daemon": daemon.FromClient,
    "daemon to client": daemon.FromDaemon,
    "queue": queue.QueueRequest,
    "timeline": timeline.Message,
}


@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS)
def test_changed_frames_are_understood_or_refused(union: Any) -> None:
    codec: Codec[msgspec.Struct] = Codec(union)
    messages = [of_struct(kind) for kind in structs_of(union)]
    for message in messages:
        codec.decode(encode(message))
    rng = random.Random(1)
    for _ in range(FRAMES):
        changed = mutated(rng.choice(messages), rng, keep=("type",) if rng.random() < 0.9 else ())
        try:
            payload = encode(changed)
        except (TypeError, OverflowError):  # What MessagePack has no bytes for.
            continue
        if rng.random() < 0.5:
            payload = change_bytes(payload, rng)
        try:
            understood = codec.decode(payload)
        except BadMessage:
            continue
        codec.decode(codec.encode(understood))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,
        b"\x81" * 100_000,
        b"\xc7\x05\x01" + b"\x91" * 5,
        b"\xc7\x03\x01\x81\x80\x01",
        b"\x81\x80\x01",
        encode({"type": "\udcff"}),
    ],
    ids=["deep list", "deep map", "deep text", "map as key of text", "map as key", "tag that is no UTF-8"],
)
@pytest.mark.parametrize("union", [rendezvous.FromWorker, queue.QueueRequest], ids=["roster", "queue"])
def test_what_has_no_form_at_all_is_refused(union: Any, payload: bytes) -> None:
    codec: Codec[msgspec.Struct] = Codec(union)
    with pytest.raises(BadMessage):
        codec.decode(payload)
