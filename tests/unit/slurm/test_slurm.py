"""Jobs on Slurm: the script as text, and the verbs on stand-ins for Slurm's programs."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_slurm import FakeSlurm, path_with

from farandole.control.batch_systems import service
from farandole.control.batch_systems.service import BatchJobs
from farandole.control.cli.main import main
from farandole.control.jobs import log_lines
from farandole.control.jobs.errors import BadSpec, JobError, Refused, Unreachable
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import JobState
from farandole.control.slurm.reading import FIELDS, Line, reason_of, state_of
from farandole.control.slurm.script import batch_script
from farandole.control.slurm.service import connect

SPEC = {
    "name": "resnet-2",
    "command": ["python", "train.py", "--name", "a b"],
    "workers": 4,
    "queue": "gpu",
    "priority": -2,
    "checkpoint": "/shared/resnet 2",
    "environment": {"B": "it's", "A": "1"},
    "resources": {"cpu": 2, "memory": "8Gi", "nvidia.com/gpu": 1},
    "workingDirectory": "/home/me/my code",
    "options": {"slurm": ["--qos=high", "--time=60"]},
}
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=resnet-2
#SBATCH --comment=farandole:0a1b2c
#SBATCH --ntasks=4
#SBATCH --output=/state/resnet-2.log
#SBATCH --open-mode=append
#SBATCH --chdir='/home/me/my code'
#SBATCH --partition=gpu
#SBATCH --nice=200
#SBATCH --requeue
#SBATCH --signal=TERM@30
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-task=1
#SBATCH --mem-per-cpu=4096M
#SBATCH --qos=high
#SBATCH --time=60
[ ! -e /state/.resnet-2.0a1b2c.withdrawn ] || exit 0
rm -f /state/resnet-2.exit
export A=1
export B='it'"'"'s'
/opt/bin/farandole run --launcher srun -np "$SLURM_NTASKS" --checkpoint-dir '/shared/resnet 2' --resume auto \
python train.py --name 'a b'
code=$?
echo $code > /state/resnet-2.exit
exit $code
"""


def test_script_has_expected_text() -> None:
    files = Path("/state/resnet-2.log"), Path("/state/resnet-2.exit")
    assert batch_script(from_dict(SPEC), *files, "/opt/bin/farandole", "0a1b2c") == SCRIPT


def test_small_job_requests_only_its_resources() -> None:
    spec = from_dict({"name": "a", "command": ["true"]})
    script = batch_script(spec, Path("/s/a%.log"), Path("/s/a.exit"), "farandole", "0a1b2c")
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert options == [
        "#SBATCH --job-name=a",
        "#SBATCH --comment=farandole:0a1b2c",
        "#SBATCH --ntasks=1",
        "#SBATCH --output=/s/a%%.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --no-requeue",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"priority": 5}, "Slurm lets users only lower the priority"),
        ({"resources": {"memory": "lots"}}, "resource memory: 'lots' is not a valid amount"),
        ({"resources": {"example.com/fpga": 1}}, "resource example.com/fpga: it cannot be requested from Slurm here"),
        ({"options": {"slurm": "--qos=high"}}, "expected a list of options of sbatch"),
        ({"options": {"slurm": ["qos=high"]}}, "expected a list of options of sbatch"),
        ({"options": {"slurm": 5}}, "expected a list of options of sbatch"),
        ({"resources": {"cpu": "nan"}}, "resource cpu: 'nan' is not a valid amount"),
        ({"resources": {"cpu": "inf"}}, "resource cpu: 'inf' is not a valid amount"),
        ({"resources": {"nvidia.com/gpu": "0.5"}}, "resource nvidia.com/gpu: '0.5' is not a whole number"),
        ({"resources": {"memory": "-8Gi"}}, "resource memory: '-8Gi' is not a valid amount"),
    ],
)
def test_impossible_requests_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(Refused, match=said):
        batch_script(from_dict({**SPEC, **changes}), Path("/l"), Path("/e"), "farandole", "0a1b2c")


