"""Advice about one host: what its facts mean for a job, and what to do; a pure function of the facts.

There is one function for each subject. A *problem* stops jobs from running, or makes them fail; a *note* is worth
knowing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farandole.base.display.wording import bytes_text
from farandole.base.wire.interfaces import Address, list_addresses, pick
from farandole.control.agent.inspect.facts import Facts, Interface, NativeBackend
from farandole.control.launcher.doctor import gpu_advice
from farandole.control.launcher.doctor.findings import Finding, in_order
from farandole.control.launcher.doctor.interfaces import is_usable

OLDEST_TORCH = (2, 4)
# Older versions cannot load the library of farandole's ops.
OLDEST_TENSORFLOW = (2, 17)
OLDEST_JAX = (0, 10)
# Links, control channels and arenas of a worker: file descriptors for each worker of the world.
DESCRIPTORS_PER_WORKER = 3
OTHER_DESCRIPTORS = 100
# Threads of one worker besides those that compute: Python's, torch's, the engine's, and a few data loaders.
THREADS_PER_WORKER = 32
SMALL_SHM_BYTES = 64 << 20
SMALL_CACHE_BYTES = 1 << 30
# The default of FARANDOLE_ARENA_BYTES. Most of it is never used, but the limits count it.
ARENA_BYTES = 64 << 30
SLOW_MEGABITS = 1000
# Reading these requires access to a slow device or waiting for the scheduler's tick.
SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies"})


@dataclass(frozen=True)
class Backend:
    """A way to move tensors: whether it can be used, and the reason."""

    name: str
    usable: bool
    why: str


@dataclass(frozen=True)
class Intent:
    """The intended use of the host, as far as the user gave it."""

    workers: int | None = None
    """Number of workers in the whole job; None: the number that `-np auto` would start here."""
    here: int | None = None
    """Number of workers on this host; None: unknown."""
    networks: tuple[str, ...] = ()
    """Names, addresses or networks (CIDR) that workers should use; empty: any."""


def advise(facts: Facts, intent: Intent | None = None) -> list[Finding]:
    """Return the findings about a host, problems first."""
    intent = intent or Intent()
    findings = [finding for subject in _SUBJECTS for finding in subject(facts)]
    findings += [*_limits(facts, intent), *_wanted_networks(facts, intent), *gpu_advice.shared(facts, intent.here)]
    return in_order(findings)


def backends(facts: Facts) -> tuple[Backend, ...]:
    """Return the ways to move tensors on this host, each with the reason why it can or cannot be used."""
    refused = _shared_memory_refusal(facts)
    loads = facts.software.library is not None
    broken = "the native library cannot be loaded"
    # The parts of the native backend come first, then the other backends of the library's table.
    return (
        Backend("shared memory", loads and not refused, broken if not loads else refused or "memfd works"),
        Backend("tcp", loads, "between hosts, and with --transport tcp on one" if loads else broken),
        *(_native_backend(each, facts) for each in facts.software.backends if loads and each.name != "native"),
    )


def _native_backend(found: NativeBackend, facts: Facts) -> Backend:
    refused = found.absent or found.unusable
    if "device" in found.memory:
        return Backend(found.name, *_device_backend(found, refused, bool(facts.gpus.nodes or facts.gpus.devices)))
    why = refused or f"takes tensors in {' and '.join(found.memory)} memory"
    if found.found:
        why = f"{found.found}; between hosts, with --backend {found.name} --launcher mpirun (or srun)"
    return Backend(found.name, not refused, why)


def _device_backend(found: NativeBackend, refused: str, has_gpu: bool) -> tuple[bool, str]:
    """Return whether a backend for tensors on GPUs can be used, and why or why not."""
    if not has_gpu:
        return False, found.absent or "there is no GPU on this machine"
    if refused:
        return False, f"{refused}; GPU tensors travel through host memory"
    return True, f"{found.found or 'included'}; for tensors on GPUs, unless FARANDOLE_GPU=staged"


def taken(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return the backends that jobs on this host would use, as pairs of a kind of job or tensor and a text."""
    usable = {each.name for each in backends(facts) if each.usable}
    if "tcp" not in usable:
        return ()
    within = "shared memory" if "shared memory" in usable else "tcp"
    variables = facts.surroundings.variables
    asked = variables.get("FARANDOLE_BACKEND") or variables.get("HOROVOD_CPU_OPERATIONS", "")
    between = "mpi" if asked.lower() == "mpi" else "tcp"
    several = f"{within} within them, {between} between them"
    if between not in usable:
        several = "none: a variable asks for mpi, which cannot be used here"
    jobs = (("one host", within), ("several hosts", several))
    if not facts.gpus.devices:
        return jobs
    staged = variables.get("FARANDOLE_GPU") == "staged" or "nccl" not in usable
    return (*jobs, ("GPU tensors", "copied through host memory" if staged else "nccl, where it takes them"))


