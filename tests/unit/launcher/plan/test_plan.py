"""The plan, compared as whole text, and errors before there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from farandole.control.agent.command_check import python_script
from farandole.control.agent.gpus import visible_gpus
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec, check_command, read_exports
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.job.worker_settings import with_start_timeout
from farandole.control.launcher.plan.dry_run import as_json, render
from farandole.control.launcher.plan.environment import inherited_elsewhere
from farandole.control.launcher.plan.make import make_plan
from farandole.control.launcher.plan.model import Identity, Site
from farandole.errors import SpecError

BIG = Machine("earth", cores=8, gpus=0, directory="/home/me", environment={"PATH": "/usr/bin", "TOKEN": "t"})
SMALL = Machine("moon", cores=2, gpus=0, directory="/home/me", environment={"OMP_NUM_THREADS": "3"})

TWO_WORKERS = """\
2 workers on 1 host

command        python train.py --name 'a b'
directory      /home/me
start timeout  30 s
output         console
note           OMP_NUM_THREADS was not set; 8 cores for 2 workers make it 4

every worker gets the launcher's environment, and
  FARANDOLE_JOB=<chosen at start>
  FARANDOLE_SECRET=***
  FARANDOLE_START_TIMEOUT=30
  HOROVOD_CONTROLLER=gloo
  HOROVOD_CPU_OPERATIONS=gloo
  MASTER_ADDR=127.0.0.1
  MASTER_PORT=<chosen at start>
  PYTHONUNBUFFERED=1

host earth (8 cores), started by python -m farandole.control.agent
  FARANDOLE_ROSTER=127.0.0.1:<chosen at start>
  FARANDOLE_LISTEN=127.0.0.1
  HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1
  HOROVOD_GLOO_RENDEZVOUS_PORT=<chosen at start>
  OMP_NUM_THREADS=4
  rank 0
    FARANDOLE_RANK=0 FARANDOLE_SIZE=2 FARANDOLE_LOCAL_RANK=0 FARANDOLE_LOCAL_SIZE=2 FARANDOLE_CROSS_RANK=0 \
FARANDOLE_CROSS_SIZE=1 FARANDOLE_HOSTNAME=earth
    HOROVOD_RANK=0 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=0 \
HOROVOD_CROSS_SIZE=1 HOROVOD_HOSTNAME=earth
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2
  rank 1
    FARANDOLE_RANK=1 FARANDOLE_SIZE=2 FARANDOLE_LOCAL_RANK=1 FARANDOLE_LOCAL_SIZE=2 FARANDOLE_CROSS_RANK=0 \
FARANDOLE_CROSS_SIZE=1 FARANDOLE_HOSTNAME=earth
    HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=0 \
HOROVOD_CROSS_SIZE=1 HOROVOD_HOSTNAME=earth
    RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2
"""

EVERY_OPTION = """\
1 worker on 1 host

command        ./train
directory      /home/me
start timeout  90 s
output         console and logs/rank.*/

every worker gets the launcher's environment, and
  FARANDOLE_JOB=job-7
  FARANDOLE_SECRET=***
  FARANDOLE_START_TIMEOUT=90
  FARANDOLE_FUSION_THRESHOLD=33554432
  FARANDOLE_AUTOTUNE=1
  FARANDOLE_AUTOTUNE_LOG=/home/me/out/log.csv
  FARANDOLE_TUNING=/home/me/tuned.json
  FARANDOLE_TRANSPORT=tcp
  FARANDOLE_STALL_WARNING_SECONDS=0.5
  FARANDOLE_STALL_SHUTDOWN_SECONDS=30
  FARANDOLE_TIMELINE=/home/me/out/timeline.json
  FARANDOLE_TIMELINE_MARK_CYCLES=1
  FARANDOLE_CHECKPOINT_DIR=/home/me/out/checkpoints
  FARANDOLE_RESUME=auto
  FARANDOLE_LOG_LEVEL=info
  HOROVOD_CONTROLLER=gloo
  HOROVOD_CPU_OPERATIONS=gloo
  MASTER_ADDR=127.0.0.1
  MASTER_PORT=4712
  PYTHONUNBUFFERED=1
  TOKEN=t
  A='b c'

