"""GPUs and their connections, from files of the driver and from nvidia-smi if it is installed."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator

import msgspec

from farandole.base import nccl_library
from farandole.control.agent.inspect import cuda_library, pci
from farandole.control.agent.inspect.facts import AdapterLink, CudaDriver, Gpu, GpuLink, Gpus, Nccl
from farandole.control.agent.inspect.view import HostView, json_in, whole_number

_LIST = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,pci.bus_id,mig.mode.current,driver_version",
    "--format=csv,noheader,nounits",
)
_TOPOLOGY = ("nvidia-smi", "topo", "-m")
_PEERS = ("nvidia-smi", "topo", "-p2p", "r")
_NVLINKS = ("nvidia-smi", "nvlink", "--status")
_QUESTIONS = (_LIST, _TOPOLOGY, _PEERS, _NVLINKS)

_DRIVER = "/proc/driver/nvidia"
_INFINIBAND = "/sys/class/infiniband"
_PEER_MEMORY = ("/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem")
_OTHER_MAKERS = {"/dev/kfd": "AMD (/dev/kfd)", "/dev/accel/accel0": "an accelerator (/dev/accel)"}
# For each pair of a row and a column of one of nvidia-smi's matrices: the word in its cell.
_Matrix = dict[tuple[str, str], str]


def questions(view: HostView) -> list[tuple[str, ...]]:
    """Return the command lines of the programs to run; without a sign of a driver, only nvidia-smi's."""
    libraries = [cuda_library.question(), _nccl_question(view)] if _has_sign_of_driver(view) else []
    return [*_QUESTIONS, *libraries]


def _nccl_question(view: HostView) -> tuple[str, ...]:
    return nccl_library.question(nccl_library.choose(view.environment.get("FARANDOLE_NCCL_LIBRARY", "")))