def _shared_memory_refusal(facts: Facts) -> str:
    wanted = ("memfd", "passing descriptors", "abstract Unix sockets")
    refused = [f"{name}: {facts.kernel.trials[name]}" for name in wanted if facts.kernel.trials.get(name)]
    return "; ".join(refused)


# --- software ---------------------------------------------------------------------------------------------------------


def _library(facts: Facts) -> list[Finding]:
    software = facts.software
    if software.library is None:
        todo = "install farandole again, or run `make setup` in its source tree"
        return [Finding("problem", "library", f"the native library does not load: {software.library_error}", todo)]
    findings = [Finding("ok", "library", "the native library loads")]
    if facts.system.architecture != "x86_64":
        text = (
            f"the processor is {facts.system.architecture}: it runs portable code, which is slower and not tested yet"
        )
        findings.append(Finding("note", "library", text))
    return findings


def _frameworks(facts: Facts) -> list[Finding]:
    findings = []
    for framework in facts.frameworks:
        if framework.import_error is not None:
            todo = f"check whether `python -c 'import {framework.name}'` works in the same environment"
            text = f"{framework.name} cannot be imported: {framework.import_error}"
            findings.append(Finding("problem", "frameworks", text, todo))
        elif framework.name == "tensorflow":
            if _is_older(framework.version, OLDEST_TENSORFLOW):
                text = f"tensorflow {framework.version} is older than 2.17: its collectives are slower Python functions"
                findings.append(Finding("note", "frameworks", text, "pip install --upgrade tensorflow"))
        elif framework.name == "jax":
            if _is_older(framework.version, OLDEST_JAX):
                text = f"jax {framework.version} is older than 0.10, which collectives in compiled functions need"
                findings.append(Finding("note", "frameworks", text, "pip install --upgrade jax"))
        elif framework.name == "torch" and _is_older(framework.version, OLDEST_TORCH):
            text = f"torch {framework.version} is older than 2.4, the oldest version that farandole supports"
            findings.append(Finding("problem", "frameworks", text, "pip install --upgrade torch"))
    if not any(framework.name == "torch" for framework in facts.frameworks):
        text = f"torch is not installed for {facts.software.executable}"
        todo = (
            "pip install torch; or use farandole without it: farandole.tensorflow, farandole.keras, farandole.jax, "
            "farandole.mxnet, or farandole.numpy, which needs no framework"
        )
        findings.append(Finding("note", "frameworks", text, todo))
    return findings


def _is_older(version: str | None, oldest: tuple[int, int]) -> bool:
    found = re.match(r"([0-9]+)\.([0-9]+)", version or "")
    return found is not None and (int(found[1]), int(found[2])) < oldest


def _programs(facts: Facts) -> list[Finding]:
    if any(program.name == "ssh" for program in facts.programs):
        return []
    todo = "install openssh-client on the machine that starts jobs"
    return [Finding("note", "programs", "ssh is not installed, so no other host can be reached from here", todo)]


# --- network ----------------------------------------------------------------------------------------------------------


def _network(facts: Facts) -> list[Finding]:
    if not facts.network:
        return []
    findings = []
    if not any(interface.kind == "loopback" and interface.addresses for interface in facts.network):
        text = "the loopback interface has no address, but workers of this machine connect through it"
        findings.append(Finding("problem", "network", text, "ip link set lo up"))
    if not any(map(is_usable, facts.network)):
        text = "no interface has an address that other hosts could reach, so only local jobs are possible"
        findings.append(Finding("note", "network", text))
    for interface in facts.network:
        findings += _interface(interface)
    return findings


