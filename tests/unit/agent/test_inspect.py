"""The inspection of a host: of a fake one, whose files are in a folder, and of this one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from fake_host import GIB, FakeView

from farandole.control.agent.inspect import inspect
from farandole.control.agent.inspect.facts import (
    Address,
    Cache,
    Facts,
    Framework,
    Gpu,
    GpuLink,
    Interface,
    Limit,
    Memory,
    NumaNode,
    Program,
    RdmaDevice,
    Surroundings,
    System,
)
from farandole.control.agent.inspect.hardware import count_cores
from farandole.control.agent.inspect.software import library_question
from farandole.control.agent.inspect.view import HostView, Programs

FILES = {
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "proc/sys/kernel/random/boot_id": "407dabb1-d1af-4da0-95d6-40bd0893668c\n",
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 2.0 GHz\n",
    "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n",
    "proc/self/cgroup": "0::/kubepods/pod1/worker\n",
    "proc/self/status": "Name:\tpython\nSeccomp:\t2\nSeccomp_filters:\t1\n",
    "proc/sys/kernel/yama/ptrace_scope": "1\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\n",
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:        8388608 kB\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:        8388608 kB\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    # The middle group is the strictest.
    "sys/fs/cgroup/kubepods/cpu.max": "max 100000\n",
    "sys/fs/cgroup/kubepods/pod1/cpu.max": "250000 100000\n",
    "sys/fs/cgroup/kubepods/pod1/worker/cpu.max": "400000 100000\n",
    "sys/fs/cgroup/kubepods/pod1/memory.max": f"{4 * GIB}\n",
    "sys/fs/cgroup/kubepods/pod1/memory.current": f"{GIB}\n",
    "sys/fs/cgroup/kubepods/pod1/worker/memory.max": "max\n",
    "sys/fs/cgroup/kubepods/pod1/worker/pids.max": "1000\n",
    "sys/class/net/lo/flags": "0x9\n",
    "sys/class/net/lo/mtu": "65536\n",
    "sys/class/net/eth0/flags": "0x1003\n",
    "sys/class/net/eth0/mtu": "9000\n",
    "sys/class/net/eth0/speed": "25000\n",
    "sys/class/net/eth0/carrier": "1\n",
    "sys/class/net/eth0/device/vendor": "0x15b3\n",
    "sys/class/net/docker0/flags": "0x1002\n",
    "sys/class/net/docker0/mtu": "1500\n",
    "sys/class/net/docker0/speed": "-1\n",
    "sys/class/net/docker0/uevent": "DEVTYPE=bridge\nINTERFACE=docker0\n",
    "sys/class/net/bonding_masters": "\n",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "sys/class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)\n",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
    "sys/class/infiniband/mlx5_0/device/net/ib0/mtu": "2044\n",
    "dev/nvidia0": "",
    "dev/nvidia1": "",
    "dev/nvidiactl": "",
    "home/ada/.cache/placeholder": "",
}

# As nvidia-smi prints it, head underlined and all.
TOPOLOGY = """\
\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-3\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t4-7\t1\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
NVLINKS = """\
GPU 0: NVIDIA H100 (UUID: GPU-1)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
GPU 1: NVIDIA H100 (UUID: GPU-2)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
"""
ANSWERS = {
    "nvidia-smi --query-gpu": "0, NVIDIA H100, 81559, 00000000:1B:00.0, Disabled, 550.90.07\n"
    "1, NVIDIA H100, 81559, 00000000:43:00.0, Enabled, 550.90.07\n",
    "nvidia-smi topo -m": TOPOLOGY,
    "nvidia-smi nvlink": NVLINKS,
    "/usr/bin/ssh -V": "OpenSSH_9.2p1 Debian-2+deb12u3, OpenSSL 3.0.15 3 Sep 2024\n",
    "/usr/bin/mpirun --version": "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/\n",
    " ".join(library_question()): 'a shell says hello\n{"path": "/lib/libfarandole.so", "version": "0.1.0"}\n',
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


ENVIRONMENT = {
    "HOME": "/home/ada",
    "CUDA_VISIBLE_DEVICES": "1",
    "FARANDOLE_SECRET": "00ff",
    "FARANDOLE_TRANSPORT": "tcp",
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "UNRELATED": "x",
}


def test_a_whole_host(root: Path) -> None:
    facts = inspect(FakeView(root, ENVIRONMENT, ANSWERS))
    assert facts.unknown == {}
    assert facts.system == System(
        hostname="earth",
        boot="407dabb1-d1af-4da0-95d6-40bd0893668c",
        kernel="6.1.0",
        distribution="Debian GNU/Linux 12 (bookworm)",
        architecture="x86_64",
    )
    assert (facts.software.library, facts.software.library_version) == ("/lib/libfarandole.so", "0.1.0")
    assert facts.software.library_error is None
    assert facts.frameworks == (Framework(name="torch", version="2.13.0+cpu"), Framework(name="jax"))
    assert (facts.processor.model, facts.processor.cores) == ("Some CPU @ 2.0 GHz", 8)
    assert (facts.processor.allowed, facts.processor.quota) == (4, 2.5)
    assert facts.processor.numa[1] == NumaNode(number=1, cores="4-7", memory_bytes=8 * GIB)
    assert facts.memory == Memory(
        total=16 * GIB,
        available=8 * GIB,
        limit=4 * GIB,
        used=GIB,
        shm_total=64 << 20,
        shm_free=63 << 20,
        huge_pages="madvise",
        shared_huge_pages="never",
    )
    assert facts.limits.open_files == Limit(soft=1024, hard=4096)
    assert (facts.limits.processes, facts.limits.cgroup_processes) == (Limit(), 1000)
    assert (facts.kernel.ptrace_scope, facts.kernel.seccomp, facts.kernel.user_namespaces) == (1, 2, None)
    assert (facts.clock.source, facts.clock.synchronised, facts.clock.error_seconds) == ("tsc", True, 0.002)
    assert facts.cache == Cache(folder="/home/ada/.cache/farandole", free=50 * GIB, writable=True)


def test_network_and_rdma(root: Path) -> None:
    facts = inspect(FakeView(root, ENVIRONMENT, ANSWERS))
    ethernet, bridge, loopback = facts.network
    assert ethernet == Interface(
        name="eth0",
        kind="physical",
        state="up",
        carrier=True,
        speed=25000,
        mtu=9000,
        addresses=(Address(address="10.0.0.1", prefix=24), Address(address="fe80::1", prefix=64)),
    )
    assert bridge == Interface(name="docker0", kind="bridge", state="down", mtu=1500)
    assert loopback.kind == "loopback"
    assert facts.rdma == (
        RdmaDevice(
            name="mlx5_0",
            port=1,
            state="active",
            rate="100 Gb/sec (4X EDR)",
            link_layer="InfiniBand",
            interfaces=("ib0",),
        ),
    )


def test_gpus(root: Path) -> None:
    gpus = inspect(FakeView(root, ENVIRONMENT, ANSWERS)).gpus
    assert gpus.devices == (
        Gpu(index=0, name="NVIDIA H100", memory_mib=81559, bus="0000:1b:00.0"),
        Gpu(index=1, name="NVIDIA H100", memory_mib=81559, bus="0000:43:00.0", partitioned=True),
    )
    assert gpus.links == (GpuLink(first=0, second=1, kind="NV18"),)
    assert gpus.nvlinks == {0: 1, 1: 2}
    assert (gpus.driver, gpus.nodes, gpus.tool, gpus.visible) == ("550.90.07", 2, True, "1")


def test_gpus_without_their_tool(root: Path) -> None:
    gpus = inspect(FakeView(root, {}, {})).gpus
    assert (gpus.driver, gpus.nodes, gpus.tool, gpus.devices) == ("550.90.07", 2, False, ())


def test_version_of_open_driver_is_read_without_its_tool(root: Path) -> None:
    (root / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    )
    assert inspect(FakeView(root, {}, {})).gpus.driver == "580.95.05"


def test_surroundings(root: Path) -> None:
    facts = inspect(FakeView(root, ENVIRONMENT, ANSWERS | {"srun": ""}))
    assert facts.surroundings == Surroundings(
        container="kubernetes",
        batch="slurm",
        batch_job={"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node[1-2]"},
        batch_tools=("srun",),
        variables={"CUDA_VISIBLE_DEVICES": "1", "FARANDOLE_SECRET": "***", "FARANDOLE_TRANSPORT": "tcp"},
    )
    assert facts.programs == (
        Program(name="ssh", path="/usr/bin/ssh", version="OpenSSH_9.2p1"),
        Program(name="mpirun", path="/usr/bin/mpirun", version="Open MPI 5.0.11"),
    )


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("HYDRA build details:\n    Version:                                 4.1.2\n", "MPICH 4.1.2"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\n", "Intel MPI 2021.9"),
        ("something else 7\nmore\n", "something else 7"),
        ("", None),
    ],
)
def test_which_mpirun(root: Path, told: str, version: str | None) -> None:
    found = inspect(FakeView(root, {}, {"/usr/bin/mpirun --version": told})).programs
    assert found == (Program(name="mpirun", path="/usr/bin/mpirun", version=version),)


