"""The backend mpi with real MPIs: how jobs start, what is refused, and a worker that dies.

What it computes, the conformance suite shows, in worlds of MPICH.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from mpi_seats import PEERS, Seats
from worlds import Nursery, World

LOST = 1
# As in the conformance suite's own test of this: the machine may be busy.
AT_ONCE_SECONDS = 10.0
OF_TWO_HOSTS = """\
import os
os.environ["FARANDOLE_HOST_KEY"] = str(int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]) // 2)
import numpy as np
import farandole.numpy as hvd
hvd.init()
maps = open("/proc/self/maps").read()
summed = hvd.allreduce(np.arange(1000.0) + hvd.rank(), op=hvd.Sum)
assert (summed == 4 * np.arange(1000.0) + 6).all(), summed
name = next(name for name in ("libmpi_abi.so.1", "libmpi.so.40") if name in maps)
os.write(1, f"rank {hvd.rank()} of {hvd.size()} with {name}\\n".encode())
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "worker.py"
    path.write_text(OF_TWO_HOSTS)
    return str(path)


def _programs(mpi: str) -> str:
    folder = PEERS / mpi / "bin"
    if not (folder / "mpirun").exists():
        pytest.skip(f"no mpirun in {folder}: `make setup` installs it there")
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(("mpi", "library"), [("mpich", "libmpi_abi.so.1"), ("openmpi", "libmpi.so.40")])
def test_through_the_launcher_and_on_two_levels(starter, script: str, mpi: str, library: str) -> None:
    variables = {"PATH": _programs(mpi), "OPAL_PREFIX": str(PEERS / mpi)}
    if mpi == "openmpi":
        variables |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    command = ("farandole", "run", "-np", "4", "--launcher", "mpirun", "--backend", "mpi", "python", script)
    code, out, err = starter.start(*command, **variables).finish()
    assert code == 0, out + err
    for rank in range(4):
        assert f"rank {rank} of 4 with {library}" in out


def test_workers_that_mpi_has_not_started_together(starter, script: str) -> None:
    """To MPI, each worker is a separate world, as if another MPI's mpirun had started them."""
    variables = {"PATH": _programs("mpich"), "FARANDOLE_TRANSPORT": "tcp"}
    # Not by `-x`: the launcher would see the backend, and refuse it.
    command = ("farandole", "run", "-np", "2", "env", "FARANDOLE_BACKEND=mpi", "PMI_RANK=0", "python", script)
    code, _, err = starter.start(*command, **variables).finish()
    assert code != 0
    assert "MPI has not started these workers together" in err and "is process 0 of 1" in err


def test_a_library_that_is_not_there(starter, script: str) -> None:
    variables = {"FARANDOLE_BACKEND": "mpi", "FARANDOLE_MPI_LIBRARY": "/nowhere/libmpi.so.12", "PMI_RANK": "0"}
    code, _, err = starter.start("python", script, **variables).finish()
    assert code != 0
    assert "no MPI library can be loaded (/nowhere/libmpi.so.12" in err and "FARANDOLE_MPI_LIBRARY" in err


@pytest.fixture
def world(nurseries, tmp_path: Path):
    nursery: Nursery = nurseries["torch"]
    world = World(
        nursery,
        3,
        {"FARANDOLE_BACKEND": "mpi", "FARANDOLE_TRANSPORT": "tcp", "FARANDOLE_FAILURE_DEADLINE": ""},
        seats=Seats(3, tmp_path),
    )
    yield world
    world.close()


def test_a_killed_worker_ends_the_calls_of_the_others(world: World) -> None:
    def begin():
        import numpy as np

        import farandole.numpy as hvd

        hvd.init()
        assert float(hvd.allreduce(np.float32(1), op=hvd.Sum)) == 3

    def call_in_vain():
        import numpy as np

        import farandole.numpy as hvd
        from farandole.errors import WorkerLostError

        lost = []
        for _ in range(2):  # one that MPI has begun, and one that it must not begin any more
            try:
                while True:
                    hvd.allreduce(np.ones(300_000, np.float32), name="gradient")
            except WorkerLostError as error:
                lost.append((error.rank, time.monotonic()))
        hvd.shutdown()
        return lost

    world.run(begin)
    others = [rank for rank in range(3) if rank != LOST]
    world.start(call_in_vain, ranks=range(3))
    time.sleep(0.3)  # in the middle of collectives, wherever that is
    killed = time.monotonic()
    world.workers[LOST].kill(signal.SIGKILL)
    for lost in world.collect(others):
        assert [rank for rank, _ in lost] == [LOST, LOST]
        assert all(at - killed < AT_ONCE_SECONDS for _, at in lost)


WITH_MPI4PY = """\
import os
os.environ["FARANDOLE_HOST_KEY"] = os.environ["PMI_RANK"]
from mpi4py import MPI
import numpy as np
import farandole.numpy as hvd

world = MPI.COMM_WORLD
hvd.init(comm=world)
assert (hvd.rank(), hvd.size(), hvd.mpi_enabled()) == (world.rank, world.size, True)
for step in range(20):  # both in turns, and MPI with a request of its own under way
    request = world.Iallreduce(MPI.IN_PLACE, ours := np.full(1000, world.rank + step, np.float64))
    theirs = hvd.allreduce(np.full(1000, world.rank + step, np.float64), op=hvd.Sum)
    request.Wait()
    assert (theirs == ours).all()
half = world.Split(color=world.rank)
hvd.shutdown()
try:
    hvd.init(comm=half)
except ValueError as error:
    os.write(1, f"refused: {error}\\n".encode())
assert world.allreduce(1) == 2  # MPI is mpi4py's, and is not ended with the engine
os.write(1, f"rank {world.rank} is done\\n".encode())
"""


def test_mpi4py_in_the_same_process(starter, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: `make bench` and pip install mpi4py do that")
    path = tmp_path / "both.py"
    path.write_text(WITH_MPI4PY)
    variables = {"PATH": _programs("mpich"), "MPI4PY_MPIABI": "mpich", "FARANDOLE_BACKEND": "mpi"}
    variables["LD_LIBRARY_PATH"] = str(PEERS / "mpich" / "lib")
    code, out, err = starter.start("mpirun", "-n", "2", "python", str(path), **variables).finish()
    assert code == 0, out + err
    for rank in range(2):
        assert f"rank {rank} is done" in out
    assert out.count("refused: ") == 2 and "this worker is 0 of 1, but here it is 1 of 2" in out


def test_a_communicator_of_mpi4py_stands_for_all_workers(starter) -> None:
    """It is asked for its rank and size only, so that a stand-in shows it without mpi4py."""
    text = """\
class Communicator:
    def __init__(self, rank, size): self.rank, self.size = rank, size
    def Get_rank(self): return self.rank
    def Get_size(self): return self.size

basics.init(comm=Communicator(0, 1))
assert basics.is_initialized()
basics.shutdown()
try:
    basics.init(comm=Communicator(1, 2))
except ValueError as error:
    assert "this worker is 1 of 2, but here it is 0 of 1" in str(error) and not basics.is_initialized()
    os.write(1, b"refused")
"""
    code, out, err = starter.start("python", starter.script(text)).finish()
    assert (code, out) == (0, "refused"), err
