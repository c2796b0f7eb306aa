"""`farandole doctor`: what the facts about GPUs mean, and what NCCL would choose."""

from __future__ import annotations

import msgspec
import pytest
from doctor_facts import ETHERNET, GPU_HOST, LOOPBACK, TWO_GPUS, WELL, with_

from farandole.control.agent.inspect.facts import (
    AdapterLink,
    CudaDriver,
    Facts,
    Framework,
    Gpu,
    GpuLink,
    Gpus,
    Interface,
    Limit,
    NativeBackend,
    Nccl,
    RdmaDevice,
)
from farandole.control.launcher.doctor.advice import Intent, advise, backends, taken
from farandole.control.launcher.doctor.nccl_choice import between_gpus, choices, gpu_direct, matches, socket_interfaces
from farandole.control.launcher.doctor.rendering import describe


def port(name: str, state: str = "active", link_layer: str = "InfiniBand", is_open: bool = True) -> RdmaDevice:
    return RdmaDevice(
        name=name, port=1, state=state, rate="400 Gb/sec (4X NDR)", link_layer=link_layer, is_open=is_open
    )


def pairs(kind: str, count: int = 8, p2p: str = "OK") -> tuple[GpuLink, ...]:
    return tuple(GpuLink(first=i, second=j, kind=kind, p2p=p2p) for j in range(count) for i in range(j))


