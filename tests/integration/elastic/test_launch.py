"""Elastic jobs of real processes on this machine: workers are killed, stopped, drained, and the others go on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from waiting import until

Start = Callable[..., Any]
Train = Callable[..., Any]


def test_killed_worker_is_replaced_and_others_continue(start: Start) -> None:
    job = start("-np", "3", "--min-np", "1", "--max-np", "3")
    first = job.world(1, 3)
    job.hold(3)
    os.kill(first[1][1], signal.SIGKILL)
    second = job.world(2, 2)
    assert [worker for worker, _ in second.values()] == [0, 2]
    job.let_in()
    third = job.world(3, 3)
    assert [third[rank][0] for rank in range(3)] == [0, 2, 3]
    job.says(r"farandole: rank 1 \(worker 1 on .*\) was killed by SIGKILL; 2 workers go on as generation 2 \(.* ms\)")
    job.says(r"farandole: worker 3 on .* joins as rank 2; 3 workers go on as generation 3 \(.* ms\)")
    assert job.finish() == 0


def test_job_begins_with_requested_workers_and_grows(start: Start) -> None:
    job = start("-np", "1", "--min-np", "1", "--max-np", "2", "-H", "localhost:2")
    assert job.world(1, 1)[0][0] == 0
    assert [worker for worker, _ in job.world(2, 2).values()] == [0, 1]
    assert job.finish() == 0


def test_stopped_worker_is_excluded_and_killed(start: Start) -> None:
    job = start("-np", "2", "--min-np", "1", "--max-np", "2")
    stopped = job.world(1, 2)[0][1]
    job.hold(2)
    os.kill(stopped, signal.SIGSTOP)
    job.world(2, 1)
    job.let_in()
    job.world(3, 2)
    until(lambda: not os.path.exists(f"/proc/{stopped}"), "the stopped worker is gone", 20)
    job.says(r"farandole: rank 0 \(worker 0 on .*\) was stopped \(SIGSTOP\); 1 worker goes on as generation 2")
    assert job.finish() == 0


def test_sole_worker_that_is_stopped_and_continued_goes_on(start: Start) -> None:
    job = start("-np", "1", "--min-np", "1", "--max-np", "1", "--verbose")
    worker = job.world(1, 1)[0][1]
    os.kill(worker, signal.SIGSTOP)
    job.says(r"silent: rank 0 \(worker 0 on .*\): was stopped \(SIGSTOP\)")
    os.kill(worker, signal.SIGCONT)
    job.says(r"rank 0 \(worker 0 on .*\) has continued")
    assert job.finish() == 0


def test_repeated_failure_ends_job_with_report(start: Start) -> None:
    script = """\
        if world.rank == 1:
            time.sleep(0.3)
            roster.report_failure("Traceback (most recent call last):\\n  ...\\nValueError: boom", "ValueError: boom")
            sys.exit(3)
        dance()
    """
    job = start("-np", "2", "--min-np", "1", "--max-np", "2", script=script)
    assert job.end() == 3
    job.says(r"the job ends, with 1 worker: rank 1 failed 3 times in a row in the same way \(ValueError: boom\)")
    job.says(r"error: rank 1 failed 3 times in a row in the same way \(ValueError: boom\)\n")
    job.says(r"first failure: worker \d on host .* failed first: it exited with code 3 \(ValueError: boom\)")


def test_worker_that_leaves_and_fails_is_replaced(start: Start) -> None:
    script = """\
        if worker == 1:
            time.sleep(0.3)
            roster.leave(world.generation)
            sys.exit(3)
        dance()
    """
    job = start("-np", "2", "--min-np", "1", "--max-np", "2", script=script)
    job.world(1, 2)
    job.says(r"worker 2 on .* joins as rank 1; 2 workers go on as generation")
    assert job.finish() == 0


def test_worker_that_finishes_early_is_not_replaced(start: Start) -> None:
    script = """\
        if worker == 1:
            roster.leave(world.generation)
            time.sleep(1.0)
            sys.exit(0)
        time.sleep(0.5)
        enter()
        dance()
    """
    job = start("-np", "2", "--min-np", "1", "--max-np", "2", "-H", "localhost:2", script=script)
    first = job.world(1, 2)
    job.says(
        r"rank 1 \(worker 1 on localhost\) has left; no worker is started any more unless it fails; 1 worker goes on as"
    )
    until(lambda: not os.path.exists(f"/proc/{first[1][1]}"), "it has ended", 20)
    time.sleep(1.0)
    assert job.finish() == 0
    assert "[2]" not in job.said and "failed" not in job.said


def test_worker_that_exits_with_0_during_training_has_finished(train: Train) -> None:
    # What it says to the roster comes after the others have heard its goodbye, and have turned to the next world.
    before = """\
        import signal
        from farandole.base.wire.roster_client import RosterClient

        leave = RosterClient.leave

        def leave_late(*arguments):
            time.sleep(0.5)
            leave(*arguments)

        RosterClient.leave = leave_late
        if worker == 1:
            signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
    """
    training = train("-np", "2", "--min-np", "1", "--max-np", "2", "-H", "localhost:2", before=before)
    training.await_steps(5, size=2)
    os.kill(training.books.pid(1), signal.SIGUSR1)
    training.job.says(
        r"rank 1 \(worker 1 on localhost\) has (left|finished); no worker is started any more.*; 1 worker"
    )
    training.await_steps(20, size=1)
    training.books.stop()
    assert training.job.end() == 0
    assert "worker 2" not in training.job.said


def test_job_ends_with_exit_code_of_workers_that_all_leave_and_fail(start: Start) -> None:
    script = """\
        roster.report_progress(1, 0.0)
        time.sleep(0.3)
        roster.leave(world.generation)
        sys.exit(3)
    """
    job = start("-np", "2", "--min-np", "1", "--max-np", "2", script=script)
    assert job.end() == 3
    job.says(r"error: rank \d failed 3 times in a row in the same way \(exited with code 3\)\n")


def test_loss_of_state_ends_job_with_its_cause(start: Start) -> None:
    """All workers fail when they have been trained, one after the other; those in their place begin from nothing."""
    script = """\
        from farandole.errors import StateLostError

        roster.report_progress(1, 0.0)
        while worker < 2 and not os.path.exists(os.path.join(here, f"fail-{worker}")):
            time.sleep(0.01)
        error = ValueError("boom") if worker < 2 else StateLostError("all are lost")
        name = "ValueError" if worker < 2 else "farandole.errors.StateLostError"
        roster.report_failure(f"Traceback (most recent call last):\\n  ...\\n{name}: {error}", f"{name}: {error}")
        sys.exit(3)
    """
    job = start("-np", "2", "--min-np", "1", "--max-np", "2", script=script)
    for worker, pid in job.world(1, 2).values():
        (job.directory / f"fail-{worker}").touch()
        until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"worker {worker} has ended")
    assert job.end() == 3
    assert "error: all workers that held the state of the training are lost, and no other worker has it" in job.said
    job.says(r"first failure: worker 0 on host .* failed first: it exited with code 3 \(ValueError: boom\)")
    job.says(r"hint: start it again; a loop over hvd\.elastic\.steps continues from its last checkpoint")


TWO_FAIL = """\
import atexit, os, time
from farandole.worker.core import basics, buffers
from farandole.errors import WorkerLostError
from farandole.worker.elastic.world_changes import reform, trained

