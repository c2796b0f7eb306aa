"""A worker that the kernel kills because of lack of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cgroups import cgroup_with
from launched import Training
from waiting import until

LIMIT = 64 << 20

# While it trains, a worker hoards memory once there is a file `hoard-WORKER`.
HOARD = """
def hoard():
    while not os.path.exists(f"hoard-{worker}"):
        time.sleep(0.01)
    hoarded = []
    while True:
        hoarded.append(b"x" * (1 << 20))

threading.Thread(target=hoard, daemon=True).start()
"""


def test_worker_out_of_memory_is_replaced(train: Callable[..., Training], tmp_path: Path) -> None:
    with cgroup_with(LIMIT) as small:
        training = train("-np", "3", "--min-np", "1", "--max-np", "3", before=HOARD)
        training.await_steps(5, size=3)
        (small / "cgroup.procs").write_text(str(training.books.pid(1)))
        (tmp_path / "hoard-1").touch()
        training.job.says(
            r"rank 1 \(worker 1 on .*\) was killed by SIGKILL; the kernel .*out of memory.*; "
            r"2 workers go on as generation 2 \(.*s\)"
        )
        until(lambda: training.books.steps_of(3), "another worker has its place")
        training.finish()
