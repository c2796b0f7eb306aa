"""Typical use and mistakes of a user of several machines, with the real example, over real ssh."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.host import Host
from tests.hosts.jobs import FOLDER, put, start, told
from waiting import until

Hosts = Callable[..., Bed]

ROOT = Path(__file__).resolve().parents[2]
TRAINING = "--epochs 6 --batch-size 16"


def project(host: Host) -> Path:
    """Create a project folder with the example on one host only."""
    folder = host.path(FOLDER)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def result(out: str) -> tuple[float, str]:
    """Return the test accuracy that rank 0 prints, and its line about the parameters of all ranks."""
    accuracy = re.search(r"test accuracy: ([0-9.]+)", out)
    parameters = re.search(r"parameters: (bit-identical on \d+ worker\(s\))", out)
    assert accuracy is not None and parameters is not None, out
    return float(accuracy[1]), parameters[1]


@pytest.mark.timeout(300)
def test_the_example_trains_on_three_hosts_as_on_one(hosts: Hosts) -> None:
    bed = hosts(3)
    project(bed.desk)
    script = f"python examples/digits.py {TRAINING}"
    alone = result(start(bed, f"-np 6 {script}").finish(120)[1])
    options = f"-np 6 -H h1:2,h2:2,h3:2 --python h1={sys.executable} --ship ."
    code, out, err = start(bed, f"{options} {script}").finish(120)
    assert code == 0, err
    accuracy, parameters = result(out)
    assert parameters == alone[1] == "bit-identical on 6 worker(s)"
    # The order of additions differs between one host and three, and nothing else.
    assert accuracy == pytest.approx(alone[0], abs=0.02) and accuracy > 0.8


@pytest.mark.timeout(200)
def test_horovodrun_does_the_same(hosts: Hosts) -> None:
    bed = hosts(3)
    for host in (bed.desk, *bed.hosts):
        project(host)  # Horovod leaves it to its users to have the code everywhere.
    command = "import sys; from farandole.compat.runner.launch import run_commandline as run; sys.exit(run())"
    words = [sys.executable, "-c", command, "-np", "6", "-H", "h1:2,h2:2,h3:2"]
    done = bed.desk.run([*words, "python", "examples/digits.py", *TRAINING.split()], folder=FOLDER, timeout=120)
    assert done.returncode == 0, done.stderr
    assert result(done.stdout)[0] > 0.8


def test_a_file_that_git_ignores_and_the_script_needs(hosts: Hosts) -> None:
    bed = hosts(2)
    put([bed.desk], 'print(open("data.bin").read())')
    folder = bed.desk.path(FOLDER)
    (folder / "data.bin").write_text("42")
    (folder / ".gitignore").write_text("# big things\n*.bin\n")
    code, _, err = start(bed, "-H h1:1,h2:1 --ship . python train.py").finish()
    assert code == 1
    assert "FileNotFoundError" in err
    assert "hint: data.bin is here but was not sent: line 2 of .gitignore says `*.bin`" in err
    (folder / ".gitignore").write_text("*.bin\n!data.bin\n")
    code, out, err = start(bed, "-H h1:1,h2:1 --ship . python train.py").finish()
    assert (code, sorted(out.splitlines())) == (0, ["[0]<stdout>:42", "[1]<stdout>:42"]), err


def test_a_script_that_git_ignores_is_refused_before_anything_starts(hosts: Hosts) -> None:
    bed = hosts(1)
    put([bed.desk], "print()")
    (bed.desk.path(FOLDER) / ".gitignore").write_text("train.*\n")
    code, out, err = start(bed, "-H h1:1 --ship . python train.py").finish()
    assert (code, out) == (2, "")
    assert "the command needs train.py, which is not sent: line 1 of .gitignore says `train.*`" in err


def test_a_full_disk_at_the_output_directory_does_not_end_the_training(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, 'print("x" * 200_000); basics.init(); print("sum", total(rank))')
    assert bed.desk.run(f"mkdir -p {FOLDER}/logs && mount -t tmpfs -o size=64k tmpfs {FOLDER}/logs").returncode == 0
    code, out, err = start(bed, "-H h1:1,h2:1 --output-dir logs python train.py").finish()
    assert code == 0, err
    assert out.count(">:sum 1.0") == 2
    assert "warning: logs/rank.0/stdout ends here: No space left on device" in err
    assert "hint: " in err


def test_foreign_connections_to_the_roster_do_no_harm(hosts: Hosts) -> None:
    """Other processes on a host connect to the address at which its workers reach the roster, and send nothing, random
    data, or an old secret.
    """
    bed = hosts(1)
    script = """
    basics.init()
    tell(f"roster{rank}", os.environ["FARANDOLE_ROSTER"])
    # Both must have read it, or one would continue in a world that the other has left.
    while not total(os.path.exists("go")):
        time.sleep(0.01)
    basics.shutdown()
    basics.init()
    print("again", total(rank))
    """
    put(bed.hosts, script)
    job = start(bed, "-H h1:2 python train.py")
    address = told(bed.hosts[0], "roster0")
    stranger = f"""
