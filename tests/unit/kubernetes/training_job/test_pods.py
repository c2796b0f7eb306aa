"""The content of a TrainingJob's pods."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.unit.kubernetes.training_job.played_cluster import job_of

from farandole.control.kubernetes.launcher_pod.__main__ import spec_of as launch_of
from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.training_job import pods
from farandole.control.kubernetes.training_job.job_spec import TrainingJobSpec, read


def spec_of(**spec: Any) -> tuple[dict[str, Any], TrainingJobSpec]:
    job = job_of(**spec)
    found, faults = read(job)
    assert found is not None, faults
    return job, found


def expanded(value: str, variables: dict[str, str]) -> str:
    """Return the value of a variable as the kubelet makes it: `$(NAME)` is replaced, and `$$` is one `$`."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, value)


@pytest.mark.parametrize("words", ["echo $$", "kill $$(cat pid)", "echo $(KUBERNETES_SERVICE_HOST) 5$"])
def test_command_has_nothing_for_kubelet_to_expand(words: str) -> None:
    job, spec = spec_of(command=["sh", "-c", words])

    env = pods.launcher(job, spec, Options(), 0, 0)["spec"]["containers"][0]["env"]

    (told,) = [each["value"] for each in env if each["name"] == "FARANDOLE_TRAINING_JOB"]
    seen = expanded(told, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert json.loads(seen)["job"]["command"] == ["sh", "-c", words]


def test_launcher_starts_described_job() -> None:
    workers, variables = {"min": 2, "max": 6, "replicas": 4}, {"A": "$(HOSTNAME)"}
    job, spec = spec_of(workers=workers, checkpoint="pvc:data/run", environment=variables, grace=45)

    launch = launch_of(json.loads(json.dumps(pods.description(job, spec, 1))))

    assert launch.elastic is not None and launch.elastic.fills_at_once
    assert (launch.command, launch.num_proc) == (spec.job.command, 2)
    assert (launch.elastic.min_size, launch.elastic.max_size, launch.elastic.grace) == (2, 6, 45.0)
    assert launch.settings == {"checkpoint_dir": pods.checkpoint_folder(spec), "resume": "auto"}
    assert launch.exports == (), "its pods have them, as the kubelet has expanded them"


@pytest.mark.parametrize(
    "said",
    [
        {"environment": {"FARANDOLE_START_TIMEOUT": "90"}},
        {"environment": {"HOROVOD_START_TIMEOUT": "90"}},
        {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "worker",
                            "image": "me",
                            "env": [{"name": "FARANDOLE_START_TIMEOUT", "value": "90"}],
                        }
                    ]
                }
            }
        },
    ],
)
def test_the_launcher_gives_workers_the_time_to_start_that_the_job_asks_for(said: dict[str, Any]) -> None:
    job, spec = spec_of(**said)

    launch = launch_of(json.loads(json.dumps(pods.description(job, spec, 1))))

    assert launch.start_timeout == 90.0


def test_workers_run_in_directory_of_their_container() -> None:
    containers = [{"name": "proxy", "workingDir": "/proxy"}, {"name": "worker", "image": "me", "workingDir": "/work"}]
    _, spec = spec_of(template={"spec": {"containers": containers}})

    assert pods.directory(spec) == "/work"


@pytest.mark.parametrize("env", [["A=1"], [None], [7, {"name": "A", "value": "1"}]])
def test_invalid_variables_of_template_are_reported(env: list[object]) -> None:
    spec, faults = read(job_of(template={"spec": {"containers": [{"name": "worker", "image": "me", "env": env}]}}))

    assert spec is None
    assert faults == [f"template.spec.containers worker.env: {env[0]!r} is not an object"]
