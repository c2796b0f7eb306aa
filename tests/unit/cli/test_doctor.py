"""`farandole doctor`: how other hosts are asked, and the verb itself."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from doctor_facts import WELL, with_

from farandole.control.agent.inspect.facts import (
    Facts,
)
from farandole.control.cli.main import main
from farandole.control.launcher.doctor import inspection
from farandole.control.launcher.doctor.inspection import Silence, inspect_hosts
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions

Ssh = Callable[[str], None]
MARS_ITSELF = Host("ada@mars.invalid")


def ask(host: Host) -> Facts | Silence:
    return inspect_hosts([host], SshOptions())[host.label]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """Return what puts a shell script in the place of ssh; it finds the host and the command in $host and $command."""

    def install(script: str) -> None:
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nhost=$1 command=$2\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_asking_through_ssh(ssh: Ssh) -> None:
    ssh('echo "Welcome to $host"; exec sh -c "$command"')
    facts = ask(MARS_ITSELF)
    assert isinstance(facts, Facts)
    assert facts.software.executable == sys.executable
    assert facts.clock.ahead == 0.0


def test_this_machine_is_not_asked_through_ssh(ssh: Ssh) -> None:
    ssh("exit 255")
    facts = ask(Host("localhost"))
    assert isinstance(facts, Facts) and facts.clock.ahead is None


@pytest.mark.parametrize(
    ("script", "why", "hint"),
    [
        (
            "echo 'x@mars: Permission denied (publickey).' >&2; exit 255",
            "let you log in",
            "ssh-copy-id ada@mars.invalid",
        ),
        ("echo 'Connection refused' >&2; exit 255", "no ssh server listens", "start sshd"),
        ("echo 'sh: 1: python: not found' >&2; exit 127", "there is no Python", "--python ada@mars.invalid="),
        ("echo \"x: No module named 'farandole'\" >&2; exit 1", "lacks farandole", "pip install"),
        ("echo 'MemoryError' >&2; exit 1", "MemoryError", "ssh ada@mars.invalid"),
        ("echo '{\"system\": 3}'", "cannot be read", "install the same version"),
        ("true", "cannot be read", "install the same version"),
    ],
)
def test_hosts_that_cannot_be_asked(ssh: Ssh, script: str, why: str, hint: str) -> None:
    ssh(script)
    silence = ask(MARS_ITSELF)
    assert isinstance(silence, Silence)
    assert why in silence.why and hint in silence.hint


def test_a_host_that_does_not_answer(ssh: Ssh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "HOST_SECONDS", 0.2)
    ssh("exec sleep 1000")
    silence = ask(MARS_ITSELF)
    assert isinstance(silence, Silence) and silence.why == "no answer within 0.2 s"


def test_a_clock_that_is_certainly_wrong(ssh: Ssh, tmp_path: Path) -> None:
    for seconds in (100, -100):
        facts = with_(WELL, "clock", now=time.time() + seconds)
        (tmp_path / "told.json").write_bytes(msgspec.json.encode(facts))
        ssh(f"cat {tmp_path}/told.json")
        told = ask(MARS_ITSELF)
        assert isinstance(told, Facts) and told.clock.ahead is not None
        assert told.clock.ahead * seconds > 0


# --- the verb ---------------------------------------------------------------------------------------------------------


def test_doctor_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    told = capsys.readouterr().out
    assert code == (1 if "\nproblem " in told else 0)
    assert "\nwhat can move tensors\n" in told and "for a bug report, copy this:" in told
    assert "\x1b[" not in told


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    (host,) = json.loads(capsys.readouterr().out)["hosts"].values()
    assert host["facts"]["system"]["kernel"] == os.uname().release
    assert {"level", "subject", "text", "todo"} == set(host["findings"][0])


def test_doctor_of_several_hosts(
    ssh: Ssh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ssh('[ "$host" = mars.invalid ] && exec sh -c "$command"; exit 255')
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\nmars.invalid slots=2\n\nvenus.invalid slots=2\n")
    assert main(["doctor", "--hostfile", str(hostfile)]) == 1
    told = capsys.readouterr().out
    assert "problem  reach: the agent did not start: there was no message (venus.invalid)" in told
    assert main(["doctor", "-H", "mars.invalid:2,venus.invalid:2", "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["hosts"]) == {"mars.invalid", "venus.invalid"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-H", "mars:many"], "mars:many"),
        (["-H", ":2"], "Invalid host input"),
        (["--hostfile", "/surely/not/there"], "the host file /surely/not/there cannot be read"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told and "\nhint: " in told


def test_the_doctor_loads_no_framework_and_no_native_library() -> None:
    code = (
        "import sys\nfrom farandole.control.cli.main import main\nmain(['doctor', '--json'])\n"
        "print(*sys.modules, file=sys.stderr)\nprint(open('/proc/self/maps').read(), file=sys.stderr)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    modules, _, maps = told.partition("\n")
    assert not {"torch", "numpy", "farandole.worker.core.binding"} & set(modules.split())
    assert "libfarandole" not in maps
