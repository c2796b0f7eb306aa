"""Processes that a worker starts: they know who the worker is, take part in nothing, and disturb nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# As users write them: init() at the top, which runs again in each process that is not forked.
POOLS = """
import json, multiprocessing, os, sys
import numpy as np
import farandole.numpy as hvd

hvd.init()
firsts = hvd.add_process_set([0])
at_the_top = hvd.rank(), hvd.is_initialized()

def answers(process_set):
    return [
        hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(),
        hvd.is_initialized(), hvd.is_homogeneous(), hvd.gloo_enabled(), hvd.nccl_built(),
        hvd.global_process_set.ranks, process_set.included(), firsts.included(), list(at_the_top),
    ]

def refused(_):
    said = []
    for call in (
        lambda: hvd.allreduce(np.ones(1)), lambda: hvd.allreduce_async(np.ones(1)), lambda: hvd.broadcast_object(1),
        lambda: hvd.add_process_set([1]), lambda: hvd.remove_process_set(firsts), hvd.barrier, hvd.join, hvd.stats,
        lambda: hvd.synchronize(1),
    ):
        try:
            call()
        except ValueError as error:
            said.append(str(error).partition("started by ")[2].partition(",")[0])
    hvd.shutdown()
    return said, hvd.is_initialized()

def grandchild(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(answers, (firsts,))

def in_a_process(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(answers, (firsts,)), pool.apply(refused, (0,))

if __name__ == "__main__":
    own = answers(firsts)
    for method in ("fork", "spawn", "forkserver"):
        theirs, (said, still) = in_a_process(method)
        assert theirs == own, (method, theirs, own)
        assert said == [f"the worker of rank {hvd.rank()}"] * 9 and not still, (method, said, still)
    from concurrent.futures import ProcessPoolExecutor
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            assert pool.submit(grandchild, "fork").result() == own
    if (pid := os.fork()) == 0:
        assert hvd.rank() == own[0]
        sys.exit(3)  # With all that Python does at its end.
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert hvd.rank() == own[0] and hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == hvd.size()
    print(json.dumps(own))
"""

LOADERS = """
import json, sys
import torch
import farandole.torch as hvd

class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        own_rank, size = (hvd.rank(), hvd.size()) if hvd.is_initialized() else (0, 1)
        return iter(range(own_rank, 8, size))

if __name__ == "__main__":
    hvd.init()
    for method in ("fork", "spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context=method, batch_size=None)
        assert list(loader) == [hvd.rank(), hvd.rank() + 2, hvd.rank() + 4, hvd.rank() + 6]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
    print(json.dumps(hvd.rank()))
"""

DATA = """
import json
import numpy as np
import keras
import farandole.keras as hvd

class Data(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.full((4, 1), hvd.rank(), "float32"), np.full((4, 1), hvd.rank(), "float32")

if __name__ == "__main__":
    hvd.init()
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    model.fit(Data(workers=1, use_multiprocessing=True), epochs=2, verbose=0)
    print(json.dumps(hvd.rank()))
"""


PROGRAMS = """
import json, os, subprocess, sys
import numpy as np
import farandole.numpy as hvd

hvd.init()
if os.environ.pop("TEST_CHILD", ""):
    sys.exit("the child is in the world")
own = [sys.executable, __file__]
environment = {**os.environ, "TEST_CHILD": "1"}
refused = subprocess.run(own, env=environment, capture_output=True, text=True, timeout=60)
assert refused.returncode == 1, refused
assert f"environment of the worker of rank {hvd.rank()}, process {os.getpid()}," in refused.stderr, refused.stderr
assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 2
print(json.dumps(hvd.rank()))
"""

BEFORE_THE_WORKER = """
import json, subprocess, sys
import numpy as np
import farandole.numpy as hvd

if "child" in sys.argv:
    hvd.init()
    print("in", flush=True)
    sys.stdin.readline()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 2
    sys.exit()
pipe = subprocess.PIPE
child = subprocess.Popen([sys.executable, __file__, "child"], stdin=pipe, stdout=pipe, text=True)
assert child.stdout.readline() == "in\\n"
try:
    hvd.init()
except RuntimeError as error:
    print(json.dumps(f"process {child.pid} is in the world as worker" in str(error)))
child.communicate("go", timeout=60)
assert child.returncode == 0
"""

LAUNCHED_WITHIN = """
import json
import farandole.numpy as hvd

try:
    hvd.init()
except ValueError as error:
    print(json.dumps(str(error)))
"""


def run(script: str, folder: Path, *options: str) -> list[object]:
    """Run a script on two workers, and return what each has printed as JSON, in rank order."""
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", *options, sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition("<stdout>:") for line in done.stdout.splitlines() if "<stdout>:" in line]
    return [json.loads(text) for _, _, text in sorted(lines)]


@pytest.mark.parametrize("options", [(), ("--min-np", "2")], ids=["fixed", "elastic"])
def test_pools_know_their_worker(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Pools end their processes by SIGTERM, which asks a worker of an elastic job to leave it."""
    places = [[rank, 2, rank, 2, 0, 1] for rank in (0, 1)]
    first, second = run(POOLS, tmp_path, *options)
    assert isinstance(first, list) and isinstance(second, list)
    assert [first[:6], second[:6]] == places
    assert first[11] is True and second[11] is False


def test_data_loaders_read_their_share(tmp_path: Path) -> None:
    assert run(LOADERS, tmp_path) == [0, 1]


def test_processes_of_a_keras_dataset_know_their_worker(tmp_path: Path) -> None:
    assert run(DATA, tmp_path) == [0, 1]


@pytest.mark.parametrize("options", [(), ("--min-np", "1")], ids=["fixed", "elastic"])
def test_programs_cannot_take_the_place_of_the_worker_that_starts_them(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert run(PROGRAMS, tmp_path, *options) == [0, 1]


@pytest.mark.parametrize("options", [(), ("--min-np", "2")], ids=["fixed", "elastic"])
def test_a_worker_cannot_take_its_place_back_from_a_program_that_it_has_started(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The program is in the world, and goes on."""
    assert run(BEFORE_THE_WORKER, tmp_path, *options) == [True, True]


def test_torchrun_cannot_be_a_worker(tmp_path: Path) -> None:
    """Nor any other launcher: the processes of each would take the place of one worker."""
    script = tmp_path / "script.py"
    script.write_text(LAUNCHED_WITHIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", *torchrun]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("`farandole run` has started torchrun as a worker, and torchrun this process") == 4
