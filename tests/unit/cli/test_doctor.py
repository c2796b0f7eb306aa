"""`farandole doctor`: what facts mean, in which words it is told, and how other hosts are asked."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from farandole.agent.inspect.facts import (
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
from farandole.cli.main import main
from farandole.launcher.doctor import inspection
from farandole.launcher.doctor.advice import Finding, Intent, advise, backends
from farandole.launcher.doctor.differences import differences
from farandole.launcher.doctor.inspection import Silence, inspect_hosts
from farandole.launcher.doctor.rendering import bug_report, coloured, render_host, render_hosts
from farandole.launcher.job.host_list import Host
from farandole.launcher.job.options import SshOptions

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
        library="/home/ada/farandole/core/lib/libfarandole.so",
        library_version="0.1.0",
        backends=(
            NativeBackend(name="native", memory=("host",)),
            NativeBackend(name="nccl", absent="not there yet in this version", memory=("device",)),
            NativeBackend(name="mpi", absent="not there yet in this version; no MPI is needed", memory=("host",)),
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


# --- advice -----------------------------------------------------------------------------------------------------------


def test_a_host_that_is_well() -> None:
    assert {finding.level for finding in advise(WELL)} == {"ok"}


@pytest.mark.parametrize(
    ("facts", "level", "words", "todo"),
    [
        (with_(WELL, "software", library=None, library_error="gone"), "problem", "does not load: gone", "make setup"),
        (with_(WELL, "system", architecture="aarch64"), "note", "aarch64", ""),
        (msgspec.structs.replace(WELL, frameworks=()), "note", "torch is not installed", "pip install torch"),
        (
            msgspec.structs.replace(WELL, frameworks=(Framework(name="torch", version="2.3.1"),)),
            "problem",
            "older than 2.4",
            "--upgrade",
        ),
        (
            msgspec.structs.replace(WELL, frameworks=(Framework(name="torch", version="2.5", import_error="boom"),)),
            "problem",
            "cannot be imported: boom",
            "python -c 'import torch'",
        ),
        (
            msgspec.structs.replace(WELL, frameworks=(*WELL.frameworks, Framework(name="jax", version="1"))),
            "note",
            "no front end for jax yet",
            "",
        ),
        (msgspec.structs.replace(WELL, programs=()), "note", "no ssh", "openssh-client"),
        (msgspec.structs.replace(WELL, network=(ETHERNET,)), "problem", "loopback interface", "ip link set lo up"),
        (msgspec.structs.replace(WELL, network=(LOOPBACK,)), "note", "jobs of this machine only", ""),
        (with_(WELL, "processor", quota=2.5), "note", "the time of 2.5", "start 2 workers"),
        (with_(WELL, "processor", allowed=4), "note", "4 of 8 cores", "taskset"),
        (with_(WELL, "memory", shm_total=64 << 20), "note", "/dev/shm has 64 MiB", "--shm-size"),
        (with_(WELL, "memory", limit=100, used=95), "note", "95% of the cgroup's memory", "end other programs"),
        (with_(WELL, "memory", shared_huge_pages="never"), "note", "no huge pages", "shmem_enabled"),
        (with_(WELL, "limits", open_files=Limit(soft=64, hard=4096)), "problem", "may open 64 files", "ulimit -n 4096"),
        (with_(WELL, "limits", open_files=Limit(soft=64, hard=64)), "problem", "may open 64 files", "limits.conf"),
        (with_(WELL, "limits", processes=Limit(soft=50, hard=50)), "note", "50 processes", "ulimit -u"),
        (with_(WELL, "limits", cgroup_processes=50), "note", "pids.max", "--pids-limit"),
        (with_(WELL, "kernel", trials={"memfd": "no"}), "problem", "memfd: no", "seccomp"),
        (with_(WELL, "kernel", trials={"subreaper": "no"}), "problem", "watch over", "sandbox"),
        (with_(WELL, "kernel", trials={"pidfd": "no"}), "note", "pidfd_open", ""),
        (with_(WELL, "clock", source="hpet"), "note", "hpet", "available_clocksource"),
        (with_(WELL, "clock", synchronised=False), "note", "not synchronised", "chrony"),
        (with_(WELL, "cache", writable=False), "note", "cannot be written", "XDG_CACHE_HOME"),
        (with_(WELL, "cache", free=5 << 20), "note", "only 5 MiB", "make room"),
        (with_(GPU_HOST, "gpus", visible="1"), "note", "leaves 1 of 2 GPUs", "unset"),
        (with_(WELL, "gpus", driver="550", nodes=0), "problem", "no /dev/nvidia0", "--gpus all"),
        (with_(WELL, "gpus", nodes=2), "note", "no nvidia-smi", "mount it"),
        (
            msgspec.structs.replace(GPU_HOST, unknown={"nvidia-smi": "Driver/library version mismatch"}),
            "problem",
            "version mismatch",
            "restart",
        ),
        (
            msgspec.structs.replace(GPU_HOST, frameworks=(Framework(name="torch", version="2.13.0+cpu"),)),
            "note",
            "built without CUDA",
            "CUDA build",
        ),
        (GPU_HOST, "note", "RDMA is not used", "IPoIB"),
        (with_(WELL, "gpus", other=("AMD (/dev/kfd)",)), "note", "AMD", ""),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(facts: Facts, level: str, words: str, todo: str) -> None:
    found = [finding for finding in advise(facts) if words in finding.text]
    assert [finding.level for finding in found] == [level], advise(facts)
    assert todo in found[0].todo and bool(todo) == bool(found[0].todo)


def test_problems_come_first() -> None:
    levels = [
        finding.level
        for finding in advise(with_(with_(WELL, "clock", synchronised=False), "kernel", trials={"memfd": "x"}))
    ]
    assert levels == sorted(levels, key=("problem", "note", "ok").index)
    assert {"problem", "note", "ok"} == set(levels)


@pytest.mark.parametrize(
    ("interface", "words"),
    [
        (msgspec.structs.replace(ETHERNET, carrier=False), "no connection"),
        (msgspec.structs.replace(ETHERNET, speed=100), "100 Mbit/s"),
    ],
)
def test_an_interface_that_is_no_good(interface: Interface, words: str) -> None:
    facts = msgspec.structs.replace(WELL, network=(interface, LOOPBACK))
    assert any(words in finding.text for finding in advise(facts))


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [("eth0", True), ("10.0.0.1", True), ("10.0.0.0/8", True), ("eth1", False), ("192.168.0.0/16", False)],
)
def test_wanted_networks(wanted: str, matches: bool) -> None:
    found = [each for each in advise(WELL, Intent(networks=(wanted,))) if each.level == "problem"]
    assert bool(found) is not matches
    assert all("there are: eth0 10.0.0.1/24" in each.text for each in found)


def test_a_big_job_needs_more_open_files() -> None:
    (problem,) = [finding for finding in advise(WELL, Intent(workers=1000)) if finding.level == "problem"]
    assert problem.subject == "limits" and "about 3100" in problem.text and problem.todo.startswith("ulimit -n 4096")


def test_backends() -> None:
    assert [(each.name, each.usable) for each in backends(WELL)] == [
        ("shared memory", True),
        ("tcp", True),
        ("nccl", False),
        ("mpi", False),
    ]
    refused = backends(with_(WELL, "kernel", trials={"memfd": "not permitted"}))
    assert [each.usable for each in refused] == [False, True, False, False]
    assert refused[0].why == "memfd: not permitted"
    assert not any(each.usable for each in backends(with_(WELL, "software", library=None)))


# --- several hosts ----------------------------------------------------------------------------------------------------


def other(facts: Facts, name: str, address: str = "10.0.0.2") -> Facts:
    """Return the same for another machine."""
    network = (msgspec.structs.replace(ETHERNET, addresses=(Address(address=address, prefix=24),)), LOOPBACK)
    changed = with_(facts, "system", hostname=name, boot=name)
    return msgspec.structs.replace(changed, network=network)


MARS = other(WELL, "mars")


def test_hosts_that_are_alike() -> None:
    assert differences({"earth": WELL, "mars": MARS}) == []
    assert differences({"earth": WELL}) == differences({}) == []


@pytest.mark.parametrize(
    ("mars", "level", "words"),
    [
        (with_(MARS, "software", version="0.2.0"), "problem", "versions of farandole: 0.1.0 on earth; 0.2.0 on mars"),
        (with_(MARS, "software", python="3.12.1"), "note", "versions of Python: 3.11 on earth; 3.12 on mars"),
        (msgspec.structs.replace(MARS, frameworks=()), "note", "versions of torch: 2.13.0 on earth; none on mars"),
        (with_(MARS, "processor", allowed=2), "note", "numbers of cores"),
        (msgspec.structs.replace(MARS, gpus=TWO_GPUS), "note", "GPUs: 0 on earth; 2 NVIDIA H100 on mars"),
        (with_(MARS, "clock", ahead=-7.25), "note", "mars is 7.2 s behind"),
        (with_(MARS, "system", hostname="earth"), "problem", "all call themselves earth"),
        (with_(MARS, "system", hostname="earth", boot="b1"), "note", "the same machine"),
        (other(WELL, "mars", "192.168.0.2"), "note", "no network that all hosts are in"),
        (
            msgspec.structs.replace(MARS, network=(msgspec.structs.replace(MARS.network[0], mtu=1500), LOOPBACK)),
            "problem",
            "different MTUs in 10.0.0.0/24 (9000 on earth, 1500 on mars)",
        ),
    ],
)
def test_hosts_that_differ(mars: Facts, level: str, words: str) -> None:
    (found,) = differences({"earth": WELL, "mars": mars})
    assert found.level == level and words in found.text


def test_a_network_that_every_host_has_to_itself_joins_nobody() -> None:
    assert any(
        "no network" in each.text for each in differences({"earth": WELL, "mars": other(WELL, "mars", "10.0.0.1")})
    )


# --- words ------------------------------------------------------------------------------------------------------------

GPU_HOST_TEXT = """\
earth

