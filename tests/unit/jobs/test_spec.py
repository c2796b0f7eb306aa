"""Valid job specifications, and the errors for invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.control.jobs.errors import BadSpec
from farandole.control.jobs.spec import JobSpec, Workers, from_dict, parse_workers, to_dict
from farandole.control.jobs.spec_file import parse_spec

COMMAND = ["python", "train.py"]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, Workers(1, 1, 1)),
        (4, Workers(4, 4, 4)),
        ("2:8", Workers(2, 8, 8)),
        ({"min": 2, "max": 8}, Workers(2, 8, 8)),
        ({"min": 2, "max": 8, "replicas": 4}, Workers(2, 8, 4)),
        ({"replicas": 4}, Workers(4, 4, 4)),
        ({"min": 2, "replicas": 4}, Workers(2, 4, 4)),
        ({"max": 3}, Workers(3, 3, 3)),
        ({"min": 3}, Workers(3, 3, 3)),
    ],
)
def test_workers_can_be_written_in_several_ways(given: Any, read: Workers) -> None:
    spec = from_dict({"command": COMMAND, "workers": given})
    assert spec.workers == read
    assert spec.is_elastic == (read.min < read.max)


def test_spec_survives_round_trip_through_plain_data() -> None:
    spec = from_dict(
        {
            "name": "resnet-2",
            "command": COMMAND,
            "workers": "2:8",
            "priority": 5,
            "queue": "vision",
            "suspension": "signal",
            "environment": {"OMP_NUM_THREADS": 1},
            "resources": {"cpu": 4, "nvidia.com/gpu": "1"},
            "workingDirectory": "/data",
            "duration": 3600,
            "options": {"kubernetes": {"networkPolicy": True}},
        }
    )
    assert spec.environment == {"OMP_NUM_THREADS": "1"} and spec.resources["cpu"] == "4"
    plain = to_dict(spec)
    assert plain["workingDirectory"] == "/data" and "retries" not in plain
    assert from_dict(plain) == spec


@pytest.mark.parametrize(("checkpoint", "how"), [("", "never"), ("/shared/c", "signal")])
def test_only_jobs_with_checkpoint_are_suspended_by_default(checkpoint: str, how: str) -> None:
    assert from_dict({"command": COMMAND, "checkpoint": checkpoint}).how_suspended == how


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"prioritty": 5}, "prioritty: unknown key", "did you mean priority?"),
        ({"workers": {"mni": 1}}, "workers.mni: unknown key", "did you mean min?"),
        ({"workers": {"min": "two"}}, "workers.min: 'two' is not a number", "such as"),
        ({"workers": "two"}, "workers: 'two' is not a number of workers", "2:8"),
        ({"workers": True}, "workers: True is not a number of workers", "such as"),
        ({"workers": "9" * 5000}, "is not a number of workers", "such as 4"),
        ({"command": ["echo", "a\0b"]}, "command: 'a\\x00b' contains a null character", "no program"),
        ({"environment": {"A": "\0"}}, "environment.A: '\\x00' contains a null character", "no program"),
        ({"workers": 0}, "workers: a job cannot run with 0", "at least 1"),
        ({"workers": "8:2"}, "workers: max 2 is below min 8", "min <= max"),
        ({"workers": {"min": 2, "max": 4, "replicas": 8}}, "workers: replicas 8 is outside", "replicas <= max"),
        ({"workers": "2:8", "elastic": False}, "workers: a range of 2 to 8 needs an elastic job", "elastic"),
        ({"priority": "high"}, "priority: expected a number, got str", "docs/how-to/queue.md"),
        ({"name": "My Job"}, "name: 'My Job' is not a valid name of a job", "lowercase letters"),
        ({"name": "x" * 49}, "is not a valid name of a job", "48"),
        ({"command": []}, "command: there is no command", "such as"),
        ({"command": "python train.py"}, "command: it must be a list of words", "such as"),
        ({"command": None}, "command: it is missing", "such as"),
        ({"suspension": "sginal"}, "suspension: 'sginal' is unknown", "did you mean signal?"),
        ({"signal": "SIGKILL"}, "signal: 'SIGKILL' cannot be sent", "SIGTERM"),
        ({"grace": -1}, "grace: -1 s", "0 or more"),
        ({"duration": 0}, "duration: 0 s is not a valid time", "above 0"),
        ({"retries": -1}, "retries: -1 is negative", "0"),
        ({"retries": 2**70}, "retries: 1180591620717411303424 is too large", "1000000000"),
        ({"priority": -(2**70)}, "priority: -1180591620717411303424 is too large", "1000000000"),
        ({"workers": {"min": 1, "max": 2**70}}, "workers: 1180591620717411303424 is too large", "1000000000"),
        ({"environment": {"A B": "1"}}, "environment: 'A B' is not a valid name of a variable", "letters"),
        ({"environment": {"A": True}}, "environment.A: True is not a string", "quotes"),
        ({"environment": ["A"]}, "environment: ['A'] is not a mapping", "such as"),
        ({"queue": ""}, "queue: the name is empty", "omit the key"),
    ],
)
def test_invalid_spec_is_refused_with_key_and_hint(changes: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(BadSpec) as raised:
        from_dict({"command": COMMAND, **changes})
    assert said in raised.value.message
    assert hint in raised.value.hint


def test_invalid_number_of_workers_is_refused() -> None:
    with pytest.raises(BadSpec, match="not a number of workers"):
        parse_workers("2-8")


FILE = """\
# What to train
name: resnet-2
command: [python, train.py]
workers:
  min: 2
  max: 8
priority: 5
"""


def test_command_line_overrides_job_file() -> None:
    spec = parse_spec(FILE, "job.yaml", {"priority": 7})
    assert spec == JobSpec(("python", "train.py"), Workers(2, 8, 8), "resnet-2", priority=7)


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ("priority: 5", "prioritty: 5", "job.yaml, line 7: prioritty: unknown key"),
        ("  max: 8", "  max: 1", "job.yaml, line 4: workers: max 1 is below min 2"),
        ("  max: 8", "  max: many", "job.yaml, line 6: workers.max: 'many' is not a number"),
        ("  max: 8", "  max 8", "job.yaml, line 7: invalid YAML"),
        ("priority: 5", "priority: 5: 6", "job.yaml, line 7: invalid YAML"),
        ("command: [python, train.py]", "", "job.yaml: command: it is missing"),
        ("priority: 5", "environment: {1A: x}", "job.yaml, line 7: environment: '1A'"),
    ],
)
def test_error_in_job_file_names_the_line(before: str, after: str, where: str) -> None:
    with pytest.raises(BadSpec) as raised:
        parse_spec(FILE.replace(before, after), "job.yaml")
    assert raised.value.message.startswith(where)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words\n"])
def test_job_file_without_mapping_is_refused(text: str) -> None:
    with pytest.raises(BadSpec, match=r"job.yaml, line 1: this is not a mapping"):
        parse_spec(text, "job.yaml")


def test_job_file_may_be_json() -> None:
    assert parse_spec('{"command": ["true"], "workers": 2}', "job.json").workers.replicas == 2


def test_job_file_that_contains_itself_is_refused() -> None:
    for text in ("command: [x]\noptions: &all {slurm: *all}\n", "command: [x]\noptions: {slurm: &all [1, *all]}\n"):
        with pytest.raises(BadSpec, match=r"job\.yaml, line 2: this contains itself"):
            parse_spec(text, "job.yaml")
    twice = parse_spec("command: [x]\nenvironment: &texts {A: '1'}\nresources: *texts\n", "job.yaml")
    assert twice.resources == twice.environment == {"A": "1"}
