"""Converts the events of all ranks to a trace that Chrome and Perfetto can show, without clocks, files or threads.

Every tensor is a *process* of the trace, as in Horovod's timeline; every rank is a *thread* of it. Such a *track* has
nested spans:

    NEGOTIATE_ALLREDUCE       from the call until this rank knew that all have called
    ALLREDUCE                 from then until the result was there
        RING_ALLREDUCE        while the algorithm moved the bucket that the tensor travelled in

On the track of rank 0, an instant with the number of a rank marks when rank 0 learned that this rank was ready. Process
0 is not a tensor: it holds the events of the whole job.

Events may be missing: the recording began in the middle of an operation, or some were lost. In any case, every span
that begins also ends, spans nest, and times never decrease on a track.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter

from farandole.base.request_kind import Kind
from farandole.worker.observe.engine_events import NOTHING, Event, Phase, unpack
from farandole.worker.observe.timeline_messages import Batch

# Names change, as those of unnamed tensors do: beyond this number, tracks on which nothing is open are forgotten.
_MOST_TRACKS = 4096

_NO_GROUP = -1

_KIND_NAMES = {int(kind): kind.name for kind in Kind}


class _Track:
    """One tensor on one rank."""

    __slots__ = ("last_ns", "open", "place")

    def __init__(self, pid: int, rank: int) -> None:
        self.place = f'"pid":{pid},"tid":{rank}'
        self.open: list[str] = []
        """The open spans, the outermost first."""
        self.last_ns = 0


class _Rank:
    """The state of one rank's tracks."""

    def __init__(self) -> None:
        self.expected: int | None = None
        """Number of the next event, if none is lost."""
        self.names: dict[int, tuple[str, str]] = {}
        """The names in the latest batch, by number: the request's name, and the type and shape of its tensor."""
        self.tracks: dict[tuple[int, int], _Track] = {}
        """The tracks, by group and number of the name."""
        self.buckets: dict[int, list[_Track]] = {}
        """The tracks of the tensors in each bucket that was agreed on and is not moved yet, by its number."""


