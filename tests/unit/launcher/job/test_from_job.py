"""From the description of a job to the launch of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from farandole.control.cli.queue import read_run_options
from farandole.control.jobs.spec import JobSpec, Workers, from_dict
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.from_job import (
    FOR_ALL,
    elastic_launch,
    fixed_launch,
    from_plain,
    to_plain,
    with_environment,
)
from farandole.control.launcher.job.host_list import Host, with_python
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.output.console import OutputOptions
from farandole.errors import SpecError

SSH = replace(FOR_ALL, ssh=SshOptions(port=2222), exports=("A=1",), end_grace=1.0)


def job(**keys: object) -> JobSpec:
    return from_dict({"command": ["python", "train.py"], "environment": {"B": "2"}, "grace": 20.0, **keys})


def test_job_of_fixed_size_runs_on_its_slots() -> None:
    launch = fixed_launch(job(workers=3), [Host("h1", 1), Host("fd00::2", 2)], SSH)
    assert (launch.command, launch.num_proc, launch.elastic) == (("python", "train.py"), 3, None)
    assert (launch.hosts, launch.ssh.port) == ((Host("h1", 1), Host("fd00::2", 2)), 2222)
    assert (launch.exports, launch.end_grace, launch.settings) == (("A=1", "B=2"), 20.0, {})


def test_elastic_job_begins_with_its_slots() -> None:
    saves = job(workers="1:4", checkpoint="/c")
    launch = elastic_launch(saves, 3, "file:/hosts", replace(SSH, elastic=Elastic(1, None, spares=1)))
    assert launch.elastic == Elastic(1, 4, discovery="file:/hosts", grace=20.0, spares=1)
    assert (launch.num_proc, launch.hosts, launch.end_grace) == (3, (), 1.0)
    assert launch.settings == {"checkpoint_dir": "/c", "resume": "auto"}


# Another value for each key of a job that its launch has, too.
OF_LAUNCHES: dict[str, Any] = {
    **{"command": ("true",), "workers": Workers(2, 5, 5), "environment": {"B": "3"}, "grace": 7.0, "checkpoint": "/c"},
}
# The same for the keys by which its place decides whether, when and in what the launcher runs.
OF_PLACES: dict[str, Any] = {
    **{"name": "a", "elastic": True, "priority": 1, "queue": "q", "suspension": "never", "signal": "SIGINT"},
    **{"image": "i", "resources": {"cpu": "1"}, "working_directory": "/w", "duration": 9.0, "deadline": 9.0},
    **{"application": "a", "retries": 1, "options": {"kubernetes": {}}},
}


def test_each_key_of_a_job_is_either_of_its_launch_or_of_its_place() -> None:
    before = job(workers="1:4")
    assert {*OF_LAUNCHES, *OF_PLACES} == {field.name for field in msgspec.structs.fields(JobSpec)}

    def launches(spec: JobSpec) -> tuple[LaunchSpec, ...]:
        hosts = [Host("h1", spec.workers.replicas)]
        return fixed_launch(spec, hosts, SSH), elastic_launch(spec, 2, "file:/hosts", SSH)

    others = {**OF_LAUNCHES, **OF_PLACES}.items()
    changed = {name: msgspec.structs.replace(before, **{name: value}) for name, value in others}
    assert {name for name, spec in changed.items() if launches(spec) != launches(before)} == OF_LAUNCHES.keys()


def test_words_of_a_command_are_never_options() -> None:
    launch = fixed_launch(job(command=["-np", "64", "-H", "h9:64", "python"]), [Host("h1", 2)])
    assert (launch.num_proc, launch.hosts) == (2, (Host("h1", 2),))
    assert launch.command == ("-np", "64", "-H", "h9:64", "python")


def test_environment_decides_without_explicit_choice() -> None:
    asked = {"FARANDOLE_START_TIMEOUT": "7", "FARANDOLE_METRICS": "9400"}
    launch = with_environment(FOR_ALL, asked)
    assert (launch.start_timeout, launch.settings) == (7.0, {"metrics": "9400", "start_timeout": 7.0})
    chosen = replace(FOR_ALL, settings={"metrics": "9500", "start_timeout": 9.0})
    assert with_environment(chosen, asked) == chosen
    with pytest.raises(SpecError, match="FARANDOLE_START_TIMEOUT=soon: expected a number of seconds above 0"):
        with_environment(FOR_ALL, {"FARANDOLE_START_TIMEOUT": "soon"})


def test_a_chosen_default_is_chosen() -> None:
    chosen = read_run_options("--start-timeout 30").launch
    assert with_environment(from_plain(chosen), {"FARANDOLE_START_TIMEOUT": "7"}).start_timeout == 30.0


def test_a_start_timeout_that_workers_get_holds_for_their_roster_as_well() -> None:
    assert from_plain(read_run_options("-x HOROVOD_START_TIMEOUT=60").launch).start_timeout == 60.0


@pytest.mark.parametrize("name", ["FARANDOLE_START_TIMEOUT", "HOROVOD_START_TIMEOUT"])
def test_a_jobs_own_start_timeout_holds_for_its_roster_as_well(name: str) -> None:
    for_all = replace(FOR_ALL, settings={"start_timeout": 9.0})
    launch = fixed_launch(job(workers=1, environment={name: "60"}), [Host("h1", 1)], for_all)
    assert launch.start_timeout == 60.0


def test_launch_survives_round_trip_through_plain_data() -> None:
    launch = LaunchSpec(
        command=("a",),
        num_proc=2,
        output_dir=Path("logs"),
        output=OutputOptions(only_ranks=(range(0, 2), range(5, 6))),
        settings={"transport": "tcp"},
        private=(("TOKEN", "x"),),
        elastic=Elastic(1, None, cooldown=(1.0, 2.0)),
    )
    assert from_plain(json.loads(json.dumps(to_plain(launch)))) == launch
    assert from_plain({}) == FOR_ALL


def test_hosts_may_have_another_python() -> None:
    hosts = with_python([Host("h1", 1), Host("me@h2", 1)], ["h2=/opt/py", "h9=/x", "/usr/py"])
    assert hosts == (Host("h1", 1, "/usr/py"), Host("me@h2", 1, "/opt/py"))