@pytest.mark.parametrize(
    ("environment", "file", "container"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ".dockerenv", "kubernetes"),
        ({"APPTAINER_CONTAINER": "/x.sif"}, "", "apptainer"),
        ({}, "run/.containerenv", "podman"),
        ({}, ".dockerenv", "docker"),
        ({"container": "systemd-nspawn"}, "", "container"),
        ({}, "", None),
    ],
)
def test_containers(tmp_path: Path, environment: dict[str, str], file: str, container: str | None) -> None:
    if file:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert inspect(FakeView(tmp_path, environment, ANSWERS)).surroundings.container == container


def test_limits_of_old_cgroups(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/job\n4:memory:/job\n3:pids:/job\n1:name=systemd:/x\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "5\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/pids/job/pids.max": "77\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    facts = inspect(FakeView(tmp_path, {}, ANSWERS))
    assert facts.processor.quota == 1.5
    assert (facts.memory.limit, facts.memory.used) == (2 * GIB, 5)
    assert facts.limits.cgroup_processes == 77


def test_a_host_that_shows_nothing(tmp_path: Path) -> None:
    facts = inspect(FakeView(tmp_path, {}, {}))
    assert facts.memory.total is None
    assert facts.network == facts.rdma == facts.programs == ()
    assert facts.software.library_error


def test_unreadable_part_gives_reason_and_other_parts_are_complete(root: Path) -> None:
    (root / "sys/class/net/eth0/flags").write_text("rubbish\n")
    (root / "proc/meminfo").unlink()
    (root / "proc/meminfo").mkdir()
    facts = inspect(FakeView(root, ENVIRONMENT, ANSWERS))
    assert facts.network == ()
    assert "rubbish" in facts.unknown["network"]
    assert facts.unknown["/proc/meminfo"] == "Is a directory"
    assert facts.processor.cores == 8


def test_facts_travel_as_json(root: Path) -> None:
    facts = inspect(FakeView(root, ENVIRONMENT, ANSWERS))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=Facts) == facts


