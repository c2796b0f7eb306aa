"""A real queue: jobs that wait, grow, shrink, are suspended and cancelled; users; and requests that are refused."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from queue_bench import QueueBench
from waiting import processes_with, until

import farandole
from farandole.control.jobs.handle import JobFailed

SAVES = """\
import os, signal, sys, time
file = sys.argv[1]

def save(*_):
    open(file, "a").write("saved\\n")
    sys.exit(0)

signal.signal(signal.SIGUSR1, save)
open(file, "a").write("begun\\n")
if open(file).read().count("begun") == 1:
    time.sleep(300)
open(file, "a").write("done\\n")
"""

# A training whose batch adapts itself, as the roster sees it: it measures, and hears which batch was chosen for it.
MEASURES = """\
import os, queue, sys
from farandole.base.wire.rendezvous import Measures, ScheduledBatch
from farandole.base.wire.roster_client import RosterClient

worker, secret = int(os.environ["FARANDOLE_WORKER"]), bytes.fromhex(os.environ["FARANDOLE_SECRET"])
heard = queue.SimpleQueue()
with RosterClient.connect(os.environ["FARANDOLE_ROSTER"], secret, worker=worker) as roster:
    roster.listen(heard.put)
    world = roster.join(f"c{worker}", None, host="h", trained=True)
    roster.report_measures(
        Measures(32, 512, 64, hosts=1, workers=world.size, local=32.0, step=0.2, sync=0.0, square=1.0, trace=9000.0)
    )
    while not (isinstance(told := heard.get(timeout=60), ScheduledBatch) and told.samples):
        pass
    open(sys.argv[1], "a").write(f"{told.samples}\\n")
    roster.leave(world.generation)
