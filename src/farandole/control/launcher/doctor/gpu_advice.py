"""Advice about the GPUs of a host, NCCL and RDMA: pure functions of the facts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from farandole.base import nccl_library
from farandole.base.display.wording import count
from farandole.control.agent.gpus import visible_gpus
from farandole.control.agent.inspect.facts import Facts, Framework, Gpus
from farandole.control.launcher.doctor.findings import Finding
from farandole.control.launcher.doctor.interfaces import is_usable
from farandole.control.launcher.doctor.nccl_choice import REFUSALS, has_gpu_direct, is_near, pairs_of, rdma_ports

# The first version of NCCL without known hangs of its abort.
RELIABLE_ABORT = 22602
# Two ranks may share a GPU from this version on, if a variable allows it.
SHARED_GPU = 23000
# A port locks the memory that it reads and writes.
LOCKED_BYTES = 1 << 30
# Hints for errors of CUDA's initialization that have a single cause.
_CUDA_ERRORS = {
    "802": "on a machine with NVSwitches, systemctl start nvidia-fabricmanager",
    "803": "libcuda and the kernel module are of different versions: restart the machine after a driver update",
    "804": "remove the folder `compat` of CUDA from LD_LIBRARY_PATH: this GPU needs the libcuda of its driver",
}
_CONTAINER = "start the container with --gpus all (docker) or --nv (apptainer); in Kubernetes, request nvidia.com/gpu"


def gpus(facts: Facts) -> list[Finding]:
    """Return the findings about the GPUs and their driver."""
    findings = [*_driver(facts), *_library(facts), *_torch(facts), *_hidden(facts.gpus), *_order(facts)]
    findings += _links(facts.gpus)
    for gpu in facts.gpus.devices:
        if gpu.partitioned:
            text = f"GPU {gpu.index} is in MIG mode: NCCL takes its instances for the same GPU, so that tensors of "
            findings.append(Finding("note", "gpus", f"{text}ranks that share it travel through host memory"))
    findings += [Finding("note", "gpus", f"{other}: not used by farandole itself") for other in facts.gpus.other]
    return findings


def shared(facts: Facts, workers: int | None) -> list[Finding]:
    """Return the finding about workers that would share a GPU; `workers` is their number on this host, if known."""
    there = _visible(facts.gpus)
    if workers is None or there == 0 or workers <= there:
        return []
    text = f"{workers} workers would share {count(there, 'GPU')}: NCCL refuses two ranks on one GPU"
    nccl = facts.gpus.nccl
    if nccl is not None and (nccl.version or 0) >= SHARED_GPU:
        text += " unless NCCL_MULTI_RANK_GPU_ENABLE=1 is set"
    todo = f"start {there} workers on this host; otherwise tensors travel through host memory"
    return [Finding("note", "gpus", text, todo)]


def _driver(facts: Facts) -> list[Finding]:
    gpus = facts.gpus
    said = next((why for name, why in facts.unknown.items() if name == "nvidia-smi"), "")
    if said and (gpus.nodes or gpus.driver):
        todo = "make nvidia-smi work; after a driver update, restart the machine"
        return [Finding("problem", "gpus", f"nvidia-smi fails although a driver is loaded: {said}", todo)]
    if gpus.driver and not gpus.nodes:
        text = "the NVIDIA driver is loaded, but there is no /dev/nvidia0"
        return [Finding("problem", "gpus", text, f"in a container: {_CONTAINER}; else: nvidia-modprobe -u -c=0")]
    if gpus.on_bus and not gpus.driver and not gpus.nodes:
        text = f"NVIDIA GPUs on the PCI bus: {gpus.on_bus}; their driver is not loaded"
        todo = _CONTAINER if facts.surroundings.container else "install NVIDIA's driver; nvidia-smi then lists the GPUs"
        return [Finding("note", "gpus", text, todo)]
    if gpus.nodes and not gpus.tool:
        text = f"{gpus.nodes} GPUs, but nvidia-smi is missing, so their memory and NVLinks are not known"
        return [Finding("note", "gpus", text, "install it, or mount it into the container")]
    return []


def _library(facts: Facts) -> list[Finding]:
    """Return the finding about libcuda, through which programs use the driver."""
    cuda = facts.gpus.cuda
    if cuda is None or not cuda.error or not facts.gpus.nodes:
        return []
    code = re.search(r"error ([0-9]+)", cuda.error)
    unknown = "restart the machine after a driver update; the kernel's log may say more: dmesg | grep -i nvrm"
    todo = _CUDA_ERRORS.get(code[1] if code else "", unknown)
    if "cannot open shared object file" in cuda.error:
        todo = f"it belongs to the driver; {_CONTAINER}"
    return [Finding("problem", "gpus", f"CUDA does not work: {cuda.error}", todo)]


def _torch(facts: Facts) -> list[Finding]:
    gpus = facts.gpus
    torch = next((each for each in facts.frameworks if each.name == "torch"), Framework(name="torch"))
    if gpus.devices and (torch.version or "").endswith("+cpu"):
        text = f"torch {torch.version} is built without CUDA, so GPUs will not be used"
        return [Finding("note", "gpus", text, "install a CUDA build of torch (pytorch.org explains which)")]
    if torch.cuda is None or gpus.cuda is None or gpus.cuda.version is None:
        return []
    # Within a major version, a driver runs programs that were built for a newer CUDA than its own.
    major, supported = int(torch.cuda.split(".")[0]), gpus.cuda.version // 1000
    if major <= supported:
        return []
    text = f"torch is built for CUDA {torch.cuda}, and driver {gpus.driver or ''} supports CUDA {cuda_text(gpus)} only"
    todo = f"install a newer driver, or a build of torch for CUDA {supported} (pytorch.org explains which)"
    return [Finding("problem", "gpus", re.sub(r" +", " ", text), todo)]


def cuda_text(gpus: Gpus) -> str:
    """Return the newest CUDA that the driver supports, such as 12.4; "" if it is unknown."""
    version = gpus.cuda.version if gpus.cuda is not None else None
    return "" if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _hidden(gpus: Gpus) -> list[Finding]:
    there, seen = max(gpus.nodes, len(gpus.devices)), _visible(gpus)
    if seen >= there:
        return []
    text = f"CUDA_VISIBLE_DEVICES={gpus.visible} leaves {seen} of {there} GPUs visible"
    return [Finding("note", "gpus", text, "unset it to use all")]


def _links(gpus: Gpus) -> list[Finding]:
    """Return the findings about links that exist, but cannot be used."""
    findings = []
    refused = [link for link in gpus.links if link.p2p not in ("", "OK") and is_near(link.kind)]
    if refused:
        pairs = pairs_of([f"{link.first}-{link.second}" for link in refused], are_all=False)
        who = "any GPUs" if len(refused) == len(gpus.links) else f"GPUs {pairs}"
        reasons = ", ".join(sorted({REFUSALS.get(link.p2p, link.p2p) for link in refused}))
        text = f"the driver allows no P2P between {who}, although they are close to each other: {reasons}"
        todo = "switch off IOMMU and PCIe ACS; some GPUs and virtual machines never have it: nvidia-smi topo -p2p r"
        findings.append(Finding("note", "gpus", text, todo))
    active = sorted(set(gpus.nvlinks.values()))
    if len(active) > 1:
        text = f"GPUs have different numbers of active NVLinks: {active[0]} to {active[-1]}"
        findings.append(Finding("note", "gpus", text, "nvidia-smi nvlink --status shows which are inactive"))
    return findings


def _order(facts: Facts) -> list[Finding]:
    kinds = {gpu.name for gpu in facts.gpus.devices}
    if len(kinds) < 2 or facts.surroundings.variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return []
    text = "GPUs of several kinds: CUDA counts them from the fastest on, and nvidia-smi in the order of the bus"
    return [Finding("note", "gpus", text, "set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that both numbers are the same")]


def _visible(gpus: Gpus) -> int:
    there = max(gpus.nodes, len(gpus.devices))
    return there if gpus.visible is None else len(visible_gpus({"CUDA_VISIBLE_DEVICES": gpus.visible}))


# --- NCCL -------------------------------------------------------------------------------------------------------------


def nccl(facts: Facts) -> list[Finding]:
    """Return the findings about NCCL's library."""
    if not facts.gpus.devices:
        return []
    if any(row.name == "nccl" and row.absent for row in facts.software.backends):
        return [Finding("note", "gpus", "GPU tensors travel through host memory in this version")]
    found = facts.gpus.nccl
    if found is None:
        return []
    install = f"pip install {_package(facts)}, or set FARANDOLE_NCCL_LIBRARY to the path of a libnccl.so.2"
    if found.version is None:
        text = "NCCL is not installed, so GPU tensors travel through host memory"
        if "cannot open shared object file" not in found.error:
            text = f"NCCL cannot be loaded, so GPU tensors travel through host memory: {found.error}"
        return [Finding("note", "nccl", text, install)]
    version = nccl_library.version_text(found.version)
    if found.version < nccl_library.OLDEST:
        text = f"NCCL {version} is older than 2.19, so GPU tensors travel through host memory ({found.path})"
        return [Finding("note", "nccl", text, install)]
    if found.version < RELIABLE_ABORT:
        text = f"NCCL {version} is older than 2.26.2: its abort may hang when a worker is lost"
        return [Finding("note", "nccl", text, install)]
    return [Finding("ok", "nccl", f"NCCL {version} can be loaded")]