@pytest.mark.parametrize(("listed", "count"), [("0-3,8", 5), ("0", 1), ("", 0), (None, 0), ("0-127", 128)])
def test_count_cores(listed: str | None, count: int) -> None:
    assert count_cores(listed) == count


# --- real programs ----------------------------------------------------------------------------------------------------


def test_failing_hanging_and_missing_programs_give_no_answer() -> None:
    unknown: dict[str, str] = {}
    programs = Programs(unknown)
    assert programs.answer("sh", "-c", "echo yes") == "yes\n"
    assert programs.answer("surely-no-such-program") is None
    assert unknown == {}
    assert programs.answer("sh", "-c", "echo why; exit 3") is None
    assert unknown.pop("sh") == "why"
    assert programs.answer("sleep", "1000", seconds=0.1) is None
    assert unknown == {"sleep 1000": "no answer within 0.1 s"}


def test_time_limit_counts_from_start_of_program(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown: dict[str, str] = {}
    programs = Programs(unknown)
    programs.start("sleep", "1000")
    programs.start("echo", "yes")
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 1000)
    assert programs.answer("sleep", "1000", seconds=1000) is None
    assert unknown == {"sleep 1000": "no answer within 1000 s"}
    assert programs.answer("echo", "yes", seconds=1000) == "yes\n"


def test_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farandole.control.agent.inspect"], capture_output=True, text=True, check=True
    )
    facts = msgspec.json.decode(done.stdout, type=Facts)
    assert facts.software.library, facts.software.library_error
    assert facts.processor.allowed >= 1
    assert facts.kernel.trials["memfd"] == facts.kernel.trials["passing descriptors"] == ""
    assert any(interface.kind == "loopback" for interface in facts.network)
    assert facts.software.executable == sys.executable


def test_inspecting_loads_no_framework_and_no_native_library() -> None:
    code = (
        "import sys\nfrom farandole.control.agent.inspect import inspect\ninspect()\n"
        "print(*sys.modules)\nprint(open('/proc/self/maps').read())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules, _, maps = told.partition("\n")
    assert not {"torch", "numpy", "asyncio", "argparse", "farandole.worker.core.binding"} & set(modules.split())
    assert "libfarandole" not in maps


def test_library_that_cannot_be_loaded_gives_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        library_question(),
        env={"FARANDOLE_LIBRARY": str(tmp_path / "no.so")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "is not at" in json.loads(done.stdout)["error"]


def test_importing_a_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks of our own making, so that this does not take seconds."""
    (tmp_path / "jax.py").write_text("print('hello')\n")
    (tmp_path / "keras.py").write_text("raise RuntimeError('no backend')\n")
    (tmp_path / "tensorflow.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    class Installed(HostView):
        def package(self, name: str, distributions: tuple[str, ...]) -> tuple[str | None] | None:
            return ("1.0",) if name in ("jax", "keras", "tensorflow") else None

    tensorflow, keras, jax = inspect(Installed(), try_import=True).frameworks
    assert keras.import_error == "RuntimeError: no backend" and keras.import_seconds is None
    assert jax.import_error is None and jax.import_seconds is not None
    assert tensorflow.import_error is None
    assert str(tensorflow.detail).startswith("collectives are slower Python functions: ")