def _interface(interface: Interface) -> list[Finding]:
    if interface.kind != "physical" or not interface.addresses:
        return []
    if interface.state != "up" or interface.carrier is False:
        text = f"{interface.name} has an address, but no connection"
        return [Finding("note", "network", text, f"check cable and switch, or: ip link set {interface.name} up")]
    if interface.speed is not None and interface.speed < SLOW_MEGABITS:
        text = f"{interface.name} runs at {interface.speed} Mbit/s, which is slow for gradients"
        return [Finding("note", "network", text, f"check cable and switch: ethtool {interface.name}")]
    return []


def _wanted_networks(facts: Facts, intent: Intent) -> list[Finding]:
    there = [
        Address(interface.name, each.address, each.prefix, interface.speed or 0)
        for interface in facts.network
        if is_usable(interface)
        for each in interface.addresses
    ]
    findings = []
    for wanted in intent.networks:
        if not pick(there, [wanted]):
            what = f"no network interface or address matches {wanted!r}; there are: {list_addresses(there)}"
            todo = "use the name of an interface, an address, or a network such as 10.0.0.0/8 for --network"
            findings.append(Finding("problem", "network", what, todo))
    return findings


# --- the machine and its limits ---------------------------------------------------------------------------------------


def _processor(facts: Facts) -> list[Finding]:
    processor = facts.processor
    findings = []
    if processor.quota is not None and processor.quota < processor.allowed:
        text = f"{processor.allowed} cores are visible, but the cgroup allows only the time of {processor.quota:g}"
        todo = f"start {max(1, int(processor.quota))} workers (-np auto counts cores), or ask for more"
        findings.append(Finding("note", "cores", text, todo))
    if 0 < processor.allowed < processor.cores:
        text = f"this process may use {processor.allowed} of {processor.cores} cores"
        findings.append(Finding("note", "cores", text, "taskset -p $$ shows which; workers inherit the limit"))
    return findings


def _memory(facts: Facts) -> list[Finding]:
    memory = facts.memory
    findings = []
    if memory.shm_total is not None and memory.shm_total <= SMALL_SHM_BYTES:
        others = "NCCL and torch's DataLoader may" if facts.gpus.devices else "torch's DataLoader may"
        text = f"/dev/shm has {memory.shm_total >> 20} MiB: farandole does not need it, but {others}"
        findings.append(Finding("note", "memory", text, "docker run --shm-size=1g, or --ipc=host"))
    if memory.limit is not None and memory.used is not None and memory.used > 0.9 * memory.limit:
        text = f"{memory.used / memory.limit:.0%} of the cgroup's memory is in use"
        findings.append(
            Finding("note", "memory", text, "a job here may be killed: end other programs, or request more memory")
        )
    if memory.shared_huge_pages == "never":
        text = "the kernel does not use huge pages for shared memory, which holds the arena"
        todo = "this may help: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (as root)"
        findings.append(Finding("note", "memory", text, todo))
    return findings


def _limits(facts: Facts, intent: Intent) -> list[Finding]:
    workers = intent.workers or len(facts.gpus.devices) or facts.processor.allowed or 1
    return [_open_files(facts, workers), *_sizes(facts), *_processes(facts, workers)]


def _sizes(facts: Facts) -> list[Finding]:
    """Return the limits that do not leave a worker room for its arena."""
    given = facts.surroundings.variables.get("FARANDOLE_ARENA_BYTES", "")
    needed = int(given) if given.isdecimal() and int(given) else ARENA_BYTES
    findings = []
    for limit, what, flag, name in (
        (facts.limits.file_bytes, "files of {} at most", "-f", "fsize"),
        (facts.limits.address_bytes, "{} of address space", "-v", "as"),
    ):
        if limit.soft is None or limit.soft >= needed:
            continue
        text = f"a process may have {what.format(bytes_text(limit.soft))}; a worker's arena takes {bytes_text(needed)}"
        todo = (
            f"ulimit {flag} unlimited, in the shell that starts the job"
            if limit.hard is None
            else f"ask for a higher `{name}` in /etc/security/limits.conf, or set FARANDOLE_ARENA_BYTES to less"
        )
        findings.append(Finding("problem", "limits", text, todo))
    return findings


