"""A process that the kernel really kills, because its cgroup is out of memory."""

from __future__ import annotations

import subprocess
import sys

from cgroups import cgroup_with

LIMIT = 64 * 1024 * 1024
# The launcher, its agent and two idle workers have room in it.
JOB_LIMIT = 400 * 1024 * 1024

LAUNCH = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
os.execv(sys.executable, [sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, "-c", sys.argv[2]])
"""
GREEDY = """
import os, time
hoard = []
while os.environ["FARANDOLE_RANK"] == "1":
    hoard.append(b"x" * (1 << 20))
time.sleep(60)
"""

# Enters the cgroup itself, as an agent would be in it, and kills one child by hand before another runs out of memory.
WATCHER = """
import os, signal, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
from farandole.control.agent.oom import OomWatch

def child(body):
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    return pid

def greedy():
    hoard = []
    while True:
        hoard.append(b"x" * (1 << 20))

watch = OomWatch()
watch.note()
print(watch.killed(child(lambda: os.kill(os.getpid(), signal.SIGKILL))))
print(watch.killed(child(greedy)))
print(watch.killed(child(lambda: os.kill(os.getpid(), signal.SIGKILL))))
"""


def test_out_of_memory_kill_is_distinguished_from_others() -> None:
    with cgroup_with(LIMIT) as folder:
        watcher = subprocess.run(
            [sys.executable, "-c", WATCHER, str(folder)], capture_output=True, text=True, timeout=60, check=False
        )
    assert watcher.returncode == 0, watcher.stderr
    before, hungry, after = watcher.stdout.splitlines()
    assert before == after == ""
    assert hungry.startswith("the kernel killed it: out of memory (")
    assert f"{folder.name} may use 64 MiB" in hungry


def test_launcher_reports_that_worker_ran_out_of_memory() -> None:
    with cgroup_with(JOB_LIMIT) as folder:
        job = subprocess.run(
            [sys.executable, "-c", LAUNCH, str(folder), GREEDY], capture_output=True, text=True, timeout=60, check=False
        )
    assert job.returncode == 137, job.stderr
    assert "error: rank 1 on host " in job.stderr
    assert "failed first: it was killed by SIGKILL; the kernel killed it: out of memory (" in job.stderr
    assert f"{folder.name} may use 400 MiB" in job.stderr
    assert "hint: use a smaller batch or fewer workers on this host" in job.stderr
