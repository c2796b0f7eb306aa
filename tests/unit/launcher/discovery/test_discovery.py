"""Host discovery: by script, by file, by name, and the errors when it fails."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.control.launcher.discovery.discovery import (
    Discovery,
    DnsHosts,
    FileHosts,
    ScriptHosts,
    distinct,
    make_source,
)
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def ask(source: ScriptHosts | FileHosts | DnsHosts) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in asyncio.run(source.ask())]


def test_script_lists_hosts_in_order(tmp_path: Path) -> None:
    name = script(tmp_path / "hosts.sh", "echo b:2; echo; echo a; echo '[fd00::1]:3'; echo b:2; echo '# no host'")
    assert ask(ScriptHosts(name, 4)) == [("b", 2), ("a", 4), ("fd00::1", 3)]
    assert ask(ScriptHosts(name, None))[1] == ("a", 1)


def test_script_may_have_arguments_and_print_nothing(tmp_path: Path) -> None:
    assert ask(ScriptHosts(script(tmp_path / "hosts.sh", 'echo "$1:$2"') + " 'a' 3", None)) == [("a", 3)]
    assert ask(ScriptHosts(script(tmp_path / "none.sh", ""), None)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo out; echo no quota >&2; exit 3", "ended with code 3\n    | out\n    | no quota"),
        ("echo a:1; echo a:3", "host a is listed twice, with 1 slot and with 3 slots"),
        ("echo a:2; echo a:two", "line 2"),
        ("echo hello world", "line 1: 'world' is not known after the name of a host"),
    ],
)
def test_invalid_scripts_are_errors(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError) as refusal:
        ask(ScriptHosts(script(tmp_path / "hosts.sh", text), None))
    assert words in str(refusal.value)


def test_a_script_without_an_interpreter_line_is_run_by_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "hosts.sh"
    path.write_text('echo "a:${1:-2}"\n')
    path.chmod(0o755)
    assert ask(ScriptHosts(str(path), None)) == [("a", 2)]
    assert ask(ScriptHosts(f"{path} 3", None)) == [("a", 3)]


def test_script_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "hosts.sh"
    path.write_text("echo a:2\n")
    with pytest.raises(SpecError, match=r"cannot be started: Permission denied.*chmod"):
        ask(ScriptHosts(str(path), None))


@pytest.mark.parametrize("script", ["./missing.sh", "missing-program --all", " "])
def test_script_that_does_not_exist_is_an_error_about_its_path(script: str) -> None:
    with pytest.raises(SpecError, match="cannot be started: ") as caught:
        asyncio.run(ScriptHosts(script, None).ask())
    assert caught.value.hint == "check the path"


@pytest.mark.parametrize("given", ["hosts here.sh", "hosts.sh 3"])
def test_script_in_current_directory_needs_no_slash(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "hosts here.sh", "echo a:2")
    script(tmp_path / "hosts.sh", "echo a:2")
    assert ask(ScriptHosts(given, None)) == [("a", 2)]


def test_command_with_open_quotation_is_an_error() -> None:
    with pytest.raises(SpecError, match="No closing quotation") as caught:
        ScriptHosts("it's", None)
    assert caught.value.hint == "check the path; a command with arguments is quoted as for a shell"


def test_hanging_script_is_killed_with_its_children(tmp_path: Path) -> None:
    name = script(tmp_path / "hosts.sh", f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    told = tmp_path / "pid"
    told.touch()
    for timeout in (0.5, 5.0, 50.0):
        with pytest.raises(SpecError, match=rf"did not end within {timeout:g} s"):
            ask(ScriptHosts(name, None, timeout=timeout))
        if told.read_text():
            break  # On a busy machine it is killed sometimes before it has begun.
    pid = int(told.read_text())
    deadline = time.monotonic() + 60
    while _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=2\nb:1\n")
    source = FileHosts(str(path), 1)
    assert ask(source) == [("a", 2), ("b", 1)]
    other = tmp_path / "other"
    other.write_text("c\n")
    os.replace(other, path)
    assert ask(source) == [("c", 1)]
    path.unlink()
    with pytest.raises(SpecError, match="cannot be read"):
        ask(source)


def test_dns_name_resolves_to_hosts() -> None:
    hosts = ask(DnsHosts("localhost", 3))
    assert hosts and all(name in ("127.0.0.1", "::1") and slots == 3 for name, slots in hosts)
    with pytest.raises(SpecError, match=r"the name no\.\.name cannot be looked up"):
        ask(DnsHosts("no..name", None))


def test_source_is_chosen_by_option() -> None:
    assert isinstance(make_source(Elastic(1, None, discovery="script:/x"), ()), ScriptHosts)
    assert isinstance(make_source(Elastic(1, None, discovery="file:/x"), ()), FileHosts)
    assert isinstance(make_source(Elastic(1, None, discovery="dns:x:4"), ()), DnsHosts)
    fixed = make_source(Elastic(1, None), (Host("a"), Host("b", 2)))
    assert fixed.seconds == 0 and asyncio.run(fixed.ask()) == (Host("a", 1), Host("b", 2))
    with pytest.raises(SpecError, match="'four' is not a number of slots"):
        make_source(Elastic(1, None, discovery="dns:x:four"), ())


def test_host_with_two_pythons_is_refused() -> None:
    with pytest.raises(SpecError, match="listed twice"):
        distinct([Host("a", 1), Host("a", 1, "/usr/bin/python")], None)


class Answers:
    """A source that gives one answer after the other, and then stays."""

    seconds = 0.001

    def __init__(self, *answers: tuple[Host, ...] | str) -> None:
        self.answers = list(answers)

    async def ask(self) -> tuple[Host, ...]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            raise SpecError(answer)
        return answer


def watched(
    source: Answers,
    until: Callable[[], bool],
    changes: list[tuple[Host, ...]],
    warnings: list[str],
    timeout: float = 20.0,
) -> None:
    async def watch() -> None:
        discovery = Discovery(source, warnings.append, timeout=timeout)
        await discovery.first()
        task = asyncio.create_task(discovery.watch(changes.append))
        deadline = time.monotonic() + 60
        while not until() and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watch())


def test_changes_and_errors_are_reported_once() -> None:
    one, two = (Host("a", 1),), (Host("a", 1), Host("b", 1))
    source = Answers(one, one, "no quota", "no quota", "no network", two, "no quota", two, one, one)
    changes: list[tuple[Host, ...]] = []
    warnings: list[str] = []
    watched(source, lambda: len(changes) == 2, changes, warnings)
    assert changes == [two, one]
    assert warnings == [f"warning: {what}; the hosts stay the same" for what in ("no quota", "no network", "no quota")]


NO_HOSTS = (
    "warning: discovery found no hosts; the job keeps its hosts and asks again; if this lasts for {} s, "
    "the job gives up its hosts"
)


def test_answer_without_slots_is_ignored_and_reported_once() -> None:
    one, two = (Host("a", 1),), (Host("a", 1), Host("b", 1))
    none = (Host("a", 0),)
    changes: list[tuple[Host, ...]] = []
    warnings: list[str] = []
    watched(Answers(one, (), none, "no quota", (), one, one, two), lambda: bool(changes), changes, warnings)
    assert changes == [two]
    assert warnings == [
        NO_HOSTS.format(20),
        "warning: no quota; the hosts stay the same",
        "farandole: discovery finds hosts again",
    ]


def test_lasting_answer_without_hosts_is_accepted() -> None:
    one = (Host("a", 1),)
    source = Answers(one, ())
    changes: list[tuple[Host, ...]] = []
    warnings: list[str] = []

    def until() -> bool:
        source.answers += [(), one] if changes and len(source.answers) == 1 else []
        return len(changes) == 2

    watched(source, until, changes, warnings, timeout=0.05)
    assert changes == [(), one]
    assert warnings == [
        NO_HOSTS.format(0.05),
        "warning: discovery has found no hosts for 0.05 s; the job gives up its hosts",
    ]


def test_job_without_slots_accepts_answer_without_slots() -> None:
    none, one = (Host("a", 0),), (Host("a", 1),)
    changes: list[tuple[Host, ...]] = []
    warnings: list[str] = []
    watched(Answers(none, (), one), lambda: len(changes) == 2, changes, warnings)
    assert changes == [(), one] and warnings == []


class Silent:
    """A source that never answers."""

    seconds = 1.0
    cancelled = False

    async def ask(self) -> tuple[Host, ...]:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return ()


def test_missing_first_answer_is_reported_early_and_times_out() -> None:
    source, told = Silent(), list[str]()
    with pytest.raises(
        SpecError, match=r"discovery \(script:x\) has not answered within the elastic timeout of 0\.05 s"
    ):
        asyncio.run(Discovery(source, told.append, "script:x", timeout=0.05, slow=0.01).first())
    assert told == [
        "farandole: discovery (script:x) has not answered for 0.01 s; the job cannot start without an answer",
    ]
    assert source.cancelled


def test_error_in_first_answer_ends_job() -> None:
    with pytest.raises(SpecError, match="no quota"):
        asyncio.run(Discovery(Answers("no quota"), print).first())
