"""The inspection of GPUs, their links and their libraries: from file trees and outputs as NVIDIA documents them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_host import FakeView

from farandole.control.agent.inspect import cuda_library, inspect, pci
from farandole.control.agent.inspect.facts import AdapterLink, CudaDriver, Gpu, GpuLink, Gpus, Nccl

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_3
"""
NO_RIGHTS = "Insufficient Permissions"


def matrix(rows: Mapping[str, str], head: str = "", ends: str = "") -> str:
    """Return a matrix as `nvidia-smi topo` prints it: tabs, an underlined head, a legend."""
    named = "".join(f"{name}\t{row}{ends if name.startswith('GPU') else ''}\n" for name, row in rows.items())
    columns = "\t".join(name.strip() for name in rows)
    return f"\x1b[4m\t{columns}{head}\x1b[0m\n{named}{LEGEND}"


def topology(rows: Mapping[str, str]) -> str:
    return matrix(rows, "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", "\t0-47\t0\t\tN/A")


def listing(count: int, name: str, mig: str = "Disabled") -> str:
    return "".join(f"{i}, {name}, 81559, 00000000:{0x1B + 16 * i:02X}:00.0, {mig}, 550.90.07\n" for i in range(count))


def look(root: Path, answers: Mapping[str, str] = {}, files: Mapping[str, str] = {}, **environment: str) -> Gpus:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return inspect(FakeView(root, environment, dict(answers))).gpus


def put_on_bus(root: Path, *way: str, numa: int = 0, vendor: str = "0x10de", kind: str = "0x030200") -> None:
    """Add a PCI device: its way from the host bridge to itself."""
    folder = root.joinpath("sys/devices", *way)
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("numa_node", str(numa))):
        (folder / name).write_text(f"{text}\n")
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / way[-1]).symlink_to(Path("../../../devices", *way))


# --- nvidia-smi -------------------------------------------------------------------------------------------------------


