"""GPUs and their connections, from files of the driver and from nvidia-smi if it is installed."""

from __future__ import annotations

import re

from farandole.control.agent.inspect.facts import Gpu, GpuLink, Gpus
from farandole.control.agent.inspect.view import HostView, whole_number

_LIST = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,pci.bus_id,mig.mode.current,driver_version",
    "--format=csv,noheader,nounits",
)
_TOPOLOGY = ("nvidia-smi", "topo", "-m")
_NVLINKS = ("nvidia-smi", "nvlink", "--status")
QUESTIONS = (_LIST, _TOPOLOGY, _NVLINKS)

_OTHER_MAKERS = {"/dev/kfd": "AMD (/dev/kfd)", "/dev/accel/accel0": "an accelerator (/dev/accel)"}


def gpus(view: HostView) -> Gpus:
    """Return the facts about the GPUs."""
    nodes = [name for name in view.names("/dev") if re.fullmatch(r"nvidia[0-9]+", name)]
    tool = view.programs.path("nvidia-smi") is not None
    listing = view.programs.answer(*_LIST) or ""
    devices = tuple(filter(None, map(_gpu, listing.splitlines())))
    several = len(devices) > 1
    return Gpus(
        devices=devices,
        links=_links(view.programs.answer(*_TOPOLOGY) or "") if several else (),
        nvlinks=_nvlinks(view.programs.answer(*_NVLINKS) or "") if several else {},
        driver=_driver(view, listing),
        nodes=len(nodes),
        tool=tool,
        visible=view.environment.get("CUDA_VISIBLE_DEVICES"),
        other=tuple(text for path, text in _OTHER_MAKERS.items() if view.exists(path)),
    )


def _gpu(line: str) -> Gpu | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 6 or not cells[0].isdecimal():
        return None
    index, name, mebibytes, bus, mig, _ = cells
    return Gpu(
        index=int(index), name=name, memory_mib=whole_number(mebibytes), bus=bus.lower(), partitioned=mig == "Enabled"
    )


def _driver(view: HostView, listing: str) -> str | None:
    """Return the version of the driver, from nvidia-smi or else from the kernel module."""
    for line in listing.splitlines():
        if _gpu(line) is not None:
            return line.rpartition(",")[2].strip()
    found = re.search(r"Kernel Module\b.*?\s([0-9]+(?:\.[0-9]+)+)\s", view.text("/proc/driver/nvidia/version") or "")
    return found[1] if found else None


def _links(table: str) -> tuple[GpuLink, ...]:
    """Read the matrix that `nvidia-smi topo -m` prints; its head may be underlined."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", table).splitlines()]
    columns = next(([int(word[3:]) for word in line if _is_gpu(word)] for line in lines if line[:1] == ["GPU0"]), [])
    found = []
    for line in lines:
        if not line or not _is_gpu(line[0]) or "X" not in line:
            continue
        row = int(line[0][3:])
        cells = zip(columns, line[1:], strict=False)
        found += [GpuLink(first=row, second=column, kind=kind) for column, kind in cells if row < column]
    return tuple(found)


def _is_gpu(word: str) -> bool:
    return re.fullmatch(r"GPU[0-9]+", word) is not None


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