def _package(facts: Facts) -> str:
    """Return the package that contains an NCCL for this driver."""
    cuda = facts.gpus.cuda
    return "nvidia-nccl-cu13" if cuda is not None and (cuda.version or 0) >= 13000 else "nvidia-nccl-cu12"


# --- RDMA -------------------------------------------------------------------------------------------------------------


def rdma(facts: Facts) -> list[Finding]:
    """Return the findings about RDMA adapters, which NCCL uses between GPUs of several hosts."""
    findings = list(_addresses(facts))
    if not facts.rdma or not facts.gpus.devices:
        return findings
    for port in facts.rdma:
        if port.state != "active":
            text = f"{port.name} port {port.port} is {port.state or 'in an unknown state'}, so NCCL does not use it"
            todo = f"check cable and switch, and for InfiniBand the subnet manager: ibstat {port.name}"
            findings.append(Finding("note", "rdma", text, todo))
    if not any(port.is_open for port in facts.rdma):
        text = "the files in /dev/infiniband are missing, so NCCL uses TCP"
        todo = "docker run --device=/dev/infiniband --cap-add=IPC_LOCK; in Kubernetes, an RDMA device plugin"
        findings.append(Finding("note", "rdma", text, todo))
    if facts.gpus.has_verbs is False:
        text = "libibverbs is not installed, so NCCL uses TCP"
        findings.append(Finding("note", "rdma", text, "apt-get install libibverbs1 ibverbs-providers"))
    return [*findings, *_ready_ports(facts)]


def _ready_ports(facts: Facts) -> Iterable[Finding]:
    if not rdma_ports(facts):
        return
    if not has_gpu_direct(facts):
        text = "GPUDirect RDMA is off: what NCCL sends to other hosts passes through host memory"
        todo = "modprobe nvidia-peermem (as root), or use the driver's open kernel modules, which support dmabuf"
        yield Finding("note", "rdma", text, todo)
    locked = facts.limits.locked_bytes.soft
    if locked is not None and locked < LOCKED_BYTES:
        text = f"a process may lock {locked >> 10} KiB of memory, which may be too little for RDMA"
        yield Finding("note", "rdma", text, "ulimit -l unlimited (docker: --ulimit memlock=-1)")


def _addresses(facts: Facts) -> Iterable[Finding]:
    carrying = {interface.name for interface in facts.network if is_usable(interface)}
    for device in facts.rdma:
        used = sorted(carrying.intersection(device.interfaces))
        how = f"TCP over {', '.join(used)} is" if used else "its network interface has no address, so it is not used"
        text = f"{device.name}: RDMA is not used by farandole's own connections; {how}"
        todo = "" if used else "give its interface an address (IPoIB) to use it for TCP"
        yield Finding("note", "rdma", text, todo)
