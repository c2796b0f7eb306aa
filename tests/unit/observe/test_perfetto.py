"""Timelines in Perfetto's format, as Perfetto's own schema reads them, and as we read them back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from farandole.base.trace import perfetto
from farandole.base.trace.perfetto import PacketFile, is_perfetto, read_records, track_uuid, varint
from farandole.base.trace.trace_summary import read_trace, summarize

START = 1_700_000_000_000_000


def metadata(pid: int, name: str, args: dict[str, object], tid: int | None = None) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, **({} if tid is None else {"tid": tid}), "args": args}


def call(pid: int, rank: int, begin: float, agreed: float, end: float) -> list[dict[str, Any]]:
    place = {"pid": pid, "tid": rank}
    return [
        {"name": "NEGOTIATE_ALLREDUCE", "ph": "B", **place, "ts": begin},
        {"name": "1", "ph": "X", "dur": 0, **place, "ts": begin + 0.5},
        {"ph": "E", **place, "ts": agreed},
        {"name": "ALLREDUCE", "ph": "B", **place, "ts": agreed},
        {"name": "RING_ALLREDUCE", "ph": "B", **place, "ts": agreed},
        {"ph": "E", **place, "ts": end},
        {"ph": "E", **place, "ts": end, "args": {"dtype": "float32", "shape": "[3]", "bytes": 12, "bucket": 4}},
    ]


def records() -> list[dict[str, Any]]:
    return [
        metadata(0, "process_name", {"start_time_since_epoch_in_micros": START, "name": "farandole"}),
        metadata(0, "process_sort_index", {"sort_index": 0}),
        metadata(1, "process_name", {"name": "allreduce.gräd"}),
        *(metadata(1, "thread_name", {"name": f"rank {rank}"}, rank) for rank in range(2)),
        *call(1, 0, 100.125, 300.0, 400.5),
        *call(1, 1, 250.0, 300.25, 400.0),
        {"name": "EVENTS_LOST", "ph": "i", "s": "g", "pid": 0, "tid": 1, "ts": 500.0, "args": {"rank": 1, "count": 7}},
    ]


def write(path: Path, told: list[dict[str, Any]], limit: int = 1 << 20, reserve: int = 0) -> int:
    file = PacketFile(path, limit)
    try:
        return file.append([json.dumps(record) for record in told], reserve=reserve)
    finally:
        file.close()


@pytest.fixture
def schema() -> Any:
    return pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def test_field_numbers_are_those_of_the_schema(schema: Any) -> None:
    ours = {
        "TracePacket": perfetto.PACKET,
        "TrackEvent": perfetto.EVENT,
        "DebugAnnotation": perfetto.ANNOTATION,
        "TrackDescriptor": perfetto.DESCRIPTOR,
        "ClockSnapshot": perfetto.SNAPSHOT,
    }
    for message, numbers in ours.items():
        fields = getattr(schema, message).DESCRIPTOR.fields_by_name
        assert {name: fields[name].number for name in numbers} == numbers, message
    clock = schema.ClockSnapshot.Clock.DESCRIPTOR.fields_by_name
    assert {name: clock[name].number for name in perfetto.CLOCK} == perfetto.CLOCK
    assert schema.Trace.DESCRIPTOR.fields_by_name["packet"].number == perfetto.TRACE_PACKET
    assert {name: schema.TrackEvent.Type.Value(name) for name in perfetto.TYPES} == perfetto.TYPES
    assert schema.TrackDescriptor.ChildTracksOrdering.Value("EXPLICIT") == perfetto.EXPLICIT_ORDER
    assert schema.TracePacket.SequenceFlags.Value("SEQ_INCREMENTAL_STATE_CLEARED") == perfetto.INCREMENTAL_STATE_CLEARED
    assert schema.BuiltinClock.Value("BUILTIN_CLOCK_BOOTTIME") == perfetto.BOOTTIME
    assert schema.BuiltinClock.Value("BUILTIN_CLOCK_REALTIME") == perfetto.REALTIME


def test_perfetto_s_own_classes_read_every_packet(schema: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    assert write(path, records()) == len(records())
    trace = schema.Trace.FromString(path.read_bytes())
    snapshot = trace.packet[0].clock_snapshot
    assert {clock.clock_id: clock.timestamp for clock in snapshot.clocks} == {6: 0, 1: START * 1000}
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    assert tracks[track_uuid(1)].name == "allreduce.gräd"
    below = tracks[track_uuid(1, 1)]
    assert (below.name, below.parent_uuid, below.sibling_order_rank) == ("rank 1", track_uuid(1), 1)
    assert tracks[track_uuid(0, 1)].name == "rank 1", "what is about the job has a track as well"
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    assert all(packet.trusted_packet_sequence_id == perfetto.SEQUENCE for packet in events)
    assert all(packet.track_event.track_uuid in tracks for packet in events), "no event without its track"
    first = events[0]
    assert (first.timestamp, first.track_event.name) == (100_125, "NEGOTIATE_ALLREDUCE")
    assert list(first.track_event.categories) == ["waiting"]
    assert events[1].track_event.name == "rank 1 is ready"
    ended = events[6].track_event
    assert ended.type == schema.TrackEvent.TYPE_SLICE_END
    told = {each.name: each.int_value or each.string_value for each in ended.debug_annotations}
    assert told == {"dtype": "float32", "shape": "[3]", "bytes": 12, "bucket": 4}


def test_what_is_read_back_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    write(path, records())
    again = list(read_records(path.read_bytes()))
    spans = [each for each in records() if each["ph"] in "BE"]
    assert [each for each in again if each["ph"] in "BE"] == spans
    assert summarize(read_trace(path)) == summarize(records())


def test_file_stays_within_limit_and_keeps_reserve(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    written = write(path, records(), limit=1000, reserve=400)
    assert 0 < written < len(records())
    assert path.stat().st_size <= 600
    assert len(list(read_records(path.read_bytes()))) >= written - 1


def test_truncated_file_is_read_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    write(path, records())
    whole = path.read_bytes()
    counts = [len(list(read_records(whole[:length]))) for length in range(len(whole) + 1)]
    assert counts == sorted(counts) and counts[-1] == len(list(read_records(whole)))


@pytest.mark.parametrize("data", [b"\x08\x01", b"[\n{}]", b"\x0a\x02\x09\x01"])
def test_invalid_trace_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="Perfetto"):
        list(read_records(data))


def test_numbers_of_any_size() -> None:
    for value in (0, 1, 127, 128, 300, 2**32, 2**63):
        assert perfetto._read_varint(varint(value), 0) == (value, len(varint(value)))


def test_the_name_says_the_format() -> None:
    assert is_perfetto("out/t.pftrace") and is_perfetto(Path("t.perfetto-trace"))
    assert not is_perfetto("t.json")


def test_perfetto_s_trace_processor_answers_queries(tmp_path: Path) -> None:
    processor = pytest.importorskip("perfetto.trace_processor")
    binary = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if binary is None:
        pytest.skip("trace_processor_shell is not on the PATH: no package registry has it, perfetto.dev does")
    path = tmp_path / "t.pftrace"
    write(path, records())
    config = processor.TraceProcessorConfig(bin_path=binary)
    with processor.TraceProcessor(trace=str(path), config=config) as opened:
        rows = opened.query("select name, dur from slice where dur > 0 order by ts, dur desc")
        assert [(row.name, row.dur) for row in rows] == [
            ("NEGOTIATE_ALLREDUCE", 199_875),
            ("NEGOTIATE_ALLREDUCE", 50_250),
            *(("ALLREDUCE", 100_500), ("RING_ALLREDUCE", 100_500)),
            *(("ALLREDUCE", 99_750), ("RING_ALLREDUCE", 99_750)),
        ]
