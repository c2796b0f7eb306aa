"""Jobs on LSF: the script as text, and the verbs on stand-ins for LSF's programs. No real LSF has seen either."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_lsf import FakeLsf
from fake_slurm import path_with

from farandole.control.batch_systems.service import BatchJobs
from farandole.control.cli.main import main
from farandole.control.jobs.errors import JobError, Refused
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import JobState
from farandole.control.lsf.reading import number_of, read_rows
from farandole.control.lsf.script import batch_script
from farandole.control.lsf.service import connect

SPEC = {
    "name": "resnet-2",
    "command": ["python", "train.py", "--name", "a b"],
    "workers": 4,
    "queue": "gpu",
    "checkpoint": "/shared/resnet 2",
    "environment": {"B": "it's", "A": "1"},
    "resources": {"nvidia.com/gpu": 1},
    "workingDirectory": "/home/me/my code",
    "options": {"lsf": ["-W 60", "-M 8GB"]},
}
SCRIPT = """\
#!/bin/bash
#BSUB -J resnet-2
#BSUB -Jd farandole:0a1b2c
#BSUB -n 4
#BSUB -o /dev/null
#BSUB -cwd '/home/me/my code'
#BSUB -q gpu
#BSUB -r
#BSUB -gpu num=1/task
#BSUB -W 60
#BSUB -M 8GB
exec >> /state/resnet-2.log 2>&1
set -- $LSB_MCPU_HOSTS; hosts=; while [ $# -gt 1 ]; do hosts="$hosts,$1:$2"; shift 2; done
[ ! -e /state/.resnet-2.0a1b2c.withdrawn ] || exit 0
rm -f /state/resnet-2.exit
export A=1
export B='it'"'"'s'
/opt/bin/farandole run -H "${hosts#,}" -np "$LSB_DJOB_NUMPROC" --checkpoint-dir '/shared/resnet 2' --resume auto \
python train.py --name 'a b'
code=$?
echo $code > /state/resnet-2.exit
exit $code
"""


def test_script_has_expected_text() -> None:
    files = Path("/state/resnet-2.log"), Path("/state/resnet-2.exit")
    assert batch_script(from_dict(SPEC), *files, "/opt/bin/farandole", "0a1b2c") == SCRIPT


def test_script_runs_on_hosts_of_the_allocation(tmp_path: Path) -> None:
    spec = from_dict({"name": "a", "command": ["train", "two words"], "workers": 6})
    script = batch_script(spec, tmp_path / "log", tmp_path / "exit", "echo", "0a1b2c")
    environment = {"PATH": "/usr/bin:/bin", "LSB_MCPU_HOSTS": "n1 4 n2 2 ", "LSB_DJOB_NUMPROC": "6"}
    assert subprocess.run(["bash"], input=script, text=True, env=environment, cwd=tmp_path).returncode == 0
    assert (tmp_path / "log").read_text() == "run -H n1:4,n2:2 -np 6 train two words\n"
    assert (tmp_path / "exit").read_text() == "0\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"priority": 5}, "priority 5: the meaning of users' priorities in LSF"),
        ({"priority": -1}, "priority -1: the meaning of users' priorities in LSF"),
        ({"resources": {"memory": "8Gi"}}, "resource memory: 8Gi: it cannot be requested from LSF here"),
        ({"resources": {"nvidia.com/gpu": "half"}}, "resource nvidia.com/gpu: half"),
        ({"options": {"lsf": "-W 60"}}, "options.lsf: expected a list of options of bsub"),
    ],
)
def test_unsupported_options_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(Refused, match=said):
        batch_script(from_dict({**SPEC, **changes}), Path("/l"), Path("/e"), "farandole", "0a1b2c")


@pytest.mark.parametrize(
    ("word", "reason", "is_", "told"),
    [
        ("PEND", "Not enough slots;", JobState.WAITING, "waits: LSF says Not enough slots"),
        ("PEND", "a | b;", JobState.WAITING, "waits: LSF says a | b"),
        ("PSUSP", "-", JobState.SUSPENDED, "until farandole resume"),
        ("SSUSP", "-", JobState.SUSPENDED, "LSF has suspended it for a while"),
        ("RUN", "-", JobState.RUNNING, ""),
        ("DONE", "-", JobState.SUCCEEDED, ""),
        ("EXIT", "-", JobState.FAILED, ""),
        ("ZOMBI", "-", JobState.FAILED, ""),
    ],
)
def test_states_of_lsf_are_translated(word: str, reason: str, is_: JobState, told: str) -> None:
    row = read_rows(f"7|{word}|me|normal|-|farandole|{reason}\n8|RUN|me|normal|n1|-|-\n")["7"]
    assert (row.state, row.reason, row.hosts) == (is_, told, "")


def test_job_id_is_read_from_bsub() -> None:
    assert number_of("Job <301> is submitted to default queue <normal>.\n") == "301"
    assert number_of("Waiting for a project name\n") == ""


# --- with stand-ins for LSF's programs ---------------------------------------------------------------------------


@pytest.fixture
def lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLsf:
    lsf = FakeLsf(tmp_path / "lsf")
    monkeypatch.setenv("PATH", path_with(lsf))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return lsf


@pytest.fixture
def jobs(lsf: FakeLsf, tmp_path: Path) -> BatchJobs:
    return connect({"PATH": path_with(lsf), "XDG_STATE_HOME": str(tmp_path / "state")})


def submit(jobs: BatchJobs, name: str = "a", **changes: object) -> None:
    assert jobs.submit(from_dict({"name": name, "command": ["true"], "workers": 2, **changes})) == name


def test_job_from_submission_to_success(jobs: BatchJobs, lsf: FakeLsf, tmp_path: Path) -> None:
    assert list(jobs.jobs()) == []
    submit(jobs, suspension="requeue")
    assert lsf.script(1).startswith("#!/bin/bash\n#BSUB -J a\n")
    status = jobs.status("a")
    assert (status.state, status.place, status.queue, status.wanted) == (JobState.WAITING, "lsf", "normal", 2)
    assert status.reason == "waits: LSF says New job is waiting for scheduling"
    jobs.scale("a", 3)
    jobs.suspend("a")
    assert jobs.status("a").state is JobState.SUSPENDED and jobs.status("a").wanted == 3
    jobs.resume("a")
    lsf.set(1, state="RUN", hosts="2*n1:1*n2", reason="-")
    status = jobs.status("a")
    assert (status.state, status.workers, status.hosts) == (JobState.RUNNING, 3, ("2*n1:1*n2",))
    with pytest.raises(Refused, match="under LSF it keeps its workers"):
        jobs.scale("a", 4)
    jobs.suspend("a")
    assert jobs.status("a").state is JobState.SUSPENDED
    jobs.resume("a")
    jobs.cancel("a")
    assert jobs.status("a").state is JobState.CANCELLED
    verbs = [call for call in lsf.calls if not call.startswith(("bjobs", "bsub"))]
    assert verbs == ["bmod -n 3 1", "bstop 1", "bresume 1", "brequeue -H 1", "bresume 1", "bkill 1"]


def test_ends_of_jobs_are_translated(jobs: BatchJobs, lsf: FakeLsf, tmp_path: Path) -> None:
    for name in "abc":
        submit(jobs, name)
    for number, (word, code) in enumerate((("DONE", "0"), ("EXIT", "7"), ("EXIT", "")), 1):
        lsf.set(number, state=word)
        if code:
            (tmp_path / "state" / "farandole" / "lsf" / f"{'abc'[number - 1]}.exit").write_text(code)
    assert [(job.state, job.exit_code, job.reason) for job in jobs.jobs()] == [
        (JobState.SUCCEEDED, 0, ""),
        (JobState.FAILED, 7, "it exited with code 7"),
        (JobState.FAILED, None, "LSF says EXIT"),
    ]


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (lambda jobs: jobs.status("b"), "there is no job b that was submitted to LSF from here"),
        (lambda jobs: submit(jobs, "b", queue="nowhere"), "bsub: nowhere: No such queue"),
        (lambda jobs: submit(jobs), "job a already exists, as LSF's 1"),
        (lambda jobs: jobs.resume("a"), "job a is not suspended"),
    ],
)
def test_invalid_jobs_are_refused_with_hint(jobs: BatchJobs, do: Callable[[BatchJobs], object], said: str) -> None:
    submit(jobs)
    with pytest.raises(JobError, match=said):
        do(jobs)


def test_unresponsive_lsf_is_an_error(
    lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (lsf.folder / "down").touch()
    assert main(["jobs", "--on", "lsf"]) == 2
    said = capsys.readouterr().err
    assert "error: bjobs: Failed in an LSF library call" in said and "hint: check that LSF is running: lsid" in said
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["jobs", "--on", "lsf"]) == 2
    assert "error: bjobs is not on the PATH" in capsys.readouterr().err


def test_job_is_found_by_key_after_lost_answer(jobs: BatchJobs, lsf: FakeLsf) -> None:
    lsf.be("lost")
    assert jobs.submit(from_dict({"name": "a", "command": ["true"]})) == "a"
    assert jobs.status("a").state is JobState.WAITING and lsf.calls.count("bsub") == 1
    jobs.cancel("a")
    assert "bkill 1" in lsf.calls
