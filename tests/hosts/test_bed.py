"""Tests of the test bed itself."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from tests.hosts.bed import Bed, Process
from tests.hosts.errors import BedError
from tests.hosts.host import Host
from waiting import until

Hosts = Callable[..., Bed]
ROOT = Path(__file__).resolve().parents[2]
# As `timeout` says it.
TIMED_OUT = 124


def reaches(one: Host, name: str, seconds: float = 20) -> bool:
    """Return whether a host can connect to a name's sshd within a time limit."""
    return one.run(["timeout", str(seconds), "bash", "-c", f"</dev/tcp/{name}/22"]).returncode == 0


def hears_nothing_of(one: Host, name: str) -> bool:
    """Return whether a connection attempt gets no answer, not even a refusal, for a second."""
    return one.run(["timeout", "1", "bash", "-c", f"</dev/tcp/{name}/22"]).returncode == TIMED_OUT


HEAR_DATAGRAMS = """\
import socket, sys
hearer = socket.socket(getattr(socket, sys.argv[1]), socket.SOCK_DGRAM)
hearer.bind(("", 9000))
print("bound", flush=True)
while True:
    print(hearer.recv(100).decode(), flush=True)
"""


def hear_datagrams(host: Host) -> IO[str]:
    """Return the stream on which a host prints the datagrams that it receives."""
    family = "AF_INET6" if ":" in host.address else "AF_INET"
    hearer = host.start([sys.executable, "-c", HEAR_DATAGRAMS, family], stdout=subprocess.PIPE)
    assert hearer.stdout and hearer.stdout.readline() == "bound\n"
    return hearer.stdout


def say_in_datagram(sender: Host, receiver: Host) -> None:
    """Send the sender's name in a datagram, which may be lost."""
    sender.run(f"echo -n {sender.name} >/dev/udp/{receiver.name}/9000")


def network_of(pid: int) -> str | None:
    """Return the network namespace of a process; None if it has ended, or is a zombie."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def processes_in(network: str | None) -> list[int]:
    """Return the ids, outside of the hosts, of the living processes in a network namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and network_of(int(name)) == network]


# --- what hosts are ------------------------------------------------------------------------------------------------


def test_hosts_reach_each_other_by_name(hosts: Hosts) -> None:
    bed = hosts(3)
    for start in (bed.hosts[0], bed.hosts[2], bed.desk):
        for host in bed.hosts:
            done = start.run(["ssh", host.name, "hostname; cat /etc/hostname"])
            assert (done.returncode, done.stdout, done.stderr) == (0, f"{host.name}\n{host.name}\n", "")


def test_a_host_whose_key_is_unknown_is_refused(hosts: Hosts) -> None:
    bed = hosts(2, unknown=["h2"])
    h1, _h2 = bed.hosts
    done = h1.run(["ssh", "-o", "BatchMode=yes", "h2", "true"])
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr
    assert bed.desk.run(["ssh", "-o", "BatchMode=yes", "h1", "true"]).returncode == 0


def test_an_unknown_name_is_unknown_at_once(hosts: Hosts) -> None:
    done = hosts(1).desk.run(["ssh", "h9", "true"])
    assert done.returncode == 255
    assert "Could not resolve hostname h9" in done.stderr


def test_the_desk_has_no_sshd(hosts: Hosts) -> None:
    assert "Connection refused" in hosts(1).hosts[0].run(["ssh", "desk", "true"]).stderr


def test_users_files_are_private(hosts: Hosts) -> None:
    h1, h2 = hosts(2).hosts
    for folder in ("/root", "/home", "/tmp", "/var/tmp", "/run", "/dev/shm"):
        path = f"{folder}/job/train.py"
        h1.path(path).parent.mkdir()
        h1.path(path).write_text("print(1)\n")
        assert h1.run(["cat", path]).stdout == "print(1)\n"
        assert h2.run(["test", "-e", folder]).returncode == 0
        assert h2.run(["test", "-e", path]).returncode != 0
        assert not Path(path).exists()


