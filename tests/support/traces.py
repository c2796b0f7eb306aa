"""Reads Chrome traces and checks that viewers can show them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read(path: str | Path) -> list[Record]:
    """Return a trace's records, after checking all of them."""
    records = json.loads(Path(path).read_text())
    check(records, closed=False)
    return records


def peek(path: str | Path) -> list[Record]:
    """Return the records of a trace that is being written; none, if a block was being written at this moment."""
    try:
        return read(path)
    except json.JSONDecodeError:
        return []


def check(records: list[Record], *, closed: bool = True) -> None:
    """Check the rules of a trace: known records; on each track, times do not decrease, and spans are nested.

    Args:
        records: the records of one trace.
        closed: whether every span must have ended.
    """
    times: dict[tuple[int, int], float] = defaultdict(float)
    open_spans: dict[tuple[int, int], list[str]] = defaultdict(list)
    named = {0}
    for record in records:
        track = record["pid"], record.get("tid", 0)
        if record["ph"] == "M":
            named.add(record["pid"])
            assert record["name"] in {"process_name", "process_sort_index", "thread_name"}
            continue
        assert record["pid"] in named, f"no name for the process of {record}"
        if record["ph"] == "i":
            assert record["s"] == "g"
            continue
        assert record["ts"] >= times[track], f"time runs backwards at {record}"
        times[track] = record["ts"]
        if record["ph"] == "B":
            open_spans[track].append(record["name"])
        elif record["ph"] == "E":
            assert open_spans[track], f"nothing to end at {record}"
            open_spans[track].pop()
        else:
            assert record["ph"] == "X" and record["dur"] == 0 and record["name"].isdigit()
    if closed:
        assert not any(open_spans.values()), open_spans


def processes(records: list[Record]) -> dict[str, int]:
    """Return the pid of every tensor, by its name."""
    return {
        record["args"]["name"]: record["pid"]
        for record in records
        if record["ph"] == "M" and record["name"] == "process_name"
    }


def spans(records: list[Record], tensor: str, rank: int) -> list[str]:
    """Return the names of the spans on one track, in the order of their beginnings."""
    pid = processes(records).get(tensor)
    return [
        record["name"] for record in records if record["ph"] == "B" and (record["pid"], record["tid"]) == (pid, rank)
    ]


def instants(records: list[Record], name: str) -> list[Record]:
    """Return the records about the whole job with a name."""
    return [record for record in records if record["ph"] == "i" and record["name"] == name]