basics.init()
trained()
fails = basics.rank() in (1, 2)
try:
    buffers.barrier()
    print(f"generation 1 rank {basics.rank()} of 4 pid {os.getpid()}", flush=True)
    if fails:
        atexit.register(time.sleep, 60)
        time.sleep(0.5)
        raise ValueError("boom")
    buffers.barrier()
except WorkerLostError:
    if fails:
        raise
    while basics.size() > 2:
        reform()
    buffers.barrier()
    print("two go on", flush=True)
    time.sleep(60)
"""


def test_simultaneous_failures_are_not_waited_for(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "two_fail.py"
    script.write_text(TWO_FAIL)
    job = start("-np", "4", "--min-np", "1", "--max-np", "4", command=(sys.executable, str(script)))
    failed = [job.world(1, 4)[rank][1] for rank in (1, 2)]
    job.says("<stdout>:two go on")
    assert all(os.path.exists(f"/proc/{pid}") for pid in failed), "they take their time to end"
    job.says(r"raised ValueError: boom; .*2 workers go on as generation 2 ")


def test_job_that_fails_everywhere_at_start_is_not_restarted(start: Start) -> None:
    job = start("-np", "2", "--min-np", "1", command=(sys.executable, "-c", "import no_such_module"))
    assert job.end() == 1
    job.says("all workers that were started first have failed, and no other was training")
    job.says("ModuleNotFoundError")
    assert "generation" not in job.said


def test_job_whose_workers_always_die_ends_after_the_elastic_timeout(start: Start) -> None:
    killed = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    job = start("-np", "1", "--min-np", "1", "--elastic-timeout", "1", command=killed)
    assert job.end() == 128 + signal.SIGKILL, job.said
    job.says(r"warning: worker 2 on .* was killed by SIGKILL .* goes on for 1 s \(the elastic timeout\), the job ends")
    job.says(r"error: new workers failed again and again for 1 s \(the elastic timeout\)")
    job.says(r"first failure: worker \d on .* was killed by SIGKILL")


def test_command_without_worlds_runs(start: Start) -> None:
    job = start("-np", "2", "--min-np", "2", command=("/bin/echo", "hello"))
    assert job.end() == 0, job.said
    assert sorted(line for line in job.said.splitlines() if "hello" in line) == [
        "[0]<stdout>:hello",
        "[1]<stdout>:hello",
    ]


def test_hosts_follow_discovery_script(start: Start, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    job = start("-np", "1", "--min-np", "1", "--host-discovery-script", str(script))
    job.world(1, 1)
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    assert [worker for worker, _ in job.world(2, 2).values()] == [0, 1]
    job.says(r"worker 1 on 127\.0\.0\.1 joins as rank 1; 2 workers go on as generation 2")
    hosts.write_text("127.0.0.1:1\n")
    assert job.world(3, 1)[0][0] == 1
    job.says(
        r"farandole: host localhost leaves the job; worker 0 there leaves at the end of a step, within 30 s; 1 other"
    )
    job.says(r"rank 0 \(worker 0 on localhost\) left because it was asked to leave; 1 worker goes on as generation 3")
    assert job.finish() == 0


def test_job_ends_if_discovery_gives_no_first_answer(start: Start) -> None:
    options = ("--min-np", "1", "--elastic-timeout", "0.5")
    job = start(*options, "--host-discovery-script", "sleep 1000")
    assert job.end() == 2
    assert "discovery (script:sleep 1000) has not answered within the elastic timeout of 0.5 s" in job.said


def test_hosts_without_slots_are_waited_for_and_drained(start: Start, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:0\n")
    job = start("-np", "1", "--min-np", "1", "--host-discovery-script", f"cat {hosts}")
    job.says("farandole: 0 of at least 1 worker have a slot; the job waits for more slots, for 600 s at most")
    hosts.write_text("localhost:1\n")
    job.world(1, 1)
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    job.world(2, 2)
    hosts.write_text("localhost:0\n127.0.0.1:1\n")
    job.says(
        r"farandole: host localhost has no slots now; worker 0 there leaves at the end of a step, within 30 s; 1 other"
    )
    assert job.world(3, 1)[0][0] == 1
    assert job.finish() == 0


def test_last_worker_hands_over_when_all_hosts_are_replaced(start: Start, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    job = start("--min-np", "1", "--max-np", "1", "--host-discovery-script", f"cat {hosts}")
    job.world(1, 1)
    hosts.write_text("127.0.0.1:1\n")
    assert [worker for worker, _ in job.world(2, 2).values()] == [0, 1]
    assert job.world(3, 1)[0][0] == 1
    job.says(r"rank 0 \(worker 0 on localhost\) left because it was asked to leave; 1 worker goes on as generation 3")
    assert job.finish() == 0


def test_first_worker_hands_over_when_all_get_sigterm(train: Train) -> None:
    training = train("-np", "2", "--min-np", "1", "--max-np", "2", "-H", "localhost:2")
    training.await_steps(5, size=2)
    for worker in (0, 1):
        os.kill(training.books.pid(worker), signal.SIGTERM)
    training.job.says(r"worker 2 on localhost joins as rank 1; 2 workers go on as generation 3")
    training.job.says(r"rank 0 \(worker 0 on localhost\) left because it was asked to leave; 1 worker goes on as gen")
    training.job.says(r"worker 3 on localhost joins as rank 1; 2 workers go on as generation 5")
    training.await_steps(5, size=2)
    training.finish()


def test_sigterm_of_only_worker_does_not_finish_job(train: Train) -> None:
    training = train("-np", "1", "--min-np", "1", "-H", "localhost:1")
    training.await_steps(5)
    os.kill(training.books.pid(0), signal.SIGTERM)
    assert training.job.end() == 1
    training.job.says(
        "error: all workers that held the state of the training were asked to leave before it was finished, and no "
        "other worker has it"
    )
    training.job.says("hint: start it again; a loop over hvd.elastic.steps continues from its last checkpoint")


def test_job_ends_if_discovery_fails_at_first(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho no quota >&2; exit 3\n")
    script.chmod(0o755)
    job = start("-np", "1", "--min-np", "1", "--host-discovery-script", str(script))
    assert job.end() == 2
    assert "ended with code 3\n    | no quota\nhint: run it by hand" in job.said


def test_killed_agent_ends_its_workers_and_is_restarted(start: Start, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    job = start("-np", "2", "--min-np", "1", "--hosts-from", f"file:{hosts}")
    first = job.world(1, 2)
    agent = int(Path(f"/proc/{first[1][1]}/stat").read_text().rpartition(")")[2].split()[1])
    job.hold(2)
    os.kill(agent, signal.SIGKILL)
    job.world(2, 1)
    job.let_in()
    job.says(r"host 127\.0\.0\.1 is lost, with worker 1: the agent of the workers died \(SIGKILL\); 1 other")
    assert [worker for worker, _ in job.world(3, 2).values()] == [0, 2]
    assert job.finish() == 0


def test_terminated_agent_lets_its_workers_leave_gracefully(start: Start, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    job = start("-np", "2", "--min-np", "1", "--hosts-from", f"file:{hosts}")
    first = job.world(1, 2)
    agent = int(Path(f"/proc/{first[1][1]}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGTERM)
    assert job.world(2, 1)[0][0] == 0
    job.says(r"host 127\.0\.0\.1 was asked to end; worker 1 there leaves at the end of a step, within 30 s; 1 other")
    job.says(r"\[1\]<stdout>:not wanted: it was asked to leave")
    until(lambda: not os.path.exists(f"/proc/{agent}"), "the agent is gone", 20)
    assert job.finish() == 0


def test_host_with_preemption_notice_is_avoided_until_it_is_withdrawn(start: Start, tmp_path: Path) -> None:
    hosts, taken = tmp_path / "hosts", tmp_path / "taken"
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    # Of the two hosts, which are one machine, the one whose agent is named there.
    command = f'test "$PPID" = "$(cat {taken} 2>/dev/null)" && echo terminate at noon'
    options = ("--preemption-command", command, "--preemption-interval", "0.1")
    job = start("-np", "2", "--min-np", "1", "--hosts-from", f"file:{hosts}", *options)
    first = job.world(1, 2)
    taken.write_text(Path(f"/proc/{first[1][1]}/stat").read_text().rpartition(")")[2].split()[1])
    assert job.world(2, 1)[0][0] == 0
    job.says(
        r"farandole: host 127\.0\.0\.1 is about to be reclaimed \(terminate at noon\); "
        r"worker 1 there leaves at the end of a step, within 30 s; 1 other worker stays; no workers are "
        r"started there meanwhile\n"
    )
    job.says(
        r"rank 1 \(worker 1 on 127\.0\.0\.1\) left because it was asked to leave; 1 worker goes on as generation 2"
    )
    taken.unlink()
    job.says(
        r"farandole: host 127\.0\.0\.1 stays \(the notice was withdrawn after \d+ s\); workers can start there again"
    )
    assert [worker for worker, _ in job.world(3, 2).values()] == [0, 2]
    assert job.finish() == 0


def test_ctrl_c_ends_all_workers(start: Start) -> None:
    job = start("-np", "2", "--min-np", "1")
    job.world(1, 2)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    job.says("Ctrl-C: ending 2 workers")


def test_output_is_stored_by_worker(start: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    job = start("-np", "2", "--min-np", "1", "--max-np", "2", "--output-dir", str(logs))
    victim = job.world(1, 2)[1][1]
    job.hold(2)
    os.kill(victim, signal.SIGKILL)
    job.world(2, 1)
    job.let_in()
    job.world(3, 2)
    assert job.finish() == 0
    assert sorted(path.name for path in logs.iterdir()) == ["worker.0", "worker.1", "worker.2"]
    assert "generation 3" in (logs / "worker.2" / "stdout").read_text()


def test_job_that_can_never_start_is_refused(start: Start) -> None:
    job = start("-H", "localhost:1", "--min-np", "2")
    assert job.end() == 2
    assert "the job needs 2 workers, and its hosts have only 1 slot" in job.said


def test_job_with_a_variable_that_is_not_set_is_refused(start: Start) -> None:
    job = start("-np", "1", "--min-np", "1", "-x", "SURELY_NOT_SET")
    assert job.end() == 2
    assert "-x SURELY_NOT_SET: this variable is not set" in job.said


def test_spare_takes_over_and_does_not_delay_end_of_job(start: Start) -> None:
    job = start("-np", "2", "--min-np", "2", "--max-np", "2", "--spares", "1")
    first = job.world(1, 2)
    job.hold(3)  # The worker that is started in the place of the killed one might be ready before the spare is.
    os.kill(first[0][1], signal.SIGKILL)
    (spare,) = {0, 1, 2} - {worker for worker, _ in first.values()}
    assert spare in [worker for worker, _ in job.world(2, 2).values()]
    job.let_in()
    assert job.finish() == 0


def test_reset_limit_ends_job(start: Start) -> None:
    job = start("-np", "2", "--min-np", "1", "--max-np", "2", "--reset-limit", "0")
    os.kill(job.world(1, 2)[0][1], signal.SIGKILL)
    assert job.end() != 0
    assert "error: " in job.said


def test_missing_checkpoints_are_reported_at_once(start: Start, tmp_path: Path) -> None:
    script = """
    import farandole.torch as hvd
    hvd.init()
    hvd.elastic.run(lambda state: None)(hvd.elastic.TorchState(epoch=0))
    """
    job = start("-np", "2", "--min-np", "1", "--checkpoint-dir", str(tmp_path / "checkpoints"), script=script)
    assert job.end() == 0, job.said
    assert job.said.count("nothing is written there for @hvd.elastic.run") == 1
