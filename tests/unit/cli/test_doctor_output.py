"""`farandole doctor`: the whole text that is printed."""

from __future__ import annotations

from doctor_facts import GPU_HOST, MARS, WELL

from farandole.control.agent.inspect.facts import (
    Facts,
)
from farandole.control.launcher.doctor.advice import advise
from farandole.control.launcher.doctor.findings import Finding
from farandole.control.launcher.doctor.inspection import Silence
from farandole.control.launcher.doctor.rendering import bug_report, coloured, render_host, render_hosts

GPU_HOST_TEXT = """\
earth

farandole      0.1.0, in /home/ada/farandole
library        0.1.0 loads, /home/ada/farandole/worker/core/lib/libfarandole.so
python         3.11.7, /home/ada/venv/bin/python
system         Debian 12, Linux 6.1.0, x86_64
frameworks     torch 2.13.0, imported in 1.5 s, sees 2 GPUs
cores          8, of which this process may use 8, Some CPU
               NUMA node 0: cores 0-3, 8 GiB
               NUMA node 1: cores 4-7, 8 GiB
memory         16 GiB, 8 GiB available
               /dev/shm: 8 GiB (farandole shares memory through memfd and does not need it)
               huge pages: madvise; for shared memory: advise
gpus           0: NVIDIA H100, 81559 MiB
               1: NVIDIA H100, 81559 MiB, MIG
               driver 550.90.07
               links: NV18 (NVLink) between all
               NVLinks of each GPU: 18
network        eth0: physical, mlx5_core, up, 25000 Mbit/s, MTU 9000, 10.0.0.1/24
               lo: loopback, up, MTU 65536, 127.0.0.1/8
rdma           mlx5_0 port 1: active, 100 Gb/sec, InfiniBand, ib0
limits         open files 1024 (up to 4096), locked bytes 65536, processes unlimited
kernel         memfd: works, pidfd: works, ptrace_scope 1
surroundings   container: docker
               slurm: SLURM_JOB_ID=17 SLURM_JOB_NODELIST=earth,mars
programs       ssh: OpenSSH_9.2p1, /usr/bin/ssh
clock          tsc, synchronised, within 0.0021 s
cache          /home/ada/.cache/farandole, 50 GiB free
variables      FARANDOLE_ROSTER=10.0.0.1:4711
               NCCL_DEBUG=INFO
               FARANDOLE_TUNING=/data/ada/t.json
unknown        /proc/cpuinfo: Permission denied

what can move tensors

shared memory  yes: memfd works
tcp            yes: between hosts, and with --transport tcp on one
nccl           no: this version does not support it; GPU tensors travel through host memory
mpi            yes: MPICH 5.0.2 (libmpi_abi.so.1); between hosts, with --backend mpi --launcher mpirun (or srun)

what a job uses

one host       shared memory
several hosts  shared memory within them, tcp between them
GPU tensors    copied through host memory

what NCCL would choose

between GPUs   shared memory of the host between all: GPUs in MIG mode cannot read each other's memory
other hosts    TCP over eth0: the files in /dev/infiniband are missing
interfaces     eth0 (NCCL_SOCKET_IFNAME chooses others)

note     clock: late
         hint: wind it
ok       library: fine
"""

BUG_REPORT = """\
for a bug report, copy this:

```
farandole      0.1.0, in ~/farandole
library        0.1.0 loads, ~/farandole/worker/core/lib/libfarandole.so
python         3.11.7, ~/venv/bin/python
system         Debian 12, Linux 6.1.0, x86_64
frameworks     torch 2.13.0, imported in 1.5 s, sees 2 GPUs
cores          8, of which this process may use 8, Some CPU
               NUMA node 0: cores 0-3, 8 GiB
               NUMA node 1: cores 4-7, 8 GiB
memory         16 GiB, 8 GiB available
               /dev/shm: 8 GiB (farandole shares memory through memfd and does not need it)
               huge pages: madvise; for shared memory: advise
gpus           0: NVIDIA H100, 81559 MiB
               1: NVIDIA H100, 81559 MiB, MIG
               driver 550.90.07
               links: NV18 (NVLink) between all
               NVLinks of each GPU: 18
network        eth0: physical, mlx5_core, up, 25000 Mbit/s, MTU 9000, IPv4
               lo: loopback, up, MTU 65536, IPv4
rdma           mlx5_0 port 1: active, 100 Gb/sec, InfiniBand, ib0
limits         open files 1024 (up to 4096), locked bytes 65536, processes unlimited
kernel         memfd: works, pidfd: works, ptrace_scope 1
surroundings   container: docker
               slurm: SLURM_JOB_ID=17
programs       ssh: OpenSSH_9.2p1, /usr/bin/ssh
clock          tsc, synchronised, within 0.0021 s
variables      NCCL_DEBUG=INFO
               FARANDOLE_TUNING=/data/USER/t.json
unknown        /proc/cpuinfo: Permission denied
note           the clock of HOST is late
```"""

FINDINGS = (Finding("note", "clock", "late", "wind it"), Finding("ok", "library", "fine"))


def test_the_whole_text_of_one_host() -> None:
    assert render_host(GPU_HOST, FINDINGS) == GPU_HOST_TEXT


def test_a_bug_report_contains_no_names() -> None:
    findings = (Finding("note", "clock", "the clock of earth is late", "wind it"), FINDINGS[1])
    assert bug_report(GPU_HOST, findings, "/home/ada") == BUG_REPORT


def test_unknown_facts_are_shown_as_unknown() -> None:
    assert "unknown" in render_host(Facts(), advise(Facts()))


def test_colours_change_nothing_but_colours() -> None:
    shown = render_host(GPU_HOST, FINDINGS, coloured)
    assert shown != GPU_HOST_TEXT
    assert shown.replace("\x1b[33m", "").replace("\x1b[32m", "").replace("\x1b[0m", "") == GPU_HOST_TEXT


SEVERAL_TEXT = """\
host   farandole  python  torch   cores  memory  gpus  problems  notes
earth  0.1.0      3.11.7  2.13.0  8      16 GiB  0     0         1
mars   0.1.0      3.11.7  2.13.0  8      16 GiB  0     0         1
venus  ?          ?       ?       ?      ?       ?     1         0

problem  reach: no answer within 20 s (venus)
         hint: see whether it is up
note     clock: late (earth, mars)
         hint: wind it
"""


def test_the_whole_text_of_several_hosts() -> None:
    silence = Silence("no answer within 20 s", "see whether it is up")
    hosts = {"earth": WELL, "mars": MARS, "venus": silence}
    findings = {
        "earth": FINDINGS,
        "mars": FINDINGS,
        "venus": (Finding("problem", "reach", silence.why, silence.hint),),
    }
    assert render_hosts(hosts, findings) == SEVERAL_TEXT
