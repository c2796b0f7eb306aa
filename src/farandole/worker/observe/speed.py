"""The workers of `farandole bench`: each measures collectives of one kind, and rank 0 writes the times to a file.

    python -m farandole.worker.observe.speed '{"collective": "allreduce", "sizes": [4], ... "out": "result.json"}'
    python -m farandole.worker.observe.speed algorithms

The second form prints what the selector would choose in worlds of several shapes; it needs no world.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from farandole.base.request_kind import COLLECTIVE_KINDS, Kind, Rows
from farandole.base.settings.table import Settings
from farandole.worker.core import basics, binding, buffers
from farandole.worker.core.dtype import Average, DType, Sum

# So that large sizes take no minute, and small ones are not left to chance. All ranks must do the same.
_BYTES_FOR_EACH_SIZE = 64 << 20
_FEWEST, _MOST = 7, 300
_WARMUP = 3

# (workers, hosts, workers on the host with the fewest)
_WORLDS = ((2, 1, 2), (8, 1, 8), (2, 2, 1), (4, 4, 1), (16, 16, 1), (4, 2, 2), (5, 2, 2), (3, 2, 1))
_CLASSES = tuple(1 << exponent for exponent in range(2, 31))


def measure(collective: str, sizes: Sequence[int], dtype: str, memory: str) -> dict[str, Any]:
    """Measure blocking calls of a collective among all ranks, and return rank 0's times.

    Args:
        collective: the name of its function.
        sizes: bytes of each rank's input; rounded up to whole elements.
        dtype: name of the element type.
        memory: `arena` or `ordinary`.
    """
    session, kind = basics.current(), COLLECTIVE_KINDS[collective]
    zeros = buffers.zeros if memory == "arena" else _ordinary
    element = DType[dtype.upper()]
    rows = []
    for size in sizes:
        size = _rounded(size, element, session.world.size, kind)
        chosen = session.engine.choose(kind, Sum, 0, size)
        call = _call(kind, size, element, zeros)
        times = _repeat(call, size)
        copying = _repeat(_copy(size, zeros), size)
        row = {"bytes": size, "median_us": statistics.median(times), "best_us": min(times)}
        row["copy_us"] = statistics.median(copying)
        rows.append(row | chosen)
    return {
        "collective": collective,
        "dtype": element.name.lower(),
        "memory": memory,
        "workers": session.world.size,
        "hosts": len(set(session.world.hostnames)),
        "links": session.engine.links,
        "rows": rows,
    }


def _rounded(size: int, dtype: DType, ranks: int, kind: Kind) -> int:
    """Return the size rounded to whole elements, with equal parts for all ranks if the collective has parts."""
    grain = int("".join(filter(str.isdigit, dtype.name))) // 8
    if kind.rows in (Rows.SHARED, Rows.EXCHANGED):
        grain *= ranks
    return -(-size // grain) * grain


def _ordinary(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _call(kind: Kind, size: int, dtype: DType, zeros: Callable[[int], memoryview]) -> Callable[[], None]:
    """Return the call to be measured. It has a fixed name, so that the engine can cache its request."""
    name, data = f"speed.{kind.function}.{size}", zeros(size)
    output = None if kind.rows is Rows.SAME else zeros(buffers.result_count(kind, size))
    return lambda: buffers.collective(kind, data, output, dtype, Sum, name=name)


def _copy(size: int, zeros: Callable[[int], memoryview]) -> Callable[[], None]:
    """Return a call that copies `size` bytes; all ranks make it at once."""
    to, source = ((ctypes.c_char * size).from_buffer(zeros(size)) for _ in range(2))
    return lambda: _copy_once(to, source, size)


def _copy_once(to: Any, source: Any, size: int) -> None:
    ctypes.memmove(to, source, size)


def _repeat(call: Callable[[], None], size: int) -> list[float]:
    """Return the microseconds of each call."""
    times = []
    for _ in range(_WARMUP):
        call()
    buffers.barrier()
    for _ in range(max(_FEWEST, min(_MOST, _BYTES_FOR_EACH_SIZE // max(1, size)))):
        started = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - started) / 1000)
    return times


def algorithms() -> list[dict[str, Any]]:
    """Return the selector's choices, as ranges of sizes: `from_bytes`, and `to_bytes`, or None for no limit."""
    library = binding.load(Settings.from_environment().library)
    rows: list[dict[str, Any]] = []
    for collective, kind in COLLECTIVE_KINDS.items():
        for workers, hosts, fewest in _WORLDS:
            first = len(rows)
            for size in _CLASSES:
                answer = library.farandole_choose_for(kind, Average, size, workers, hosts, fewest)
                chosen = json.loads(answer.decode())
                if len(rows) > first and chosen.items() <= rows[-1].items():
                    continue
                if len(rows) > first:
                    rows[-1]["to_bytes"] = size
                world = {"collective": collective, "workers": workers, "hosts": hosts, "fewest_on_a_host": fewest}
                rows.append(world | {"from_bytes": size if len(rows) > first else 0, "to_bytes": None} | chosen)
    return rows


def main() -> None:
    """Run the measurement that the argument describes; see the top of this file."""
    if sys.argv[1] == "algorithms":
        print(json.dumps(algorithms()))
        return
    task = json.loads(sys.argv[1])
    out = task.pop("out")
    basics.init()
    result = measure(**task)
    if basics.rank() == 0:
        with open(out, "w") as file:
            json.dump(result, file)
    basics.shutdown()


if __name__ == "__main__":
    main()
