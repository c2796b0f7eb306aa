"""Jobs that outlive their client: real processes, a real launcher in a daemon; the elastic supervisor is a fake."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from daemon_bench import COUNTING, Bench
from waiting import processes_with, until


def test_client_shows_job_and_ends_with_its_exit_code(bench: Bench) -> None:
    client = bench.run("print('out')\nprint('err', file=sys.stderr)\nsys.exit(7)", job="brave-otter")
    assert client.ends() == 7
    assert "[0]<stdout>:out\n" in client.text and "[0]<stderr>:err\n" in client.text
    assert "farandole: job brave-otter; farandole run --attach brave-otter shows it again\n" in client.text
    assert "error: rank 0 on host " in client.text and "it exited with code 7" in client.text
    bench.nothing_is_left()


def test_job_gets_a_generated_name(bench: Bench) -> None:
    client = bench.start("run", "-np", "1", *bench.worker(""))
    assert client.ends() == 0
    assert re.search(r"^farandole: job [a-z]+-[a-z]+-\d\d; ", client.text, re.MULTILINE)
    bench.nothing_is_left()


def test_invalid_job_is_refused(bench: Bench) -> None:
    code, out, err = bench.ask("run", "-np", "1", "no-such-program")
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no program 'no-such-program' on the PATH\nhint: ")
    bench.nothing_is_left()


def test_closed_standard_output_is_accepted(bench: Bench) -> None:
    shell = " ".join(bench.command("run", "-np", "1", *bench.worker("print('out')")))
    done = subprocess.run(["sh", "-c", f"exec {shell} >&-"], env=bench.environment, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, done.stderr
    bench.nothing_is_left()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_job_with_grace_period(bench: Bench, signum: signal.Signals) -> None:
    client = bench.run("signal.signal(15, lambda *_: (print('bye'), sys.exit(0)))\nprint('begun')\nwait_for('never')")
    client.shows("begun")
    client.process.send_signal(signum)
    assert client.ends() == 128 + signum
    assert "[0]<stdout>:bye\n" in client.text and "ending 1 worker; repeat to kill them" in client.text
    bench.nothing_is_left()


def test_second_signal_kills_job(bench: Bench) -> None:
    bench.grace = 1000.0
    client = bench.run("signal.signal(15, lambda *_: print('no'))\nprint('begun')\nwait_for('never')")
    client.shows("begun")
    client.process.send_signal(signal.SIGINT)
    client.shows("[0]<stdout>:no")
    client.process.send_signal(signal.SIGINT)
    assert client.ends() == 130
    bench.nothing_is_left()


# --- without its client ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGHUP])
def test_job_survives_its_client_and_can_be_shown_again(bench: Bench, signum: signal.Signals) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    client.process.send_signal(signum)
    assert client.ends() == -signum
    bench.go("one")
    until(lambda: "[0]<stdout>:one\n" in bench.log_of(), "the log has it")
    again = bench.start("run", "--attach", "test")
    # What the launcher says comes in its own stream, at any place between the lines of this one.
    again.shows("[0]<stdout>:begun\n")
    again.shows("[0]<stdout>:one\n")
    assert again.text.index(":begun\n") < again.text.index(":one\n")
    bench.go("two")
    assert again.ends() == 7
    assert again.text.count("[0]<stdout>:") == 3 and "it exited with code 7" in again.text
    assert "two" not in client.text
    bench.nothing_is_left()


def test_second_client_replaces_first(bench: Bench) -> None:
    first = bench.run(COUNTING)
    first.shows("begun")
    second = bench.start("run", "--attach", "test")
    assert first.ends() == 1
    assert first.text.endswith("farandole: job test is now shown elsewhere\n")
    second.shows("begun")
    third = bench.start("run", "--attach", "test")
    assert second.ends() == 1
    third.shows("begun")
    bench.go("one")
    bench.go("two")
    assert third.ends() == 7
    assert "[0]<stdout>:one" not in first.text + second.text
    bench.nothing_is_left()


def test_end_is_kept_for_later_client(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    client.process.kill()
    client.ends()
    bench.go("one")
    bench.go("two")
    until((bench.jobs / "test" / "ended.json").exists, "it has ended")
    until(lambda: not processes_with(bench.mark), "nothing runs")
    assert not (bench.jobs / "test" / "launch-request").exists(), "it has the environment in it"
    assert "ended with code 7" in bench.ask("jobs")[1]
    code, out, err = bench.ask("run", "--attach", "test")
    assert code == 7 and "[0]<stdout>:two\n" in out and "it exited with code 7" in err
    bench.nothing_is_left()


def test_detached_client_leaves_on_signal(bench: Bench) -> None:
    client = bench.run(COUNTING, "--detach")
    client.shows("begun")
    client.process.send_signal(signal.SIGTERM)
    assert client.ends() == 143
    assert client.text.endswith(
        "farandole: job test continues; farandole run --attach test shows it again; farandole stop test ends it\n"
    )
    assert bench.ask("stop", "test") == (0, "", "farandole: job test has ended\n")
    code, _, err = bench.ask("run", "--attach", "test")
    assert code == 143 and err == ""
    bench.nothing_is_left()


def test_stop_ends_a_shown_job(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    assert bench.ask("stop")[0] == 0
    assert client.ends() == 143
    assert "farandole: farandole stop: ending 1 worker" in client.text
    bench.nothing_is_left()


def test_job_continues_when_its_output_has_no_reader(bench: Bench) -> None:
    client = bench.run(COUNTING, stdout=subprocess.PIPE)
    assert client.process.stdout is not None
    assert client.process.stdout.readline() == b"[0]<stdout>:begun\n"
    client.process.stdout.close()
    bench.go("one")
    assert client.ends() == 141
    assert "the output has no reader, or no space, any more; job test continues" in client.text
    bench.go("two")
    assert bench.ask("run", "--attach", "test")[0] == 7
    bench.nothing_is_left()


@pytest.mark.parametrize("how", ["kill", "attach"])
def test_stalled_reader_delays_no_other_client(bench: Bench, how: str) -> None:
    script = "for number in range(200_000): print(number)\nopen(os.path.join(here, 'all'), 'w').close()\n" + COUNTING
    client = bench.run(script, stdout=subprocess.PIPE)
    client.shows("job test")
    time.sleep(0.5)  # The pipe fills up. If it has not yet, the test is easier to pass.
    assert not (bench.directory / "all").exists()
    if how == "kill":
        client.process.kill()
    again = bench.start("run", "--attach", "test") if how == "attach" else None
    until((bench.directory / "all").exists, "the worker goes on")
    assert client.ends() == (1 if again else -signal.SIGKILL)
    bench.go("one")
    bench.go("two")
    if again is not None:
        assert again.ends() == 7
        numbers = [int(number) for number in re.findall(r"^\[0\]<stdout>:(\d+)$", again.text, re.MULTILINE)]
        assert numbers == list(range(numbers[0], 200_000))
        bench.nothing_is_left()


# --- a daemon that dies ---------------------------------------------------------------------------------------------


def test_killed_daemon_without_successor_ends_workers(bench: Bench) -> None:
    client = bench.run(COUNTING, workers=2)
    client.shows("begun")
    os.kill(bench.daemon(), signal.SIGKILL)
    assert client.ends() == 1
    assert "error: the launcher of job test was killed by SIGKILL; the agents end the workers" in client.text
    until(lambda: not processes_with(bench.mark), "nothing runs")
    assert bench.ask("jobs") == (0, "", "no job is running\n")
    bench.nothing_is_left()


def test_sigterm_of_daemon_ends_job(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    os.kill(bench.daemon(), signal.SIGTERM)
    assert client.ends() == 143
    assert "SIGTERM: ending 1 worker" in client.text
    bench.nothing_is_left()


def test_files_of_dead_daemon_are_replaced(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    os.kill(bench.daemon(), signal.SIGKILL)
    client.ends()
    until(lambda: not processes_with(bench.mark), "nothing runs")
    again = bench.run("print('again')")
    assert again.ends() == 0 and "[0]<stdout>:again" in again.text
    bench.nothing_is_left()


# --- by name --------------------------------------------------------------------------------------------------------


def test_two_jobs_are_distinguished_by_name(bench: Bench) -> None:
    clients = []
    for name in ("a", "b"):  # One after the other: the oldest is named first.
        clients.append(bench.run(COUNTING, job=name))
        clients[-1].shows("begun")
    lines: list[str] = []

    def all_have_answered() -> bool:
        """A launcher is given a second to say how many workers it has."""
        code, out, _ = bench.ask("jobs")
        lines[:] = out.splitlines()
        return code == 0 and not any("does not answer" in line for line in lines[1:])

    until(all_have_answered, "it is known how many workers there are")
    assert lines[0].split() == ["name", "state", "workers", "since", "command"]
    assert sorted(line.split()[0] for line in lines[1:]) == ["a", "b"]
    assert all(line.split()[1:3] == ["Running", "1"] and sys.executable in line for line in lines[1:])
    assert bench.ask("hosts") == (2, "", "error: 2 jobs run: a, b\nhint: give the name of one\n")
    assert bench.ask("run", "--attach", "c") == (2, "", "error: there is no job c\nhint: there are a, b\n")
    assert bench.ask("stop", "a")[0] == 0
    assert clients[0].ends() == 143
    bench.go("one")
    bench.go("two")
    assert clients[1].ends() == 7
    assert bench.ask("stop", "b") == (2, "", "error: there is no job b\nhint: no job is running\n")
    bench.nothing_is_left()


def test_repeated_command_shows_running_job(bench: Bench) -> None:
    first = bench.run(COUNTING)
    first.shows("begun")
    again = bench.run(COUNTING)
    again.shows("farandole: job test is already running; showing it")
    assert first.ends() == 1
    other = bench.ask("run", "--job", "test", "-np", "1", "true")
    assert other[0] == 2 and other[2].startswith("error: a job named test is already running, with another command: ")
    bench.go("one")
    bench.go("two")
    assert again.ends() == 7
    bench.nothing_is_left()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("run", "--job", "../x", "-np", "1", "true"), "error: '../x' is not a valid name of a job\n"),
        (("run", "--job", "add", "-np", "1", "true"), "error: 'add' is not a valid name of a job\n"),
        (("run", "--attach", "x", "true"), "error: --attach x shows a running job; it starts nothing\n"),
        (("hosts", "add"), "error: farandole hosts add: the host is missing\n"),
        (("hosts", "a", "b"), "error: farandole hosts a b: unknown action\n"),
        (("hosts", "add", "h1:x"), "error: Invalid host input"),
        (("stop",), "error: no job is running\n"),
    ],
)
def test_invalid_requests_are_refused(bench: Bench, words: tuple[str, ...], error: str) -> None:
    code, out, err = bench.ask(*words)
    assert (code, out) == (2, "") and err.startswith(error) and "\nhint: " in err


def test_jobs_of_fixed_size_end_with_their_launcher(bench: Bench) -> None:
    words = [sys.executable, "-m", "farandole", "run", "--detach", "-np", "1", "true"]
    done = subprocess.run(words, env=bench.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --detach is for elastic jobs: others end when their launcher ends\nhint: ")


def test_hosts_of_running_job_are_listed_and_changed(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    assert bench.ask("hosts") == (0, "host  slots  workers  state\nhere  1      0        ready\n", "")
    assert bench.ask("hosts", "add", "h[2-3]:4", "h4", "--job", "test") == (
        0,
        "",
        "h2 joins with 4 slots\nh3 joins with 4 slots\nh4 joins with 1 slots\n",
    )
    assert bench.ask("hosts", "drain", "h2")[2] == "h2 is drained\n"
    assert bench.ask("hosts", "remove", "h3,h4")[2] == "h3 is removed\nh4 is removed\n"
    assert bench.ask("hosts", "remove", "h9") == (
        2,
        "",
        "error: the job has no host h9\nhint: it has here, h2\n",
    )
    assert bench.ask("hosts", "test")[1].splitlines()[1:] == [
        "here  1      0        ready",
        "h2    4      -        draining",
    ]
    assert bench.ask("stop")[0] == 0
    assert client.ends() == 143


# --- which users may connect, and where the socket is ---------------------------------------------------------------


def test_home_directory_may_have_a_long_path(bench: Bench) -> None:
    bench.home = bench.directory / ("deep" * 20) / ("deeper" * 20)
    client = bench.run(COUNTING)
    client.shows("begun")
    assert bench.ask("hosts")[0] == 0
    assert bench.ask("stop")[0] == 0
    assert client.ends() == 143
    bench.nothing_is_left()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_process_of_another_user_is_refused(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    path = bench.jobs / "test" / "socket"
    assert (path.parent.stat().st_mode | bench.jobs.stat().st_mode) & 0o077 == 0
    for opened in (path, *path.parents):  # As if somebody had opened all doors.
        if str(opened).startswith(str(bench.directory)):
            opened.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as stranger:
        directory = os.open(path.parent, os.O_PATH)
        os.seteuid(65534)
        try:
            stranger.connect(f"/proc/self/fd/{directory}/socket")
        finally:
            os.seteuid(0)
            os.close(directory)
        stranger.settimeout(20)
        assert stranger.recv(1) == b""
    client.shows("warning: a client was refused: a process of user 65534 is at the other end, not one of user 0")
    assert bench.ask("stop")[0] == 0
    assert client.ends() == 143


def test_connection_with_malformed_bytes_is_closed(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    directory = os.open(bench.jobs / "test", os.O_PATH)
    for data in (b"\xff" * 100, b"\x03\0\0\0abc", b"\x10\0\0\0\x83\xa4type\xa4show"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(f"/proc/self/fd/{directory}/socket")
            caller.sendall(data)
            caller.shutdown(socket.SHUT_WR)
            caller.settimeout(20)
            assert caller.recv(1) == b""
    os.close(directory)
    assert bench.ask("stop")[0] == 0
    assert client.ends() == 143