host earth (8 cores), started by python -m farandole.control.agent
  FARANDOLE_ROSTER=127.0.0.1:4711
  FARANDOLE_LISTEN=127.0.0.1
  HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1
  HOROVOD_GLOO_RENDEZVOUS_PORT=4711
  rank 0
    FARANDOLE_RANK=0 FARANDOLE_SIZE=1 FARANDOLE_LOCAL_RANK=0 FARANDOLE_LOCAL_SIZE=1 FARANDOLE_CROSS_RANK=0 \
FARANDOLE_CROSS_SIZE=1 FARANDOLE_HOSTNAME=earth
    HOROVOD_RANK=0 HOROVOD_SIZE=1 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=1 HOROVOD_CROSS_RANK=0 \
HOROVOD_CROSS_SIZE=1 HOROVOD_HOSTNAME=earth
    RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
"""


TWO_HOSTS = """\
3 workers on 2 hosts

command        python train.py
directory      /home/me
start timeout  30 s
output         console
note           OMP_NUM_THREADS was not set; 8 cores for 2 workers make it 4
note           OMP_NUM_THREADS was not set; 2 cores for 1 worker make it 2

every worker gets the launcher's environment, and
  FARANDOLE_JOB=job-7
  FARANDOLE_SECRET=***
  FARANDOLE_START_TIMEOUT=30
  HOROVOD_CONTROLLER=gloo
  HOROVOD_CPU_OPERATIONS=gloo
  MASTER_ADDR=10.1.0.1
  MASTER_PORT=4712
  PYTHONUNBUFFERED=1
  TOKEN=***

host earth (8 cores), started by python -m farandole.control.agent
  network eth0: 10.1.0.1
  FARANDOLE_ROSTER=127.0.0.1:4711
  HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1
  HOROVOD_GLOO_RENDEZVOUS_PORT=4711
  OMP_NUM_THREADS=4
  rank 0
    FARANDOLE_RANK=0 FARANDOLE_SIZE=3 FARANDOLE_LOCAL_RANK=0 FARANDOLE_LOCAL_SIZE=2 FARANDOLE_CROSS_RANK=0 \
FARANDOLE_CROSS_SIZE=2 FARANDOLE_HOSTNAME=earth FARANDOLE_LISTEN=10.1.0.1
    HOROVOD_RANK=0 HOROVOD_SIZE=3 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=0 \
HOROVOD_CROSS_SIZE=2 HOROVOD_HOSTNAME=earth
    RANK=0 WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2
  rank 1
    FARANDOLE_RANK=1 FARANDOLE_SIZE=3 FARANDOLE_LOCAL_RANK=1 FARANDOLE_LOCAL_SIZE=2 FARANDOLE_CROSS_RANK=0 \
FARANDOLE_CROSS_SIZE=1 FARANDOLE_HOSTNAME=earth FARANDOLE_LISTEN=10.1.0.1
    HOROVOD_RANK=1 HOROVOD_SIZE=3 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2 HOROVOD_CROSS_RANK=0 \
HOROVOD_CROSS_SIZE=1 HOROVOD_HOSTNAME=earth
    RANK=1 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2

host moon (2 cores), started by ssh -o BatchMode=yes -o ConnectTimeout=10 -T me@moon 'cd / && exec /py/bin/python \
-m farandole.control.agent'
  directory /cache/me
  network fast0: 10.2.0.2 fd00::2
  network mgmt0: 10.1.0.2
  FARANDOLE_ROSTER=127.0.0.1:9
  HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1
  HOROVOD_GLOO_RENDEZVOUS_PORT=9
  OMP_NUM_THREADS=2
  PATH=/py/bin:/usr/bin
  rank 2
    FARANDOLE_RANK=2 FARANDOLE_SIZE=3 FARANDOLE_LOCAL_RANK=0 FARANDOLE_LOCAL_SIZE=1 FARANDOLE_CROSS_RANK=1 \
FARANDOLE_CROSS_SIZE=2 FARANDOLE_HOSTNAME=moon FARANDOLE_LISTEN=10.2.0.2,fd00::2,10.1.0.2
    HOROVOD_RANK=2 HOROVOD_SIZE=3 HOROVOD_LOCAL_RANK=0 HOROVOD_LOCAL_SIZE=1 HOROVOD_CROSS_RANK=1 \
HOROVOD_CROSS_SIZE=2 HOROVOD_HOSTNAME=moon
    RANK=2 WORLD_SIZE=3 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