def test_one_gpu_of_a_virtual_machine(tmp_path: Path) -> None:
    answers = {
        "nvidia-smi --query-gpu": listing(1, "NVIDIA H100 PCIe"),
        "nvidia-smi topo -m": topology({"GPU0": " X \tPHB", "NIC0": "PHB\t X "}),
        "nvidia-smi topo -p2p": matrix({"GPU0": "X"}),
    }
    found = look(tmp_path, answers, {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"})
    assert found.devices == (Gpu(index=0, name="NVIDIA H100 PCIe", memory_mib=81559, bus="0000:1b:00.0"),)
    assert found.links == () and found.driver == "550.90.07"
    assert found.adapters == (AdapterLink(gpu=0, adapter="mlx5_0", kind="PHB"),)


def test_eight_gpus_with_nvswitch(tmp_path: Path) -> None:
    rows = {f"GPU{i}": "\t".join(" X " if i == j else "NV18" for j in range(8)) + "\tPIX\tSYS" for i in range(8)}
    rows |= {"NIC0": "PIX\t" * 8 + " X \tSYS", "NIC1": "SYS\t" * 8 + "SYS\t X "}
    answers = {
        "nvidia-smi --query-gpu": listing(8, "NVIDIA H100 80GB HBM3"),
        "nvidia-smi topo -m": topology(rows),
        "nvidia-smi topo -p2p": matrix(
            {f" GPU{i}": "\t".join("X" if i == j else "OK" for j in range(8)) for i in range(8)}
        ),
    }
    put_on_bus(tmp_path, "pci0000:01", "0000:01:00.0", kind="0x068000")
    files = {f"sys/class/infiniband/{name}/ports/1/state": "4: ACTIVE\n" for name in ("mlx5_0", "mlx5_3")}
    found = look(tmp_path, answers, files)
    assert len(found.links) == 28 and {(link.kind, link.p2p) for link in found.links} == {("NV18", "OK")}
    assert {(link.adapter, link.kind) for link in found.adapters} == {("mlx5_0", "PIX"), ("mlx5_3", "SYS")}
    assert found.switches == 1


def test_gpus_on_pcie_only(tmp_path: Path) -> None:
    answers = {
        "nvidia-smi --query-gpu": listing(4, "NVIDIA L4"),
        "nvidia-smi topo -m": topology(
            {
                "GPU0": " X \tPIX\tSYS\tSYS",
                "GPU1": "PIX\t X \tSYS\tSYS",
                "GPU2": "SYS\tSYS\t X \tPHB",
                "GPU3": "SYS\tSYS\tPHB\t X ",
            }
        ),
        "nvidia-smi topo -p2p": matrix(
            {" GPU0": "X\tOK\tCNS\tCNS", " GPU1": "OK\tX\tCNS\tCNS", " GPU2": "CNS\tCNS\tX", " GPU3": ""}
        ),
    }
    links = {(link.first, link.second): (link.kind, link.p2p) for link in look(tmp_path, answers).links}
    assert links[0, 1] == ("PIX", "OK")
    assert links[0, 2] == ("SYS", "CNS")
    assert links[2, 3] == ("PHB", "")  # The last column of a line that was cut short.


def test_old_matrix_names_adapters_in_its_head(tmp_path: Path) -> None:
    table = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV2\tPIX\t0-19\nGPU1\tNV2\t X \tPHB\t0-19\n"
    answers = {"nvidia-smi --query-gpu": listing(2, "Tesla V100"), "nvidia-smi topo -m": table}
    found = look(tmp_path, answers, {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"})
    assert found.links == (GpuLink(first=0, second=1, kind="NV2"),)
    assert [link.kind for link in found.adapters] == ["PIX", "PHB"]


def test_partitioned_gpu(tmp_path: Path) -> None:
    found = look(tmp_path, {"nvidia-smi --query-gpu": listing(1, "NVIDIA A100-SXM4-40GB", "Enabled")})
    assert found.devices[0].partitioned


def test_other_output_is_passed_over(tmp_path: Path) -> None:
    found = look(tmp_path, {"nvidia-smi": NO_RIGHTS})
    assert (found.devices, found.links, found.driver, found.tool) == ((), (), None, True)


# --- files of the driver and of the bus -------------------------------------------------------------------------------


def test_links_without_nvidia_smi_come_from_places_on_the_bus(tmp_path: Path) -> None:
    switch = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")
    put_on_bus(tmp_path, *switch, "0000:17:00.0", "0000:1b:00.0")
    put_on_bus(tmp_path, *switch, "0000:17:01.0", "0000:2b:00.0")
    put_on_bus(tmp_path, "pci0000:80", "0000:80:01.0", "0000:81:00.0", numa=1)
    put_on_bus(tmp_path, "pci0000:00", "0000:00:02.0", vendor="0x8086")
    adapter = tmp_path / "sys/class/infiniband/mlx5_0"
    adapter.mkdir(parents=True)
    put_on_bus(tmp_path, *switch, "0000:17:02.0", "0000:19:00.0", vendor="0x15b3", kind="0x020700")
    (adapter / "device").symlink_to("../../../0000:19:00.0")
    names = ("0000:1b:00.0", "0000:2b:00.0", "0000:81:00.0")
    files = {
        f"proc/driver/nvidia/gpus/{bus}/information": "Model: \t\t NVIDIA A100-PCIE-40GB\nIRQ:   \t\t 63\n"
        for bus in names
    }
    found = look(tmp_path, {}, files)
    assert [gpu.name for gpu in found.devices] == ["NVIDIA A100-PCIE-40GB"] * 3
    assert [gpu.numa for gpu in found.devices] == [0, 0, 1]
    assert [link.kind for link in found.links] == ["PIX", "SYS", "SYS"]
    assert [link.kind for link in found.adapters] == ["PIX", "PIX", "SYS"]
    assert found.on_bus == 3


@pytest.mark.parametrize(
    ("first", "second", "same_node", "kind"),
    [
        ("a r u d1 x", "a r u d2 y", True, "PIX"),
        ("a r u d1 u2 d3 x", "a r u d2 y", True, "PXB"),
        ("a r1 x", "a r2 y", True, "PHB"),
        ("a x", "a y", True, "PHB"),
        ("a r x", "b r y", True, "NODE"),
        ("a r x", "b r y", False, "SYS"),
    ],
)
def test_way_between_two_devices(first: str, second: str, same_node: bool, kind: str) -> None:
    assert pci.farthest(tuple(first.split()), tuple(second.split()), same_node) == kind


def test_ways_of_gpu_direct_rdma(tmp_path: Path) -> None:
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    found = look(tmp_path, {}, {"proc/driver/nvidia/version": version})
    assert (found.has_peer_memory, found.is_open_driver, found.driver) == (True, True, "580.95.05")


def test_adapter_whose_device_file_is_missing_in_a_container(tmp_path: Path) -> None:
    for number, name in enumerate(("mlx5_0", "mlx5_1")):
        (tmp_path / f"sys/class/infiniband/{name}/ports/1").mkdir(parents=True)
        (tmp_path / f"sys/class/infiniband_verbs/uverbs{number}").mkdir(parents=True)
        (tmp_path / f"sys/class/infiniband_verbs/uverbs{number}/ibdev").write_text(f"{name}\n")
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs1").touch()
    facts = inspect(FakeView(tmp_path, {}, {}))
    assert {port.name: port.is_open for port in facts.rdma} == {"mlx5_0": False, "mlx5_1": True}


# --- libraries --------------------------------------------------------------------------------------------------------

DRIVER_FILES = {"dev/nvidia0": ""}


def test_answers_of_libraries(tmp_path: Path) -> None:
    answers = {
        " ".join(cuda_library.question()): json.dumps({"version": 12040, "devices": ["H100"], "verbs": False}),
        f"{sys.executable} -c": json.dumps({"version": 22705, "path": "/lib/libnccl.so.2"}),
    }
    found = look(tmp_path, answers, DRIVER_FILES)
    assert found.cuda == CudaDriver(version=12040, devices=("H100",))
    assert found.devices == (Gpu(index=0, name="H100"),)
    assert found.nccl == Nccl(version=22705, path="/lib/libnccl.so.2")
    assert found.has_verbs is False


def test_libraries_that_give_no_answer_in_time(tmp_path: Path) -> None:
    found = look(tmp_path, {}, DRIVER_FILES)
    assert found.cuda is not None and "took too long" in found.cuda.error
    assert found.nccl is not None and found.nccl.error and found.nccl.version is None


def test_libraries_are_not_asked_without_a_sign_of_a_driver(tmp_path: Path) -> None:
    answers = {sys.executable: json.dumps({"version": 1})}
    found = look(tmp_path, answers)
    assert found.cuda is None and found.nccl is None and found.has_verbs is None
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/libcuda.so.1").touch()
    assert look(tmp_path, answers, LD_LIBRARY_PATH="/nowhere:/fake").cuda is not None


def test_missing_libcuda_is_an_error_and_no_exception(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(cuda_library.question(), env=environment, capture_output=True, text=True, check=True)
    told = cuda_library.read(json.loads(done.stdout))
    assert told.version is not None or "libcuda.so.1" in told.error
