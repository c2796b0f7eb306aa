"""From events to a trace: the facts about an operation; spans nest even if events are missing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from traces import check, instants, processes, spans

from farandole.base.request_kind import Kind
from farandole.worker.observe.engine_events import LAYOUT, NOTHING, Event, Phase
from farandole.worker.observe.timeline_messages import Batch
from farandole.worker.observe.trace import Trace

NAMES = {0: ("allreduce.a", "float32 [3, 4]"), 1: ("allreduce.b", "int64 []"), 2: ('allgather."ü"', "uint8 [7]")}
START = 1_000_000


class Story:
    """A trace that is being made, of two ranks."""

    def __init__(self, **options: Any) -> None:
        self.trace = Trace(START, 1_700_000_000_000_000, ["direct", "ring"], size=2, **options)
        self.texts = self.trace.begin()
        self.counts = [0, 0]

    def add(self, rank: int, events: list[Event], *, skipped: int = 0, shift: int = 0) -> None:
        """Add events, of which `skipped` others before them were lost."""
        first = self.counts[rank] + skipped
        self.counts[rank] = first + len(events)
        packed = b"".join(LAYOUT.pack(*event) for event in events)
        self.texts += self.trace.add(rank, Batch(1, 1, first, 0, packed, NAMES), shift)

    def records(self, end_ns: int = START + 10**9) -> list[dict[str, Any]]:
        """End the trace and return its records, checked."""
        records = [json.loads(text) for text in [*self.texts, *self.trace.end(end_ns)]]
        check(records)
        return records


def event(time: int, phase: Phase, name: int = NOTHING, **fields: int) -> Event:
    given = {"bytes": 48, "kind": Kind.ALLREDUCE, "group": 0, "algorithm": NOTHING, "bucket": NOTHING, "rank": -1}
    return Event(time_ns=START + time, phase=phase, name=name, **{**given, **fields})


def allreduce(time: int, name: int = 0, bucket: int = 5, **fields: int) -> list[Event]:
    """Return what an engine records for one, in steps of a microsecond."""
    return [
        event(time, Phase.SUBMITTED, name, **fields),
        event(time + 1000, Phase.ROUND),
        event(time + 1000, Phase.AGREED, name, bucket=bucket, **fields),
        event(time + 2000, Phase.STARTED, bucket=bucket, algorithm=1, **fields),
        event(time + 3000, Phase.MOVED, bucket=bucket, algorithm=1, **fields),
        event(time + 4000, Phase.DONE, name, bucket=bucket, **fields),
    ]


def test_a_trace_says_when_it_began() -> None:
    first, second = Story().records()[:2]
    assert (first["ph"], first["pid"]) == ("M", 0)
    assert first["args"]["start_time_since_epoch_in_micros"] == 1_700_000_000_000_000
    assert second["name"] == "process_sort_index"


def test_one_allreduce() -> None:
    story = Story()
    story.add(0, allreduce(0))
    records = [record for record in story.records() if record["pid"] == processes(story.records())["allreduce.a"]]
    assert [record for record in records if record["ph"] == "M" and record["name"] == "thread_name"] == [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": rank, "args": {"name": f"rank {rank}"}} for rank in (0, 1)
    ]
    assert [record for record in records if record["ph"] != "M"] == [
        {"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "pid": 1, "tid": 0, "ts": 0.0},
        {"ph": "E", "pid": 1, "tid": 0, "ts": 1.0},
        {"name": "ALLREDUCE", "ph": "B", "pid": 1, "tid": 0, "ts": 1.0},
        {"name": "RING_ALLREDUCE", "ph": "B", "pid": 1, "tid": 0, "ts": 2.0},
        {"ph": "E", "pid": 1, "tid": 0, "ts": 3.0},
        {
            "ph": "E",
            "pid": 1,
            "tid": 0,
            "ts": 4.0,
            "args": {"dtype": "float32", "shape": "[3, 4]", "bytes": 48, "bucket": 5},
        },
    ]


def test_fused_tensors_show_the_same_bucket() -> None:
    story = Story()
    story.add(1, [event(0, Phase.SUBMITTED, 0), event(10, Phase.SUBMITTED, 1)])
    story.add(1, [event(20, Phase.AGREED, 0, bucket=3), event(20, Phase.AGREED, 1, bucket=3)])
    story.add(1, [event(30, Phase.STARTED, bucket=3, algorithm=0), event(40, Phase.MOVED, bucket=3, algorithm=0)])
    story.add(1, [event(50, Phase.DONE, 0, bucket=3), event(50, Phase.DONE, 1, bucket=3)])
    records = story.records()
    for tensor in ("allreduce.a", "allreduce.b"):
        assert spans(records, tensor, 1) == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "DIRECT_ALLREDUCE"]
        assert spans(records, tensor, 0) == []
    assert [record["args"]["bucket"] for record in records if record["ph"] == "E" and "args" in record] == [3, 3]


def test_ranks_are_marked_when_they_are_ready() -> None:
    story = Story()
    story.add(0, [event(0, Phase.RANK_READY, 0, rank=1), event(5, Phase.SUBMITTED, 0)])
    story.add(0, [event(6, Phase.RANK_READY, 0, rank=0), event(9, Phase.AGREED, 0), event(10, Phase.DONE, 0)])
    marks = [(record["name"], record["ts"], record["tid"]) for record in story.records() if record["ph"] == "X"]
    assert marks == [("1", 0.0, 0), ("0", 0.006, 0)]


def test_cycles_are_marked_when_asked_for_and_from_rank_0_only() -> None:
    for mark, expected in ((True, [1.0]), (False, [])):
        story = Story(mark_cycles=mark)
        story.add(0, allreduce(0))
        story.add(1, allreduce(500))
        assert [record["ts"] for record in instants(story.records(), "CYCLE_START")] == expected


def test_operations_without_data_or_with_a_strange_name() -> None:
    story = Story()
    story.add(0, [event(0, Phase.SUBMITTED, 2, kind=Kind.ALLGATHER), event(1, Phase.FAILED, 2, kind=Kind.ALLGATHER)])
    story.add(0, [event(2, Phase.SUBMITTED, 1, kind=Kind.BARRIER), event(3, Phase.AGREED, 1, kind=Kind.BARRIER)])
    story.add(0, [event(4, Phase.DONE, 1, kind=Kind.BARRIER)])
    records = story.records()
    assert spans(records, 'allgather."ü"', 0) == ["NEGOTIATE_ALLGATHER"]
    assert spans(records, "allreduce.b", 0) == ["NEGOTIATE_BARRIER", "BARRIER"]
    assert [record["args"].get("failed") for record in records if record["ph"] == "E" and "args" in record] == [
        True,
        None,
    ]


def test_one_name_in_two_process_sets() -> None:
    story = Story()
    story.add(0, [event(0, Phase.SUBMITTED, 0), event(1, Phase.SUBMITTED, 0, group=2)])
    story.add(0, [event(2, Phase.AGREED, 0, group=2), event(3, Phase.AGREED, 0)])
    story.add(0, [event(4, Phase.DONE, 0), event(5, Phase.DONE, 0, group=2)])
    records = story.records()
    assert spans(records, "allreduce.a (process set 2)", 0) == spans(records, "allreduce.a", 0)
    assert processes(records)["allreduce.a"] != processes(records)["allreduce.a (process set 2)"]


def test_lost_events_end_what_was_open_and_are_counted() -> None:
    story = Story()
    story.add(1, allreduce(0)[:3])
    story.add(1, allreduce(90_000, name=1), skipped=17)
    story.add(0, allreduce(0), skipped=4)  # The first of a rank: nothing was expected.
    records = story.records()
    (lost,) = instants(records, "EVENTS_LOST")
    assert lost["args"] == {"rank": 1, "count": 17} and lost["ts"] == 90.0
    assert story.trace.lost == 17
    ended = [record for record in records if record["ph"] == "E" and record.get("args", {}).get("events_lost")]
    assert [record["ts"] for record in ended] == [90.0]


def test_the_end_closes_what_is_open() -> None:
    story = Story()
    story.add(0, allreduce(0)[:4])
    texts = story.trace.end(START + 7000, "because")
    records = [json.loads(text) for text in [*story.texts, *texts]]
    check(records)
    assert records[-2]["args"] == {"unfinished": True} and records[-2]["ts"] == 7.0
    assert records[-1]["name"] == "TIMELINE_ENDS" and records[-1]["args"] == {"reason": "because"}


@pytest.mark.parametrize("written", range(0, 30, 3))
def test_unwritten_records_are_restored(written: int) -> None:
    story = Story()
    story.add(0, allreduce(0)[:3])
    begun = len(story.texts)
    story.add(1, allreduce(0)[:4])
    story.add(0, allreduce(0)[3:])
    story.add(1, allreduce(5000, name=1), skipped=9)
    cut = begun + written
    story.trace.retract(story.texts[cut:])
    check([json.loads(text) for text in [*story.texts[:cut], *story.trace.end(START + 10**9)]])


def test_clocks_that_are_corrected_do_not_turn_time_back() -> None:
    story = Story()
    story.add(1, allreduce(10_000)[:3], shift=500)
    story.add(1, allreduce(10_000)[3:], shift=-5000)
    story.records()


def test_calls_that_the_engine_noted_late_come_in_their_order() -> None:
    story = Story()
    story.add(0, [event(2000, Phase.RANK_READY, 0, rank=1), event(1000, Phase.SUBMITTED, 0)])
    begin = next(record for record in story.records() if record["ph"] == "B")
    assert begin["ts"] == 1.0


@pytest.mark.parametrize("seed", range(30))
def test_spans_nest_whatever_is_missing(seed: int) -> None:
    """Any events may be lost, with or without a gap in the count, and batches end anywhere."""
    chance = random.Random(seed)
    story = Story(mark_cycles=True)
    for rank in (0, 1):
        events = []
        for turn in range(60):
            name = chance.choice([0, 1, 2, NOTHING, 99])
            events += allreduce(turn * 4000, name, bucket=turn // 2, group=chance.choice([0, 0, 3]))
        while events:
            count, lost = chance.randrange(1, 20), chance.choice([0, 0, 0, chance.randrange(1, 9)])
            kept = [each for each in events[lost : lost + count] if chance.random() < 0.9]
            if kept:
                story.add(rank, kept, skipped=lost)
            del events[: lost + count]
    story.records()


def test_a_long_job_with_ever_new_names_is_forgotten_again() -> None:
    story = Story()
    for turn in range(10_000):
        packed = b"".join(LAYOUT.pack(*each) for each in allreduce(turn * 5000, name=turn, bucket=turn))
        story.trace.add(0, Batch(1, 1, turn * 6, 0, packed, {turn: (f"allreduce.noname.{turn}", "float32 []")}), 0)
    known = story.trace._ranks[0]
    assert len(known.tracks) < 5000 and len(known.names) == 1 and not known.buckets