"""


def test_submit_shows_job_to_its_end_and_exits_with_its_code(bench: QueueBench) -> None:
    bench.start()
    code, out, err = bench.ask("submit", "--name", "a", "-np", "2", "--", "sh", "-c", "echo I am $RANK; exit $RANK")
    assert code == 1
    assert "[0]<stdout>:I am 0\n" in out and "[1]<stdout>:I am 1\n" in out
    assert "farandole: a has failed: it ended with code 1\n" in err
    assert bench.ask("logs", "a", "--rank", "1")[1].startswith("[1]<stdout>:I am 1\n")
    told = json.loads(bench.ask("jobs", "--json")[1])
    assert [(job["name"], job["state"], job["exitCode"]) for job in told] == [("a", "Failed", 1)]
    assert [event["text"] for event in bench.status("a")["events"]][:2] == ["was submitted", "starts on localhost:2"]


def test_elastic_job_takes_free_slots_and_gives_them_back(bench: QueueBench) -> None:
    bench.start()
    bench.submit("grows", "-np", "1:4", *bench.elastic("grows", 300))
    until(lambda: bench.status("grows")["workers"] == 4, lambda: f"it has all: {bench.status('grows')}", 60)
    until(lambda: bench.status("grows")["stepsPerSecond"], "it says how fast it is", 60)
    bench.submit("plain", "-np", "2", *bench.plain("plain", 4.0))
    bench.becomes("plain", "Running")
    until(lambda: bench.status("grows")["workers"] == 2, lambda: f"it has given them: {bench.status('grows')}", 60)
    bench.becomes("plain", "Succeeded")
    until(lambda: bench.status("grows")["workers"] == 4, "it has all again", 60)
    assert bench.ask("scale", "grows", "3")[0] == 0
    until(lambda: bench.status("grows")["workers"] == 3, "it has what was asked for", 60)
    bench.go("grows.finish")
    bench.becomes("grows", "Succeeded")
    assert bench.said("grows") == ["begun"]


def test_jobs_on_one_host_see_different_gpus(bench: QueueBench) -> None:
    gpus = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    wait = f"while [ ! -e {bench.directory}/end ]; do sleep 0.05; done"
    says = f"echo $CUDA_VISIBLE_DEVICES >> {bench.directory}/$NAME; {wait}"
    bench.start()
    for name, workers in (("a", "1"), ("b", "2"), ("c", "1:1")):
        command = ("sh", "-c", says.replace("$NAME", name))
        assert bench.ask("submit", "--detach", "--name", name, "-np", workers, "--", *command, environment=gpus)[0] == 0
        until(lambda name=name: bench.said(name), f"{name} has begun", 60)  # type: ignore[misc]
    bench.go("end")
    bench.becomes("b", "Succeeded")
    assert [bench.said(name) for name in "abc"] == [["4"], ["5,6"] * 2, ["7"]]


def test_batch_chosen_by_policy_reaches_workers(bench: QueueBench) -> None:
    bench.start("--policy", "adaptive")
    script, file = bench.directory / "measures.py", bench.directory / "batch"
    script.write_text(MEASURES)
    bench.submit("a", "-np", "1:2", "--", sys.executable, str(script), str(file))
    bench.becomes("a", "Succeeded")
    assert all(32 < int(batch) <= 512 for batch in bench.said("batch")) and bench.said("batch")


def test_suspended_job_saves_state_and_continues_from_it(bench: QueueBench) -> None:
    bench.start()
    script, file = bench.directory / "saves.py", bench.directory / "said"
    script.write_text(SAVES)
    bench.submit(*("a", "--suspension", "signal", "--signal", "SIGUSR1", "--", sys.executable, str(script), str(file)))
    until(lambda: bench.said("said") == ["begun"], "it has begun", 60)
    assert bench.ask("suspend", "a")[0] == 0
    bench.becomes("a", "Suspended")
    assert bench.said("said") == ["begun", "saved"]
    assert bench.ask("resume", "a")[0] == 0
    bench.becomes("a", "Succeeded")
    assert bench.said("said") == ["begun", "saved", "begun", "done"]


def test_cancelled_job_leaves_no_process(bench: QueueBench) -> None:
    bench.start()
    for name, command in (("plain", bench.plain("plain", 300)), ("elastic", bench.elastic("elastic", 300))):
        bench.submit(name, *(("-np", "1:2") if name == "elastic" else ()), *command)
        until(lambda name=name: bench.said(name) == ["begun"], f"{name} has begun", 60)  # type: ignore[misc]
        code, _, err = bench.ask("kill", name, "--rank", "0", "--signal", "SIGCONT")
        if name == "elastic":
            assert code == 0 and "job elastic.1: " in err, err
        else:
            assert code == 2 and "there is no job plain" in err, err
        assert bench.ask("cancel", name)[0] == 0
        bench.becomes(name, "Cancelled")
        assert bench.said(name) == ["begun"]
    assert bench.ask("queue", "stop")[0] == 0
    until(lambda: not processes_with(bench.mark), "nothing is left")
    assert not (bench.state / "socket").exists(), "commands would take the queue for one that is there"


def test_queue_and_result_of_job_survive_a_full_disk(bench: QueueBench, small_disk: Path) -> None:
    bench.state = small_disk / "queue"
    bench.start()
    reserve = small_disk / "reserve"
    reserve.write_bytes(bytes(1024 * 1024))
    bench.submit("a", "--", sys.executable, "-c", "for _ in range(400): print('x' * 20_000)")
    # Its result is the last file that a runner writes.
    until(lambda: (bench.state / "attempts" / "a.1" / "own" / "ended").exists(), "the job has ended", 60)
    code, out, err = bench.ask("jobs", "--json")
    assert code == 0 and json.loads(out)[0]["state"] in ("Running", "Succeeded"), err
    reserve.unlink()
    bench.becomes("a", "Succeeded")


def runners(bench: QueueBench, name: str) -> list[int]:
    """Return the processes of a job's first attempt, its watchdog first, without its agents and workers."""
    found = subprocess.run(["pgrep", "-f", f"queue.runner {bench.state}/attempts/{name}.1"], capture_output=True)
    return sorted(map(int, found.stdout.split()))