SWITCHED = msgspec.structs.replace(
    WELL,
    software=msgspec.structs.replace(
        WELL.software, backends=(*WELL.software.backends[:1], NativeBackend(name="nccl", memory=("device",)))
    ),
    gpus=Gpus(
        devices=tuple(Gpu(index=i, name="NVIDIA H100", memory_mib=81559, numa=i // 4) for i in range(8)),
        links=pairs("NV18"),
        nvlinks=dict.fromkeys(range(8), 18),
        adapters=tuple(
            AdapterLink(gpu=i, adapter=f"mlx5_{j}", kind="PXB" if i // 4 == j else "SYS")
            for i in range(8)
            for j in range(2)
        ),
        switches=4,
        driver="580.95.05",
        is_open_driver=True,
        has_verbs=True,
        cuda=CudaDriver(version=13000, devices=("NVIDIA H100",) * 8),
        nccl=Nccl(version=22705, path="/lib/libnccl.so.2"),
        nodes=8,
        tool=True,
    ),
    rdma=(port("mlx5_0"), port("mlx5_1")),
    network=(ETHERNET, msgspec.structs.replace(ETHERNET, name="docker0", kind="bridge"), LOOPBACK),
    limits=msgspec.structs.replace(WELL.limits, locked_bytes=Limit()),
)
PCIE = with_(SWITCHED, "gpus", links=(*pairs("PIX", 2), GpuLink(first=0, second=2, kind="SYS", p2p="OK")))


def gpus(**changes: object) -> Facts:
    return with_(SWITCHED, "gpus", **changes)


def variables(facts: Facts, **changes: str) -> Facts:
    return with_(facts, "surroundings", variables=changes)


def chosen(facts: Facts) -> dict[str, str]:
    return {label: text for label, text in choices(facts)}


def test_everything_that_nccl_can_have() -> None:
    told = [finding for finding in advise(SWITCHED) if finding.subject in ("gpus", "nccl")]
    assert [finding.text for finding in told] == ["NCCL 2.27.5 can be loaded"]
    assert choices(SWITCHED) == (
        ("between GPUs", "NVLink between all"),
        ("other hosts", "InfiniBand by mlx5_0 (400 Gb/sec (4X NDR)), mlx5_1 (400 Gb/sec (4X NDR))"),
        ("GPUDirect", "GPU 0, 1, 2, 3 by mlx5_0; GPU 4, 5, 6, 7 by mlx5_1"),
        ("interfaces", "eth0 (NCCL_SOCKET_IFNAME chooses others)"),
    )


def test_links_of_eight_gpus_as_text() -> None:
    lines = dict(describe(SWITCHED))["gpus"]
    assert lines[0] == "0: NVIDIA H100, 81559 MiB, NUMA node 0"
    assert "driver 580.95.05, CUDA 13.0" in lines
    assert "NCCL 2.27.5, /lib/libnccl.so.2" in lines
    assert "links: NV18 (NVLink) between all" in lines
    assert "adapters: PXB (several PCIe switches) between 0-mlx5_0 1-mlx5_0 2-mlx5_0 3-mlx5_0 4-mlx5_1 5-mlx5_1" in (
        line.rpartition(" 6-")[0] for line in lines
    )
    assert "NVSwitches: 4" in lines


def test_machine_without_gpu_has_one_line_and_no_advice_about_nccl() -> None:
    assert dict(describe(WELL))["gpus"] == ["none"]
    assert choices(WELL) == ()
    assert not {"gpus", "nccl", "rdma"} & {finding.subject for finding in advise(WELL)}


@pytest.mark.parametrize(
    ("facts", "link", "name", "why"),
    [
        (PCIE, GpuLink(first=0, second=1, kind="PIX", p2p="OK"), "PCIe", ""),
        (PCIE, GpuLink(first=0, second=1, kind="PXB", p2p="OK"), "PCIe", ""),
        (PCIE, GpuLink(first=0, second=1, kind="PIX", p2p="CNS"), "shared memory", "chipset"),
        (PCIE, GpuLink(first=0, second=1, kind="PIX", p2p="new"), "shared memory", "new"),
        (PCIE, GpuLink(first=0, second=1, kind="PHB", p2p="OK"), "shared memory", "farther apart"),
        (PCIE, GpuLink(first=0, second=1, kind="NODE"), "shared memory", "farther apart"),
        (PCIE, GpuLink(first=0, second=1, kind="unknown"), "shared memory", "farther apart"),
        (variables(PCIE, NCCL_P2P_LEVEL="SYS"), GpuLink(first=0, second=1, kind="SYS"), "PCIe", ""),
        (variables(PCIE, NCCL_P2P_LEVEL="3"), GpuLink(first=0, second=1, kind="NODE"), "PCIe", ""),
        (variables(PCIE, NCCL_P2P_LEVEL="NVL"), GpuLink(first=0, second=1, kind="PIX"), "shared memory", "NVL"),
        (variables(PCIE, NCCL_P2P_DISABLE="1"), GpuLink(first=0, second=1, kind="NV4"), "shared memory", "is set"),
        (with_(PCIE, "processor", model="AMD EPYC"), GpuLink(first=0, second=1, kind="SYS"), "shared memory", "apart"),
        (
            with_(with_(PCIE, "processor", model="AMD EPYC"), "gpus", devices=SWITCHED.gpus.devices[:2]),
            GpuLink(first=0, second=1, kind="SYS"),
            "PCIe",
            "",
        ),
    ],
)
def test_way_between_two_gpus(facts: Facts, link: GpuLink, name: str, why: str) -> None:
    way = between_gpus(facts, link)
    assert way.name.startswith(name) and why in way.why and bool(why) == bool(way.why)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (msgspec.structs.replace(SWITCHED, rdma=()), "TCP over eth0: there is no RDMA adapter"),
        (msgspec.structs.replace(SWITCHED, rdma=(port("mlx5_0", "down"),)), "no port is active"),
        (msgspec.structs.replace(SWITCHED, rdma=(port("mlx5_0", is_open=False),)), "/dev/infiniband"),
        (gpus(has_verbs=False), "libibverbs"),
        (variables(SWITCHED, NCCL_IB_DISABLE="1"), "NCCL_IB_DISABLE"),
        (variables(SWITCHED, NCCL_IB_HCA="mlx4"), "NCCL_IB_HCA"),
        (variables(SWITCHED, NCCL_IB_HCA="^mlx5_0"), "InfiniBand by mlx5_1 (400"),
        (msgspec.structs.replace(SWITCHED, rdma=(port("mlx5_0", link_layer="Ethernet"),)), "RoCE by mlx5_0"),
    ],
)
def test_network_between_hosts(facts: Facts, words: str) -> None:
    assert words in chosen(facts)["other hosts"]


def test_gpu_direct_needs_the_kernel_and_a_near_adapter() -> None:
    assert chosen(gpus(is_open_driver=False))["GPUDirect"].startswith("no: ")
    assert gpu_direct(gpus(is_open_driver=False, has_peer_memory=True))[4] == ("mlx5_1",)
    far = gpus(adapters=tuple(AdapterLink(gpu=i, adapter="mlx5_0", kind="PHB") for i in range(8)))
    assert chosen(far)["GPUDirect"] == "not GPU 0, 1, 2, 3, 4, 5, 6, 7: no adapter behind the same switch"
    assert gpu_direct(variables(far, NCCL_NET_GDR_LEVEL="PHB"))[0] == ("mlx5_0",)


def test_interfaces_that_nccl_takes_by_itself() -> None:
    infiniband = msgspec.structs.replace(ETHERNET, name="ib0")
    down = msgspec.structs.replace(ETHERNET, name="eth9", carrier=False)

    def taken(*network: Interface, **given: str) -> tuple[str, ...]:
        return socket_interfaces(variables(msgspec.structs.replace(SWITCHED, network=network), **given))

    assert taken(ETHERNET, infiniband, LOOPBACK) == ("ib0",)
    assert taken(ETHERNET, down, LOOPBACK) == ("eth0",)
    assert taken(LOOPBACK) == ("lo",)
    assert taken(ETHERNET, infiniband, NCCL_SOCKET_IFNAME="=eth0") == ("eth0",)
    assert taken(ETHERNET, NCCL_SOCKET_IFNAME="eno") == ()


@pytest.mark.parametrize(
    ("wanted", "name", "is_match"),
    [("", "x", True), ("^", "x", True), ("^=eth0", "eth01", True), ("^=eth0", "eth0", False), ("=a,b", "b", True)],
)
def test_lists_in_variables_of_nccl(wanted: str, name: str, is_match: bool) -> None:
    assert matches(wanted, name) is is_match


@pytest.mark.parametrize(
    ("facts", "level", "words", "todo"),
    [
        (with_(WELL, "gpus", on_bus=2), "note", "driver is not loaded", "install NVIDIA's driver"),
        (with_(with_(WELL, "gpus", on_bus=2), "surroundings", container="docker"), "note", "not loaded", "--gpus all"),
        (gpus(cuda=CudaDriver(error="cuInit failed with error 999")), "problem", "error 999", "restart"),
        (gpus(cuda=CudaDriver(error="cuInit failed with error 802, 'x'")), "problem", "error 802", "fabricmanager"),
        (gpus(links=pairs("PIX", 8, "CNS")), "note", "no P2P between any GPUs", "PCIe ACS"),
        (gpus(nvlinks={0: 18, 1: 17}), "note", "active NVLinks: 17 to 18", "nvlink --status"),
        (
            gpus(cuda=CudaDriver(error="libcuda.so.1: cannot open shared object file: No such file or directory")),
            "problem",
            "libcuda.so.1",
            "--gpus all",
        ),
        (gpus(nccl=Nccl(error="x: cannot open shared object file")), "note", "not installed", "nvidia-nccl-cu13"),
        (
            gpus(nccl=Nccl(error="x: cannot open shared object file"), cuda=CudaDriver(version=12020)),
            "note",
            "not installed",
            "nvidia-nccl-cu12",
        ),
        (gpus(nccl=Nccl(error="invalid ELF header")), "note", "invalid ELF header", "FARANDOLE_NCCL_LIBRARY"),
        (gpus(nccl=Nccl(version=21805, path="/old")), "note", "2.18.5 is older than 2.19", "pip install"),
        (gpus(nccl=Nccl(version=22602)), "ok", "2.26.2", ""),
        (gpus(nccl=Nccl(version=22601)), "note", "older than 2.26.2", "pip install"),
        (gpus(devices=TWO_GPUS.devices), "note", "GPU 1 is in MIG mode", ""),
        (
            gpus(devices=(Gpu(index=0, name="NVIDIA A100"), Gpu(index=1, name="NVIDIA T4"))),
            "note",
            "GPUs of several kinds",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        ),
        (with_(GPU_HOST, "memory", shm_total=64 << 20), "note", "NCCL and torch's DataLoader", "--shm-size"),
        (msgspec.structs.replace(SWITCHED, rdma=(port("mlx5_7", "down"),)), "note", "mlx5_7 port 1 is down", "ibstat"),
        (msgspec.structs.replace(SWITCHED, rdma=(port("x", is_open=False),)), "note", "/dev/infiniband", "--device"),
        (gpus(has_verbs=False), "note", "libibverbs", "apt-get"),
        (gpus(is_open_driver=False), "note", "GPUDirect RDMA is off", "nvidia-peermem"),
        (
            with_(SWITCHED, "limits", locked_bytes=Limit(soft=65536, hard=65536)),
            "note",
            "lock 64 KiB",
            "ulimit -l unlimited",
        ),
        (GPU_HOST, "note", "host memory in this version", ""),
    ],
)
def test_problems_of_gpus_are_reported_with_the_next_step(facts: Facts, level: str, words: str, todo: str) -> None:
    found = [finding for finding in advise(facts) if words in finding.text]
    assert [finding.level for finding in found] == [level], advise(facts)
    assert todo in found[0].todo and bool(todo) == bool(found[0].todo)


@pytest.mark.parametrize(
    ("torch", "driver", "is_too_old"), [("13.0", 12080, True), ("12.8", 12020, False), ("12.8", 13000, False)]
)
def test_driver_that_is_too_old_for_torch(torch: str, driver: int, is_too_old: bool) -> None:
    facts = msgspec.structs.replace(
        gpus(cuda=CudaDriver(version=driver)), frameworks=(Framework(name="torch", version="2.13.0", cuda=torch),)
    )
    found = [finding.text for finding in advise(facts) if finding.level == "problem"]
    assert found == (["torch is built for CUDA 13.0, and driver 580.95.05 supports CUDA 12.8 only"] * is_too_old)


@pytest.mark.parametrize(
    ("row", "facts", "is_usable", "words", "gpu_tensors"),
    [
        (NativeBackend(name="nccl", found="NCCL 2.27.5"), SWITCHED, True, "NCCL 2.27.5; for tensors on GPUs", "nccl, "),
        (NativeBackend(name="nccl", found="x"), variables(SWITCHED, FARANDOLE_GPU="staged"), True, "x", "copied"),
        (NativeBackend(name="nccl", unusable="too old"), SWITCHED, False, "too old; GPU tensors travel", "copied"),
        (NativeBackend(name="nccl", absent="not built"), SWITCHED, False, "not built; GPU tensors travel", "copied"),
        (NativeBackend(name="nccl", unusable="a long story"), WELL, False, "there is no GPU on this machine", ""),
        (NativeBackend(name="nccl", absent="not built"), WELL, False, "not built", ""),
    ],
)
def test_row_of_nccl_among_backends(
    row: NativeBackend, facts: Facts, is_usable: bool, words: str, gpu_tensors: str
) -> None:
    facts = with_(facts, "software", backends=(msgspec.structs.replace(row, memory=("device",)),))
    (found,) = [each for each in backends(facts) if each.name == "nccl"]
    assert (found.usable, found.why.startswith(words)) == (is_usable, True)
    assert dict(taken(facts)).get("GPU tensors", "").startswith(gpu_tensors)
    assert ("GPU tensors" in dict(taken(facts))) == bool(gpu_tensors)


def test_workers_that_would_share_a_gpu() -> None:
    def notes(facts: Facts, here: int | None) -> list[str]:
        return [finding.text for finding in advise(facts, Intent(here=here)) if "would share" in finding.text]

    assert notes(SWITCHED, 8) == notes(SWITCHED, None) == notes(WELL, 64) == []
    (old,) = notes(SWITCHED, 9)
    assert old == "9 workers would share 8 GPUs: NCCL refuses two ranks on one GPU"
    (new,) = notes(gpus(nccl=Nccl(version=23007), visible="3"), 2)
    assert new.startswith("2 workers would share 1 GPU") and "NCCL_MULTI_RANK_GPU_ENABLE=1" in new
