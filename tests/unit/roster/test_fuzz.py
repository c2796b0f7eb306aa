"""A roster whose workers send it changed messages refuses them or answers them, and goes on.

The random numbers are the same in each run. FARANDOLE_FUZZ_FRAMES is the number of messages; `make fuzz` sends more.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from checked_channel import CheckedChannel
from message_samples import of_struct, structs_of
from mutations import change_bytes, mutated

from farandole.base.wire.encoding import encode
from farandole.base.wire.errors import BadMessage, WireError
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import FromWorker, Hello, Join
from farandole.control.roster import elastic, fixed
from farandole.control.roster.decide import RosterState
from farandole.control.roster.events import Expected, Finished
from farandole.control.roster.listener import Client
from farandole.control.roster.membership import Limits
from farandole.control.roster.service import RosterService

MESSAGES = int(os.environ.get("FARANDOLE_FUZZ_FRAMES", "400"))
SIZE = 4
FROM_WORKER: Codec[FromWorker] = Codec(FromWorker)


def changed_message(rng: random.Random, samples: list[dict[str, Any]]) -> FromWorker | None:
    """Return a message with changes; None: a connection would have refused it."""
    try:
        payload = encode(mutated(rng.choice(samples), rng, keep=("type",)))
        return FROM_WORKER.decode(change_bytes(payload, rng) if rng.random() < 0.3 else payload)
    except (TypeError, OverflowError, BadMessage):
        return None


async def misuse(state: RosterState, rng: random.Random) -> None:
    """Send a roster many changed messages, from workers that it knows and from others; workers come and end."""
    service = RosterService(state, b"s" * 32, handshake_seconds=1.0)
    samples = [of_struct(kind) for kind in structs_of(FromWorker)]
    alive: dict[int, Client] = {}
    is_elastic = isinstance(state, elastic.ElasticState)
    newest = 0
    for _ in range(MESSAGES):
        if is_elastic and len(alive) < SIZE:
            service.tell(Expected(newest, f"h{newest % 2}"))
            alive[newest] = Client(newest, CheckedChannel(), FROM_WORKER)
            newest += 1
        elif not alive:
            alive = {rank: Client(rank, CheckedChannel(), FROM_WORKER) for rank in (*range(SIZE), 2**40, -1)}
        client = rng.choice(list(alive.values()))
        message = Join("c", 1.0, generation=1, trained=True) if rng.random() < 0.2 else changed_message(rng, samples)
        if message is not None and not isinstance(message, Hello):
            try:
                await service.heard(client, message)
            except WireError:
                service.closed(client)
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        if is_elastic and rng.random() < 0.02:
            del alive[client.worker]
            service.closed(client)
            service.tell(Finished(client.worker, "was killed by SIGKILL", failed=True))
    await service.close()


@pytest.mark.parametrize("seed", range(3))
def test_roster_of_elastic_job_survives_changed_messages(seed: int) -> None:
    asyncio.run(misuse(elastic.ElasticState(Limits(1, SIZE)), random.Random(seed)))


@pytest.mark.parametrize("seed", range(3))
def test_roster_of_job_of_fixed_size_survives_changed_messages(seed: int) -> None:
    asyncio.run(misuse(fixed.FixedState((None,) * SIZE), random.Random(seed)))
