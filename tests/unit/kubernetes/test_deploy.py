"""The installation: one source for all forms, and no more rights than the code needs."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from farandole.control.cli.main import main
from farandole.control.kubernetes import conditions
from farandole.control.kubernetes.api.client import PLURALS
from farandole.control.kubernetes.deploy import crds, files, install, manifests, rights
from farandole.control.kubernetes.kinds import KINDS, MPI_JOB
from farandole.control.kubernetes.mpijob import job_spec

ROOT = Path(__file__).resolve().parents[3]


def test_files_under_deploy_are_current() -> None:
    folders = [ROOT / "deploy" / name for name in ("kustomize", "helm")]
    made = {str(path.relative_to(ROOT / "deploy")) for folder in folders for path in folder.rglob("*.*")}
    wanted = files.all_files()
    assert made == set(wanted)
    old = [name for name, text in wanted.items() if (ROOT / "deploy" / name).read_text() != text]
    assert old == [], "python -m farandole.control.kubernetes.deploy.files deploy"


def test_dry_run_prints_manifests_without_a_request(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert main(["kubernetes", "install", "--dry-run", "--namespace", "ops", "--image", "op:1"]) == 0
    items = list(yaml.safe_load_all(capsys.readouterr().out))
    assert items == manifests.all_of(manifests.Install(namespace="ops", image="op:1"))


def test_installation_ends_with_next_steps() -> None:
    said = install.next_steps(manifests.Install(namespace="ops", image="op:1"))
    assert "kubectl get pods -n ops" in said
    assert "pull op:1" in said
    assert "farandole submit --on kubernetes" in said


def test_rights_are_limited_to_jobs_namespace() -> None:
    items = manifests.access(manifests.Install(jobs_namespace="ml"))
    (cluster,) = [item for item in items if item["kind"] == "ClusterRole"]
    assert cluster["rules"] == rights.rules("cluster")
    roles = {item["metadata"]["namespace"]: item["rules"] for item in items if item["kind"] == "Role"}
    assert roles == {"farandole-system": rights.rules("own"), "ml": rights.rules("jobs")}


def test_rights_name_resources_one_by_one_and_secrets_cannot_be_read() -> None:
    for right in rights.RIGHTS:
        assert "*" not in (*right.resources, *right.verbs, right.group)
        assert right.why
    (secrets,) = [right for right in rights.RIGHTS if "secrets" in right.resources]
    assert secrets.verbs == ("create",)
    named = {name for right in rights.RIGHTS for name in right.resources}
    assert named >= set(PLURALS.values()) | {f"{kind.plural}/status" for kind in KINDS}


def test_the_operators_pods_satisfy_the_strictest_pod_security_standard() -> None:
    deployment = manifests.workload(manifests.Install())[0]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


# --- kinds -----------------------------------------------------------------------------------------------------------


def test_versions_share_schema_except_default_of_remote_shell() -> None:
    versions = crds.mpi_job()["spec"]["versions"]
    assert [item["name"] for item in versions] == list(MPI_JOB.served)
    assert [item["name"] for item in versions if item["storage"]] == ["v2beta1"]
    shells = {}
    for item in versions:
        spec = item["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        shells[item["name"]] = spec.pop("remoteShell")["default"]
    assert shells == {"v1alpha2": "kubexec", "v1": "kubexec", "v2beta1": "ssh"}
    schemas = [item["schema"] for item in versions]
    assert all(schema == schemas[0] for schema in schemas)


def test_schema_has_every_field_that_is_read() -> None:
    properties = crds.mpi_job()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    source = Path(job_spec.__file__).read_text()
    read = set(re.findall(r'reader\.\w+\(\s*spec, "(\w+)"', source)) | set(re.findall(r'spec\.get\("(\w+)"\)', source))
    policies = set(re.findall(r'\(policies, "(\w+)"', source))
    assert "mpiReplicaSpecs" in read and "ttlSecondsAfterFinished" in policies
    assert read - set(properties) == {"replicas", "restartPolicy", "template"}, "these are a replica's"
    assert policies - set(properties["runPolicy"]["properties"]) == set()


def test_old_servers_get_no_unknown_rules() -> None:
    training = crds.training_job()
    assert "x-kubernetes-validations" in str(training)
    assert "x-kubernetes-validations" not in str(install._for(training, 20))
    assert install._for(training, 25) == training


# --- images ----------------------------------------------------------------------------------------------------------

IMAGES = sorted((ROOT / "deploy" / "images").glob("*.Dockerfile"))


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_images_are_pinned_have_stages_and_no_root(path: Path) -> None:
    text = path.read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(bases) >= 2
    assert set(bases) == {"${BASE}"}, "the base is an argument, so that images can be built without a registry"
    assert re.findall(r"^ARG BASE=(\S+)", text, re.MULTILINE) == ["python:3.11.14-slim-bookworm"]
    assert all("--constraint" in line for line in re.findall(r"pip (?:install|wheel).*", text))
    last = text.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\d+):\d+$", last, re.MULTILINE)[-1] != "0"
    assert "g++" not in last


def test_every_image_for_workers_has_a_definition_for_apptainer() -> None:
    workers = {path.stem for path in IMAGES} - {"operator"}
    assert {path.stem for path in (ROOT / "deploy" / "images").glob("*.def")} == workers
    page = (ROOT / "deploy" / "images" / "README.md").read_text()
    assert [path.name for path in IMAGES if path.name not in page] == []


# --- documentation ---------------------------------------------------------------------------------------------------


def test_page_shows_rights_and_reasons_of_blocked() -> None:
    page = (ROOT / "docs" / "reference" / "kubernetes.md").read_text()
    assert rights.table() in page, (
        "python -c 'from farandole.control.kubernetes.deploy import rights; print(rights.table())'"
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert {reason: rows.get(reason, "").strip() for reason in conditions.BLOCKED_REASONS} == conditions.BLOCKED_REASONS


# CamelCase in the rooms of jobs that is no reason: kinds, policies and values of other fields.
_NO_REASONS = {
    "Always",
    "AtStartup",
    "ClusterFirstWithHostNet",
    "ConfigMap",
    "Evicted",
    "Failed",
    "Never",
    "None",
    "ServiceAccount",
}
_NO_REASONS |= {"OpenMPI", "Pod", "Ready", "True"}


def _reasons_in(source: str) -> set[str]:
    """Return the reasons of conditions and events in a module: words in CamelCase where such a reason stands."""
    told = ("with_condition", "noted", "Note", "failed", "_ended", "_end")
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found += node.args if name in told else []
        elif isinstance(node, ast.Tuple):
            found += node.elts[:1]
        elif isinstance(node, ast.Assign):
            value = node.value
            found += [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    words = {each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return {word for word in words if re.fullmatch(r"[A-Z][a-z]+[A-Za-z]*|MPI[A-Za-z]+", word)} - _NO_REASONS


def test_page_explains_every_reason() -> None:
    rooms = ROOT / "src" / "farandole" / "control" / "kubernetes"
    modules = [path for room in ("mpijob", "training_job", "queues") for path in (rooms / room).glob("*.py")]
    reasons = set[str]().union(*(_reasons_in(path.read_text()) for path in modules))
    assert {"MPIJobRunning", "WorkerLost", "Queued", "TrainingRetried"} <= reasons
    page = (ROOT / "docs" / "reference" / "kubernetes.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    explained = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert sorted(reasons - explained) == []
