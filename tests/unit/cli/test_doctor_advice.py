"""`farandole doctor`: what the facts of one host mean, and what those of several hosts mean together."""

from __future__ import annotations

import msgspec
import pytest
from doctor_facts import ETHERNET, GPU_HOST, LOOPBACK, MARS, TWO_GPUS, WELL, other, with_

from farandole.control.agent.inspect.facts import (
    CudaDriver,
    Facts,
    Framework,
    Interface,
    Limit,
    NativeBackend,
    Nccl,
)
from farandole.control.launcher.doctor.advice import Intent, advise, backends, taken
from farandole.control.launcher.doctor.differences import differences


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
            msgspec.structs.replace(
                WELL, frameworks=(*WELL.frameworks, Framework(name="tensorflow", version="2.16.1"))
            ),
            "note",
            "tensorflow 2.16.1 is older than 2.17",
            "pip install --upgrade tensorflow",
        ),
        (
            msgspec.structs.replace(WELL, frameworks=(*WELL.frameworks, Framework(name="jax", version="0.9.2"))),
            "note",
            "jax 0.9.2 is older than 0.10",
            "pip install --upgrade jax",
        ),
        (msgspec.structs.replace(WELL, programs=()), "note", "ssh is not installed", "openssh-client"),
        (msgspec.structs.replace(WELL, network=(ETHERNET,)), "problem", "loopback interface", "ip link set lo up"),
        (msgspec.structs.replace(WELL, network=(LOOPBACK,)), "note", "only local jobs are possible", ""),
        (with_(WELL, "processor", quota=2.5), "note", "the time of 2.5", "start 2 workers"),
        (with_(WELL, "processor", allowed=4), "note", "4 of 8 cores", "taskset"),
        (with_(WELL, "memory", shm_total=64 << 20), "note", "/dev/shm has 64 MiB", "--shm-size"),
        (with_(WELL, "memory", limit=100, used=95), "note", "95% of the cgroup's memory", "end other programs"),
        (with_(WELL, "memory", shared_huge_pages="never"), "note", "does not use huge pages", "shmem_enabled"),
        (with_(WELL, "limits", open_files=Limit(soft=64, hard=4096)), "problem", "may open 64 files", "ulimit -n 4096"),
        (with_(WELL, "limits", open_files=Limit(soft=64, hard=64)), "problem", "may open 64 files", "limits.conf"),
        (with_(WELL, "limits", processes=Limit(soft=50, hard=50)), "note", "50 processes", "ulimit -u"),
        (
            with_(WELL, "limits", file_bytes=Limit(soft=1 << 20)),
            "problem",
            "files of 1 MiB at most",
            "ulimit -f unlimited",
        ),
        (
            with_(WELL, "limits", file_bytes=Limit(soft=1 << 20, hard=1 << 20)),
            "problem",
            "files of 1 MiB at most",
            "`fsize` in /etc/security/limits.conf",
        ),
        (with_(WELL, "limits", address_bytes=Limit(soft=1 << 33)), "problem", "8 GiB of address space", "ulimit -v"),
        (with_(WELL, "limits", cgroup_processes=50), "note", "pids.max", "--pids-limit"),
        (with_(WELL, "kernel", trials={"memfd": "no"}), "problem", "memfd: no", "seccomp"),
        (with_(WELL, "kernel", trials={"subreaper": "no"}), "problem", "cannot monitor", "sandbox"),
        (with_(WELL, "kernel", trials={"pidfd": "no"}), "note", "pidfd_open", ""),
        (with_(WELL, "clock", source="hpet"), "note", "hpet", "available_clocksource"),
        (with_(WELL, "clock", synchronised=False), "note", "not synchronised", "chrony"),
        (with_(WELL, "cache", writable=False), "note", "is not writable", "XDG_CACHE_HOME"),
        (with_(WELL, "cache", free=5 << 20), "note", "only 5 MiB", "free some space"),
        (with_(GPU_HOST, "gpus", visible="1"), "note", "leaves 1 of 2 GPUs", "unset"),
        (with_(WELL, "gpus", driver="550", nodes=0), "problem", "no /dev/nvidia0", "--gpus all"),
        (with_(WELL, "gpus", nodes=2), "note", "nvidia-smi is missing", "mount it"),
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
def test_problems_are_reported_with_the_next_step(facts: Facts, level: str, words: str, todo: str) -> None:
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
def test_an_unusable_interface_is_reported(interface: Interface, words: str) -> None:
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
        ("mpi", True),
    ]
    refused = backends(with_(WELL, "kernel", trials={"memfd": "not permitted"}))
    assert [each.usable for each in refused] == [False, True, False, True]
    assert refused[0].why == "memfd: not permitted"
    assert not any(each.usable for each in backends(with_(WELL, "software", library=None)))


def test_a_backend_that_cannot_be_used_is_shown_with_the_reason() -> None:
    lacking = with_(WELL, "software", backends=(NativeBackend(name="mpi", unusable="no library"),))
    found = backends(lacking)[-1]
    assert (found.name, found.usable, found.why) == ("mpi", False, "no library")


def test_connections_that_a_job_uses() -> None:
    assert taken(WELL) == (
        ("one host", "shared memory"),
        ("several hosts", "shared memory within them, tcp between them"),
    )
    for variable, text in (("FARANDOLE_BACKEND", "mpi"), ("HOROVOD_CPU_OPERATIONS", "MPI")):
        asking = with_(WELL, "surroundings", variables={variable: text})
        assert dict(taken(asking))["several hosts"] == "shared memory within them, mpi between them"
    lacking = with_(asking, "software", backends=(NativeBackend(name="mpi", unusable="no library"),))
    assert dict(taken(lacking))["several hosts"].startswith("none: a variable asks for mpi")
    assert dict(taken(with_(WELL, "kernel", trials={"memfd": "no"})))["one host"] == "tcp"
    assert taken(with_(WELL, "software", library=None)) == ()


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
        (with_(MARS, "gpus", nccl=Nccl(version=22705)), "note", "versions of NCCL: none on earth; 2.27.5 on mars"),
        (with_(MARS, "clock", ahead=-7.25), "note", "mars is 7.2 s behind"),
        (with_(MARS, "system", hostname="earth"), "problem", "with the same hostname earth"),
        (with_(MARS, "system", hostname="earth", boot="b1"), "note", "the same machine"),
        (other(WELL, "mars", "192.168.0.2"), "note", "no network contains all hosts"),
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


def test_hosts_that_see_the_same_gpus() -> None:
    def facts(host: Facts, *uuids: str) -> Facts:
        return with_(host, "gpus", cuda=CudaDriver(uuids=uuids))

    assert differences({"earth": facts(WELL, "a", "b"), "mars": facts(MARS, "c")}) == []
    (found,) = differences({"earth": facts(WELL, "a", "b"), "mars": facts(MARS, "b", "a")})
    assert found.level == "note" and found.text.startswith("earth, mars see the same 2 GPUs")


def test_a_network_that_every_host_has_to_itself_joins_nobody() -> None:
    assert any(
        "no network" in each.text for each in differences({"earth": WELL, "mars": other(WELL, "mars", "10.0.0.1")})
    )
