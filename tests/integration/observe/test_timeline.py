"""Timelines of real worlds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import traces
from worlds import WorkerFailed, WorkerGone, World, wait_until

from farandole.base.trace.trace_summary import read_trace, summarize
from farandole.control.roster import service
from farandole.errors import NotInitializedError, TimelineError
from farandole.worker.observe.observer import start_timeline, stop_timeline

OpenWorld = Callable[..., World]
ALLREDUCE = ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "DIRECT_ALLREDUCE"]


# --- in the workers ----------------------------------------------------------------------------------------------


def init(timeout: float = 30.0) -> None:
    """Enter the world, and let ranks wait for each other's part in a timeline for as long as a busy machine needs."""
    import farandole.torch as hvd
    from farandole.worker.observe import timeline

    timeline.ANSWER_SECONDS = timeout
    hvd.init()


def shutdown() -> None:
    import farandole.torch as hvd

    hvd.shutdown()


def allreduce(count: int, *names: str) -> None:
    import torch

    import farandole.torch as hvd

    for _ in range(count):
        handles = [hvd.allreduce_async(torch.ones(3, 4), name=name) for name in names]
        for handle in handles:
            hvd.synchronize(handle)


def start(path: str, mark_cycles: bool = False) -> str:
    import farandole.torch as hvd

    try:
        hvd.start_timeline(path, mark_cycles)
    except OSError as error:
        return str(error)
    return ""


def stop() -> None:
    import farandole.torch as hvd

    hvd.stop_timeline()


def hear() -> None:
    """From now on, keep what is written to standard error."""
    import io
    import sys

    sys.stderr = io.StringIO()


def heard() -> str:
    import sys

    return sys.stderr.getvalue()  # type: ignore[attr-defined]


def doubt() -> float:
    """Return by how many seconds this worker may be wrong about the roster's clock, at most."""
    from farandole.worker.observe import observer

    assert observer._companion.observer is not None
    clock = observer._companion.observer._clock.clock
    return 0.0 if clock.exact else max(clock._round_trips)[0] / 2e9


def threads() -> list[str]:
    import threading

    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("farandole"))


# --- outside of them ---------------------------------------------------------------------------------------------


def shown(path: Path, tensor: str, ranks: int) -> Callable[[], bool]:
    """Return whether the file shows a tensor's reduction on this number of ranks."""

    def look() -> bool:
        records = traces.peek(path)
        return all(len(traces.spans(records, tensor, rank)) >= 3 for rank in range(ranks))

    return look


def finished(path: Path) -> list[traces.Record]:
    """Return the records of a timeline that was stopped."""
    records = traces.read(path)
    traces.check(records)
    assert not traces.instants(records, "EVENTS_LOST")
    return records


def test_perfetto_s_own_format_has_the_same_calls(open_world: OpenWorld, tmp_path: Path) -> None:
    path = tmp_path / "timeline.pftrace"
    world = open_world(2, FARANDOLE_TIMELINE=str(path))
    world.run(init)
    world.run(allreduce, 3, "one", "two")
    world.run(stop)
    summary = summarize(read_trace(path))
    assert (summary.calls, summary.lost_events) == (6, 0)
    assert [(rank.rank, rank.calls, rank.steps) for rank in summary.ranks] == [(0, 6, 3), (1, 6, 3)]
    assert summary.bytes == 6 * 3 * 4 * 4


