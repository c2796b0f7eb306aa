"""What autotuning found, in a job whose workers come and go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_worlds import ElasticJob

from farandole.base.wire.rendezvous import World
from farandole.worker.core import tuning_files

CHUNK_BYTES = 65536
TWO = World(1, 0, 2, (), 0, 2, 0, 1, ("here", "here"))


@pytest.fixture
def job(tmp_path: Path, make_job: Callable[..., ElasticJob]) -> ElasticJob:
    path = tmp_path / "tuned.json"
    tuning_files.write(path, TWO, {"chunk_bytes": CHUNK_BYTES}, 1.5)
    return make_job({"FARANDOLE_TUNING": str(path)})


def begin() -> int:
    """Enter the first world; return what its chunks are. Run by a worker, as the next one."""
    from farandole.worker.core import basics, buffers

    basics.init()
    buffers.barrier()
    chunk_bytes: int = basics.current().engine.tuning()["knobs"]["chunk_bytes"]
    return chunk_bytes


def go_on(size: int) -> int:
    """Enter worlds until one has that size; return what its chunks are."""
    from farandole.worker.core import basics, buffers
    from farandole.worker.elastic.world_changes import reform

    while reform().size != size:
        pass
    buffers.barrier()
    chunk_bytes: int = basics.current().engine.tuning()["knobs"]["chunk_bytes"]
    return chunk_bytes


def test_tuning_is_used_in_worlds_of_the_shape_that_it_was_found_in(job: ElasticJob) -> None:
    first = job.add(3)
    job.start(begin)
    defaults = set(job.collect(first))
    assert CHUNK_BYTES not in defaults and len(defaults) == 1, "this world is not one of two workers"
    job.kill(0)
    job.start(go_on, 2, workers=first[1:])
    assert set(job.collect(first[1:])) == {CHUNK_BYTES}
    job.kill(1)
    job.start(go_on, 1, workers=[2])
    assert set(job.collect([2])) == defaults, "what was for two is not for one"
