"""A real Slurm: what srun starts are workers, what a batch script starts is not."""

from __future__ import annotations

import sys

import pytest
from tests.integration.started_by.conftest import PEERS, Starter
from tests.integration.started_by.slurm import Slurm
from tests.integration.started_by.test_launchers import KMEANS


def test_srun_starts_workers(starter: Starter, slurm_daemons: Slurm) -> None:
    command = ("srun", "-n", "3", sys.executable, starter.script())
    workers = starter.start(*command, **slurm_daemons.environment).workers()
    assert [worker["local"] for worker in workers] == [[0, 3], [1, 3], [2, 3]]
    assert {(worker["size"], worker["mean"], worker["listen"]) for worker in workers} == {(3, 2.0, "127.0.0.1")}


def test_over_several_nodes_every_address_is_offered(starter: Starter, slurm_daemons: Slurm) -> None:
    from farandole.base.wire.interfaces import addresses

    command = ("srun", "-N", "2", "-n", "2", sys.executable, starter.script())
    workers = starter.start(*command, **slurm_daemons.environment).workers()
    # Both nodes are this machine, and workers go by what is, not by what is said.
    assert [worker["local"] for worker in workers] == [[0, 2], [1, 2]]
    offered = ",".join(each.address for each in addresses()) or "127.0.0.1"
    assert {worker["listen"] for worker in workers} == {offered}


def test_srun_runs_the_example(starter: Starter, slurm_daemons: Slurm) -> None:
    command = ("srun", "-n", "2", sys.executable, *KMEANS)
    code, out, err = starter.start(*command, **slurm_daemons.environment).finish(110)
    assert code == 0, out + err
    assert "centres: bit-identical on 2 worker(s)" in out


def test_a_batch_script_is_no_worker_but_may_start_some(starter: Starter, slurm_daemons: Slurm) -> None:
    script = starter.script()
    torchrun = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2"
    batch = starter.directory / "job.sh"
    output = starter.directory / "output"
    batch.write_text(
        f"#!/bin/sh\nTEST_NAME=batch {sys.executable} {script}\n"
        f"TEST_NAME=srun srun -n 2 {sys.executable} {script}\n"
        f"TEST_NAME=torchrun srun -n 1 {torchrun} {script}\n"
    )
    command = ("sbatch", "--wait", "-n", "2", "-o", str(output), str(batch))
    code, _, err = starter.start(*command, **slurm_daemons.environment).finish(110)
    told = output.read_text()
    assert code == 0, err + told
    for name, size in (("batch", 1), ("srun", 2), ("torchrun", 2)):
        lines = [line for line in told.splitlines() if f'"mark": "{name}"' in line]
        assert len(lines) == size and all(f'"size": {size},' in line for line in lines), told


OVER_MPI = """\
import os
os.environ["FARANDOLE_HOST_KEY"] = os.environ["SLURM_NODEID"]
import numpy as np
import farandole.numpy as hvd
hvd.init()
summed = hvd.allreduce(np.arange(1000.0) + hvd.rank(), op=hvd.Sum)
assert (summed == 4 * np.arange(1000.0) + 6).all() and hvd.mpi_enabled()
assert "libmpi_abi.so.1" in open("/proc/self/maps").read()
os.write(1, f"rank {hvd.rank()} of {hvd.size()} on {os.environ['SLURMD_NODENAME']}\\n".encode())
"""


@pytest.mark.parametrize("through", ["srun", "farandole run"])
def test_mpi_carries_the_data_of_what_srun_starts(starter: Starter, slurm_daemons: Slurm, through: str) -> None:
    library = PEERS / "mpich" / "lib" / "libmpi_abi.so.1"
    if not library.exists():
        pytest.skip(f"no MPICH below {PEERS}: `make setup` installs it there")
    script = starter.directory / "over_mpi.py"
    script.write_text(OVER_MPI)
    variables = {**slurm_daemons.environment, "FARANDOLE_MPI_LIBRARY": str(library), "SLURM_MPI_TYPE": "pmi2"}
    if through == "srun":
        variables["FARANDOLE_BACKEND"] = "mpi"
        command = ("srun", "-n", "4", "--ntasks-per-node=2", sys.executable, str(script))
    else:
        ours = (sys.executable, "-m", "farandole", "run", "-np", "4", "--launcher", "srun", "--backend", "mpi")
        command = (*ours, "--launcher-args=--ntasks-per-node=2", sys.executable, str(script))
    code, out, err = starter.start(*command, **variables).finish()
    assert code == 0, out + err
    for rank in range(4):
        assert f"rank {rank} of 4 on {'one' if rank < 2 else 'two'}" in out
