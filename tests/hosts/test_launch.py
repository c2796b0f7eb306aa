"""`farandole run` over several hosts: how jobs start, fail and end."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.jobs import FOLDER, Job, alive, put, start, told
from waiting import until

Hosts = Callable[..., Bed]

MEET = """
basics.init()
print(rank, size, basics.local_rank(), basics.cross_rank(), os.uname().nodename, total(rank))
"""
# Trains until it is ended, and tells when it has begun.
TRAIN = """
basics.init()
total(1)
tell(f"pid{rank}", os.getpid())
while True:
    total(1)
    time.sleep(0.01)
"""
# A lost host is to be noticed within 2 s. These tests run beside others; more than this is a failure in any case.
NOTICED_SECONDS = 10.0


def lines(out: str) -> list[str]:
    return sorted(line.partition(":")[2] for line in out.splitlines())


EXPECTED = [f"{rank} 6 {rank % 2} {rank // 2} h{rank // 2 + 1} 15.0" for rank in range(6)]


@pytest.mark.parametrize(
    "bed_options",
    [{}, {"ipv6": True}, {"networks": ("mgmt0", "fast0")}],
    ids=["one network", "IPv6 only", "two networks"],
)
def test_six_workers_on_three_hosts_started_from_a_fourth(hosts: Hosts, bed_options: dict[str, object]) -> None:
    bed = hosts(3, **bed_options)
    put(bed.hosts, MEET)
    code, out, err = start(bed, "-np 6 -H h1:2,h2:2,h3:2 python train.py").finish()
    assert (code, lines(out)) == (0, EXPECTED), err
    assert "error" not in err


def test_started_from_one_of_them(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts, MEET)
    code, out, err = start(bed, "-np 6 -H h1:2,h2:2,h3:2 python train.py", on=bed.hosts[0]).finish()
    assert (code, lines(out)) == (0, EXPECTED), err


def test_horovodrun(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts, MEET)
    folder = bed.desk.path(FOLDER)
    folder.mkdir(exist_ok=True)
    (folder / "hosts").write_text("h1 slots=2  # the first\nh2 slots=2\nh3 slots=2\n")
    command = "import sys; from farandole.compat.runner.launch import run_commandline as run; sys.exit(run())"
    words = [sys.executable, "-c", command, "-np", "6", "--hostfile", "hosts", "python", "train.py"]
    done = bed.desk.run(words, folder=FOLDER)
    assert (done.returncode, lines(done.stdout)) == (0, EXPECTED), done.stderr


def test_a_function_from_python(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, "")
    script = """
    import os
    import farandole

    def where(power):
        import socket
        from farandole.core import basics
        basics.init()
        return socket.gethostname(), basics.rank() ** power

    print(farandole.run(where, args=(2,), num_proc=4, hosts="h1:2,h2:2"))
    """
    bed.desk.path(FOLDER).mkdir()
    (bed.desk.path(FOLDER) / "train.py").write_text(textwrap.dedent(script))
    done = bed.desk.run([sys.executable, "train.py"], folder=FOLDER)
    assert done.stdout.strip() == "[('h1', 0), ('h1', 1), ('h2', 4), ('h2', 9)]", done.stderr


def test_only_one_of_two_networks_joins_the_workers(hosts: Hosts) -> None:
    """ssh goes over the first; between the workers, only the second lets anything through."""
    bed = hosts(2, networks=("mgmt0", "fast0"))
    bed.cut_between(*bed.hosts, network="mgmt0")
    put(bed.hosts, MEET)
    code, out, err = start(bed, "-H h1:1,h2:1 --verbose python train.py").finish()
    assert (code, lines(out)) == (0, ["0 2 0 0 h1 1.0", "1 2 0 1 h2 1.0"]), err
    assert f"network fast0: {bed.hosts[0].addresses['fast0']}" in err
    assert "network mgmt0:" not in err


def test_a_network_can_be_chosen(hosts: Hosts) -> None:
    bed = hosts(2, networks=("mgmt0", "fast0"))
    put(bed.hosts, 'basics.init(); print(os.environ["FARANDOLE_LISTEN"])')
    for network in ("fast0", "10.77.2.0/24"):
        code, out, err = start(bed, f"-H h1:1,h2:1 --network {network} python train.py").finish()
        listened = sorted(address for line in lines(out) for address in line.split(",") if ":" not in address)
        assert (code, listened) == (0, sorted(host.addresses["fast0"] for host in bed.hosts)), err
    code, _, err = start(bed, "-H h1:1,h2:1 --network ib0 python train.py").finish()
    assert code == 2
    assert "h1: no address of it is in the network ib0; it has: " in err


def test_several_networks_are_used_together(hosts: Hosts) -> None:
    bed = hosts(2, networks=("left0", "right0"))
    put(bed.hosts, 'basics.init(); print(rank, os.environ["FARANDOLE_LISTEN"].split(",")[0])')
    code, out, err = start(bed, "-H h1:2,h2:2 --network 10.77.1.0/24,10.77.2.0/24 python train.py").finish()
    first, second = (host.addresses for host in bed.hosts)
    expected = [f"0 {first['left0']}", f"1 {first['right0']}", f"2 {second['left0']}", f"3 {second['right0']}"]
    assert (code, lines(out)) == (0, expected), err


def test_fewer_workers_than_slots(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts, MEET)
    code, out, err = start(bed, "-np 3 -H h[1-3]:2 python train.py").finish()
    assert (code, lines(out)) == (0, ["0 3 0 0 h1 3.0", "1 3 1 0 h1 3.0", "2 3 0 1 h2 3.0"]), err


def test_what_workers_inherit(hosts: Hosts) -> None:
    bed = hosts(2)
    script = """
    names = "HOME HELLO TOKEN MASTER_ADDR WORLD_SIZE SSH_AUTH_SOCK PYTHONUNBUFFERED"
    print(rank, *(os.environ.get(name) for name in names.split()), os.getcwd())
    """
    put(bed.hosts, script)
    job = bed.desk.start(
        [sys.executable, "-m", "farandole", "run", "-H", "h1:1,h2:1", "-x", "HELLO=you", "python", "train.py"],
        folder=FOLDER if bed.desk.path(FOLDER).mkdir() is None else "",
        environment={"TOKEN": "secret", "SSH_AUTH_SOCK": "/nowhere", "HOME": "/root"},
        stdout=-1,
        stderr=-1,
    )
    out, err = job.communicate(timeout=60)
    first = bed.hosts[0].address
    assert lines(out) == [f"{rank} /root you secret {first} 2 None 1 {FOLDER}" for rank in range(2)], err


def test_no_secret_in_any_process_list(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, 'tell(f"secret{rank}", os.environ["FARANDOLE_SECRET"]); time.sleep(60)')
    job = start(bed, ["-H", "h1:1,h2:1", "-x", "PASSWORD=swordfish", "python", "train.py"])
    secrets = {told(host, f"secret{rank}") for rank, host in enumerate(bed.hosts)}
    assert len(secrets) == 1
    shown = [process.command for host in alive(bed) for process in bed.processes(host)]
    assert sum("farandole.agent" in command for command in shown) >= 2
    for secret in secrets:
        assert not any(secret in command for command in shown)
    # What the user types after -x is in the launcher's own command line, and nowhere else.
    assert sum("swordfish" in command for command in shown) == 1
    job.signal(signal.SIGTERM)
    assert job.finish()[0] == 143


# --- failures ------------------------------------------------------------------------------------------------------


def test_a_worker_that_fails_elsewhere(hosts: Hosts) -> None:
    bed = hosts(2)
    script = """
    basics.init()
    total(1)
    if rank == 3:
        raise ValueError("boom")
    while True:
        total(1)
    """
    put(bed.hosts, script)
    code, _, err = start(bed, "-H h1:2,h2:2 python train.py").finish()
    assert code == 1
    assert "error: rank 3 on host h2 failed first: it exited with code 1 (ValueError: boom)" in err
    assert '    raise ValueError("boom")\n' in err
    assert "[3]<stderr>:ValueError: boom" in err


def training(bed: Bed, options: str = "", *, patient: bool = True) -> Job:
    put(bed.hosts, TRAIN)
    places = ",".join(f"{host.name}:2" for host in bed.hosts)
    job = start(bed, f"{options} -H {places} python train.py", patient=patient)
    for number, host in enumerate(bed.hosts):
        for rank in (2 * number, 2 * number + 1):
            told(host, f"pid{rank}")
    return job


def test_ctrl_c_while_a_host_is_being_reached(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, MEET)
    bed.cut(bed.hosts[1])
    job = start(bed, "-H h1:1,h2:1 python train.py")
    until(lambda: any(" h2 " in each.command for each in bed.processes(bed.desk)), "ssh tries to reach h2")
    job.signal(signal.SIGINT)
    code, _, err = job.finish()
    assert code == 130
    assert err == "error: interrupted before anything was started\n"


def test_a_host_that_loses_its_power(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed, patient=False)
    bed.die(bed.hosts[1])
    code, _, err = job.finish(NOTICED_SECONDS + 20)
    assert code == 1
    assert "host h2" in err and "lost" in err, err
    assert "nothing was heard from it for" in err


def test_a_host_that_is_cut_off_ends_its_workers_itself(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed, patient=False)
    bed.cut(bed.hosts[2])
    until(lambda: not bed.processes(bed.hosts[2]), "nothing of the job is left on h3", NOTICED_SECONDS)
    code, _, err = job.finish(NOTICED_SECONDS + 20)
    assert code == 1
    assert "host h3" in err and "lost" in err, err


def test_a_short_cut_is_no_loss(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, "-x FARANDOLE_FAILURE_DEADLINE=20")
    bed.cut(bed.hosts[1])
    time.sleep(1)
    bed.restore(bed.hosts[1])
    with pytest.raises(Exception, match="timed out"):
        job.process.wait(3)
    job.signal(signal.SIGINT)
    assert job.finish()[0] == 130


def test_kill_minus_nine_of_the_launcher_leaves_nothing_anywhere(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed)
    job.signal(signal.SIGKILL)
    job.process.communicate(timeout=20)
    for host in alive(bed):
        until(lambda host=host: not bed.processes(host), f"nothing is left on {host.name}", NOTICED_SECONDS)


def test_kill_minus_nine_of_an_agent_leaves_nothing_anywhere(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, 'subprocess.Popen(["setsid", "sleep", "300"])\n' + TRAIN)
    job = start(bed, "-H h1:2,h2:2 python train.py")
    told(bed.hosts[0], "pid0"), told(bed.hosts[1], "pid3")
    (agent,) = [
        each.pid
        for each in bed.processes(bed.hosts[1])
        if "farandole.agent" in each.command and "sh -c" not in each.command
    ]
    assert bed.hosts[1].run(["kill", "-9", str(agent)]).returncode == 0
    code, _, err = job.finish()
    assert code == 1
    assert "host h2" in err and "lost" in err, err


def test_ctrl_c_once_ends_in_good_order_and_twice_at_once(hosts: Hosts) -> None:
    bed = hosts(2)
    orderly = """
    signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), os._exit(0)))
    tell(f"ready{rank}")
    time.sleep(300)
    """
    stubborn = """
    signal.signal(signal.SIGTERM, lambda *_: tell(f"asked{rank}"))
    tell(f"ready{rank}")
    while True:
        time.sleep(1)
    """
    for script, times in ((orderly, 1), (stubborn, 2)):
        put(bed.hosts, script)
        job = start(bed, "-H h1:1,h2:1 python train.py")
        for rank, host in enumerate(bed.hosts):
            told(host, f"ready{rank}")
            host.path(f"{FOLDER}/ready{rank}").unlink()
        begin = time.monotonic()
        job.signal(signal.SIGINT)
        if times == 2:
            for rank, host in enumerate(bed.hosts):
                told(host, f"asked{rank}")
            job.signal(signal.SIGINT)
        code, out, err = job.finish()
        assert code == 130, err
        # The first alone would have given them five seconds.
        assert lines(out) == ["saved", "saved"] if times == 1 else time.monotonic() - begin < 5


def test_ctrl_z_is_no_loss(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, patient=False)
    job.signal(signal.SIGTSTP)
    until(lambda: Path(f"/proc/{job.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it stops")
    time.sleep(3)
    assert all(len(bed.processes(host)) >= 3 for host in bed.hosts)
    job.signal(signal.SIGCONT)
    time.sleep(1)
    job.signal(signal.SIGINT)
    assert job.finish()[0] == 130


def test_the_way_to_a_host_breaks(hosts: Hosts) -> None:
    """The ssh of one host is killed; the host itself is fine, and is cleaned up."""
    bed = hosts(2)
    job = training(bed)
    (ssh,) = [
        each.pid for each in bed.processes(bed.desk) if each.command.startswith("ssh ") and " h2 " in each.command
    ]
    assert bed.desk.run(["kill", "-9", str(ssh)]).returncode == 0
    code, _, err = job.finish()
    assert code == 1
    assert "host h2" in err and "lost" in err, err


# --- bad input -------------------------------------------------------------------------------------------------------


def refused(bed: Bed, arguments: str) -> str:
    """Return what is said when nothing is started."""
    code, out, err = start(bed, arguments).finish()
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ") and "hint: " in err
    return err


def test_hosts_that_cannot_be_reached(hosts: Hosts) -> None:
    bed = hosts(3, unknown=("h2",))
    put(bed.hosts, MEET)
    bed.hosts[2].run("pkill -f 'sshd.*listener' || pkill -o sshd")
    # It ends a moment after the signal.
    until(lambda: bed.desk.run("exec 3<>/dev/tcp/h3/22").returncode != 0, "no sshd listens on h3")
    err = refused(bed, "-H h1:1,h2:1,h3:1,h4:1 python train.py")
    assert "3 of 4 hosts cannot take part; nothing was started" in err
    assert "h2: its host key is not known here, or has changed" in err
    assert "h3: no ssh server listens there" in err
    assert "h4: there is no host of that name" in err
    assert "ready" in next(line for line in err.splitlines() if line.startswith("    h1 "))


def test_a_script_that_is_not_everywhere(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts[:2], MEET)
    bed.hosts[2].path(FOLDER).mkdir()
    err = refused(bed, "-H h1:1,h2:1,h3:1 python train.py")
    assert f"h3: there is no script 'train.py' (in {FOLDER})" in err
    assert "1 of 3 hosts" in err
    bed.hosts[1].run(["rm", "-r", FOLDER])
    err = refused(bed, "-H h1:1,h2:1,h3:1 python train.py")
    assert f"h2: there is no folder {FOLDER}" in err and "--ship ." in err


def test_python_is_missing_on_one_host(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, MEET)
    bed.hide(bed.hosts[1], sys.executable)
    err = refused(bed, "-H h1:1,h2:1 python train.py")
    assert f"h2: there is no Python at {sys.executable}" in err
    assert "--python h2=/path/to/python" in err


def test_a_package_is_missing_on_one_host(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, "import numpy\n" + MEET)
    import numpy

    bed.hide(bed.hosts[1], os.path.dirname(numpy.__file__))
    err = refused(bed, "-H h1:1,h2:1 python train.py")
    assert "h2: its python cannot import numpy, as the script does" in err


def test_a_firewall_between_two_workers(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts, MEET)
    bed.cut_between(bed.hosts[0], bed.hosts[2])
    err = refused(bed, "-H h1:1,h2:1,h3:1 python train.py")
    assert "h1: it does not reach h3 (" in err and "no answer within" in err
    assert "h2:" not in err
    assert "open the firewall between these hosts" in err


def test_a_firewall_that_nobody_looked_for(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, MEET)
    bed.cut_between(*bed.hosts)
    code, _, err = start(bed, "-H h1:1,h2:1 --no-preflight --start-timeout 4 python train.py").finish()
    assert code == 1
    assert "did not connect to rank" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("-H h1:two python train.py", "'two' is not a number of slots"),
        ("-H h1:1,h1:2 python train.py", "host h1 is listed twice"),
        ("-np 4 -H h1:1,h2:2 python train.py", "Requested more processes (4) than there are available slots (3)"),
        ("-H h[2-1]:1 python train.py", "[2-1] is not a range of numbers"),
        ("-H h1:1 --exclude h1 python train.py", "no host is left"),
        ("--hostfile nowhere python train.py", "the host file cannot be read"),
        ("-H h1:1", "there is no command to run"),
        ("--nnodes 3 -H h1:1,h2:1 python train.py", "there are only 2 hosts"),
        ("--nnodes 2 --nproc-per-node 1 python train.py", "no hosts are named"),
        ("-H h1:1 -i /nowhere/key python train.py", "there is no key /nowhere/key"),
    ],
)
def test_wrong_words(hosts: Hosts, arguments: str, words: str, tmp_path: Path) -> None:
    from farandole.cli.main import main

    del hosts
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        said: list[str] = []
        patch.setattr(sys.stderr, "write", lambda text: said.append(text) or len(text))
        assert main(["run", *arguments.split()]) == 2
    assert words in "".join(said)


def test_two_names_of_one_machine(hosts: Hosts) -> None:
    bed = hosts(1)
    put(bed.hosts, MEET)
    code, out, err = start(bed, f"-H h1:1,{bed.hosts[0].address}:1 python train.py").finish()
    assert code == 0 and len(lines(out)) == 2, err
    assert f"warning: h1 and {bed.hosts[0].address} are one machine" in err


def test_setup_runs_once_on_each_host(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, 'print(rank, open("prepared").read().strip())')
    arguments = ["-H", "h1:2,h2:2", "--setup", "uname -n >> prepared", "python", "train.py"]
    code, out, err = start(bed, arguments).finish()
    assert (code, lines(out)) == (0, ["0 h1", "1 h1", "2 h2", "3 h2"]), err
    arguments[3] = "uname -n; test $(uname -n) = h1"
    code, _, err = start(bed, arguments).finish()
    assert code == 2
    assert "--setup failed on 1 of 2 hosts; nothing was started" in err
    assert "h2: it ended with code 1\n    | h2" in err.replace("\n      |", "\n    |")


def test_a_dry_run_asks_nobody(hosts: Hosts) -> None:
    bed = hosts(1)
    code, out, err = start(bed, "-H h7:2,h8:2 --dry-run python train.py").finish()
    assert code == 0, err
    assert "4 workers on 2 hosts" in out
    assert "host h8 (cores not known yet), started by ssh -o BatchMode=yes" in out
    assert "FARANDOLE_SECRET=***" in out


# --- what users have in their ssh configuration -----------------------------------------------------------------------


def configure(bed: Bed, lines: str) -> None:
    """Put lines before what is in the desk's ssh configuration."""
    config = bed.desk.path("/root/.ssh/config")
    config.write_text(textwrap.dedent(lines) + config.read_text())


