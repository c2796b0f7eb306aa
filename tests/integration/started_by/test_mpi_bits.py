"""Sums over MPI have the bits of sums over our own links: the same addends are added in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from mpi_seats import Seats
from worlds import Nursery, World

# Workers and hosts: one worker on each host, two on each, and three on two hosts.
SHAPES = ((2, 2), (4, 2), (3, 2))


def _on_hosts(size: int, hosts: int) -> Callable[[int], Mapping[str, str]]:
    return lambda rank: {"FARANDOLE_HOST_KEY": f"host{rank * hosts // size}"}


@pytest.fixture(params=SHAPES, ids=lambda shape: f"{shape[0]}-workers-{shape[1]}-hosts")
def both(request: pytest.FixtureRequest, nurseries, tmp_path: Path) -> Iterator[tuple[World, World]]:
    """Return the same world twice: over links, and over MPI."""
    size, hosts = request.param
    nursery: Nursery = nurseries["torch"]
    seats = Seats(size, tmp_path)
    over_links = World(nursery, size, {}, of_rank=_on_hosts(size, hosts))
    over_mpi = World(nursery, size, {"FARANDOLE_BACKEND": "mpi"}, of_rank=_on_hosts(size, hosts), seats=seats)
    yield over_links, over_mpi
    over_links.close()
    over_mpi.close()


def digests() -> dict[str, str]:
    """Return what came out of every reduction, of data whose sums depend on the order of the addends."""
    import hashlib

    import ml_dtypes
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    generator = np.random.default_rng(hvd.rank())
    told = {}

    def note(what: str, *results: np.ndarray) -> None:
        told[what] = hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()

    types = [np.int32, np.uint8, np.float16, ml_dtypes.bfloat16, np.float64, np.float32]
    for dtype in types:
        name = np.dtype(dtype).name
        for size in (1, 1_000, 40_001, 700_003):
            spread = generator.standard_normal(size) * 10.0 ** generator.integers(-3, 3, size)
            data = spread.astype(dtype)
            for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
                note(f"allreduce {name} {size} {op}", hvd.allreduce(data, op=op))
            if name.startswith(("float", "bfloat")):
                scaled = hvd.allreduce(data, op=hvd.Sum, prescale_factor=0.3, postscale_factor=1.7)
                note(f"scaled {name} {size}", scaled)
        note(f"grouped {name}", *hvd.grouped_allreduce([data[:9_999], data[:77]], op=hvd.Sum))
        rows = data[: 7 * 1_000].reshape(7, 1_000)
        note(f"reducescatter {name}", hvd.reducescatter(rows, op=hvd.Sum))
        note(f"reduce {name}", hvd.reduce(data[:9_999], hvd.size() - 1, op=hvd.Sum))
    told["over"] = "mpi" if hvd.mpi_enabled() else "links"
    everybodys = hvd.allgather(data[None, :9_999].astype(np.float32))
    forth, back = (sum(rows, np.zeros(9_999, np.float32)) for rows in (everybodys, everybodys[::-1]))
    told["order matters"] = str(hvd.size() > 2 and not np.array_equal(forth, back))
    hvd.shutdown()
    return told


def test_the_same_bits_as_without_mpi(both: tuple[World, World]) -> None:
    over_links, over_mpi = (world.run(digests) for world in both)
    assert {told.pop("over") for told in over_links} == {"links"} and {told.pop("over") for told in over_mpi} == {"mpi"}
    assert over_links[0]["order matters"] == str(len(over_links) > 2)
    for rank, (links, mpi) in enumerate(zip(over_links, over_mpi, strict=True)):
        assert len(links) > 100
        assert {what: mpi[what] for what in links} == links, rank
