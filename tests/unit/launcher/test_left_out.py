"""Explanations for files that are here but not on the hosts."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from farandole.control.agent.file_messages import File
from farandole.control.launcher.host_setup import prepare
from farandole.control.launcher.host_setup.prepare import Preparation
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.plan.model import HostPlan
from farandole.control.launcher.ship.file_list import Manifest, build_manifest
from farandole.control.launcher.ship.missing_files import command_on_hosts, hint_for_missing, where_to_run, why_left_out
from farandole.errors import SpecError


@pytest.fixture
def ignoring(project: Path) -> Manifest:
    (project / ".gitignore").write_text("# data\n\n*.bin\n/secret/\n")
    (project / "secret").mkdir()
    (project / "secret" / "key.py").write_text("")
    (project.parent / "beside.txt").write_text("")
    return build_manifest(str(project))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("noise.bin", "line 3 of .gitignore says `*.bin`"),
        ("package/../noise.bin", "line 3 of .gitignore says `*.bin`"),
        ("secret", "line 4 of .gitignore says `/secret/`"),
        ("secret/key.py", "line 4 of .gitignore says `/secret/`"),
        ("train.py", None),
        ("package", None),
        ("outputs", None),
        (".", None),
        ("missing.bin", None),
        ("nowhere", None),
    ],
)
def test_why_left_out(path: str, why: str | None, ignoring: Manifest) -> None:
    assert why_left_out(ignoring, path) == why
    assert why_left_out(ignoring, os.path.join(os.fsdecode(ignoring.root), path)) == why


def test_files_outside_or_created_later_are_explained(ignoring: Manifest, project: Path) -> None:
    assert why_left_out(ignoring, "../beside.txt") == f"it is outside the directory that was sent, {project}"
    (project / "new.txt").write_text("")
    assert why_left_out(ignoring, "new.txt") == "it did not exist when the job started"
    (project / ".git").mkdir()
    assert why_left_out(ignoring, ".git") == "git's own files (.git) are never sent"


@pytest.mark.parametrize("output", ["package", "../project/package", "."])
def test_output_of_workers_is_not_sent(project: Path, output: str) -> None:
    outputs = project / output
    for path in ("rank.0/stdout", "worker.12/stderr", "attempt_3/rank.0/stdout", "ranks/rank.0/stdout", "rank.txt"):
        (outputs / path).parent.mkdir(parents=True, exist_ok=True)
        (outputs / path).write_text("hello")
    manifest = build_manifest(str(project), output=str(outputs))
    inside = b"" if output == "." else b"package/"
    sent = [entry.path.removeprefix(inside) for entry in manifest.entries if b"rank" in entry.path]
    assert sent == [b"rank.txt", b"ranks/rank.0/stdout"]
    for path in ("rank.0", "worker.12/stderr", "attempt_3/rank.0/stdout"):
        assert why_left_out(manifest, str(outputs / path)) == "the output of workers is never sent"


def test_job_does_not_send_the_output_of_its_workers(project: Path) -> None:
    spec = LaunchSpec(("true",), 1, hosts=(Host("h1", 1),), ship=".", output_dir=Path("out"))
    (project / "out" / "rank.0").mkdir(parents=True)
    (project / "out" / "rank.0" / "stdout").write_text("hello")
    machine = Machine("here", 1, 0, str(project), {})
    preparation = Preparation(spec, machine, Console(print, print), print, "job")
    asyncio.run(preparation.build_manifest())
    said = "No such file or directory: 'out/rank.0/stdout'"
    hint = preparation.hint(HostPlan("h1", 1, (), local=False, directory="/there"), said)
    assert hint == "out/rank.0/stdout is here but was not sent: the output of workers is never sent"


def test_newcomers_are_not_sent_files_that_workers_have_written_since_the_start(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = ("run/step-1/state", "copy", "plan.json", "train.py")
    gone = ("run/step-2/state", "t.json", "t.2.json", "log.csv")
    for path in same + gone:
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text("of an earlier run")
    settings = {
        "autotune": True,
        "checkpoint_dir": "run",
        "timeline": "t.json",
        "autotune_log": str(project / "log.csv"),
        "tuning": "plan.json",
    }
    spec = LaunchSpec(("python", "train.py"), 1, hosts=(Host("h1", 1),), ship=".", settings=settings)
    preparation = Preparation(spec, Machine("here", 1, 0, str(project), {}), Console(print, print), print, "job")
    asyncio.run(preparation.build_manifest())
    shutil.rmtree(project / "run" / "step-2")
    for path in ("t.json", "t.2.json", "log.csv", "train.py"):
        (project / path).write_text("changed")
    sent: list[Manifest] = []

    async def ship(manifest: Manifest, *_: object) -> dict[str, str]:
        sent.append(manifest)
        return {}

    monkeypatch.setattr(prepare, "ship", ship)
    asyncio.run(preparation.prepare([]))
    files = [os.fsdecode(entry.path) for entry in sent[0].entries if isinstance(entry, File)]
    assert set(same) <= set(files) and not set(gone) & set(files)
    (earlier,) = {file.path for file in sent[0].files.values() if file.size == len("of an earlier run")}
    assert os.fsdecode(earlier) in same, "its content is still there"


@pytest.mark.parametrize("output", ["", "..", "../beside"])
def test_output_directory_elsewhere_changes_nothing(project: Path, output: str) -> None:
    (project / "rank.0").mkdir()
    plain = build_manifest(str(project))
    assert build_manifest(str(project), output=output and str(project / output)) == plain
    assert why_left_out(plain, "rank.0") is None


BIN = "noise.bin is here but was not sent: line 3 of .gitignore says `*.bin`"
SECRET = "secret is here but was not sent: line 4 of .gitignore says `/secret/`"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'noise.bin'", BIN),
        ("FileNotFoundError: [Errno 2] No such file or directory: './noise.bin'", BIN),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/c/trees/job/project/noise.bin'", BIN),
        ('RuntimeError: cannot open file noise.bin, "noise.bin" does not exist', BIN),
        ("cat: noise.bin: No such file or directory", BIN),
        ("ModuleNotFoundError: No module named 'secret'", SECRET),
        ("ModuleNotFoundError: No module named 'secret.key'", "secret/key.py" + SECRET.removeprefix("secret")),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'secret/new/file'", SECRET),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'other.bin'", ""),
        ("ModuleNotFoundError: No module named 'numpy'", ""),
        ("KeyError: 'noise.bin'", ""),
        ('File "/etc/passwd", line 1\nNameError: name not found', ""),
        ("", ""),
    ],
)
def test_hints(text: str, hint: str, ignoring: Manifest) -> None:
    assert hint_for_missing(text, ignoring, directories=["/c/trees/job/project"]) == hint


def test_hint_explains_files_in_other_directories(ignoring: Manifest, project: Path) -> None:
    text = "FileNotFoundError: [Errno 2] No such file or directory: {!r}"
    assert hint_for_missing(text.format("../../noise.bin"), ignoring, "package/deep") == BIN
    beside = str(project.parent / "beside.txt")
    why = f"is here but was not sent: it is outside the directory that was sent, {project}"
    assert hint_for_missing(text.format(beside), ignoring) == f"{beside} {why}"
    assert hint_for_missing(text.format("../beside.txt"), ignoring) == f"../beside.txt {why}"


def test_excluded_script_is_refused(ignoring: Manifest, project: Path) -> None:
    here = str(project)
    assert command_on_hosts(ignoring, ["python", "-u", "train.py"], here) == ("python", "-u", "train.py")
    assert command_on_hosts(ignoring, ["python", f"{here}/train.py", "x"], here) == ("python", "train.py", "x")
    assert command_on_hosts(ignoring, ["python", f"{here}/train.py"], f"{here}/package") == ("python", "../train.py")
    assert command_on_hosts(ignoring, [f"{here}/run.sh"], here) == ("./run.sh",)
    assert command_on_hosts(ignoring, ["/bin/sh", "-c", "x"], here) == ("/bin/sh", "-c", "x")
    with pytest.raises(SpecError) as caught:
        command_on_hosts(ignoring, ["python", "key.py"], f"{here}/secret")
    assert caught.value.message == "the command needs key.py, which is not sent: line 4 of .gitignore says `/secret/`"
    with pytest.raises(SpecError) as caught:
        command_on_hosts(ignoring, ["python", "../beside.txt"], here)
    assert caught.value.hint == "--ship .."


def test_where_to_run(ignoring: Manifest, project: Path) -> None:
    assert where_to_run(ignoring, str(project)) == ""
    assert where_to_run(ignoring, str(project / "package" / "deep")) == "package/deep"
    with pytest.raises(SpecError, match="is not in"):
        where_to_run(ignoring, str(project.parent))
    with pytest.raises(SpecError, match="is the workers' working directory"):
        where_to_run(ignoring, str(project / "secret"))
