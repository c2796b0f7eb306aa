"""Facts of hosts for tests of the doctor: a healthy host, one with GPUs, and another one."""

from __future__ import annotations

import msgspec

from farandole.control.agent.inspect.facts import (
    Address,
    Cache,
    Clock,
    Facts,
    Framework,
    Gpu,
    GpuLink,
    Gpus,
    Interface,
    Kernel,
    Limit,
    Limits,
    Memory,
    NativeBackend,
    NumaNode,
    Processor,
    Program,
    RdmaDevice,
    Software,
    Surroundings,
    System,
)

GIB = 1 << 30
ETHERNET = Interface(
    name="eth0",
    kind="physical",
    state="up",
    carrier=True,
    speed=25000,
    mtu=9000,
    driver="mlx5_core",
    addresses=(Address(address="10.0.0.1", prefix=24),),
)
LOOPBACK = Interface(
    name="lo", kind="loopback", state="up", mtu=65536, addresses=(Address(address="127.0.0.1", prefix=8),)
)
WELL = Facts(
    system=System(hostname="earth", boot="b1", kernel="6.1.0", distribution="Debian 12", architecture="x86_64"),
    software=Software(
        version="0.1.0",
        folder="/home/ada/farandole",
        library="/home/ada/farandole/worker/core/lib/libfarandole.so",
        library_version="0.1.0",
        backends=(
            NativeBackend(name="native", memory=("host",)),
            NativeBackend(name="nccl", absent="this version does not support it", memory=("device",)),
            NativeBackend(name="mpi", found="MPICH 5.0.2 (libmpi_abi.so.1)", memory=("host",)),
        ),
        python="3.11.7",
        executable="/home/ada/venv/bin/python",
    ),
    frameworks=(Framework(name="torch", version="2.13.0", import_seconds=1.5, detail="sees 2 GPUs"),),
    processor=Processor(
        model="Some CPU",
        cores=8,
        allowed=8,
        numa=(
            NumaNode(number=0, cores="0-3", memory_bytes=8 * GIB),
            NumaNode(number=1, cores="4-7", memory_bytes=8 * GIB),
        ),
    ),
    memory=Memory(
        total=16 * GIB, available=8 * GIB, shm_total=8 * GIB, huge_pages="madvise", shared_huge_pages="advise"
    ),
    limits=Limits(open_files=Limit(soft=1024, hard=4096), locked_bytes=Limit(soft=65536, hard=65536)),
    kernel=Kernel(trials={"memfd": "", "pidfd": ""}, ptrace_scope=1, seccomp=0),
    network=(ETHERNET, LOOPBACK),
    programs=(Program(name="ssh", path="/usr/bin/ssh", version="OpenSSH_9.2p1"),),
    clock=Clock(source="tsc", synchronised=True, error_seconds=0.0021),
    cache=Cache(folder="/home/ada/.cache/farandole", free=50 * GIB, writable=True),
)
TWO_GPUS = Gpus(
    devices=(
        Gpu(index=0, name="NVIDIA H100", memory_mib=81559),
        Gpu(index=1, name="NVIDIA H100", memory_mib=81559, partitioned=True),
    ),
    links=(GpuLink(first=0, second=1, kind="NV18"),),
    nvlinks={0: 18, 1: 18},
    driver="550.90.07",
    nodes=2,
    tool=True,
)
GPU_HOST = msgspec.structs.replace(
    WELL,
    gpus=TWO_GPUS,
    rdma=(
        RdmaDevice(
            name="mlx5_0", port=1, state="active", rate="100 Gb/sec", link_layer="InfiniBand", interfaces=("ib0",)
        ),
    ),
    surroundings=Surroundings(
        container="docker",
        batch="slurm",
        batch_job={"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "earth,mars"},
        variables={"FARANDOLE_ROSTER": "10.0.0.1:4711", "NCCL_DEBUG": "INFO", "FARANDOLE_TUNING": "/data/ada/t.json"},
    ),
    unknown={"/proc/cpuinfo": "Permission denied"},
)


def with_(facts: Facts, part: str, **changes: object) -> Facts:
    """Return facts with some fields of one part changed."""
    return msgspec.structs.replace(facts, **{part: msgspec.structs.replace(getattr(facts, part), **changes)})


def other(facts: Facts, name: str, address: str = "10.0.0.2") -> Facts:
    """Return the same facts for another machine."""
    network = (msgspec.structs.replace(ETHERNET, addresses=(Address(address=address, prefix=24),)), LOOPBACK)
    changed = with_(facts, "system", hostname=name, boot=name)
    return msgspec.structs.replace(changed, network=network)


MARS = other(WELL, "mars")
