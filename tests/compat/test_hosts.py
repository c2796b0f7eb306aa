"""Hosts: how they are written, which of them are this machine, and who gets which place."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from farandole.compat.runner import env, launch, network
from farandole.compat.runner.hosts import (
    HostInfo,
    SlotInfo,
    get_host_assignments,
    parse_host_files,
    parse_hosts,
    parse_hosts_and_slots,
)
from farandole.control.launcher.job.elastic import Elastic


def test_hosts() -> None:
    assert parse_hosts("h1:2,node-2.cluster_a:4") == [HostInfo("h1", 2), HostInfo("node-2.cluster_a", 4)]
    assert parse_hosts_and_slots("h1:2,10.0.0.1:4") == (["h1", "10.0.0.1"], {"h1": 2, "10.0.0.1": 4})


@pytest.mark.parametrize("wrong", ["", "h1", "h1:", ":2", "h1:two", "h1:-1", "h1:2,", "h 1:2", "[::1]", "h1:2;ls:1"])
def test_hosts_in_another_form_are_refused(wrong: str) -> None:
    words = r"Invalid host input, please make sure it has format as : worker-0:2,worker-1:2\."
    with pytest.raises(ValueError, match=words):
        parse_hosts(wrong)


def test_host_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(
        "# my hosts\n172.31.32.7 slots=8\n\n  worker-1   slots = 4  # the big one\n\t\nworker-2 max_slots=9 slots=2"
    )
    assert parse_host_files(str(file)) == "172.31.32.7:8,worker-1:4,worker-2:2"


@pytest.mark.parametrize("line", ["worker-0 slots=", "slots=2", "worker-0 four", "worker-0:two"])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "hosts").write_text(f"# comment\n{line}\n")
    with pytest.raises(ValueError, match="hosts, line 2: "):
        parse_host_files(str(tmp_path / "hosts"))


@pytest.mark.parametrize("line", ["worker-0", "worker-0 max_slots=2"])
def test_a_host_without_slots_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "hosts").write_text(f"{line}\n")
    with pytest.raises(ValueError, match="worker-0 has no number of slots"):
        parse_host_files(str(tmp_path / "hosts"))


def test_an_empty_or_missing_host_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nobody\n\n")
    with pytest.raises(ValueError, match="lists no hosts"):
        parse_host_files(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="cannot be read"):
        parse_host_files(str(tmp_path / "nowhere"))


def test_places() -> None:
    hosts = parse_hosts("a:2,b:2")
    size = {"size": 4, "local_size": 2, "cross_size": 2}
    assert get_host_assignments(hosts, 4) == [
        SlotInfo("a", rank=0, local_rank=0, cross_rank=0, **size),
        SlotInfo("a", rank=1, local_rank=1, cross_rank=0, **size),
        SlotInfo("b", rank=2, local_rank=0, cross_rank=1, **size),
        SlotInfo("b", rank=3, local_rank=1, cross_rank=1, **size),
    ]
    # Without a maximum every slot is used, as Horovod's users of this function expect; horovodrun gives one.
    assert len(get_host_assignments(hosts, 1)) == 4
    assert [(slot.hostname, slot.size) for slot in get_host_assignments(hosts, 1, 3)] == [("a", 3), ("a", 3), ("b", 3)]


def test_places_on_hosts_of_different_size() -> None:
    assert get_host_assignments(parse_hosts("a:1,b:2"), 3) == [
        SlotInfo("a", rank=0, local_rank=0, cross_rank=0, size=3, local_size=1, cross_size=2),
        SlotInfo("b", rank=1, local_rank=0, cross_rank=1, size=3, local_size=2, cross_size=2),
        SlotInfo("b", rank=2, local_rank=1, cross_rank=0, size=3, local_size=2, cross_size=1),
    ]
    assert get_host_assignments(parse_hosts("a:1"), 1)[0].to_response_string() == "0,1,0,1,0,1"


def test_too_few_slots() -> None:
    words = r"Requested more processes \(5\) than there are available slots \(4\)"
    with pytest.raises(ValueError, match=words):
        get_host_assignments(parse_hosts("a:2,b:2"), 5)


def test_names_and_addresses_of_this_machine_are_local() -> None:
    mine = ["localhost", "127.0.0.1", "127.1.2.3", socket.gethostname(), *network.get_local_host_addresses()]
    assert "127.0.0.1" in network.get_local_host_addresses()
    assert network.filter_local_addresses(mine) == []
    # 192.0.2.0/24 is for documentation, and .invalid never resolves.
    assert network.filter_local_addresses(["localhost", "192.0.2.1", "x.invalid"]) == ["192.0.2.1", "x.invalid"]
    assert network.resolve_host_address("x.invalid") is None
    assert "lo" in network.get_local_interfaces("127.0.0.1")
    assert network.get_local_interfaces("192.0.2.1") == []


# --- what a job is made of --------------------------------------------------------------------------------------------


def job(text: str) -> launch.Job:
    return launch.prepare(launch.parse_args([*text.split(), "true"]))


def test_where_workers_go(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=1\n127.0.0.1 slots=3\n")
    for flags, expected in [
        ("-np 3", [("localhost", 3)]),
        ("-np 3 -H localhost:4", [("localhost", 4)]),
        ("-np 2 -H localhost:1,127.0.0.1:1", [("localhost", 1), ("127.0.0.1", 1)]),
        (f"-np 4 -hostfile {tmp_path / 'hosts'}", [("localhost", 1), ("127.0.0.1", 3)]),
    ]:
        assert [(host.name, host.slots) for host in job(flags).spec.hosts] == expected


def test_other_hosts_and_how_they_are_reached(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    spec = job(f"-np 2 -H 192.0.2.1:1,x.invalid:2 -p 2222 -i {tmp_path / 'key'}").spec
    assert [(host.name, host.slots) for host in spec.hosts] == [("192.0.2.1", 1), ("x.invalid", 2)]
    assert (spec.ssh.program, spec.ssh.port, spec.ssh.identity) == ("ssh", 2222, str(tmp_path / "key"))


def test_kubeflows_way_to_other_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh")
    assert job("-np 1 -H worker-0:1").spec.ssh.program == "/etc/mpi/kubexec.sh"
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", "rsh")
    assert job("-np 1 -H worker-0:1").spec.ssh.program == "ssh"


@pytest.mark.parametrize(
    ("flags", "elastic"),
    [
        ("--max-np 4 --slots 2", None),
        ("--min-np 1", Elastic(1, None, fills_at_once=True)),
        ("--min-num-proc 1 --max-num-proc 4 -H a:1", Elastic(1, 4, fills_at_once=True)),
        ("--host-discovery-script find.sh", Elastic(2, None, discovery="script:find.sh", fills_at_once=True)),
        (
            "--min-np 2 --max-np 8 --host-discovery-script ./find.sh --slots-per-host 3 --elastic-timeout 9"
            " --reset-limit 1 --blacklist-cooldown-range 10 100",
            Elastic(2, 8, "script:./find.sh", 3, 9.0, 1, (10.0, 100.0), fills_at_once=True),
        ),
    ],
)
def test_elastic_training(flags: str, elastic: Elastic | None) -> None:
    hosts = job(f"-np 2 {flags}").spec.hosts
    assert job(f"-np 2 {flags}").spec.elastic == elastic
    assert launch.is_elastic(launch.parse_args(["-np", "2", *flags.split()])) is (elastic is not None)
    if elastic is not None and elastic.discovery:
        assert hosts == ()  # The script's word counts, from the first one on.
    else:
        assert [host.name for host in hosts] == ["a" if "-H" in flags else "localhost"]


def test_elastic_flags_of_a_fixed_job_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    job("-np 2 --max-np 4 --reset-limit 1")
    told = "note: --max-np, --reset-limit: no effect without --min-np or --host-discovery-script\n"
    assert capsys.readouterr().err == told
    job("-np 2 --max-np 4 --reset-limit 1 --min-np 1")
    assert capsys.readouterr().err == ""


def test_the_time_to_wait_for_enough_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def timeout(flags: str = "") -> float:
        elastic = job(f"-np 1 --min-np 1 {flags}").spec.elastic
        assert elastic is not None
        return elastic.timeout

    assert timeout() == 600
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "30")
    assert timeout() == 30 and timeout("--elastic-timeout 5") == 5
    monkeypatch.setenv("FARANDOLE_ELASTIC_TIMEOUT", "20")
    assert timeout() == 20
    monkeypatch.setenv("FARANDOLE_ELASTIC_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="FARANDOLE_ELASTIC_TIMEOUT=soon is not a number of seconds"):
        timeout()


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def interfaces(flags: str) -> tuple[str, str | None]:
        chosen = dict(export.split("=", 1) for export in job(f"-np 1 {flags}").spec.exports)
        return chosen["HOROVOD_GLOO_IFACE"], chosen.get("NCCL_SOCKET_IFNAME")

    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    assert interfaces("") == ("lo", "lo")
    assert interfaces("--network-interfaces eth1,eth0") == ("eth0", "eth0,eth1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "mine")
    assert interfaces("") == ("lo", None)
    assert interfaces("--network-interfaces eth0") == ("eth0", "eth0")
    assert "NCCL_IB_DISABLE=1" in job("-np 1 --tcp").spec.exports


def test_settings_reach_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "44")
    assert job("-np 1").spec.start_timeout == 44
    spec = job("-np 1 --start-timeout 5 --output-filename logs -prefix-timestamp --fusion-threshold-mb 2").spec
    assert (spec.start_timeout, spec.output_dir, spec.timestamps) == (5, Path("logs"), True)
    assert spec.prefixes_in_files
    both = {"HOROVOD_FUSION_THRESHOLD=2097152", "FARANDOLE_FUSION_THRESHOLD=2097152"}
    assert both <= set(spec.exports)


def test_no_command() -> None:
    for arguments in (["-np", "2"], ["-np", "2", "--"]):
        with pytest.raises(ValueError, match="no command to run"):
            launch.prepare(launch.parse_args(arguments))


# --- rank and size as a launcher has set them ------------------------------------------------------------------------

PAIRS = [
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
]


@pytest.mark.parametrize(("rank", "size"), PAIRS)
def test_rank_and_size(rank: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in PAIRS:
        for name in pair:
            monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv(rank, "3")
    with pytest.raises(RuntimeError, match=f"{rank} is set, but {size} is not"):
        env.get_env_rank_and_size()
    monkeypatch.setenv(size, "4")
    assert env.get_env_rank_and_size() == (3, 4)
    monkeypatch.delenv(rank)
    with pytest.raises(RuntimeError, match=f"{size} is set, but {rank} is not"):
        env.get_env_rank_and_size()


def test_variables_that_are_passed_on_to_other_machines() -> None:
    kept_back = ["BASH_FUNC_module%%", "OLDPWD", "CUDA_VISIBLE_DEVICES", "NVIDIA_CUDA_VISIBLE_DEVICES"]
    assert not any(map(env.is_exportable, [*kept_back, "_HOROVOD_SECRET_KEY"]))
    assert all(map(env.is_exportable, ["PATH", "OLDPWDS", "HOROVOD_RANK"]))