def test_killed_runner_ends_fixed_job_but_not_elastic_job(bench: QueueBench) -> None:
    bench.start()
    bench.submit("plain", *bench.plain("plain", 300))
    bench.submit("elastic", "-np", "1:2", *bench.elastic("elastic", 300))
    until(lambda: bench.said("plain") == bench.said("elastic") == ["begun"], "both have begun", 60)
    (plain,), (watchdog, launcher) = runners(bench, "plain"), runners(bench, "elastic")
    os.kill(plain, signal.SIGKILL)
    bench.becomes("plain", "Failed")
    assert bench.status("plain")["reason"] == "its runner was killed"
    # The watchdog of an elastic job starts a successor; without a watchdog, the queue's daemon does.
    os.kill(launcher, signal.SIGKILL)
    until(lambda: len(runners(bench, "elastic")) == 2 and launcher not in runners(bench, "elastic"), "it is followed")
    until(lambda: bench.ask("hosts", "--job", "elastic.1")[0] == 0, "the successor answers", 60)
    for pid in runners(bench, "elastic"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: runners(bench, "elastic") and watchdog not in runners(bench, "elastic"), "it is followed again", 60)
    until(lambda: bench.ask("kill", "elastic", "--rank", "0", "--signal", "SIGCONT")[0] == 0, "it answers", 60)
    bench.go("elastic.finish")
    bench.becomes("elastic", "Succeeded")
    assert bench.said("elastic") == ["begun"] and bench.said("plain") == ["begun"]


def test_wrong_command_lines_are_refused_with_hint(bench: QueueBench) -> None:
    code, _, err = bench.ask("jobs", "--on", "queue")
    assert code == 2 and err.startswith(f"error: there is no queue in {bench.state}\nhint: start one: ")
    code, _, err = bench.ask("queue", "start")
    assert code == 2 and err.startswith("error: the queue has no hosts\nhint: farandole queue start --hosts")
    bench.start()
    assert "a queue runs in" in bench.ask("queue", "start", "--hosts", "localhost:1")[2]
    code, _, err = bench.ask("submit", "-np", "9", "--", "true")
    assert code == 2 and err.startswith("error: 9 workers can never run here: there are 4 slots (localhost:4)\nhint: ")
    code, _, err = bench.ask("queue", "backup", "/nowhere/queue.db")
    assert code == 2 and err.startswith(
        "error: /nowhere/queue.db cannot be written: No such file or directory\nhint: name a"
    )
    assert "there is no queue vison" in bench.ask("submit", "--queue", "vison", "--", "true")[2]
    assert "did you mean policy?" in bench.ask("queue", "config", "polcy=rr")[2]
    assert "did you mean start?" in bench.ask("queue", "sart")[2]
    assert "the queue has no host h9" in bench.ask("queue", "hosts", "drain", "h9")[2]
    assert bench.ask("queue", "config", "policy=rr", "user.root=jobs=0")[0] == 0
    assert "quota reached: root has 0 of 0 jobs" in bench.ask("submit", "--", "true")[2]
    assert "policy=rr\n" in bench.ask("queue", "config")[1]