def _has_sign_of_driver(view: HostView) -> bool:
    """Return whether libcuda should be queried. The last sign that is checked is a library on the loader's path."""
    folders = filter(None, view.environment.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    return (
        bool(_nodes(view))
        or view.exists(f"{_DRIVER}/version")
        or view.exists("/dev/dxg")  # Windows' subsystem for Linux
        or any(view.exists(f"{folder}/libcuda.so.1") for folder in folders)
    )


def gpus(view: HostView) -> Gpus:
    """Return the facts about the GPUs."""
    listing = view.programs.answer(*_LIST) or ""
    on_bus, switches = pci.nvidia_devices(view)
    version = view.text(f"{_DRIVER}/version") or ""
    told = None
    if _has_sign_of_driver(view):
        told = json_in(view.programs.answer(*cuda_library.question(), seconds=cuda_library.SECONDS))
    cuda = None if told is None else _cuda(told)
    devices = tuple(_on_bus(view, gpu) for gpu in _listed(listing) or _of_driver(view) or _of_library(cuda))
    matrix = _matrix(view.programs.answer(*_TOPOLOGY) or "")
    several = len(devices) > 1
    return Gpus(
        devices=devices,
        links=tuple(_links(view, devices, matrix)) if several else (),
        nvlinks=_nvlinks(view.programs.answer(*_NVLINKS) or "") if several else {},
        adapters=tuple(_adapters(view, devices, matrix)),
        on_bus=len(on_bus),
        switches=len(switches),
        driver=_driver(listing, version),
        is_open_driver="Open Kernel Module" in version,
        has_peer_memory=any(map(view.exists, _PEER_MEMORY)),
        has_verbs=None if told is None else told.get("verbs"),
        cuda=cuda,
        nccl=None if told is None else _nccl(view),
        nodes=len(_nodes(view)),
        tool=view.programs.path("nvidia-smi") is not None,
        visible=view.environment.get("CUDA_VISIBLE_DEVICES"),
        other=tuple(text for path, text in _OTHER_MAKERS.items() if view.exists(path)),
    )


def _nodes(view: HostView) -> list[str]:
    return [name for name in view.names("/dev") if re.fullmatch(r"nvidia[0-9]+", name)]


def _cuda(told: dict[str, object]) -> CudaDriver:
    return cuda_library.read(told or {"error": "the process that asked libcuda ended early, or took too long"})


def _nccl(view: HostView) -> Nccl:
    told = json_in(view.programs.answer(*_nccl_question(view)))
    return Nccl(
        version=told.get("version"),
        path=told.get("path", ""),
        error="" if "version" in told else told.get("error", "the process that loaded it ended early"),
    )


# --- devices ----------------------------------------------------------------------------------------------------------


def _listed(listing: str) -> list[Gpu]:
    return list(filter(None, map(_gpu, listing.splitlines())))


def _gpu(line: str) -> Gpu | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 6 or not cells[0].isdecimal():
        return None
    index, name, mebibytes, bus, mig, _ = cells
    return Gpu(
        index=int(index), name=name, memory_mib=whole_number(mebibytes), bus=bus.lower(), partitioned=mig == "Enabled"
    )


def _of_driver(view: HostView) -> list[Gpu]:
    """Return the GPUs in the driver's files, in the order of their addresses, which is also the driver's order."""
    found: list[Gpu] = []
    for bus in view.names(f"{_DRIVER}/gpus"):
        model = re.search(r"^Model:\s*(.*)$", view.quiet_text(f"{_DRIVER}/gpus/{bus}/information") or "", re.MULTILINE)
        found.append(Gpu(index=len(found), name=model[1].strip() if model else "unknown", bus=bus))
    return found


def _of_library(cuda: CudaDriver | None) -> list[Gpu]:
    names = () if cuda is None else cuda.devices
    return [Gpu(index=index, name=name) for index, name in enumerate(names)]


def _on_bus(view: HostView, gpu: Gpu) -> Gpu:
    """Return a GPU with its address in the kernel's form, and its NUMA node."""
    if gpu.bus is None or not re.fullmatch(r"[0-9a-f]+(:[0-9a-f]+){2}\.[0-9a-f]", gpu.bus):
        return gpu
    bus = pci.address(gpu.bus)
    return msgspec.structs.replace(gpu, bus=bus, numa=pci.numa_node(view, bus))


def _driver(listing: str, version: str) -> str | None:
    """Return the version of the driver, from nvidia-smi or else from the kernel module."""
    for line in listing.splitlines():
        if _gpu(line) is not None:
            return line.rpartition(",")[2].strip()
    found = re.search(r"Kernel Module\b.*?\s([0-9]+(?:\.[0-9]+)+)\s", version)
    return found[1] if found else None


# --- connections ------------------------------------------------------------------------------------------------------


def _matrix(table: str) -> _Matrix:
    """Parse a matrix printed by `nvidia-smi topo`. Its header may be underlined; a legend of adapters may follow it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", table)
    adapters = dict(re.findall(r"^\s*(NIC[0-9]+): (\S+)$", text, re.MULTILINE))
    columns: list[str] = []
    found = {}
    for line in text.splitlines():
        words = line.split()
        if not words or not _is_gpu(words[0]):
            continue
        if "X" not in words:
            columns = list(itertools.takewhile(lambda word: word != "CPU", words))
            continue
        for column, cell in zip(columns, words[1:], strict=False):
            found[words[0], adapters.get(column, column)] = cell
    return found


def _is_gpu(word: str) -> bool:
    return re.fullmatch(r"GPU[0-9]+", word) is not None


def _links(view: HostView, devices: tuple[Gpu, ...], matrix: _Matrix) -> Iterator[GpuLink]:
    """Yield the connection of each pair of GPUs, from nvidia-smi or else from their positions on the PCI bus."""
    peers = _matrix(view.programs.answer(*_PEERS) or "")
    for first, second in itertools.combinations(devices, 2):
        pair = f"GPU{first.index}", f"GPU{second.index}"
        kind = matrix.get(pair) or _between(view, first, second.bus)
        if kind is not None:
            yield GpuLink(first=first.index, second=second.index, kind=kind, p2p=peers.get(pair, ""))


def _adapters(view: HostView, devices: tuple[Gpu, ...], matrix: _Matrix) -> Iterator[AdapterLink]:
    for adapter in view.names(_INFINIBAND):
        bus = view.link(f"{_INFINIBAND}/{adapter}/device")
        for gpu in devices:
            kind = matrix.get((f"GPU{gpu.index}", adapter)) or _between(view, gpu, bus)
            if kind is not None:
                yield AdapterLink(gpu=gpu.index, adapter=adapter, kind=kind)


def _between(view: HostView, gpu: Gpu, other: str | None) -> str | None:
    return None if gpu.bus is None or other is None else pci.between(view, gpu.bus, other)


def _nvlinks(told: str) -> dict[int, int]:
    """Return the number of links with a speed of each GPU, from the output of `nvidia-smi nvlink --status`."""
    counts: dict[int, int] = {}
    gpu = -1
    for line in told.splitlines():
        if head := re.match(r"GPU ([0-9]+):", line):
            gpu = int(head[1])
            counts[gpu] = 0
        elif gpu >= 0 and re.match(r"\s+Link [0-9]+: [0-9.]+ GB/s", line):
            counts[gpu] += 1
    return counts
