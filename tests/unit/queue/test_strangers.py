"""Arbitrary content that users write into the files of their attempts has no effect on the queue."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from message_samples import of_struct, structs_of
from mutations import mutated
from queue_world import BOB, FakeDaemon, World, hosts

from farandole.base.wire.encoding import encode
from farandole.base.wire.errors import BadMessage
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import Measures
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import to_dict
from farandole.control.queue.attempt import Attempt, AttemptRequest
from farandole.control.queue.daemon import QueueDaemon
from farandole.control.queue.measures import report_of
from farandole.control.queue.model import AttemptFact, AttemptReport, AttemptState, Owner
from farandole.control.queue.protocol import MESSAGE_LIMIT, Ask, QueueRequest, Submit
from farandole.control.queue.settings import QueueSettings

ME = Owner(os.geteuid(), os.getegid(), "me")


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """Return one that has begun, and whose runner is gone."""
    attempt = Attempt(tmp_path, "a", 1)
    attempt.prepare(AttemptRequest(from_dict({"command": ["true"]}), {"h1": 2}, {}, "/"), ME)
    attempt.begin()
    return attempt


@pytest.mark.parametrize(
    "content",
    [
        b'{"at":1.0,"hosts":{},"workers":1,"waits_for":"\xff"}',
        b'{"at":1.0,"hosts":{},"workers":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"at":1.0,"hosts":{},"workers":%d}' % 2**70,
        b'{"at":1.0,"hosts":{"h1":{"slots":1,"workers":-1}},"workers":1}',
    ],
    ids=["no text", "deep", "large", "negative"],
)
def test_malformed_report_is_ignored(attempt: Attempt, content: bytes) -> None:
    (attempt.own / "report").write_bytes(content)
    assert attempt.fact(ME) == AttemptFact(AttemptState.ORPHANED)


@pytest.mark.parametrize("content", [b'{"exit_code":"\xff"}', b'{"exit_code":%d}' % 2**70], ids=["no text", "large"])
def test_malformed_result_is_ignored(attempt: Attempt, content: bytes) -> None:
    (attempt.own / "ended").write_bytes(content)
    assert attempt.fact(ME) == AttemptFact(AttemptState.ORPHANED)


def test_a_report_may_be_as_long_as_a_job_with_many_hosts_needs(attempt: Attempt) -> None:
    rows = ",".join(f'"host-{number}.example.org":{{"slots":8,"workers":8}}' for number in range(5000))
    (attempt.own / "report").write_text(f'{{"at":1.0,"hosts":{{{rows}}},"workers":40000}}')
    report = attempt.fact(ME).report
    assert report is not None and len(report.hosts) == 5000


@pytest.mark.parametrize("name", ["base", "largest", "most_in_pass", "hosts", "workers"])
def test_measures_beyond_bounds_are_omitted(name: str) -> None:
    sensible = {field: 1 for field in Measures.__struct_fields__} | {"step": 2.0, "sync": 1.0, "on": ()}
    assert report_of([Measures(**sensible)], "gpu", {"h1": "gpu"}) is not None
    assert report_of([Measures(**{**sensible, "workers": 2**20, name: 2**2000})], "gpu", {"h1": "gpu"}) is None


def test_list_of_jobs_fits_into_a_message_with_any_content(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, World(), hosts("h1:2"), QueueSettings())
    words = ["python", "x" * (MESSAGE_LIMIT // 2), "end"]
    for name in "ab":
        daemon.world.work[name] = 10.0, 0
        daemon.state.submit(Submit({"name": name, "command": words}, {}, "/", name), BOB, 0.0)
    daemon.turns()
    for job in daemon.state.jobs:
        said = AttemptReport(1.0, {}, 1, waits_for="y" * (MESSAGE_LIMIT // 2))
        daemon.state.facts = {**daemon.state.facts, job: AttemptFact(AttemptState.RUNS, report=said)}
    listed = daemon.state.statuses()
    assert len(msgspec.msgpack.encode([to_dict(status) for status in listed])) < 100_000
    assert listed[0].command[0] == "python" and listed[0].command[-1].endswith("…")
    assert daemon.state.status("a").command == tuple(words)
    daemon.close()


SPEC = {"name": "text", "command": ["python", "train.py"], "num_proc": 2, "resources": {}, "kind": "training"}


def test_requests_changed_by_chance_are_answered_or_refused(tmp_path: Path) -> None:
    daemon = QueueDaemon(tmp_path)
    codec: Codec[QueueRequest] = Codec(QueueRequest)
    rng = random.Random(2)
    asks = [of_struct(kind) for kind in structs_of(Ask)]
    asks += [{"type": "submit", "spec": SPEC, "environment": {}, "directory": "/", "key": "k"}] * len(asks)
    answered = 0
    for _ in range(int(os.environ.get("FARANDOLE_FUZZ_FRAMES", "1000"))):
        request: dict[str, Any] = {"ask": mutated(rng.choice(asks), rng, keep=("type",)), "token": ""}
        try:
            understood = codec.decode(encode(request))
        except (BadMessage, TypeError, OverflowError):
            continue
        answer = daemon._server._answer(understood, 65534)
        assert encode(answer) and "internal error" not in str(answer), (request, answer)
        answered += 1
    assert answered > 0
    daemon._store.close()