farandole      0.1.0, in /home/ada/farandole
library        0.1.0 loads, /home/ada/farandole/core/lib/libfarandole.so
python         3.11.7, /home/ada/venv/bin/python
system         Debian 12, Linux 6.1.0, x86_64
frameworks     torch 2.13.0, imported in 1.5 s, sees 2 GPUs
cores          8, of which this process may use 8, Some CPU
               NUMA node 0: cores 0-3, 8.0 GiB
               NUMA node 1: cores 4-7, 8.0 GiB
memory         16.0 GiB, 8.0 GiB available
               /dev/shm: 8.0 GiB (farandole shares memory by memfd and does not need it)
               huge pages: madvise; for shared memory: advise
gpus           0: NVIDIA H100, 81559 MiB
               1: NVIDIA H100, 81559 MiB, MIG
               driver 550.90.07
               links: NV18 between all
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
cache          /home/ada/.cache/farandole, 50.0 GiB free
variables      FARANDOLE_ROSTER=10.0.0.1:4711
               NCCL_DEBUG=INFO
               FARANDOLE_TUNING=/data/ada/t.json
unknown        /proc/cpuinfo: Permission denied

what can move tensors

shared memory  yes: memfd works
tcp            yes: between hosts, and with --transport tcp on one
nccl           no: not there yet in this version; tensors of GPUs travel through host memory
mpi            no: not there yet in this version; no MPI is needed

