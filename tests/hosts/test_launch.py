"""`farandole run` over several hosts: how jobs start, and on which hosts and networks."""

from __future__ import annotations

import signal
import sys
import textwrap

import pytest
from tests.hosts.bed import Bed
from tests.hosts.jobs import FOLDER, alive, put, start, told
from tests.hosts.launches import MEET, NOTICED_SECONDS, TRAIN, Hosts, lines
from waiting import until

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


def test_a_job_is_started_from_one_of_its_hosts(hosts: Hosts) -> None:
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
        from farandole.worker.core import basics
        basics.init()
        return socket.gethostname(), basics.rank() ** power

    print(farandole.run(where, args=(2,), num_proc=4, hosts="h1:2,h2:2"))
    """
    bed.desk.path(FOLDER).mkdir()
    (bed.desk.path(FOLDER) / "train.py").write_text(textwrap.dedent(script))
    done = bed.desk.run([sys.executable, "train.py"], folder=FOLDER)
    assert done.stdout.strip() == "[('h1', 0), ('h1', 1), ('h2', 4), ('h2', 9)]", done.stderr


def test_only_one_of_two_networks_joins_the_workers(hosts: Hosts) -> None:
    """ssh uses the first; between the workers, only the second is open."""
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
    assert "h1: none of its addresses is in the network ib0; it has: " in err


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
    assert sum("farandole.control.agent" in command for command in shown) >= 2
    for secret in secrets:
        assert not any(secret in command for command in shown)
    # What the user types after -x is in the launcher's own command line, and nowhere else.
    assert sum("swordfish" in command for command in shown) == 1
    job.signal(signal.SIGTERM)
    assert job.finish()[0] == 143


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
    assert "h2: it exited with code 1\n    | h2" in err.replace("\n      |", "\n    |")


def test_a_dry_run_asks_nobody(hosts: Hosts) -> None:
    bed = hosts(1)
    code, out, err = start(bed, "-H h7:2,h8:2 --dry-run python train.py").finish()
    assert code == 0, err
    assert "4 workers on 2 hosts" in out
    assert "host h8 (cores not yet known), started by ssh -o BatchMode=yes" in out
    assert "FARANDOLE_SECRET=***" in out


# --- what users have in their ssh configuration -----------------------------------------------------------------------


def configure(bed: Bed, lines: str) -> None:
    """Insert lines at the beginning of the desk's ssh configuration."""
    config = bed.desk.path("/root/.ssh/config")
    config.write_text(textwrap.dedent(lines) + config.read_text())


def test_a_host_behind_a_jump_host(hosts: Hosts) -> None:
    """The launcher reaches h2 only through h1, and h2 cannot reach the launcher."""
    bed = hosts(2)
    configure(bed, "Host h2\n  ProxyJump h1\n")
    bed.cut_between(bed.desk, bed.hosts[1])
    put(bed.hosts, MEET)
    code, out, err = start(bed, "-H h1:1,h2:1 python train.py").finish()
    assert (code, lines(out)) == (0, ["0 2 0 0 h1 1.0", "1 2 0 1 h2 1.0"]), err


def test_shared_ssh_connections_that_persist_do_not_block_the_end(hosts: Hosts) -> None:
    """With ControlPersist, an ssh process remains in the background, with inherited descriptors."""
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


def test_a_host_is_reached_by_its_alias_in_the_ssh_configuration(hosts: Hosts) -> None:
    bed = hosts(1)
    configure(bed, f"Host big-machine\n  HostName {bed.hosts[0].address}\n  HostKeyAlias h1\n")
    put(bed.hosts, 'basics.init(); print(os.environ["FARANDOLE_HOSTNAME"], total(1))')
    code, out, err = start(bed, "-H big-machine:2 python train.py").finish()
    assert (code, lines(out)) == (0, ["big-machine 2.0", "big-machine 2.0"]), err
