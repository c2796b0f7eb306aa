"""`farandole doctor --nccl-log`: what NCCL's own log says. The lines have the forms that NCCL 2.18 to 2.30 print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farandole.control.cli.main import main
from farandole.control.launcher.doctor.nccl_log import describe, findings, kind_of, parse

# Two hosts with two GPUs each; the launcher put a rank before each line.
TWO_HOSTS = """\
[0] h1:100:100 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
[0] h1:100:100 [0] NCCL INFO cudaDriverVersion 12040
[0] NCCL version 2.27.5+cuda12.4
[0] h1:100:110 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
[0] h1:100:110 [0] NCCL INFO Using network IB
[0] h1:100:110 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 18000 commId 0x22 - Init START
[1] h1:101:111 [1] NCCL INFO ncclCommInitRank comm 0x56 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 2a000 commId 0x22 - Init START
[2] h2:100:110 [0] NCCL INFO ncclCommInitRank comm 0x57 rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 18000 commId 0x22 - Init START
[3] h2:101:111 [1] NCCL INFO ncclCommInitRank comm 0x58 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 2a000 commId 0x22 - Init START
[0] h1:100:110 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)
[0] h1:100:110 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2
[0] h1:100:110 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
[0] h1:100:110 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
[1] h1:101:111 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1(0)/GDRDMA
[2] h2:100:110 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA(PCI)/Shared
[2] h2:100:110 [0] NCCL INFO Channel 00/0 : 2[0] -> 3[1] via P2P/CUMEM/read
[0] h1:100:110 [0] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer
[0] h1:100:110 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 18000 commId 0x22 - Init COMPLETE
[1] h1:101:111 [1] NCCL INFO ncclCommInitRank comm 0x56 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 2a000 commId 0x22 - Init COMPLETE
[2] h2:100:110 [0] NCCL INFO ncclCommInitRank comm 0x57 rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 18000 commId 0x22 - Init COMPLETE
[3] h2:101:111 [1] NCCL INFO ncclCommInitRank comm 0x58 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 2a000 commId 0x22 - Init COMPLETE
epoch 1: loss 0.5
"""  # noqa: E501

# An older NCCL in a container without RDMA and P2P.
SOCKETS = """\
box:7:9 [0] NCCL INFO Failed to open libibverbs.so[.1]
box:7:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.45.223.193<0>
box:7:9 [0] NCCL INFO Using network Socket
NCCL version 2.18.5+cuda12.2
box:7:9 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVL
box:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 3 cudaDev 0 busId 31000 commId 0x9c - Init START
box:8:9 [1] NCCL INFO comm 0x1 rank 1 nranks 3 cudaDev 1 busId 41000 commId 0x9c - Init START
box:7:9 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.
box:7:9 [0] NCCL INFO Channel 00 : 0[31000] -> 1[41000] via SHM/direct/direct
box:8:9 [1] NCCL INFO Channel 00 : 1[41000] -> 0[31000] [send] via NET/Socket/0
box:7:9 [0] NCCL INFO comm 0x1 rank 0 nranks 3 cudaDev 0 busId 31000 commId 0x9c - Init COMPLETE
[2026-03-12 14:17:56] box:7:9 [0] enqueue.cc:1694 NCCL WARN Cuda failure 'named symbol not found'
"""  # noqa: E501


def test_ways_of_two_hosts() -> None:
    assert describe(parse(TWO_HOSTS.splitlines())) == [
        "NCCL 2.27.5",
        "network between hosts: IB",
        "",
        "communicator 0x22: 4 ranks, 4 of them in this log, on 2 hosts",
        "  within a host: directly between GPUs (P2P/CUMEM): 0-1 2-3",
        "  between hosts: by RDMA, with GPUDirect (NET/IB): 1-2",
        "  sums in the NVSwitch (NVLS): 16 channels",
    ]
    assert findings(parse(TWO_HOSTS.splitlines())) == []


def test_fallbacks_of_nccl_are_shown_with_the_reason() -> None:
    log = parse(SOCKETS.splitlines())
    assert describe(log) == [
        "NCCL 2.18.5",
        "network between hosts: Socket",
        "",
        "communicator 0x9c: 3 ranks, 2 of them in this log, on 1 host",
        "  within a host: through shared memory of the host (SHM/direct): 0-1",
        "  within a host: by TCP (NET/Socket): 1-0",
        "",
        "variables: NCCL_P2P_LEVEL=NVL",
    ]
    found = [(finding.level, finding.text) for finding in findings(log)]
    assert found == [
        ("problem", "NCCL warns: Cuda failure 'named symbol not found' (box)"),
        ("problem", "the initialization of communicator 0x9c did not end on ranks 1"),
        ("note", "libibverbs could not be opened, so RDMA was not used (box)"),
        ("note", "the driver allows no P2P between some GPUs, so their data pass through the host's memory (box)"),
        ("note", "ranks of one host reach each other through the network only: 1-0"),
    ]


def test_communicators_that_were_split_have_no_id() -> None:
    line = "h1:{0}:9 [0] NCCL INFO ncclCommSplit comm 0xa{0} rank {0} nranks 2 cudaDev 0 nvmlDev 0 busId 31000 "
    start = line + "parent 0xb splitCount 1 color {1} key 0- Init START"
    channel = "h1:{0}:9 [0] NCCL INFO Channel 00/0 : {0}[0] -> 1[1] via P2P/CUMEM"
    end = line + "commId 0x0 - Init COMPLETE"
    log = parse([each.format(0, 7) for each in (start, channel, end)] + [start.format(1, 7), end.format(1, 7)])
    assert findings(log) == []
    assert describe(log) == [
        "",
        "communicator of split 1, color 7: 2 ranks, 2 of them in this log, on 1 host",
        "  within a host: directly between GPUs (P2P/CUMEM): 0-1",
    ]


@pytest.mark.parametrize(
    ("line", "level", "words"),
    [
        ("NCCL INFO NET/IB : No device found.", "note", "no usable RDMA port"),
        ("NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "note", "GPUDirect RDMA was off"),
        ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "problem", "the same GPU"),
        ("NCCL WARN P2P is disabled between NVLINK connected GPUs 5 and 4. This should", "problem", "fault of the"),
        (
            "misc/shmutils.cc:60 NCCL WARN failed to extend /dev/shm/x: No space left on device",
            "problem",
            "ran out",
        ),
        ("NCCL WARN Call to ibv_reg_mr_iova2 failed", "problem", "RDMA adapter got no memory"),
        ("NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory", "problem", "got no memory"),
    ],
)
def test_reasons_that_nccl_gives(line: str, level: str, words: str) -> None:
    (found,) = findings(parse([f"h1:1:2 [0] {line}\n"] * 2))
    assert found.level == level and words in found.text and found.todo


def test_network_of_sockets_needs_no_gpu_direct() -> None:
    assert findings(parse(["h1:1:2 [0] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'"])) == []


def test_connections_without_a_beginning_are_told_apart_by_their_kind() -> None:
    lines = [
        "h1:1:2 [3] NCCL INFO Ring 00 : 3[3] -> 1[1] via P2P/IPC",
        "h1:1:2 [3] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Libfabric/0",
    ]
    assert describe(parse(lines)) == [
        "",
        "connections whose communicator is not in the log",
        "  within a host: directly between GPUs (P2P/IPC): 3-1",
        "  between hosts: by a plugin's network (NET/Libfabric): 1-0",
    ]


def test_many_connections_and_warnings_are_cut_short() -> None:
    lines = [f"h1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> {rank}[{rank}] via P2P/IPC" for rank in range(1, 20)]
    lines += [f"h1:1:2 [0] NCCL WARN number {number}" for number in range(12)]
    log = parse(lines)
    assert describe(log)[-1].endswith("0-12 and 7 more")
    assert findings(log)[-1].text == "NCCL warns of 2 more things, which are in the log"


def test_different_versions_are_a_problem() -> None:
    found = findings(parse(["NCCL version 2.27.5+cuda12.4", "NCCL version 2.28.9+cuda12.4"]))
    assert [finding.level for finding in found] == ["problem"] and "2.27.5, 2.28.9" in found[0].text


@pytest.mark.parametrize(
    ("way", "meaning"),
    [
        ("P2P/direct pointer", "directly between GPUs"),
        ("SHM/direct/direct", "through shared memory of the host"),
        ("new", "by new"),
    ],
)
def test_meaning_of_ways(way: str, meaning: str) -> None:
    assert kind_of(way) == meaning


def test_command_reads_logs_of_several_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "0", tmp_path / "1"
    first.write_text(TWO_HOSTS)
    second.write_bytes(b"\xff\n" + SOCKETS.encode())
    assert main(["doctor", "--nccl-log", str(first)]) == 0
    assert capsys.readouterr().out.endswith("16 channels\n\nno problem found\n")
    assert main(["doctor", "--nccl-log", str(first), str(second)]) == 1
    assert "different versions of NCCL" in capsys.readouterr().out
    assert main(["doctor", "--nccl-log", str(first), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"log", "findings"}


def test_command_refuses_files_without_lines_of_nccl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0").write_text("epoch 1\n")
    for name, words in (("0", "no lines of NCCL"), ("1", "cannot be read: No such file")):
        assert main(["doctor", "--nccl-log", str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert words in told and "hint: " in told