import socket, time
from farandole.base.wire.rendezvous import RendezvousError
from farandole.base.wire.roster_client import RosterClient
host, port = "{address}".rsplit(":", 1)
silent = [socket.create_connection((host, int(port))) for _ in range(200)]
for connection in silent[:100]:
    connection.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" * 10)
try:
    RosterClient.connect("{address}", b"s" * 32, worker=0, timeout=10)
except RendezvousError as error:
    print("turned away:", error)
print("done", flush=True)
time.sleep(60)
"""
    process = bed.hosts[0].start([sys.executable, "-c", stranger], stdout=-1)
    assert process.stdout is not None
    assert "turned away: " in process.stdout.readline()
    assert process.stdout.readline() == "done\n"
    (bed.hosts[0].path(FOLDER) / "go").write_text("")
    out, err = job.process.communicate(timeout=60)
    process.kill()
    process.wait(10)
    assert (job.process.returncode, out.count("again 1.0")) == (0, 2), err


def test_foreign_connections_to_workers_do_no_harm(hosts: Hosts) -> None:
    """Foreign connections to workers' listening ports, before and after these have connected, have no effect."""
    bed = hosts(2)
    script = """
    basics.init()
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
    ports = [line.split()[3].rpartition(":")[2] for line in listening.splitlines() if f"pid={os.getpid()}," in line]
    tell(f"ports{rank}", " ".join(ports))
    # The first one that reads it notifies the other one.
    while not total(os.path.exists("go")):
        time.sleep(0.01)
    print("sum", total(rank))
    """
    put(bed.hosts, script)
    job = start(bed, "-H h1:1,h2:1 python train.py")
    ports = {host: told(host, f"ports{rank}").split() for rank, host in enumerate(bed.hosts)}
    assert all(ports.values())
    lines = [
        f"socket.create_connection(({host.address!r}, {port})).sendall(b'rubbish' * 1000)"
        for host, listed in ports.items()
        for port in listed
    ]
    done = bed.desk.run([sys.executable, "-c", "import socket\n" + "\n".join(lines)])
    assert "Traceback" not in done.stderr or "ConnectionResetError" in done.stderr, done.stderr
    (bed.hosts[0].path(FOLDER) / "go").write_text("")
    code, out, err = job.finish()
    assert (code, out.count("sum 1.0")) == (0, 2), err
    assert "lost" not in err


def test_two_machines_that_call_themselves_the_same(hosts: Hosts) -> None:
    bed = hosts(2)
    for host in bed.hosts:
        assert host.run(["hostname", "node"]).returncode == 0
    put(bed.hosts, "basics.init(); print(rank, basics.local_rank(), basics.cross_size(), total(rank))")
    code, out, err = start(bed, "-H h1:1,h2:1 python train.py").finish()
    assert (code, sorted(line.partition(":")[2] for line in out.splitlines())) == (0, ["0 0 2 1.0", "1 0 2 1.0"]), err


def test_a_login_that_prints_does_no_harm(hosts: Hosts) -> None:
    bed = hosts(1)
    put(bed.hosts, "basics.init(); print(total(1))")
    bed.hosts[0].path("/root/.bashrc").write_text("echo 'Welcome to h1!'\nprintf 'no newline'\n")
    code, out, err = start(bed, "-H h1:2 python train.py").finish()
    assert (code, out.count("2.0")) == (0, 2), err


def test_doctor_over_ssh(hosts: Hosts) -> None:
    bed = hosts(2)
    code, out, err = start(bed, "-H h1:2,h2:2 --json", verb="doctor").finish()
    assert code == 0, err
    assert '"h1"' in out and '"h2"' in out


def test_the_launcher_of_a_dead_terminal_leaves_nothing(hosts: Hosts) -> None:
    """As when a laptop is closed: the launcher gets SIGHUP, and all processes on the hosts end soon."""
    bed = hosts(2)
    put(bed.hosts, 'basics.init(); tell(f"up{rank}"); time.sleep(300)')
    job = start(bed, "-H h1:1,h2:1 python train.py")
    for rank, host in enumerate(bed.hosts):
        told(host, f"up{rank}")
    job.signal(signal.SIGHUP)
    assert job.finish()[0] == 129
    for host in bed.hosts:
        until(lambda host=host: not bed.processes(host), f"nothing is left on {host.name}", 10)