class Trace:
    """Writes records, each a JSON object without a line break, from batches of events."""

    def __init__(
        self, start_ns: int, epoch_us: int, algorithms: Sequence[str], *, size: int, mark_cycles: bool = False
    ) -> None:
        """Begin a trace.

        Args:
            start_ns: the time of the beginning, by the writer's clock; the trace's time 0.
            epoch_us: the same moment, in microseconds since 1970.
            algorithms: names of the algorithms, by their numbers in events.
            size: number of ranks.
            mark_cycles: whether to mark every round of agreement of rank 0 as well.
        """
        self._start_ns = start_ns
        self._epoch_us = epoch_us
        self._algorithms = [name.upper() for name in algorithms]
        self._mark_cycles = mark_cycles
        self._ranks = [_Rank() for _ in range(size)]
        self._pids: dict[tuple[int, str], int] = {}
        self._records: list[str] = []
        self._on_phase: dict[int, Callable[[int, Event, int], None]] = {
            Phase.SUBMITTED: self._submitted,
            Phase.AGREED: self._agreed,
            Phase.STARTED: self._started,
            Phase.MOVED: self._moved,
            Phase.DONE: self._ended,
            Phase.FAILED: self._ended,
            Phase.RANK_READY: self._rank_ready,
            Phase.ROUND: self._round,
        }
        self.events = 0
        """The number of events that have been added."""
        self.lost = 0
        """The number of records that are known to be missing."""

    def begin(self) -> list[str]:
        """Return the first records of every trace."""
        start = {"start_time_since_epoch_in_micros": self._epoch_us, "name": "farandole"}
        self._records.append(_metadata(0, "process_name", start))
        self._records.append(_metadata(0, "process_sort_index", {"sort_index": 0}))
        return self._take()

    def add(self, rank: int, batch: Batch, shift_ns: int) -> list[str]:
        """Return the records of a rank's events; `shift_ns` converts its times to the writer's clock."""
        if not 0 <= rank < len(self._ranks):
            return []
        known = self._ranks[rank]
        # The engine takes note of a call when it gets to it, with the time at which it was made.
        events = sorted(unpack(batch.events), key=attrgetter("time_ns"))
        known.names = batch.names
        _forget_old(known)
        shift = shift_ns - self._start_ns
        if known.expected is not None and batch.first != known.expected:
            self._mark_loss(rank, batch.first - known.expected, events[0].time_ns + shift)
        known.expected = batch.first + len(events)
        self.events += len(events)
        for event in events:
            handle = self._on_phase.get(event.phase)
            if handle is not None:
                handle(rank, event, event.time_ns + shift)
        return self._take()

    def retract(self, records: Sequence[str]) -> None:
        """Retract the last records that were returned, because they were not written. Only `end` may follow."""
        tracks = {track.place: track for known in self._ranks for track in known.tracks.values()}
        for text in reversed(records):
            record = json.loads(text)
            if record["ph"] in "BE":
                pid, rank = record["pid"], record["tid"]
                fresh = _Track(pid, rank)
                track = tracks.setdefault(fresh.place, fresh)
                if track is fresh:
                    self._ranks[rank].tracks[_NO_GROUP, pid] = fresh
                if record["ph"] == "B":
                    track.open.pop()
                else:
                    track.open.append("")

    def end(self, now_ns: int, note: str | None = None) -> list[str]:
        """Return the records that end all open spans, and a note for the reader, if there is one.

        Args:
            now_ns: the present time, by the clock of `start_ns`.
            note: one line.
        """
        for rank in range(len(self._ranks)):
            self._end_all(rank, now_ns - self._start_ns, '"unfinished":true')
        if note is not None:
            self._instant("TIMELINE_ENDS", 0, now_ns - self._start_ns, {"reason": note})
        return self._take()

    # --- one event each ------------------------------------------------------------------------------------------

    def _submitted(self, rank: int, event: Event, time_ns: int) -> None:
        track = self._track(rank, event)
        if track is not None:
            self._end_spans(track, 0, time_ns, "")
            self._begin_span(track, f"NEGOTIATE_{_KIND_NAMES.get(event.kind, 'UNKNOWN')}", time_ns)

    def _agreed(self, rank: int, event: Event, time_ns: int) -> None:
        track = self._track(rank, event)
        if track is not None:
            self._end_spans(track, 0, time_ns, "")
            self._begin_span(track, _KIND_NAMES.get(event.kind, "UNKNOWN"), time_ns)
            if event.bucket != NOTHING:
                self._ranks[rank].buckets.setdefault(event.bucket, []).append(track)

    def _started(self, rank: int, event: Event, time_ns: int) -> None:
        if event.algorithm < len(self._algorithms):
            name = f"{self._algorithms[event.algorithm]}_{_KIND_NAMES.get(event.kind, 'UNKNOWN')}"
            for track in self._ranks[rank].buckets.get(event.bucket, ()):
                if track.open:
                    self._begin_span(track, name, time_ns)

    def _moved(self, rank: int, event: Event, time_ns: int) -> None:
        for track in self._ranks[rank].buckets.pop(event.bucket, ()):
            self._end_spans(track, 1, time_ns, "")

    def _ended(self, rank: int, event: Event, time_ns: int) -> None:
        track = self._track(rank, event)
        if track is None or not track.open:
            return
        dtype, _, shape = self._ranks[rank].names[event.name][1].partition(" ")
        args = f'"dtype":"{dtype}","shape":"{shape}","bytes":{event.bytes}'
        if event.bucket != NOTHING:
            args += f',"bucket":{event.bucket}'
        if event.group:
            args += f',"process_set":{event.group}'
        if event.phase == Phase.FAILED:
            args += ',"failed":true'
            self._ranks[rank].buckets.pop(event.bucket, None)
        self._end_spans(track, 0, time_ns, args)

    def _rank_ready(self, rank: int, event: Event, time_ns: int) -> None:
        track = self._track(rank, event)
        if track is not None:
            time_ns = _forward(track, time_ns)
            self._records.append(f'{{"name":"{event.rank}","ph":"X","dur":0,{track.place},"ts":{time_ns / 1000:.3f}}}')

    def _round(self, rank: int, event: Event, time_ns: int) -> None:
        if self._mark_cycles and rank == 0:
            self._instant("CYCLE_START", 0, time_ns)

    # --- tracks and spans ----------------------------------------------------------------------------------------

    def _track(self, rank: int, event: Event) -> _Track | None:
        known = self._ranks[rank]
        track = known.tracks.get((event.group, event.name))
        if track is None and event.name in known.names:
            pid = self._pid(event.group, known.names[event.name][0], rank)
            track = known.tracks[event.group, event.name] = _Track(pid, rank)
        return track

    def _pid(self, group: int, name: str, rank: int) -> int:
        pid = self._pids.get((group, name))
        if pid is None:
            pid = self._pids[group, name] = len(self._pids) + 1
            title = f"{name} (process set {group})" if group else name
            self._records.append(_metadata(pid, "process_name", {"name": title}))
            self._records.append(_metadata(pid, "process_sort_index", {"sort_index": pid}))
            for each in range(len(self._ranks)):
                self._records.append(_metadata(pid, "thread_name", {"name": f"rank {each}"}, each))
        return pid

    def _begin_span(self, track: _Track, name: str, time_ns: int) -> None:
        time_ns = _forward(track, time_ns)
        track.open.append(name)
        self._records.append(f'{{"name":"{name}","ph":"B",{track.place},"ts":{time_ns / 1000:.3f}}}')

    def _end_spans(self, track: _Track, keep: int, time_ns: int, args: str) -> None:
        """End all spans except the outermost `keep`; the outermost of the ended ones gets `args`."""
        while len(track.open) > keep:
            track.open.pop()
            told = f',"args":{{{args}}}' if args and len(track.open) == keep else ""
            self._records.append(f'{{"ph":"E",{track.place},"ts":{_forward(track, time_ns) / 1000:.3f}{told}}}')

    def _end_all(self, rank: int, time_ns: int, args: str) -> None:
        known = self._ranks[rank]
        for track in known.tracks.values():
            self._end_spans(track, 0, time_ns, args)
        known.tracks.clear()
        known.buckets.clear()

    # --- events of the whole job ----------------------------------------------------------------------------------

    def _mark_loss(self, rank: int, count: int, time_ns: int) -> None:
        self._end_all(rank, time_ns, '"events_lost":true')
        self.lost += count
        self._instant("EVENTS_LOST", rank, time_ns, {"rank": rank, "count": count})

    def _instant(self, name: str, rank: int, time_ns: int, args: dict[str, object] | None = None) -> None:
        told = f',"args":{json.dumps(args)}' if args else ""
        time_ns = max(time_ns, 0)
        self._records.append(
            f'{{"name":"{name}","ph":"i","s":"g","pid":0,"tid":{rank},"ts":{time_ns / 1000:.3f}{told}}}'
        )

    def _take(self) -> list[str]:
        records, self._records = self._records, []
        return records


def _forget_old(known: _Rank) -> None:
    if len(known.tracks) > _MOST_TRACKS:
        known.tracks = {key: track for key, track in known.tracks.items() if track.open}


def _forward(track: _Track, time_ns: int) -> int:
    """Return the time or, if it is later, the track's last one: clock offsets are updated repeatedly."""
    track.last_ns = max(track.last_ns, time_ns)
    return track.last_ns


def _metadata(pid: int, name: str, args: dict[str, object], tid: int | None = None) -> str:
    thread = {} if tid is None else {"tid": tid}
    return json.dumps({"name": name, "ph": "M", "pid": pid, **thread, "args": args}, separators=(",", ":"))