@pytest.mark.parametrize("prefix", ["FARANDOLE", "HOROVOD"])
def test_from_init_on_by_environment(open_world: OpenWorld, tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "timeline.json"
    world = open_world(2, **{f"{prefix}_TIMELINE": str(path), f"{prefix}_TIMELINE_MARK_CYCLES": "1"})
    world.run(init)
    world.run(allreduce, 1, "test_allreduce")
    # While it runs: nobody has stopped it.
    wait_until(shown(path, "allreduce.test_allreduce", 2))
    text = path.read_text()
    assert all(word in text for word in ("allreduce.test_allreduce", "NEGOTIATE_ALLREDUCE", "CYCLE_START"))
    world.run(shutdown)
    records = finished(path)
    for rank in range(2):
        assert traces.spans(records, "allreduce.test_allreduce", rank) == ALLREDUCE
    ready = [record["name"] for record in records if record["ph"] == "X"]
    assert {"0", "1"} <= set(ready)
    assert records[0]["args"]["start_time_since_epoch_in_micros"] > 1.7e15


@pytest.mark.parametrize("who", [[0], [0, 1, 2]], ids=["rank 0 starts it", "all start it"])
def test_started_and_stopped_again_and_again(open_world: OpenWorld, tmp_path: Path, who: list[int]) -> None:
    """All that happens between start and stop is in the file when stop returns, of all ranks; and nothing else."""
    world = open_world(3)
    world.run(init)
    for turn in range(3):
        path = tmp_path / f"{turn}.json"
        world.run(allreduce, 1, f"before{turn}")
        world.run(start, str(path), True, ranks=who)
        world.run(allreduce, 4, f"a{turn}", f"b{turn}")
        world.run(stop, ranks=who)
        records = finished(path)
        world.run(allreduce, 1, f"after{turn}")
        assert set(traces.processes(records)) == {"farandole", f"allreduce.a{turn}", f"allreduce.b{turn}"}
        for rank in range(3):
            for tensor in (f"allreduce.a{turn}", f"allreduce.b{turn}"):
                assert traces.spans(records, tensor, rank) == ALLREDUCE * 4
        assert len(traces.instants(records, "CYCLE_START")) >= 4
    world.run(stop)
    assert world.run(threads) == [["farandole-observer", "farandole-roster"]] * 3
    world.run(shutdown)
    assert world.run(threads) == [[]] * 3


def test_a_new_timeline_ends_the_one_before(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(2, FARANDOLE_TIMELINE=str(tmp_path / "first.json"))
    world.run(init)
    world.run(allreduce, 1, "early")
    world.run(start, str(tmp_path / "second.json"))
    world.run(allreduce, 1, "late")
    world.run(shutdown)
    first, second = finished(tmp_path / "first.json"), finished(tmp_path / "second.json")
    for rank in range(2):
        assert traces.spans(first, "allreduce.early", rank) == traces.spans(second, "allreduce.late", rank) == ALLREDUCE
        assert not traces.spans(second, "allreduce.early", rank)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["one machine", "the roster on another"])
def test_times_of_all_ranks_are_on_one_clock(
    open_world: OpenWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """No rank has the result before the last one has asked for it, as far as two ranks can tell."""
    if elsewhere:
        # Nobody can tell which clock it is, and it is an hour ahead: all depends on round trips.
        ahead = SimpleNamespace(monotonic=time.monotonic, monotonic_ns=lambda: time.monotonic_ns() + 3600 * 10**9)
        monkeypatch.setattr(service, "time", ahead)
        monkeypatch.setattr(service, "clock", SimpleNamespace(identity=lambda: "elsewhere"))
    path = tmp_path / "timeline.json"
    world = open_world(3)
    world.run(init)
    world.run(start, str(path), ranks=[0])
    for late in range(3):
        world.start(allreduce, 1, f"x{late}", ranks=[rank for rank in range(3) if rank != late])
        world.run(allreduce, 1, f"x{late}", ranks=[late])
        world.collect([rank for rank in range(3) if rank != late])
    # On a busy machine, answers about the time may take long.
    tolerance_us = max(100_000, 2e6 * max(world.run(doubt))) if elsewhere else 0
    world.run(stop)
    records = finished(path)
    for late in range(3):
        pid = traces.processes(records)[f"allreduce.x{late}"]
        ours = [record for record in records if record["pid"] == pid and record["ph"] in "BE"]
        asked = max(record["ts"] for record in ours if record.get("name") == "NEGOTIATE_ALLREDUCE")
        had = min(record["ts"] for record in ours if record["ph"] == "E" and "args" in record)
        assert asked <= had + tolerance_us
        assert {record["tid"] for record in ours} == {0, 1, 2}
    assert max(record.get("ts", 0) for record in records) < 60e6


def test_a_path_that_cannot_be_written_is_an_error_on_all_who_asked(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(3)
    world.run(init)
    told = world.run(start, str(tmp_path / "nowhere" / "timeline.json"))
    assert all("rank 0 cannot write the timeline to" in text and "No such file" in text for text in told)
    world.run(allreduce, 1, "goes.on")
    assert world.run(start, str(tmp_path / "here.json")) == [""] * 3
    world.run(allreduce, 1, "seen")
    world.run(stop)
    assert "allreduce.seen" in traces.processes(finished(tmp_path / "here.json"))


def test_a_path_in_the_environment_that_cannot_be_written_does_no_harm(open_world: OpenWorld) -> None:
    world = open_world(2, FARANDOLE_TIMELINE="/nowhere/timeline.json")
    world.run(hear)
    world.run(init)
    world.run(allreduce, 1, "goes.on")
    told = world.run(heard)
    assert told[0].startswith(
        "farandole [rank 0] warning: rank 0 cannot write the timeline to '/nowhere/timeline.json'"
    )
    assert told[1] == ""


def test_dynamic_begins_nothing(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(1, HOROVOD_TIMELINE="DYNAMIC")
    before = sorted(os.listdir("."))
    world.run(init)
    assert world.run(threads) == [[]]
    world.run(start, str(tmp_path / "timeline.json"))
    world.run(allreduce, 1, "alone")
    world.run(stop)
    assert traces.spans(finished(tmp_path / "timeline.json"), "allreduce.alone", 0)[:2] == ALLREDUCE[:2]
    assert sorted(os.listdir(".")) == before


def test_a_rank_whose_rank_0_does_not_record_is_told(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(2)
    world.run(hear)
    world.run(init, 0.5)
    assert world.run(start, str(tmp_path / "timeline.json"), ranks=[1]) == [""]
    told = world.run(heard)
    assert told[0] == "" and told[1].startswith("farandole [rank 1] warning: start_timeline(")
    assert not (tmp_path / "timeline.json").exists()
    world.run(allreduce, 1, "goes.on")


@pytest.mark.parametrize("who", [0, 1])
def test_a_worker_that_dies_leaves_a_valid_file(open_world: OpenWorld, tmp_path: Path, who: int) -> None:
    path = tmp_path / "timeline.json"
    world = open_world(2, FARANDOLE_TIMELINE=str(path))
    world.run(init)
    world.run(allreduce, 1, "seen")
    wait_until(shown(path, "allreduce.seen", 2))
    world.start(allreduce, 10_000_000, "busy")  # Until one of them is killed.
    wait_until(shown(path, "allreduce.busy", 2))
    world.workers[who].kill()
    with pytest.raises((WorkerGone, WorkerFailed)):
        world.collect([who, 1 - who])
    if who == 1:
        world.run(shutdown, ranks=[0])
        traces.check(traces.read(path))
    assert traces.spans(traces.read(path), "allreduce.seen", 1) == ALLREDUCE


def test_a_full_file_ends_the_recording_and_nothing_else(open_world: OpenWorld, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    world = open_world(2, FARANDOLE_TIMELINE=str(path), FARANDOLE_TIMELINE_LIMIT_MB="1")
    world.run(hear)
    world.run(init)

    def full() -> bool:
        world.run(allreduce, 100, "a", "b", "c", "d")
        return bool(traces.instants(traces.peek(path), "TIMELINE_ENDS"))

    wait_until(full)
    size = path.stat().st_size
    assert size <= 1024 * 1024
    wait_until(lambda: world.run(threads)[1] == ["farandole-observer", "farandole-roster"])
    world.run(allreduce, 10, "later")
    world.run(shutdown)
    assert path.stat().st_size == size
    traces.check(traces.read(path))
    told = world.run(heard)
    assert told[0].count("ends here: the file has reached its largest size") == 1 and told[1] == ""


def look_away_while(names: int, turns: int) -> None:
    """Reduce tensors while the engine's events are not read."""
    from farandole.worker.observe.tap import Tap

    read, Tap.read = Tap.read, lambda tap: None  # type: ignore[method-assign]
    try:
        allreduce(turns, *(f"t{name}" for name in range(names)))
    finally:
        Tap.read = read  # type: ignore[method-assign]


def test_what_was_too_much_is_counted(open_world: OpenWorld, tmp_path: Path) -> None:
    """The engines' ring buffers overflow because they are not read in time."""
    path = tmp_path / "timeline.json"
    world = open_world(2, FARANDOLE_TIMELINE=str(path))
    world.run(init)
    world.run(allreduce, 1, "seen")
    wait_until(shown(path, "allreduce.seen", 2))
    world.run(look_away_while, 200, 50)
    world.run(shutdown)
    records = traces.read(path)
    traces.check(records)
    assert {record["args"]["rank"] for record in traces.instants(records, "EVENTS_LOST")} == {0, 1}
    last = traces.processes(records)["allreduce.t199"]
    assert {record["tid"] for record in records if record["pid"] == last and record["ph"] == "B"} == {0, 1}


def test_before_init_it_is_an_error() -> None:
    for call in (lambda: start_timeline("x"), stop_timeline):
        with pytest.raises(NotInitializedError, match=r"use hvd\.init"):
            call()
    assert issubclass(NotInitializedError, ValueError) and issubclass(TimelineError, OSError)


def fork() -> int:
    pid = os.fork()
    if pid == 0:
        import farandole.torch as hvd

        try:
            hvd.stop_timeline()
        except ValueError:
            os._exit(7)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_no_timeline(open_world: OpenWorld, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    world = open_world(2, FARANDOLE_TIMELINE=str(path))
    world.run(init)
    world.run(allreduce, 1, "before")
    assert world.run(fork) == [7, 7]
    world.run(allreduce, 1, "after")
    world.run(shutdown)
    assert traces.spans(finished(path), "allreduce.after", 1) == ALLREDUCE
