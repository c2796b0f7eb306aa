"""A timeline in Perfetto's own format: records of `trace` as packets of a protobuf `Trace`, appended to a file.

The few messages that are needed are written here by hand: their field numbers will never change, because old traces
must be readable, and a protobuf library would be one more dependency of every worker. A test compares each number with
the schema that the package `perfetto` has. The format is described at
https://perfetto.dev/docs/reference/trace-packet-proto.

A tensor is a track with a track below it for each rank. As in Chrome's format, a file whose writer was killed can be
read: packets follow one another, and readers ignore an incomplete last one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

from farandole.base.trace.file import LimitedFile

SUFFIXES = (".pftrace", ".perfetto-trace")

# Field numbers, by message.
TRACE_PACKET = 1
PACKET = {
    "clock_snapshot": 6,
    "timestamp": 8,
    "trusted_packet_sequence_id": 10,
    "track_event": 11,
    "sequence_flags": 13,
    "track_descriptor": 60,
}
EVENT = {"debug_annotations": 4, "type": 9, "track_uuid": 11, "categories": 22, "name": 23}
ANNOTATION = {"bool_value": 2, "int_value": 4, "string_value": 6, "name": 10}
DESCRIPTOR = {"uuid": 1, "name": 2, "parent_uuid": 5, "child_ordering": 11, "sibling_order_rank": 12}
SNAPSHOT = {"clocks": 1, "primary_trace_clock": 2}
CLOCK = {"clock_id": 1, "timestamp": 2}

SLICE_BEGIN, SLICE_END, INSTANT = 1, 2, 3
TYPES = {"TYPE_SLICE_BEGIN": SLICE_BEGIN, "TYPE_SLICE_END": SLICE_END, "TYPE_INSTANT": INSTANT}
EXPLICIT_ORDER = 3
REALTIME, BOOTTIME = 1, 6
INCREMENTAL_STATE_CLEARED = 1
SEQUENCE = 1

_VARINT, _BYTES = 0, 2


def is_perfetto(path: str | PathLike[str]) -> bool:
    """Return whether a timeline of this name is written in Perfetto's format."""
    return os.fspath(path).endswith(SUFFIXES)


# --- writing --------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a varint.

    Example:
        >>> varint(300).hex()
        'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | str | bytes) -> bytes:
    """Encode one field: a non-negative integer, a text, or an encoded message."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | _BYTES) + varint(len(data)) + data


def packet_of(record: dict[str, Any]) -> bytes:
    """Return a record of `trace` as a packet of the trace; b"" for metadata that this format does not need.

    Raises:
        KeyError: the record is of another kind.
    """
    kind = record["ph"]
    if kind == "M":
        body = _metadata(record)
        return field(TRACE_PACKET, body) if body else b""
    body = field(PACKET["timestamp"], round(record["ts"] * 1000))
    body += field(PACKET["track_event"], _event(record))
    return field(TRACE_PACKET, body + field(PACKET["trusted_packet_sequence_id"], SEQUENCE))


def track_uuid(pid: int, tid: int | None = None) -> int:
    """Return the id of a tensor's track or, with `tid`, of that rank's track below it; never 0, which would be none."""
    return (pid + 1 << 24) + (0 if tid is None else tid + 1)


def _event(record: dict[str, Any]) -> bytes:
    kind = record["ph"]
    body = field(EVENT["type"], {"B": SLICE_BEGIN, "E": SLICE_END}.get(kind, INSTANT))
    body += field(EVENT["track_uuid"], track_uuid(record["pid"], record["tid"]))
    if kind != "E":
        name = f"rank {record['name']} is ready" if kind == "X" else record["name"]
        body += field(EVENT["categories"], "waiting" if name.startswith("NEGOTIATE_") else "collective")
        body += field(EVENT["name"], name)
    for name, value in record.get("args", {}).items():
        body += field(EVENT["debug_annotations"], field(ANNOTATION["name"], name) + _value(value))
    return body


def _value(value: object) -> bytes:
    if isinstance(value, bool):
        return field(ANNOTATION["bool_value"], int(value))
    if isinstance(value, int):
        return field(ANNOTATION["int_value"], value)
    return field(ANNOTATION["string_value"], str(value))


def _metadata(record: dict[str, Any]) -> bytes:
    pid, args = record["pid"], record["args"]
    if record["name"] == "process_name":
        track = field(DESCRIPTOR["uuid"], track_uuid(pid)) + field(DESCRIPTOR["name"], args["name"])
        track += field(DESCRIPTOR["child_ordering"], EXPLICIT_ORDER)
        body = field(PACKET["track_descriptor"], track)
        if "start_time_since_epoch_in_micros" in args:
            body += field(PACKET["sequence_flags"], INCREMENTAL_STATE_CLEARED)
        return body + field(PACKET["trusted_packet_sequence_id"], SEQUENCE)
    if record["name"] == "thread_name":
        track = field(DESCRIPTOR["uuid"], track_uuid(pid, record["tid"])) + field(DESCRIPTOR["name"], args["name"])
        track += field(DESCRIPTOR["parent_uuid"], track_uuid(pid))
        track += field(DESCRIPTOR["sibling_order_rank"], record["tid"])
        return field(PACKET["track_descriptor"], track) + field(PACKET["trusted_packet_sequence_id"], SEQUENCE)
    return b""


def clock_packet(epoch_us: int) -> bytes:
    """Return the packet with the time of day at which the trace began."""
    clocks = ((BOOTTIME, 0), (REALTIME, epoch_us * 1000))
    told = b"".join(
        field(SNAPSHOT["clocks"], field(CLOCK["clock_id"], clock) + field(CLOCK["timestamp"], at))
        for clock, at in clocks
    )
    told += field(SNAPSHOT["primary_trace_clock"], BOOTTIME)
    return field(TRACE_PACKET, field(PACKET["clock_snapshot"], told))


class PacketFile:
    """A growing trace of limited size, with the interface of `file.ArrayFile`."""

    def __init__(self, path: str | PathLike[str], limit: int) -> None:
        """Create the file, or empty it.

        Args:
            path: the file to write.
            limit: largest size of the file in bytes.

        Raises:
            OSError: the file cannot be written.
        """
        self._file = LimitedFile(path, limit)
        self._ranks: set[int] = set()

    def append(self, elements: Sequence[str], *, reserve: int = 0) -> int:
        """Add as many of the first records as fit.

        Args:
            elements: elements of `trace`, each in valid JSON.
            reserve: number of bytes below the limit that must stay free.

        Returns:
            Number of records that were added.

        Raises:
            OSError: the records could not be written, as on a full disk. The file is unchanged.
        """
        packets = self._file.fitting([self._packet(json.loads(element)) for element in elements], reserve)
        self._file.put(b"".join(packets))
        return len(packets)

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        self._file.close()

    def _packet(self, record: dict[str, Any]) -> bytes:
        packet = packet_of(record)
        if "start_time_since_epoch_in_micros" in record.get("args", {}):
            return clock_packet(record["args"]["start_time_since_epoch_in_micros"]) + packet
        if record["pid"] == 0 and record["ph"] == "i" and record["tid"] not in self._ranks:
            self._ranks.add(record["tid"])  # What is about the whole job has no names of ranks in Chrome's format.
            name = {"name": "thread_name", "ph": "M", "pid": 0, "tid": record["tid"]}
            return packet_of({**name, "args": {"name": f"rank {record['tid']}"}}) + packet
        return packet


# --- reading --------------------------------------------------------------------------------------------------------


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the complete fields of a message, which may be truncated.

    Raises:
        ValueError: the message is not one that farandole has written.
    """
    at = 0
    while at < len(data):
        try:
            key, at = _read_varint(data, at)
            if key & 7 == _VARINT:
                value, at = _read_varint(data, at)
                yield key >> 3, value
                continue
            if key & 7 != _BYTES:
                raise ValueError("this is not a timeline that farandole has written in Perfetto's format")
            length, at = _read_varint(data, at)
        except IndexError:
            return
        if at + length > len(data):
            return
        yield key >> 3, data[at : at + length]
        at += length