def _open_files(facts: Facts, workers: int) -> Finding:
    limit = facts.limits.open_files
    if limit.soft is None:
        return Finding("ok", "limits", "open files per process: no limit")
    needed = DESCRIPTORS_PER_WORKER * workers + OTHER_DESCRIPTORS
    if needed <= limit.soft:
        largest = (limit.soft - OTHER_DESCRIPTORS) // DESCRIPTORS_PER_WORKER
        return Finding("ok", "limits", f"{limit.soft} open files: enough for worlds of up to about {largest} workers")
    text = f"a process may open {limit.soft} files; in a world of {workers} workers each needs about {needed}"
    if limit.hard is None or limit.hard >= needed:
        return Finding("problem", "limits", text, f"ulimit -n {limit.hard or needed}, in the shell that starts the job")
    return Finding(
        "problem", "limits", text, "ask for a higher `nofile` in /etc/security/limits.conf (docker: --ulimit)"
    )


def _processes(facts: Facts, workers: int) -> list[Finding]:
    needed = facts.processor.allowed + THREADS_PER_WORKER * workers
    findings = []
    for limit, name, todo in (
        (facts.limits.processes.soft, "ulimit -u", "ulimit -u raises it, up to the hard limit"),
        (facts.limits.cgroup_processes, "pids.max of the cgroup", "request more (docker: --pids-limit)"),
    ):
        if limit is not None and limit < needed:
            text = f"{limit} processes and threads are allowed ({name}); {workers} workers may need {needed}"
            findings.append(Finding("note", "limits", text, todo))
    return findings


def _kernel(facts: Facts) -> list[Finding]:
    trials = facts.kernel.trials
    findings = []
    if refused := _shared_memory_refusal(facts):
        text = f"workers cannot share memory and will use TCP, which is slower ({refused})"
        todo = "a sandbox or a seccomp profile may forbid it: try docker run --security-opt seccomp=unconfined"
        findings.append(Finding("problem", "kernel", text, todo))
    if trials.get("subreaper"):
        text = f"the agent cannot monitor the processes that workers start: {trials['subreaper']}"
        findings.append(Finding("problem", "kernel", text, "a sandbox forbids prctl: run the job outside it"))
    if trials.get("pidfd"):
        text = f"pidfd_open is missing ({trials['pidfd']}): a killed launcher is detected by its pipe alone"
        findings.append(Finding("note", "kernel", text))
    if trials and not any(trials.values()):
        findings.append(Finding("ok", "kernel", "everything that farandole needs from the kernel works"))
    return findings


def _surroundings(facts: Facts) -> list[Finding]:
    around = facts.surroundings
    if around.batch is None:
        return []
    told = ", ".join(f"{name}={value}" for name, value in around.batch_job.items())
    return [Finding("ok", "surroundings", f"inside a job of {around.batch} ({told})")]


def _clock(facts: Facts) -> list[Finding]:
    findings = []
    if facts.clock.source in SLOW_CLOCKS:
        text = f"the clock source is {facts.clock.source}, which is slow to read"
        todo = "cat /sys/devices/system/clocksource/clocksource0/available_clocksource lists others"
        findings.append(Finding("note", "clock", text, todo))
    if facts.clock.synchronised is False:
        text = "the time of day is not synchronised: times in logs of several hosts cannot be compared"
        findings.append(Finding("note", "clock", text, "run chrony, ntpd or systemd-timesyncd"))
    return findings


def _cache(facts: Facts) -> list[Finding]:
    cache = facts.cache
    if cache.writable is False:
        text = f"{cache.folder} is not writable, so results of autotuning are not saved"
        return [Finding("note", "cache", text, "set XDG_CACHE_HOME to a writable folder")]
    if cache.free is not None and cache.free < SMALL_CACHE_BYTES:
        text = f"only {cache.free >> 20} MiB are free in {cache.folder}"
        return [Finding("note", "cache", text, "free some space, or set XDG_CACHE_HOME to another disk")]
    return []


_SUBJECTS: Sequence[Callable[[Facts], list[Finding]]] = (
    _library,
    _frameworks,
    _programs,
    gpu_advice.gpus,
    gpu_advice.nccl,
    gpu_advice.rdma,
    _network,
    _processor,
    _memory,
    _kernel,
    _surroundings,
    _clock,
    _cache,
)