def test_a_host_behind_a_jump_host(hosts: Hosts) -> None:
    """The launcher reaches h2 through h1 only, and h2 cannot reach the launcher at all."""
    bed = hosts(2)
    configure(bed, "Host h2\n  ProxyJump h1\n")
    bed.cut_between(bed.desk, bed.hosts[1])
    put(bed.hosts, MEET)
    code, out, err = start(bed, "-H h1:1,h2:1 python train.py").finish()
    assert (code, lines(out)) == (0, ["0 2 0 0 h1 1.0", "1 2 0 1 h2 1.0"]), err


def test_connections_that_are_shared_and_stay(hosts: Hosts) -> None:
    """With ControlPersist an ssh stays in the background, with all that it has inherited."""
    bed = hosts(2)
    configure(bed, "ControlMaster auto\nControlPath /root/.ssh/%C\nControlPersist 60\n")
    put(bed.hosts, MEET)
    for _ in range(2):
        job = start(bed, "-H h1:2,h2:2 python train.py")
        out, err = job.process.communicate(timeout=60)
        assert (job.process.returncode, len(lines(out))) == (0, 4), err
    put(bed.hosts, TRAIN)
    job = start(bed, "-H h1:2,h2:2 python train.py")
    told(bed.hosts[0], "pid0"), told(bed.hosts[1], "pid3")
    job.signal(signal.SIGKILL)
    job.process.communicate(timeout=20)
    for host in bed.hosts:
        until(lambda host=host: not bed.processes(host), f"nothing is left on {host.name}", NOTICED_SECONDS)
    bed.desk.run("pkill -f ControlPersist; pkill ssh")


def test_another_name_in_the_configuration(hosts: Hosts) -> None:
    bed = hosts(1)
    configure(bed, f"Host big-machine\n  HostName {bed.hosts[0].address}\n  HostKeyAlias h1\n")
    put(bed.hosts, 'basics.init(); print(os.environ["FARANDOLE_HOSTNAME"], total(1))')
    code, out, err = start(bed, "-H big-machine:2 python train.py").finish()
    assert (code, lines(out)) == (0, ["big-machine 2.0", "big-machine 2.0"]), err