def test_python_and_its_packages_are_on_every_host(hosts: Hosts) -> None:
    h1, _h2 = hosts(2).hosts
    for command in (["ssh", "h2", sys.executable], [sys.executable]):
        done = h1.run(
            [*command, "-c", "'import farandole.control.agent, msgspec'" if "ssh" in command else "import msgspec"]
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_processes_are_private(hosts: Hosts) -> None:
    bed = hosts(2)
    h1, h2 = bed.hosts
    assert bed.processes(h1) == []
    sleeper = h1.start(["sleep", "1000"])
    until(lambda: [process.command for process in bed.processes(h1)] == ["sleep 1000"], "the process is seen")
    assert bed.processes(h2) == []
    assert "sleep" not in h2.run("cat /proc/[0-9]*/comm").stdout.split()

    sleeper.send_signal(signal.SIGINT)
    assert sleeper.wait(20) == -signal.SIGINT
    assert bed.processes(h1) == []


def test_orphans_do_not_become_zombies(hosts: Hosts) -> None:
    bed = hosts(1)
    (h1,) = bed.hosts
    orphan = h1.run("sleep 1000 >/dev/null 2>&1 & echo $!").stdout.strip()
    # Until it has become sleep, it goes by its shell's command.
    until(lambda: bed.processes(h1) == [Process(int(orphan), "sleep 1000")], "the orphan is seen, and nothing else")
    h1.run(["kill", "-9", orphan])
    until(lambda: not h1.path(f"/proc/{orphan}").exists(), "the orphan has gone")


def test_a_command_has_its_own_exit_code_input_and_environment(hosts: Hosts) -> None:
    (h1,) = hosts(1).hosts
    done = h1.run('read line; echo "$line $COLOUR $PWD"; exit 3', input="green\n", environment={"COLOUR": "blue"})
    assert (done.returncode, done.stdout) == (3, "green blue /root\n")
    assert h1.run("pwd", folder="/usr").stdout == "/usr\n"


def test_a_command_that_does_not_end_is_reported_with_its_output(hosts: Hosts) -> None:
    (h1,) = hosts(1).hosts
    for timeout in (0.5, 5.0, 50.0):  # A busy machine may not even have begun with it by then.
        with pytest.raises(BedError, match=rf"did not end on h1 within {timeout} s; it printed: ") as caught:
            h1.run("echo so far; exec sleep 1000", timeout=timeout)
        if "it printed: so far" in str(caught.value):
            return
    pytest.fail("what it printed is not told")


# --- networks --------------------------------------------------------------------------------------------------------


def test_a_host_has_the_network_of_a_machine_of_its_own(hosts: Hosts) -> None:
    (h1,) = hosts(1).hosts
    assert h1.addresses == {"eth0": "10.77.1.1"}
    assert h1.run(["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]


def test_ipv6_only(hosts: Hosts) -> None:
    bed = hosts(2, ipv6=True)
    h1, h2 = bed.hosts
    assert h1.address == "fd77:1::1"
    assert h1.run("ip -4 -brief address show dev eth0").stdout == ""
    assert h1.run(["ssh", "h2", "echo $SSH_CLIENT"]).stdout.startswith("fd77:1::1 ")
    assert bed.desk.run(["ssh", h2.address, "hostname"]).stdout == "h2\n"


def test_two_networks(hosts: Hosts) -> None:
    bed = hosts(2, networks=("mgmt0", "fast0"))
    h1, h2 = bed.hosts
    assert h2.addresses == {"mgmt0": "10.77.1.2", "fast0": "10.77.2.2"}
    assert h1.run(["ssh", "h2", "echo $SSH_CONNECTION"]).stdout.split()[2] == h2.addresses["mgmt0"]
    assert h1.run(["ssh", "h2-fast0", "echo $SSH_CONNECTION"]).stdout.split()[2] == h2.addresses["fast0"]

    bed.cut_between(h1, h2, network="mgmt0")
    assert hears_nothing_of(h1, "h2")
    assert reaches(h1, "h2-fast0")
    assert reaches(bed.desk, "h2")


def test_bandwidth_is_limited(hosts: Hosts) -> None:
    bed = hosts(2, bandwidth="8mbit")
    h1, h2 = bed.hosts

    def seconds(sender: Host, receiver: Host) -> float:
        begin = time.monotonic()
        done = sender.run(f"head -c 2000000 /dev/zero | ssh -o Compression=no {receiver.name} 'cat >/dev/null'")
        assert done.returncode == 0
        return time.monotonic() - begin

    # 16 Mbit, less what the buckets let through at once.
    assert seconds(h1, h2) > 1
    bed.shape(None)
    assert "tbf" not in h1.run("tc qdisc show").stdout
    bed.shape("8mbit", host=h2)
    assert seconds(h1, h2) > 1


# --- what befalls hosts ----------------------------------------------------------------------------------------------


def test_a_cut_stops_traffic_until_it_is_restored(hosts: Hosts) -> None:
    bed = hosts(3)
    _h1, h2, h3 = bed.hosts
    echo = bed.desk.start(["ssh", "h2", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1)
    assert echo.stdin and echo.stdout
    echo.stdin.write("before\n")
    assert echo.stdout.readline() == "before\n"

    bed.cut(h2)
    assert hears_nothing_of(bed.desk, "h2")
    assert hears_nothing_of(h2, "h3")
    assert reaches(bed.desk, "h3")
    assert "LOWER_UP" in h2.run("ip link show dev eth0").stdout
    echo.stdin.write("meanwhile\n")

    bed.restore(h2)
    assert echo.stdout.readline() == "meanwhile\n"
    until(lambda: reaches(h3, "h2"), "h3 reaches h2 again")


def test_a_cut_between_two_spares_the_third(hosts: Hosts) -> None:
    bed = hosts(3)
    h1, h2, h3 = bed.hosts
    bed.cut_between(h1, h2)
    assert hears_nothing_of(h1, "h2")
    assert hears_nothing_of(h2, "h1")
    assert all(reaches(one, other) for one in (h3, bed.desk) for other in ("h1", "h2"))

    bed.restore_between(h1, h2)
    assert reaches(h1, "h2")
    assert reaches(h2, "h1")


@pytest.mark.parametrize("ipv6", [False, True])
def test_a_firewall_drops_one_direction(hosts: Hosts, ipv6: bool) -> None:
    bed = hosts(3, ipv6=ipv6)
    h1, h2, h3 = bed.hosts
    bed.block(h1, h2)
    heard_by_h1, heard_by_h2 = hear_datagrams(h1), hear_datagrams(h2)
    for sender, receiver in ((h1, h2), (h3, h2), (h2, h1)):
        say_in_datagram(sender, receiver)
    assert heard_by_h1.readline() == "h2\n"
    assert heard_by_h2.readline() == "h3\n"

    bed.unblock(h1, h2)
    say_in_datagram(h1, h2)
    assert heard_by_h2.readline() == "h1\n"


def test_the_death_of_a_host_ends_its_processes_silently(hosts: Hosts) -> None:
    bed = hosts(2)
    h1, h2 = bed.hosts
    far = h1.start(["ssh", "h2", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    near = h2.start("trap '' TERM INT HUP; setsid sleep 1000 & sleep 1000")
    until(lambda: len(bed.processes(h2)) == 4, "all has started")
    network = network_of(h2.pid)
    assert len(processes_in(network)) > 4

    bed.die(h2)
    assert near.poll() == -signal.SIGKILL
    assert processes_in(network) == []
    with pytest.raises(subprocess.TimeoutExpired):
        far.wait(1)
    assert hears_nothing_of(h1, "h2")


def test_a_hidden_file_is_hidden_on_one_host_only(hosts: Hosts) -> None:
    bed = hosts(2)
    h1, h2 = bed.hosts
    bed.hide(h1, sys.executable)
    bed.hide(h1, "/usr/bin/env")
    for path in (sys.executable, "/usr/bin/env"):
        assert bed.desk.run(["ssh", "h1", path, "--version"]).returncode == 127
        assert h2.run(["ssh", "h2", path, "--version"]).returncode == 0
        assert Path(path).exists()


def test_a_private_folder_of_the_machine(hosts: Hosts) -> None:
    bed = hosts(2)
    h1, h2 = bed.hosts
    module = ROOT / "tests" / "hosts" / "errors.py"
    bed.make_private(h1, str(module.parent))
    h1.path(str(module)).write_text("changed\n")
    assert h1.run(["cat", module]).stdout == "changed\n"
    assert h2.run(["cat", module]).stdout == module.read_text() != "changed\n"


# --- a bed to play in ------------------------------------------------------------------------------------------------

PLAY = [sys.executable, "-m", "tests.hosts"]


def test_a_command_on_the_desk_of_a_bed(hosts: Hosts) -> None:
    hosts(1)  # Skips where there can be none.
    command = "ssh h2 hostname; ls /sys/class/net; exit 7"
    done = subprocess.run(
        [*PLAY, "2", "--two-networks", "--ipv6", "--bandwidth", "1gbit", "--", "bash", "-c", command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (7, ["h2", "fast0", "lo", "mgmt0"], "")


@pytest.mark.skipif(shutil.which("script") is None, reason="no script on this machine; tools/provision installs it")
def test_a_shell_on_the_desk_of_a_bed(hosts: Hosts) -> None:
    hosts(1)
    terminal = ["script", "--quiet", "--return", "--command", shlex.join([*PLAY, "2"]), "/dev/null"]
    # The input may be echoed before and after; only the output contains this.
    lines = 'echo "this is $(ssh -n h2 hostname)"\nexit 5\n'
    done = subprocess.run(terminal, cwd=ROOT, input=lines, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5
    assert "-H h1:2,h2:2" in done.stdout
    assert "this is h2" in done.stdout


def test_ctrl_c_is_for_the_command(hosts: Hosts) -> None:
    hosts(1)
    command = "trap 'exit 6' INT; echo ready; while :; do sleep 0.1; done"
    play = subprocess.Popen(
        [*PLAY, "1", "--", "bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    with play:
        assert play.stdout and play.stdout.readline() == b"ready\n"
        os.killpg(play.pid, signal.SIGINT)
        assert play.wait(60) == 6


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["0"], "a bed has 1 to 200 hosts, not 0"), (["1", "--bandwidth", "fast"], "a bandwidth is written as")],
)
def test_an_impossible_bed_is_refused(hosts: Hosts, arguments: list[str], error: str) -> None:
    hosts(1)
    done = subprocess.run([*PLAY, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {error}")


# --- the end -------------------------------------------------------------------------------------------------------


def test_a_killed_owner_leaves_nothing(hosts: Hosts) -> None:
    hosts(1)  # Skips where there can be none.
    script = """\
        import os, time
        from tests.hosts.bed import Bed
        with Bed(2, networks=("mgmt0", "fast0")) as bed:
            for host in bed.hosts:
                host.start("setsid sleep 1000")
                bed.desk.run(["ssh", host.name, "setsid sleep 1000 >/dev/null 2>&1 &"])
            print(*(host.pid for host in bed.hosts), flush=True)
            time.sleep(1000)
    """
    mounts, links = Path("/proc/self/mounts").read_text(), os.listdir("/sys/class/net")
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout
        networks = [network_of(int(pid)) for pid in owner.stdout.readline().split()]
        until(lambda: all(len(processes_in(network)) >= 4 for network in networks), "all has started")
        owner.kill()
    until(lambda: not any(map(processes_in, networks)), "all processes have gone")
    assert Path("/proc/self/mounts").read_text() == mounts
    assert os.listdir("/sys/class/net") == links
