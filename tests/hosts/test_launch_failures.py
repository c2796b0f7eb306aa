"""`farandole run` over several hosts: how jobs fail and end."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.jobs import FOLDER, Job, alive, put, start, told
from tests.hosts.launches import MEET, NOTICED_SECONDS, TRAIN, Hosts, lines
from waiting import until


def test_a_worker_that_fails_elsewhere(hosts: Hosts) -> None:
    bed = hosts(2)
    script = """
    basics.init()
    total(1)
    if rank == 3:
        raise ValueError("boom")
    while True:
        total(1)
    """
    put(bed.hosts, script)
    code, _, err = start(bed, "-H h1:2,h2:2 python train.py").finish()
    assert code == 1
    assert "error: rank 3 on host h2 failed first: it exited with code 1 (ValueError: boom)" in err
    assert '    raise ValueError("boom")\n' in err
    assert "[3]<stderr>:ValueError: boom" in err


def training(bed: Bed, options: str = "", *, patient: bool = True) -> Job:
    put(bed.hosts, TRAIN)
    places = ",".join(f"{host.name}:2" for host in bed.hosts)
    job = start(bed, f"{options} -H {places} python train.py", patient=patient)
    for number, host in enumerate(bed.hosts):
        for rank in (2 * number, 2 * number + 1):
            told(host, f"pid{rank}")
    return job


def test_ctrl_c_while_a_host_is_being_reached(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, MEET)
    bed.cut(bed.hosts[1])
    job = start(bed, "-H h1:1,h2:1 python train.py")
    until(lambda: any(" h2 " in each.command for each in bed.processes(bed.desk)), "ssh tries to reach h2")
    until(lambda: bed.processes(bed.hosts[0]), "h1 has an agent")
    job.signal(signal.SIGINT)
    _, err = job.process.communicate(timeout=60)
    assert job.process.returncode == 130
    assert err == "error: interrupted before anything was started\n"
    assert bed.processes(bed.desk) == []
    # On a busy machine, its ssh may be killed before it has ended.
    until(lambda: not bed.processes(bed.hosts[0]), "nothing is left on h1")


def test_a_host_that_loses_its_power(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed, patient=False)
    bed.die(bed.hosts[1])
    code, _, err = job.finish(NOTICED_SECONDS + 20)
    assert code == 1
    assert "host h2" in err and "lost" in err, err
    assert "nothing was heard from it for" in err


def test_a_host_that_is_cut_off_ends_its_workers_itself(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed, patient=False)
    bed.cut(bed.hosts[2])
    until(lambda: not bed.processes(bed.hosts[2]), "nothing of the job is left on h3", NOTICED_SECONDS)
    code, _, err = job.finish(NOTICED_SECONDS + 20)
    assert code == 1
    assert "host h3" in err and "lost" in err, err


def test_a_short_cut_loses_no_worker(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, "-x FARANDOLE_FAILURE_DEADLINE=20")
    bed.cut(bed.hosts[1])
    time.sleep(1)
    bed.restore(bed.hosts[1])
    with pytest.raises(Exception, match="timed out"):
        job.process.wait(3)
    job.signal(signal.SIGINT)
    assert job.finish()[0] == 130


def test_kill_minus_nine_of_the_launcher_leaves_nothing_anywhere(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed)
    job.signal(signal.SIGKILL)
    job.process.communicate(timeout=20)
    for host in alive(bed):
        until(lambda host=host: not bed.processes(host), f"nothing is left on {host.name}", NOTICED_SECONDS)


def test_kill_minus_nine_of_an_agent_leaves_nothing_anywhere(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, 'subprocess.Popen(["setsid", "sleep", "300"])\n' + TRAIN)
    job = start(bed, "-H h1:2,h2:2 python train.py")
    told(bed.hosts[0], "pid0"), told(bed.hosts[1], "pid3")
    (agent,) = [
        each.pid
        for each in bed.processes(bed.hosts[1])
        if "farandole.control.agent" in each.command and "sh -c" not in each.command
    ]
    assert bed.hosts[1].run(["kill", "-9", str(agent)]).returncode == 0
    code, _, err = job.finish()
    assert code == 1
    assert "host h2" in err and "lost" in err, err


def test_ctrl_c_once_ends_in_good_order_and_twice_at_once(hosts: Hosts) -> None:
    bed = hosts(2)
    orderly = """
    signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), os._exit(0)))
    tell(f"ready{rank}")
    time.sleep(300)
    """
    stubborn = """
    signal.signal(signal.SIGTERM, lambda *_: tell(f"asked{rank}"))
    tell(f"ready{rank}")
    while True:
        time.sleep(1)
    """
    for script, times in ((orderly, 1), (stubborn, 2)):
        put(bed.hosts, script)
        job = start(bed, "-H h1:1,h2:1 python train.py")
        for rank, host in enumerate(bed.hosts):
            told(host, f"ready{rank}")
            host.path(f"{FOLDER}/ready{rank}").unlink()
        begin = time.monotonic()
        job.signal(signal.SIGINT)
        if times == 2:
            for rank, host in enumerate(bed.hosts):
                told(host, f"asked{rank}")
            job.signal(signal.SIGINT)
        code, out, err = job.finish()
        assert code == 130, err
        # The first alone would have given them five seconds.
        assert lines(out) == ["saved", "saved"] if times == 1 else time.monotonic() - begin < 5


def test_ctrl_z_loses_no_worker(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, patient=False)
    job.signal(signal.SIGTSTP)
    until(lambda: Path(f"/proc/{job.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it stops")
    time.sleep(3)
    assert all(len(bed.processes(host)) >= 3 for host in bed.hosts)
    job.signal(signal.SIGCONT)
    time.sleep(1)
    job.signal(signal.SIGINT)
    assert job.finish()[0] == 130


def test_the_way_to_a_host_breaks(hosts: Hosts) -> None:
    """The ssh process for one host is killed; the host itself works, and is cleaned up."""
    bed = hosts(2)
    job = training(bed)
    (ssh,) = [
        each.pid for each in bed.processes(bed.desk) if each.command.startswith("ssh ") and " h2 " in each.command
    ]
    assert bed.desk.run(["kill", "-9", str(ssh)]).returncode == 0
    code, _, err = job.finish()
    assert code == 1
    assert "host h2" in err and "lost" in err, err


def test_a_worker_on_another_host_is_killed_by_its_rank(hosts: Hosts) -> None:
    bed = hosts(2)
    put(bed.hosts, "tell(f'up{rank}')\ntime.sleep(600)\n")
    job = start(bed, "-np 2 -H h1:1,h2:1 --job drill python train.py")
    told(bed.hosts[1], "up1")
    killed = bed.desk.run([sys.executable, "-m", "farandole", "kill", "drill", "--rank", "1"])
    assert killed.returncode == 0, killed.stderr
    assert "rank 1 on h2 gets SIGKILL; the job has a fixed size, so it will end" in killed.stderr
    code, _, err = job.finish()
    assert code == 137 and "rank 1 on host h2 failed first: it was killed by SIGKILL" in err
