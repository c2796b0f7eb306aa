"""Checkpoints whose writer is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
        deadline = time.monotonic() + 30
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