@pytest.mark.parametrize("cpu", ["2.5", "2500m"])
def test_resources_of_worker_are_rounded_up(cpu: str) -> None:
    spec = from_dict({"name": "a", "command": ["true"], "resources": {"cpu": cpu, "memory": "1000Mi"}})
    script = batch_script(spec, Path("/l"), Path("/e"), "farandole", "0a1b2c")
    assert "--cpus-per-task=3\n" in script and "--mem-per-cpu=334M\n" in script


@pytest.mark.parametrize(
    ("state", "reason", "is_", "told"),
    [
        ("PENDING", "Resources", JobState.WAITING, "waits: the nodes that it needs are in use"),
        ("PENDING", "Licenses", JobState.WAITING, "waits: Slurm says Licenses"),
        ("PENDING", "JobHeldUser", JobState.SUSPENDED, "until farandole resume"),
        ("PENDING", "job requeued in held state", JobState.SUSPENDED, "until farandole resume"),
        ("RUNNING", "None", JobState.RUNNING, ""),
        ("COMPLETED", "None", JobState.SUCCEEDED, ""),
        ("NODE_FAIL", "None", JobState.FAILED, "Slurm says NODE_FAIL"),
        ("TIMEOUT", "TimeLimit", JobState.FAILED, "Slurm says TIMEOUT"),
    ],
)
def test_states_of_slurm_are_translated(state: str, reason: str, is_: JobState, told: str) -> None:
    row = Line("1", "a", state, reason, "me", "all", "4", "", "farandole")
    assert (state_of(row), reason_of(row)) == (is_, told)


# --- with stand-ins for Slurm's programs -------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", path_with(slurm))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return slurm


@pytest.fixture
def jobs(slurm: FakeSlurm, tmp_path: Path) -> BatchJobs:
    return connect({"PATH": path_with(slurm), "XDG_STATE_HOME": str(tmp_path / "state")})


def submit(jobs: BatchJobs, name: str = "a", **changes: object) -> None:
    assert jobs.submit(from_dict({"name": name, "command": ["true"], "workers": 2, **changes})) == name


SQUEUE = f"squeue --noheader --states=all --format={FIELDS} --user={os.geteuid()}"


def state_file(tmp_path: Path, name: str) -> Path:
    return tmp_path / "state" / "farandole" / "slurm" / name