def read_records(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the records of a trace that `PacketFile` has written.

    Raises:
        ValueError: it is not a trace in Perfetto's format.
    """
    for number, packet in read_fields(data):
        if number != TRACE_PACKET or not isinstance(packet, bytes):
            raise ValueError("this is not a trace in Perfetto's format")
        fields = dict(read_fields(packet))
        descriptor, event = fields.get(PACKET["track_descriptor"]), fields.get(PACKET["track_event"])
        if isinstance(descriptor, bytes):
            yield _read_descriptor(dict(read_fields(descriptor)))
        elif isinstance(event, bytes):
            yield _read_event(event, fields.get(PACKET["timestamp"], 0))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _place(uuid: object) -> dict[str, int]:
    assert isinstance(uuid, int)
    pid, tid = (uuid >> 24) - 1, (uuid & 0xFFFFFF) - 1
    return {"pid": pid} if tid < 0 else {"pid": pid, "tid": tid}


def _read_descriptor(fields: dict[int, int | bytes]) -> dict[str, Any]:
    place = _place(fields[DESCRIPTOR["uuid"]])
    name = fields.get(DESCRIPTOR["name"], b"")
    kind = "thread_name" if "tid" in place else "process_name"
    return {"ph": "M", "name": kind, **place, "args": {"name": name.decode() if isinstance(name, bytes) else ""}}


def _read_event(event: bytes, timestamp: int | bytes) -> dict[str, Any]:
    fields = list(read_fields(event))
    by_number = dict(fields)
    assert isinstance(timestamp, int)
    kinds: dict[int | bytes, str] = {SLICE_BEGIN: "B", SLICE_END: "E"}
    record = {
        "ph": kinds.get(by_number[EVENT["type"]], "i"),
        "ts": timestamp / 1000,
        **_place(by_number[EVENT["track_uuid"]]),
    }
    name = by_number.get(EVENT["name"])
    if isinstance(name, bytes):
        record["name"] = name.decode()
    args = dict(_read_annotation(value) for number, value in fields if number == EVENT["debug_annotations"])
    return {**record, "args": args} if args else record


def _read_annotation(data: int | bytes) -> tuple[str, object]:
    assert isinstance(data, bytes)
    name = ""
    told: bool | int | str | None = None
    for number, value in read_fields(data):
        if number == ANNOTATION["name"] and isinstance(value, bytes):
            name = value.decode()
        elif number == ANNOTATION["bool_value"]:
            told = bool(value)
        else:
            told = value.decode() if isinstance(value, bytes) else value
    return name, told
