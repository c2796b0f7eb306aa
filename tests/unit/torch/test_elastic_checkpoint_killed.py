"""Checkpoints whose writer is killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from waiting import until

from farandole.torch.elastic.checkpoint import Checkpoint

pytest.importorskip("safetensors", reason="safetensors is not installed")

# Forks a process that writes checkpoints as two ranks without a pause, kills it after a random time, and looks what is
# left; again and again. Two times of three it may first finish one. Every tensor of a step holds that step, so that no
# mixture goes unnoticed.
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from farandole.torch.elastic.checkpoint import Checkpoint

torch.set_num_threads(1)
directory, format, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
chance = random.Random(format)

def write(first):
    ranks = [Checkpoint(directory, run="r", format=format, say=lambda *line: None) for _ in range(2)]
    for step in range(first, first + 10000):
        state = {"step": step, "tensors": [torch.full((40_000,), step) for _ in range(8)]}
        for rank, checkpoint in enumerate(ranks):
            checkpoint.save(state, step, rank=rank, size=2, generation=first)
        for checkpoint in ranks:
            checkpoint.wait(60)

last, seen = 0, set()
for round in range(rounds):
    child = os.fork()
    if child == 0:
        write(last + 1)
        os._exit(1)
    if round % 3 > 0:
        deadline = time.monotonic() + 60
        while not any(int(path.name[5:13]) > last for path in Path(directory).glob("step-*")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    into = {"step": None, "tensors": None}
    said = []
    step = Checkpoint(directory, say=lambda level, text: said.append((level, text))).load(into)
    assert [line for line in said if line[0] == "warning"] == [], said
    if step is None:
        assert last == 0
        continue
    assert step >= last, (step, last)
    assert into["step"] == step and all((tensor == step).all() for tensor in into["tensors"]), step
    last = step
    seen.add(step)
print(len(seen))
"""


@pytest.mark.parametrize(("format", "rounds"), [("safetensors", 30), ("dcp", 9)])
def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, format: str, rounds: int) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "checkpoints"), format, str(rounds)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) >= rounds * 2 // 3, "it did not write anything new"


def test_files_of_a_killed_process_do_not_get_into_the_same_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, run="r", format="dcp", say=lambda *line: None)
    killed = tmp_path / ".partial-step-00000010-generation-0-run-r"
    killed.mkdir()
    for name in ("manifest.json.draft", "__0_9.distcp"):
        (killed / name).write_bytes(b"a part")
    assert checkpoint.save({"a": torch.ones(9)}, 10, rank=0, size=1)
    assert checkpoint.wait(60)
    assert checkpoint.load({"a": None}) == 10
    files = {path.name for path in (tmp_path / "step-00000010").iterdir()}
    assert files == {"manifest.json", ".metadata", "__0_0.distcp"}


@pytest.mark.parametrize(
    "job",
    [
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "{}"},
        {
            "SLURM_PROCID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_RESTART_COUNT": "{}",
        },
        {},
    ],
    ids=["mpirun", "srun", "a name of the script's own"],
)
def test_rank_0_does_not_take_the_files_that_a_killed_job_left_of_another_rank(
    tmp_path: Path, job: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank_of_job(number: int) -> Checkpoint:
        for name, value in job.items():
            monkeypatch.setenv(name, value.format(number))
        return Checkpoint(checkpoints, run=None if job else "r", say=lambda *line: None)

    # Rank 1 of the first job has written its part and told rank 0 when both are killed. Here it enters another world,
    # for which it removes its files, and they are put back.
    checkpoints, kept = tmp_path / "checkpoints", tmp_path / "kept"
    killed = rank_of_job(1)
    killed.save({"a": torch.zeros(9), "b": torch.zeros(9)}, 10, rank=1, size=2)
    until(lambda: list(checkpoints.glob(".partial-*")), "rank 1 has begun", 60)
    (*checkpoints.glob(".partial-*"),)[0].joinpath("token").write_text("rank 0's")
    until(
        lambda: list(checkpoints.glob(".partial-*/record-*.json")), "rank 1 has told that it has written its part", 60
    )
    shutil.copytree(checkpoints, kept)
    until(lambda: killed.save({}, 1, rank=0, size=1, generation=1), "rank 1 is in another world", 60)
    killed.wait(60)
    shutil.copytree(kept, checkpoints, dirs_exist_ok=True)

    ranks = [rank_of_job(2), rank_of_job(2)]
    state = {"a": torch.ones(9), "b": torch.ones(9)}
    ranks[0].save(state, 10, rank=0, size=2)
    until(
        lambda: list(checkpoints.glob("*/record-00000.json")) or ranks[0].wait(0.0), "rank 0 has written its part", 60
    )
    ranks[1].save(state, 10, rank=1, size=2)
    assert all([checkpoint.wait(60) for checkpoint in ranks])
    into = {"a": None, "b": None}
    assert ranks[0].load(into) == 10
    assert all(torch.equal(into[name], state[name]) for name in state), into