def test_job_from_submission_to_success(jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(jobs)
    assert slurm.script(1).startswith("#!/bin/bash\n#SBATCH --job-name=a\n")
    status = jobs.status("a")
    assert (status.state, status.reason) == (JobState.WAITING, "waits: the nodes that it needs are in use")
    assert (status.workers, status.wanted, status.place) == (0, 2, "slurm")
    slurm.set(1, state="RUNNING", reason="None", nodes="n[1-2]")
    status = jobs.status("a")
    assert (status.state, status.workers, status.hosts) == (JobState.RUNNING, 2, ("n[1-2]",))
    state_file(tmp_path, "a.log").write_text("[0]<stdout>:one\n[1]<stdout>:two\n")
    assert list(jobs.logs("a")) == ["[0]<stdout>:one\n", "[1]<stdout>:two\n"]
    assert list(jobs.logs("a", rank=1)) == ["[1]<stdout>:two\n"]
    state_file(tmp_path, "a.exit").write_text("0\n")
    slurm.set(1, state="COMPLETED")
    assert (jobs.status("a").state, jobs.status("a").exit_code) == (JobState.SUCCEEDED, 0)
    slurm.forget(1)
    assert jobs.status("a").state is JobState.SUCCEEDED, "Slurm has forgotten it"
    state_file(tmp_path, ".a.json").write_bytes(state_file(tmp_path, "a.json").read_bytes())
    assert [job.name for job in jobs.jobs()] == ["a"], "a draft is left by a process that was killed"


def test_failures_of_jobs_are_translated(jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path) -> None:
    for name in "abc":
        submit(jobs, name)
    state_file(tmp_path, "a.exit").write_text("7\n")
    slurm.set(1, state="FAILED")
    slurm.set(2, state="NODE_FAIL")
    slurm.forget(3)
    told = [(job.state, job.exit_code, job.reason) for job in jobs.jobs()]
    assert told == [
        (JobState.FAILED, 7, "it exited with code 7"),
        (JobState.FAILED, None, "Slurm says NODE_FAIL"),
        (JobState.FAILED, None, "Slurm no longer knows it, and it left no exit code"),
    ]


def test_scale_suspend_resume_and_cancel(jobs: BatchJobs, slurm: FakeSlurm) -> None:
    submit(jobs, suspension="requeue")
    jobs.scale("a", 3)
    assert jobs.status("a").wanted == 3 and "scontrol update JobId=1 NumTasks=3" in slurm.calls
    jobs.suspend("a")
    assert jobs.status("a").state is JobState.SUSPENDED and "scontrol hold 1" in slurm.calls
    jobs.resume("a")
    assert jobs.status("a").state is JobState.WAITING
    slurm.set(1, state="RUNNING")
    with pytest.raises(Refused, match="under Slurm it keeps its workers"):
        jobs.scale("a", 4)
    jobs.suspend("a")
    assert "scontrol requeuehold 1" in slurm.calls
    jobs.cancel("a")
    assert jobs.status("a").state is JobState.CANCELLED
    with pytest.raises(Refused, match="job a is over: it was cancelled"):
        jobs.cancel("a")


def test_job_without_checkpoint_is_not_suspended(jobs: BatchJobs, slurm: FakeSlurm) -> None:
    submit(jobs)
    slurm.set(1, state="RUNNING")
    with pytest.raises(Refused, match="it has no checkpoint"):
        jobs.suspend("a")


def test_jobs_of_other_users_and_programs_are_ignored(jobs: BatchJobs, slurm: FakeSlurm) -> None:
    submit(jobs)
    slurm.set(1, comment="somebody's")
    assert jobs.status("a").reason.startswith("Slurm no longer knows it")


def test_name_of_unfinished_job_is_taken(jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(jobs)
    with pytest.raises(Refused, match="job a already exists, as Slurm's 1"):
        submit(jobs)
    state_file(tmp_path, "a.exit").write_text("1\n")
    slurm.set(1, state="FAILED")
    submit(jobs)
    assert jobs.status("a").state is JobState.WAITING
    assert jobs.submit(from_dict({"command": ["true"]})) == "job-1"


def test_concurrent_submissions_get_different_names(jobs: BatchJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    hand_in = jobs._system.submit

    def submit_another_meanwhile(*words: object) -> str:
        if not names:
            names.append("")
            names[0] = jobs.submit(from_dict({"command": ["true"]}))
        return hand_in(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(jobs._system, "submit", submit_another_meanwhile)
    names.append(jobs.submit(from_dict({"command": ["true"]})))
    assert sorted(names) == ["job-1", "job-2"]
    assert sorted(job.name for job in jobs.jobs()) == ["job-1", "job-2"]


def test_refused_submission_keeps_earlier_record(jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(jobs)
    state_file(tmp_path, "a.exit").write_text("0\n")
    state_file(tmp_path, "a.log").write_text("[0]<stdout>:done\n")
    slurm.forget(1)
    with pytest.raises(Refused, match="invalid partition"):
        submit(jobs, queue="nowhere")
    assert jobs.status("a").state is JobState.SUCCEEDED
    assert list(jobs.logs("a")) == ["[0]<stdout>:done\n"]
    submit(jobs)
    assert not state_file(tmp_path, "a.exit").exists() and list(jobs.logs("a")) == []
    assert [job.name for job in jobs.jobs()] == ["a"]


def test_failed_cancellation_is_not_recorded(jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(jobs)
    slurm.set(1, state="RUNNING")
    answers = jobs._system.end

    def unreachable(*_: object) -> None:
        raise Unreachable("scancel does not answer")

    jobs._system.end = unreachable  # type: ignore[method-assign]
    with pytest.raises(Unreachable):
        jobs.cancel("a")
    jobs._system.end = answers  # type: ignore[method-assign]
    state_file(tmp_path, "a.exit").write_text("7\n")
    slurm.set(1, state="FAILED")
    assert jobs.status("a").state is JobState.FAILED, "it has failed by itself"


def test_completed_job_has_succeeded(
    jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(jobs)
    slurm.set(1, state="COMPLETED")
    exit_file = state_file(tmp_path, "a.exit")
    exit_file.write_text("")  # It is being written.
    clock = SimpleNamespace(sleep=lambda _: exit_file.write_text("0\n"), monotonic=time.monotonic)
    monkeypatch.setattr(service, "time", clock)
    assert jobs.status("a").state is JobState.SUCCEEDED
    exit_file.unlink()
    monkeypatch.setattr(service, "_EXIT_SECONDS", 0.0)
    status = jobs.status("a")
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0), "its script ends with the job's code"


def test_listing_jobs_waits_once_for_exit_codes(
    jobs: BatchJobs, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("abc", 1):
        submit(jobs, name)
        slurm.set(number, state="COMPLETED")
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(service, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0], time=time.time))
    assert [status.state for status in jobs.jobs()] == [JobState.SUCCEEDED] * 3
    assert now[0] < 6.0


def test_followed_log_polls_slurm_rarely(jobs: BatchJobs, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(jobs)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 6.0:
            slurm.set(1, state="CANCELLED")

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr(log_lines, "time", clock)
    monkeypatch.setattr(service, "time", clock)
    before = slurm.calls.count(SQUEUE)
    assert list(jobs.logs("a", follow=True)) == []
    assert now[0] > 6.0 and slurm.calls.count(SQUEUE) - before <= 6


def test_preview_is_the_script_that_would_be_submitted(jobs: BatchJobs, slurm: FakeSlurm) -> None:
    spec = from_dict({"name": "a", "command": ["true"], "workers": 2})
    assert slurm.calls == []
    shown = jobs.preview(spec)
    assert slurm.calls == []
    jobs.submit(spec)
    assert shown.replace("000000", slurm.key(1)) == slurm.script(1)


def test_missing_script_is_an_error_before_anything_is_submitted(
    jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path
) -> None:
    spec = from_dict({"command": ["python", "-u", "train.py"], "workingDirectory": str(tmp_path)})
    for ask in (jobs.submit, jobs.preview):
        with pytest.raises(BadSpec, match=r"there is no script 'train\.py' \(in "):
            ask(spec)
    assert slurm.calls == []
    (tmp_path / "train.py").touch()
    assert jobs.submit(spec) == "job-1"


@pytest.mark.parametrize("how", ["lost", "unclear"])
def test_job_is_found_by_key_after_lost_answer(jobs: BatchJobs, slurm: FakeSlurm, how: str) -> None:
    slurm.be(how)
    submit(jobs)
    assert sum(call.startswith("sbatch") for call in slurm.calls) == 1
    slurm.set(1, state="RUNNING")
    assert jobs.status("a").state is JobState.RUNNING
    jobs.cancel("a")
    assert "scancel 1" in slurm.calls


def test_unanswered_submission_is_neither_forgotten_nor_repeated(jobs: BatchJobs, slurm: FakeSlurm) -> None:
    slurm.be("lost")
    slurm.be("hidden")
    with pytest.raises(Unreachable, match=r"Socket timed out.*it is not known whether Slurm has accepted job a"):
        submit(jobs)
    (status,) = jobs.jobs()
    assert (status.name, status.state) == ("a", JobState.WAITING) and "the answer to its submission" in status.reason
    for ask in (lambda: submit(jobs), lambda: jobs.scale("a", 3)):
        with pytest.raises(Refused, match="it is not known yet whether Slurm has accepted"):
            ask()
    slurm.be("hidden", False)
    assert jobs.status("a").reason == "waits: the nodes that it needs are in use", "it has come up"
    with pytest.raises(Refused, match="job a already exists, as Slurm's 1"):
        submit(jobs)
    jobs.cancel("a")
    assert jobs.status("a").state is JobState.CANCELLED


def run_script(slurm: FakeSlurm, number: int) -> str:
    """Run a job's script as Slurm does, with a program that prints in the place of ours; return what it prints."""
    program = slurm.folder / "bin" / "farandole"
    program.write_text("#!/bin/sh\necho it runs\n")
    program.chmod(0o755)
    environment = {"PATH": path_with(slurm), "SLURM_NTASKS": "2"}
    script = re.sub(r"^\S+ run ", "farandole run ", slurm.script(number), flags=re.MULTILINE)
    done = subprocess.run(["bash"], input=script, text=True, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("cancelled", [False, True])
def test_abandoned_submission_is_cancelled_when_it_appears(
    jobs: BatchJobs, slurm: FakeSlurm, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.be("lost")
    slurm.be("hidden")
    with pytest.raises(Unreachable):
        submit(jobs)
    if cancelled:
        jobs.cancel("a")
        assert jobs.status("a").state is JobState.CANCELLED
    else:
        monkeypatch.setattr(service, "_TAKEN_SECONDS", 0.0)
        assert jobs.status("a").state is JobState.FAILED
        assert jobs.status("a").reason.startswith("Slurm has not accepted it: the answer to its submission was lost")
    first = slurm.keep_script(1)
    slurm.be("lost", False)
    submit(jobs)
    slurm.be("hidden", False)
    assert jobs.status("a").state is JobState.WAITING
    assert run_script(slurm, first) == "" and run_script(slurm, 2) == "it runs\n"
    assert jobs.status("a").state is JobState.WAITING, "the exit code is that of the second, which Slurm still shows"


def test_refused_job_leaves_no_record(jobs: BatchJobs, slurm: FakeSlurm, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="invalid partition"):
        submit(jobs, queue="nowhere")
    assert jobs.jobs() == []
    slurm.be("down")
    with pytest.raises(Unreachable, match="Unable to contact"):
        submit(jobs)
    slurm.be("down", False)
    assert jobs.jobs() == [], "it was not handed in"


def test_full_disk_refuses_job_before_it_is_submitted(
    jobs: BatchJobs, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(Refused, match=r"state/farandole/slurm cannot be written: No space left on device"):
        submit(jobs)
    assert not any(call.startswith("sbatch") for call in slurm.calls)


def test_submitted_job_is_found_although_disk_is_full(
    jobs: BatchJobs, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in = jobs._system.submit

    def fill_disk(*words: object) -> str:
        number = hand_in(*words)  # type: ignore[arg-type]
        monkeypatch.setattr(Path, "write_bytes", full_disk)
        return number

    monkeypatch.setattr(jobs._system, "submit", fill_disk)
    submit(jobs)
    assert jobs.status("a").state is JobState.WAITING
    with pytest.raises(Refused, match="job a already exists, as Slurm's 1"):
        submit(jobs)


def full_disk(path: Path, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (lambda jobs: jobs.status("b"), "there is no job b that was submitted to Slurm from here"),
        (lambda jobs: submit(jobs, "b", queue="nowhere"), "sbatch: invalid partition specified: nowhere"),
        (lambda jobs: jobs.resume("a"), "job a is not suspended"),
        (lambda jobs: jobs.scale("a", 0), "cannot run with 0 workers"),
    ],
)
def test_invalid_requests_are_refused_with_hint(jobs: BatchJobs, do: Callable[[BatchJobs], object], said: str) -> None:
    submit(jobs)
    with pytest.raises(JobError, match=said):
        do(jobs)


@pytest.mark.parametrize(
    "reason",
    [
        "Unable to contact slurm controller (connect failure)",
        "resolve_ctls_from_dns_srv: res_nsearch error: Unknown host",  # There is no slurm.conf.
    ],
)
def test_unresponsive_slurm_is_an_error(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    (slurm.folder / "down").write_text(reason)
    assert main(["jobs", "--on", "slurm"]) == 2
    said = capsys.readouterr().err
    assert f"error: squeue: {reason}\nhint: check that Slurm is running" in said
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["jobs", "--on", "slurm"]) == 2
    assert "error: squeue is not on the PATH" in capsys.readouterr().err