note     clock: late
         hint: wind it
ok       library: fine
"""

BUG_REPORT = """\
for a bug report, copy this:

```
farandole      0.1.0, in ~/farandole
library        0.1.0 loads, ~/farandole/core/lib/libfarandole.so
python         3.11.7, ~/venv/bin/python
system         Debian 12, Linux 6.1.0, x86_64
frameworks     torch 2.13.0, imported in 1.5 s, sees 2 GPUs
cores          8, of which this process may use 8, Some CPU
               NUMA node 0: cores 0-3, 8.0 GiB
               NUMA node 1: cores 4-7, 8.0 GiB
memory         16.0 GiB, 8.0 GiB available
               /dev/shm: 8.0 GiB (farandole shares memory by memfd and does not need it)
               huge pages: madvise; for shared memory: advise
gpus           0: NVIDIA H100, 81559 MiB
               1: NVIDIA H100, 81559 MiB, MIG
               driver 550.90.07
               links: NV18 between all
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


def test_a_bug_report_names_nobody() -> None:
    findings = (Finding("note", "clock", "the clock of earth is late", "wind it"), FINDINGS[1])
    assert bug_report(GPU_HOST, findings, "/home/ada") == BUG_REPORT


def test_facts_that_could_not_be_found_out_can_be_told() -> None:
    assert "unknown" in render_host(Facts(), advise(Facts()))


def test_colours_change_nothing_but_colours() -> None:
    shown = render_host(GPU_HOST, FINDINGS, coloured)
    assert shown != GPU_HOST_TEXT
    assert shown.replace("\x1b[33m", "").replace("\x1b[32m", "").replace("\x1b[0m", "") == GPU_HOST_TEXT


SEVERAL_TEXT = """\
host   farandole  python  torch   cores  memory    gpus  problems  notes
earth  0.1.0      3.11.7  2.13.0  8      16.0 GiB  0     0         1
mars   0.1.0      3.11.7  2.13.0  8      16.0 GiB  0     0         1
venus  ?          ?       ?       ?      ?         ?     1         0

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


# --- asking other hosts -----------------------------------------------------------------------------------------------

Ssh = Callable[[str], None]
MARS_ITSELF = Host("ada@mars.invalid")


def ask(host: Host) -> Facts | Silence:
    return inspect_hosts([host], SshOptions())[host.label]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """Return what puts a shell script in the place of ssh; it finds the host and the command in $host and $command."""

    def install(script: str) -> None:
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nhost=$1 command=$2\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_asking_through_ssh(ssh: Ssh) -> None:
    ssh('echo "Welcome to $host"; exec sh -c "$command"')
    facts = ask(MARS_ITSELF)
    assert isinstance(facts, Facts)
    assert facts.software.executable == sys.executable
    assert facts.clock.ahead == 0.0


def test_this_machine_is_not_asked_through_ssh(ssh: Ssh) -> None:
    ssh("exit 255")
    facts = ask(Host("localhost"))
    assert isinstance(facts, Facts) and facts.clock.ahead is None


@pytest.mark.parametrize(
    ("script", "why", "hint"),
    [
        ("echo 'x@mars: Permission denied (publickey).' >&2; exit 255", "let you in", "ssh-copy-id ada@mars.invalid"),
        ("echo 'Connection refused' >&2; exit 255", "no ssh server listens", "start sshd"),
        ("echo 'sh: 1: python: not found' >&2; exit 127", "there is no Python", "--python ada@mars.invalid="),
        ("echo \"x: No module named 'farandole'\" >&2; exit 1", "has no farandole", "pip install"),
        ("echo 'MemoryError' >&2; exit 1", "MemoryError", "ssh ada@mars.invalid"),
        ("echo '{\"system\": 3}'", "cannot be read", "install the same version"),
        ("true", "cannot be read", "install the same version"),
    ],
)
def test_hosts_that_cannot_be_asked(ssh: Ssh, script: str, why: str, hint: str) -> None:
    ssh(script)
    silence = ask(MARS_ITSELF)
    assert isinstance(silence, Silence)
    assert why in silence.why and hint in silence.hint


def test_a_host_that_does_not_answer(ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "HOST_SECONDS", 0.2)
    ssh("exec sleep 1000")
    silence = ask(MARS_ITSELF)
    assert isinstance(silence, Silence) and silence.why == "no answer within 0.2 s"


def test_a_clock_that_is_certainly_wrong(ssh: Ssh, tmp_path: Path) -> None:
    for seconds in (100, -100):
        facts = with_(WELL, "clock", now=time.time() + seconds)
        (tmp_path / "told.json").write_bytes(msgspec.json.encode(facts))
        ssh(f"cat {tmp_path}/told.json")
        told = ask(MARS_ITSELF)
        assert isinstance(told, Facts) and told.clock.ahead is not None
        assert told.clock.ahead * seconds > 0


# --- the verb ---------------------------------------------------------------------------------------------------------


def test_doctor_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    told = capsys.readouterr().out
    assert code == (1 if "\nproblem " in told else 0)
    assert "\nwhat can move tensors\n" in told and "for a bug report, copy this:" in told
    assert "\x1b[" not in told


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    (host,) = json.loads(capsys.readouterr().out)["hosts"].values()
    assert host["facts"]["system"]["kernel"] == os.uname().release
    assert {"level", "subject", "text", "todo"} == set(host["findings"][0])


def test_doctor_of_several_hosts(
    ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh('[ "$host" = mars.invalid ] && exec sh -c "$command"; exit 255')
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\nmars.invalid slots=2\n\nvenus.invalid slots=2\n")
    assert main(["doctor", "--hostfile", str(hostfile)]) == 1
    told = capsys.readouterr().out
    assert "problem  reach: the agent did not start: it said nothing (venus.invalid)" in told
    assert main(["doctor", "-H", "mars.invalid:2,venus.invalid:2", "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["hosts"]) == {"mars.invalid", "venus.invalid"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-H", "mars:many"], "mars:many"),
        (["-H", ":2"], "Invalid host input"),
        (["--hostfile", "/surely/not/there"], "the host file cannot be read"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told and "\nhint: " in told


def test_the_doctor_loads_no_framework_and_no_native_library() -> None:
    code = (
        "import sys\nfrom farandole.cli.main import main\nmain(['doctor', '--json'])\n"
        "print(*sys.modules, file=sys.stderr)\nprint(open('/proc/self/maps').read(), file=sys.stderr)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    modules, _, maps = told.partition("\n")
    assert not {"torch", "numpy", "farandole.core.binding"} & set(modules.split())
    assert "libfarandole" not in maps