"""


def test_plan_of_two_hosts() -> None:
    hosts = (Host("earth", 2), Host("me@moon", 4, "/py/bin/python"))
    spec = LaunchSpec(("python", "train.py"), 3, hosts=hosts, private=(("TOKEN", "hidden"),))
    sites = {
        "earth": Site(cores=8, roster="127.0.0.1:4711", networks=(("eth0", ("10.1.0.1",)),)),
        "moon": Site(
            local=False,
            cores=2,
            roster="127.0.0.1:9",
            networks=(("fast0", ("10.2.0.2", "fd00::2")), ("mgmt0", ("10.1.0.2",))),
            directory="/cache/me",
        ),
    }
    plan = make_plan(spec, BIG, Identity("job-7", "10.1.0.1:4712", "c0ffee"), sites)
    assert render(plan) == TWO_HOSTS
    assert plan.environment["TOKEN"] == "hidden"
    whole = json.loads(as_json(plan))
    assert whole["hosts"][1]["workers"][0]["rank"] == 2
    assert "hidden" not in as_json(plan) and "c0ffee" not in as_json(plan)


def test_host_that_dials_is_started_by_no_command() -> None:
    spec = LaunchSpec(("python", "train.py"), 1, hosts=(Host("task-0", 1),), dialed=DialedHosts())
    plan = make_plan(spec, BIG, Identity(), {"task-0": Site(local=False, cores=4)})
    assert "\nhost task-0 (4 cores), which dials this launcher\n" in render(plan)


@pytest.mark.parametrize("elastic", [None, Elastic(4, None)], ids=["fixed size", "elastic"])
def test_plan_shows_from_which_host_each_agent_is_started(elastic: Elastic | None) -> None:
    hosts = (Host("earth", 1), *(Host(f"h{number}", 1) for number in range(1, 5)))
    spec = LaunchSpec(("python", "train.py"), 5, hosts=hosts, ssh=SshOptions(fanout=2), elastic=elastic)
    plan = make_plan(spec, BIG, Identity(), {host.name: Site(local=host.name == "earth", cores=4) for host in hosts})
    tree = ["", "", "h1", "", "h3"] if elastic is None else [""] * 5
    assert [host.started_from for host in plan.hosts] == tree
    assert [each["started_from"] for each in json.loads(as_json(plan))["hosts"]] == [each or None for each in tree]
    shown = "\nhost h2 (4 cores), started from h1 by ssh -o ControlPath=none -o BatchMode=yes "
    assert (shown in render(plan)) == (elastic is None)
    assert "\nhost h3 (4 cores), started by ssh -o BatchMode=yes " in render(plan)


def test_several_networks_are_used_in_turn_when_they_are_named() -> None:
    networks = (("a0", ("10.1.0.1",)), ("b0", ("10.2.0.1",)))
    sites = {"moon": Site(local=False, cores=4, networks=networks)}

    def listened(*named: str) -> list[str]:
        spec = LaunchSpec(("x",), 3, hosts=(Host("moon", 3),), network=named)
        workers = make_plan(spec, BIG, Identity(), sites).hosts[0].workers
        return [worker.environment["FARANDOLE_LISTEN"] for worker in workers]

    assert listened() == ["10.1.0.1,10.2.0.1"] * 3
    assert listened("a0", "b0") == ["10.1.0.1,10.2.0.1", "10.2.0.1,10.1.0.1", "10.1.0.1,10.2.0.1"]


def test_environment_of_other_machines() -> None:
    ours = {
        "HOME": "/home/me",
        "SSH_AUTH_SOCK": "/x",
        "XDG_RUNTIME_DIR": "/y",
        "PATH": "/bin",
        "TOKEN": "t",
        "TMP": "/z",
    }
    assert inherited_elsewhere(ours) == {"PATH": "/bin", "TOKEN": "t"}


def test_plan_of_two_workers() -> None:
    spec = LaunchSpec(("python", "train.py", "--name", "a b"), 2)
    assert render(make_plan(spec, BIG, Identity())) == TWO_WORKERS


def test_plan_with_every_option_hides_the_secret() -> None:
    spec = LaunchSpec(
        ("./train",),
        1,
        settings={
            "start_timeout": 90.0,
            "fusion_threshold": 32 << 20,
            "autotune": True,
            "autotune_log": "out/log.csv",
            "tuning": "tuned.json",
            "transport": "tcp",
            "log_level": "info",
            "timeline": "out/timeline.json",
            "checkpoint_dir": "out/checkpoints",
            "resume": "auto",
            "timeline_mark_cycles": True,
            "stall_warning_seconds": 0.5,
            "stall_shutdown_seconds": 30,
        },
        exports=("TOKEN", "A=b c"),
        output_dir=Path("logs"),
    )
    machine = Machine(BIG.hostname, BIG.cores, 0, BIG.directory, {**BIG.environment, "OMP_NUM_THREADS": "2"})
    sites = {"earth": Site(cores=8, roster="127.0.0.1:4711")}
    plan = make_plan(spec, machine, Identity("job-7", "127.0.0.1:4712", "c0ffee"), sites)
    assert render(plan) == EVERY_OPTION
    assert plan.environment["FARANDOLE_SECRET"] == "c0ffee"


def test_more_workers_than_cores_is_noted() -> None:
    plan = make_plan(LaunchSpec(("x",), 3), SMALL, Identity())
    assert plan.notes == ("3 workers share 2 cores: it works, but each gets only part of a core",)
    assert "OMP_NUM_THREADS" not in plan.hosts[0].environment


@pytest.mark.parametrize(("gpus", "size", "what"), [(0, 8, "core, as no GPU"), (3, 3, "GPU")])
def test_auto_takes_gpus_or_else_cores(gpus: int, size: int, what: str) -> None:
    machine = Machine("earth", 8, gpus, "/", {})
    plan = make_plan(LaunchSpec(("x",), None), machine, Identity())
    assert plan.size == size
    assert plan.notes[0].startswith(f"{size} workers: one for each {what}")


def test_threads_never_fall_below_one_and_an_export_wins() -> None:
    assert make_plan(LaunchSpec(("x",), 100), BIG, Identity()).hosts[0].environment["OMP_NUM_THREADS"] == "1"
    spec = LaunchSpec(("x",), 2, exports=("OMP_NUM_THREADS=5", "RANK=9"))
    plan = make_plan(spec, BIG, Identity())
    assert {**plan.hosts[0].environment, **plan.environment}["OMP_NUM_THREADS"] == "5"
    assert plan.details == ()
    assert plan.hosts[0].workers[1].environment["RANK"] == "1"


@pytest.mark.parametrize(
    ("listed", "visible"),
    [(None, 4), ("", 0), ("-1", 0), ("0", 1), ("2,0", 2), ("0,-1,1", 1), ("GPU-8932f937,MIG-1/2/3", 2), ("no", 0)],
)
def test_visible_gpus(listed: str | None, visible: int) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert len(visible_gpus(environment, lambda: ["0", "1", "2", "3"])) == visible


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_proc": 0},
        {"num_proc": -3},
        {"settings": {"start_timeout": 0.0}},
        {"settings": {"fusion_threshold": -1}},
        {"settings": {"transport": "pigeon"}},
        {"settings": {"log_level": "loud"}},
        {"settings": {"stall_warning_seconds": -1.0}},
        {"settings": {"stall_shutdown_seconds": float("nan")}},
        {"settings": {"timeline_mark_cycles": True}},
        {"settings": {"autotune_log": "log.csv"}},
    ],
)
def test_invalid_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError):
        LaunchSpec(**{"command": ("x",), "num_proc": 1, **wrong})  # type: ignore[arg-type]


def test_exports() -> None:
    assert read_exports(["A=1=2", "B", "C="], {"B": "b"}) == {"A": "1=2", "B": "b", "C": ""}
    for wrong in ("=x", "UNSET"):
        with pytest.raises(SpecError, match=wrong):
            read_exports([wrong], {})


def test_start_timeout_flag_then_ours_then_horovods_then_default() -> None:
    both = {"FARANDOLE_START_TIMEOUT": "5", "HOROVOD_START_TIMEOUT": "6"}
    assert with_start_timeout({"start_timeout": 1.5}, both) == {"start_timeout": 1.5}
    assert with_start_timeout({}, both) == {"start_timeout": 5.0}
    assert with_start_timeout({}, {"HOROVOD_START_TIMEOUT": "6"}) == {"start_timeout": 6.0}
    assert LaunchSpec(("x",), 1, with_start_timeout({}, {})).start_timeout == 30
    with pytest.raises(SpecError, match="FARANDOLE_START_TIMEOUT=soon"):
        with_start_timeout({}, {"FARANDOLE_START_TIMEOUT": "soon"})


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py", "train.py"),
        ("/usr/bin/python3.11 -u -X dev -W error train.py -m x", "train.py"),
        ("python -Wignore -O dir/train.py", "dir/train.py"),
        ("python -m train", None),
        ("python -um train", None),
        ("python -c pass", None),
        ("python -", None),
        ("python", None),
        ("python --version", None),
        ("pythonic train.py", None),
        ("bash train.sh", None),
    ],
)
def test_python_script(command: str, script: str | None) -> None:
    assert python_script(command.split()) == script


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("python nope.py", "no script 'nope.py'", "check the path"),
        ("./nope", "no program './nope'", "check the path"),
        ("nope", "no program 'nope' on the PATH", "environment is active"),
        ("./train.py", "not a program that can be run", "write: python ./train.py"),
        ("train.py", "no program 'train.py' on the PATH", "write: python train.py"),
        ("./data", "not a program that can be run", "chmod"),
        ("-n 3", "no program '-n'", "options come before the command"),
    ],
)
def test_commands_that_cannot_start_are_refused(tmp_path: Path, command: str, message: str, hint: str) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "data").write_text("")
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    environment = {"PATH": str(program.parent)}
    check_command(["python", "train.py"], str(tmp_path), environment)
    with pytest.raises(SpecError) as caught:
        check_command(command.split(), str(tmp_path), environment)
    assert message in caught.value.message and hint in caught.value.hint


def places(hosts: str, size: int) -> list[str]:
    """Return for each rank: host, local rank / local size, cross rank / cross size."""
    named = tuple(Host(name, int(slots)) for name, slots in (host.split(":") for host in hosts.split()))
    plan = make_plan(LaunchSpec(("x",), size, hosts=named), BIG, Identity())
    each = [worker.environment for host in plan.hosts for worker in host.workers]
    names = ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [place["HOROVOD_RANK"] for place in each] == [str(rank) for rank in range(size)]
    assert {place["HOROVOD_SIZE"] for place in each} == {str(size)}
    form = "{HOSTNAME} {LOCAL_RANK}/{LOCAL_SIZE} {CROSS_RANK}/{CROSS_SIZE}"
    numbers = [{name: place[f"HOROVOD_{name}"] for name in ("HOSTNAME", *names)} for place in each]
    return [form.format(**place) for place in numbers]


def test_hosts_are_filled_in_order() -> None:
    assert places("a:2 b:2", 4) == ["a 0/2 0/2", "a 1/2 0/2", "b 0/2 1/2", "b 1/2 1/2"]
    assert places("a:1 b:2", 3) == ["a 0/1 0/2", "b 0/2 1/2", "b 1/2 0/1"]


def test_surplus_slots_stay_free() -> None:
    assert places("a:2 b:4 c:1", 3) == ["a 0/2 0/2", "a 1/2 0/1", "b 0/1 1/2"]
    assert places("a:0 b:2 c:2", 2) == ["b 0/2 0/1", "b 1/2 0/1"]


def test_hosts_on_one_machine_share_its_ranks_and_devices() -> None:
    hosts = (
        Host("0", 1, machine="m", devices=("4",), directory="/zero"),
        Host("1", 1, machine="n", devices=("4",)),
        Host("2", 1, "/opt/python", machine="m", devices=("6",), directory="/two"),
        Host("3", 2, machine="n"),
    )
    sites = {host.label: Site(local=False, cores=8) for host in hosts}
    plan = make_plan(LaunchSpec((sys.executable, "x.py"), 4, hosts=hosts), BIG, Identity(), sites)
    assert [host.name for host in plan.hosts] == ["0", "2", "1", "3"]
    each = [{**host.environment, **worker.environment} for host in plan.hosts for worker in host.workers]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "FARANDOLE_CROSS_RANK", "FARANDOLE_HOSTNAME")
    assert [[one[name] for name in names] for one in each] == [
        ["0", "0", "2", "0", "0"],
        ["1", "1", "2", "0", "0"],
        ["2", "0", "2", "1", "1"],
        ["3", "1", "2", "1", "1"],
    ]
    devices = [one.get("CUDA_VISIBLE_DEVICES") for one in each]
    assert devices == ["4,6", "4,6", "4", "4"], "the one of its local rank is a worker's"
    assert {one["OMP_NUM_THREADS"] for one in each} == {"4"}
    assert [host.directory for host in plan.hosts] == ["/zero", "/two", BIG.directory, BIG.directory]
    assert plan.hosts[1].command == ("/opt/python", "x.py") and "PATH" not in plan.hosts[1].environment


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(SpecError, match=r"Requested more processes \(4\) than there are available slots \(3\)"):
        places("a:1 b:2", 4)
