"""Values in the user's pod template override the operator's."""

from __future__ import annotations

from typing import Any

import mpi_jobs
import pytest

from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.mpijob import access, job_spec
from farandole.control.kubernetes.mpijob import pods as mpi_pods
from farandole.control.kubernetes.training_job import job_spec as training_spec
from farandole.control.kubernetes.training_job import pods as training_pods

THEIRS = "theirs"
SHAPES = [(shell, implementation) for shell in ("ssh", "kubexec") for implementation in ("OpenMPI", "Intel", "MPICH")]


def mpi_job(shell: str, implementation: str, role: str, **container: Any) -> dict[str, Any]:
    job = mpi_jobs.v2beta1()
    job["metadata"] |= {"namespace": "team", "uid": "u"}
    job["spec"] |= {"remoteShell": shell, "mpiImplementation": implementation}
    job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"][0] |= container
    return job


def mpi_pod(job: dict[str, Any], role: str) -> dict[str, Any]:
    spec, faults = job_spec.read(job)
    assert spec is not None, faults
    if role == "Launcher":
        return mpi_pods.launcher(job, spec, Options(), 0, "digest")
    return mpi_pods.worker(job, spec, Options(), 0)


def mpi_configs(job: dict[str, Any]) -> dict[str, dict[str, str]]:
    spec, _ = job_spec.read(job)
    assert spec is not None
    return {each["metadata"]["name"]: each["data"] for each in mpi_pods.environments(job, spec)}


def variables(pod: dict[str, Any]) -> dict[str, str]:
    found: list[Any] = pod["spec"]["containers"][0].get("env") or []
    assert len({each["name"] for each in found}) == len(found), "no variable is there twice"
    return {each["name"]: each["value"] for each in found}


@pytest.mark.parametrize("role", ["Launcher", "Worker"])
@pytest.mark.parametrize(("shell", "implementation"), SHAPES)
def test_template_overrides_every_variable_of_an_mpijob(shell: str, implementation: str, role: str) -> None:
    ours = variables(mpi_pod(mpi_job(shell, implementation, role, env=[]), role))
    assert ours

    theirs = [{"name": name, "value": THEIRS} for name in ours]
    found = variables(mpi_pod(mpi_job(shell, implementation, role, env=theirs), role))

    assert found == dict.fromkeys(ours, THEIRS)


@pytest.mark.parametrize("role", ["Launcher", "Worker"])
@pytest.mark.parametrize(("shell", "implementation"), SHAPES)
def test_variables_of_an_mpijob_come_before_those_of_the_users_config_maps_and_secrets(
    shell: str, implementation: str, role: str
) -> None:
    ours = variables(mpi_pod(mpi_job(shell, implementation, role, env=[]), role))
    sources = [{"secretRef": {"name": "mine"}}]
    job = mpi_job(shell, implementation, role, env=[{"name": "OWN", "value": "1"}], envFrom=sources)

    pod = mpi_pod(job, role)

    # A variable in `env` would win over all of them.
    assert variables(pod) == {"OWN": "1"}
    first, *rest = pod["spec"]["containers"][0]["envFrom"]
    assert rest == sources
    assert mpi_configs(job)[first["configMapRef"]["name"]] == ours


def test_a_launcher_with_an_account_of_the_users_gets_its_rights() -> None:
    job = mpi_job("kubexec", "OpenMPI", "Launcher")
    job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["serviceAccountName"] = "mine"
    spec, _ = job_spec.read(job)
    assert spec is not None

    made = [wanted.obj for wanted in access.around(job, spec, 2)]

    assert mpi_pod(job, "Launcher")["spec"]["serviceAccountName"] == "mine"
    assert [each["subjects"][0]["name"] for each in made if each["kind"] == "RoleBinding"] == ["mine"]
    assert "ServiceAccount" not in [each["kind"] for each in made]


def training_job(**spec: Any) -> dict[str, Any]:
    body = {"command": ["python", "train.py"], "workers": {"min": 1, "max": 2, "replicas": 1}, "image": "me", **spec}
    metadata = {"name": "job", "namespace": "team", "uid": "u"}
    return {"apiVersion": "farandole.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": body}


def training_pod(job: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    spec, faults = training_spec.read(job)
    assert spec is not None, faults
    return training_pods.worker(job, spec, Options(), 0), training_pods.environments(job, spec)


def test_variables_of_a_training_job_win_over_its_templates_and_both_over_ours() -> None:
    env = [{"name": "HOME", "value": "/home/me"}, {"name": "A", "value": "template"}]
    template = {"spec": {"containers": [{"name": "worker", "env": env}]}}

    pod, configs = training_pod(training_job(template=template, environment={"A": "job"}))

    assert variables(pod) == {"HOME": "/home/me", "A": "job"}
    assert configs == []
    assert variables(training_pod(training_job())[0]) == {"HOME": "/tmp"}


def test_variables_of_a_training_job_come_before_those_of_its_templates_config_maps() -> None:
    sources = [{"configMapRef": {"name": "mine"}}]
    template = {"spec": {"containers": [{"name": "worker", "envFrom": sources}]}}

    pod, configs = training_pod(training_job(template=template))

    assert "HOME" not in variables(pod)
    (ours,) = configs
    assert pod["spec"]["containers"][0]["envFrom"] == [{"configMapRef": {"name": ours["metadata"]["name"]}}, *sources]
    assert ours["data"] == {"HOME": "/tmp"}


def test_template_decides_about_token_and_grace_period() -> None:
    chosen = {"automountServiceAccountToken": True, "terminationGracePeriodSeconds": 300}
    pod, _ = training_pod(training_job(template={"spec": {**chosen, "containers": [{"name": "worker"}]}}))
    assert {name: pod["spec"][name] for name in chosen} == chosen

    plain, _ = training_pod(training_job(grace=10))
    assert plain["spec"]["automountServiceAccountToken"] is False
    assert plain["spec"]["terminationGracePeriodSeconds"] > 10
