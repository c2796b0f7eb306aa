"""`farandole run` over several hosts: refused jobs, and their messages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.jobs import FOLDER, put, start
from tests.hosts.launches import MEET, Hosts
from waiting import until


def refused(bed: Bed, arguments: str) -> str:
    """Return the error output of a launch that is refused."""
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
    assert "h3: no ssh server listens on its port 22" in err
    assert "h4: no host has this name" in err
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
    version = sys.version.split()[0]
    assert f"h2: its Python, {sys.executable} ({version}), has no numpy, which train.py imports" in err
    assert f"install it: ssh h2 '{sys.executable} -m pip install numpy'" in err


def test_results_of_autotuning_are_missing_where_rank_0_runs(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, MEET)
    err = refused(bed, "-H h1:1,h2:1 --tuning tuned.json python train.py")
    assert f"h1: the results of autotuning cannot be read: {FOLDER}/tuned.json: No such file or directory" in err
    assert "h2:" not in err and "hint: correct the path of --tuning" in err
    bed.hosts[1].path(f"{FOLDER}/tuned.json").touch()
    assert "h1: the results" in refused(bed, "-H h1:1,h2:1 -x FARANDOLE_TUNING=tuned.json python train.py")


def test_a_python_that_cannot_run_farandole(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, MEET)
    import msgspec

    bed.hide(bed.hosts[1], os.path.dirname(msgspec.__file__))
    err = refused(bed, "-H h1:1,h2:1 python train.py")
    version = sys.version.split()[0]
    assert f"h2: its Python, {sys.executable}, is version {version}, and lacks msgspec, which farandole needs" in err
    assert "hint: install it there: " in err and f"ssh h2 '{sys.executable} -m pip install " in err


def test_a_firewall_between_two_workers(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts, MEET)
    bed.cut_between(bed.hosts[0], bed.hosts[2])
    err = refused(bed, "-H h1:1,h2:1,h3:1 python train.py")
    assert "h1: it does not reach h3 (" in err and "no answer within" in err
    assert "h2:" not in err
    assert "open the firewall between these hosts" in err


def test_a_firewall_is_reported_without_preflight(hosts: Hosts) -> None:
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
        ("--hostfile nowhere python train.py", "the host file nowhere cannot be read"),
        ("-H h1:1", "the command is missing"),
        ("--nnodes 3 -H h1:1,h2:1 python train.py", "there are only 2 hosts"),
        ("--nnodes 2 --nproc-per-node 1 python train.py", "no hosts are given"),
        ("-H h1:1 -i /nowhere/key python train.py", "the key /nowhere/key does not exist"),
        ("-H h1:1 --ssh-fanout -1 python train.py", "--ssh-fanout -1 is not a number of hosts"),
    ],
)
def test_invalid_host_options_are_refused(hosts: Hosts, arguments: str, words: str, tmp_path: Path) -> None:
    from farandole.control.cli.main import main

    del hosts
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        said: list[str] = []
        patch.setattr(sys.stderr, "write", lambda text: said.append(text) or len(text))
        assert main(["run", *arguments.split()]) == 2
    assert words in "".join(said)