@pytest.fixture
def nobody() -> pwd.struct_passwd:
    """Return another user, as whom only root can act."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can act as two users, with setpriv of util-linux")
    return pwd.getpwnam("nobody")


# The Python of these tests may be where only root can read; another user may, with that right and no other.
_KEEP_READING = ("--inh-caps=+dac_read_search,+dac_override", "--ambient-caps=+dac_read_search,+dac_override")


def as_user(bench: QueueBench, user: pwd.struct_passwd, *words: str, **more: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [
            *("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *_KEEP_READING),
            *(sys.executable, "-m", "farandole", *words),
        ],
        env={**bench.environment, "HOME": "/tmp", "XDG_CACHE_HOME": f"/tmp/nobody-{os.getpid()}", **more},
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/tmp",
    )
    return done.returncode, done.stdout, done.stderr


def can_run_python(user: pwd.struct_passwd) -> bool:
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import farandole"], user=user.pw_uid, cwd="/", capture_output=True
        )
    except PermissionError:
        return False
    return done.returncode == 0


def test_users_are_identified_by_kernel_and_by_tokens(
    bench: QueueBench, nobody: pwd.struct_passwd, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # The test's own folder is root's alone.
    bench.start()
    bench.submit("mine", *bench.plain("mine", 300))
    told = as_user(bench, nobody, "jobs")[1]
    assert "mine" in told
    for verb in ("cancel", "suspend"):
        code, _, err = as_user(bench, nobody, verb, "mine")
        assert code == 2 and err.startswith(f"error: job mine belongs to root: nobody cannot {verb} it")
    assert "cannot read the log of" in as_user(bench, nobody, "logs", "mine")[2]
    assert "nobody is not an administrator" in as_user(bench, nobody, "queue", "config", "policy=rr")[2]
    assert as_user(bench, nobody, "submit", "--detach", "--name", "theirs", "-np", "4", "--", "id", "-un")[0] == 0
    assert bench.status("theirs")["user"] == "nobody"
    if can_run_python(nobody):  # The job itself has no such right.
        bench.ask("cancel", "mine")
        bench.becomes("theirs", "Succeeded")
        assert bench.ask("logs", "theirs")[1].splitlines()[-1].endswith("nobody")
    token = bench.ask("queue", "token", "nobody")[1].strip()
    code, _, err = bench.ask("suspend", "mine", environment={"FARANDOLE_QUEUE_TOKEN": token})
    assert code == 2 and "nobody cannot suspend it" in err
    assert bench.ask("queue", "revoke", "nobody")[0] == 0
    assert "the token is unknown" in bench.ask("jobs", environment={"FARANDOLE_QUEUE_TOKEN": token})[2]


def test_user_cannot_make_root_read_other_files(bench: QueueBench, nobody: pwd.struct_passwd, tmp_path: Path) -> None:
    from farandole.control.queue.attempt import Attempt
    from farandole.control.queue.model import Owner

    secret = tmp_path / "secret"
    secret.write_text("root's own")
    attempt = Attempt(tmp_path, "a", 1)
    attempt.own.mkdir(parents=True)
    os.chown(attempt.own, nobody.pw_uid, nobody.pw_gid)
    owner = Owner(nobody.pw_uid, nobody.pw_gid, "nobody")
    attempt.log.symlink_to(secret)
    assert attempt.read_log(0, 100, owner) == b""
    attempt.log.unlink()
    os.link(secret, attempt.log)
    assert attempt.read_log(0, 100, owner) == b""
    attempt.log.unlink()
    os.mkfifo(attempt.log)
    assert attempt.read_log(0, 100, owner) == b""


def test_backup_can_be_served_as_a_queue(bench: QueueBench, tmp_path: Path) -> None:
    bench.start()
    bench.submit("runs", *bench.plain("runs", 300))
    bench.submit("waits", "-np", "4", *bench.plain("waits", 0.1))
    until(lambda: bench.said("runs") == ["begun"], "one has begun", 60)
    copy = tmp_path / "copy" / "queue.db"
    copy.parent.mkdir()
    assert bench.ask("queue", "backup", str(copy))[0] == 0
    bench.ask("cancel", "runs")
    bench.becomes("runs", "Cancelled")
    assert bench.ask("queue", "stop")[0] == 0
    # The machine is off; another one goes on from the copy.
    bench.state = copy.parent
    code, _, err = bench.ask("queue", "start")
    assert code == 0, err
    until(lambda: bench.said("runs").count("begun") == 2, "it begins again", 60)
    bench.ask("cancel", "runs")
    bench.becomes("waits", "Succeeded")


def test_submitted_function_returns_its_results(bench: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start()
    for name, value in bench.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(bench.directory)
    base = 10

    def square(number: int) -> tuple[str, int]:
        return os.environ["RANK"], base + number * number

    job = farandole.submit(square, 3, workers=2, on="queue", name="square")
    assert job.result(timeout=60.0) == [("0", 19), ("1", 19)]

    def fails(message: str) -> None:
        raise LookupError(message)

    failed = farandole.submit(fails, "no such thing", on="queue", shared=bench.directory / "calls", name="fails")
    with pytest.raises(JobFailed, match="job fails has failed: it ended with code 1") as raised:
        failed.result(timeout=60.0)
    assert isinstance(raised.value.__cause__, LookupError) and raised.value.__cause__.args == ("no such thing",)
