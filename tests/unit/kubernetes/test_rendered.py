"""The three ways to install make the same objects: the chart by Helm, the base by Kustomize, and `install`.

Helm is its own library (the package helm-python-sdk has it in a wheel), Kustomize is the one in kubectl.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from farandole.control.cli.main import main

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
CHART = DEPLOY / "helm" / "farandole-operator"
INFORMATION = 1


def by_name(items: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return objects by what they are called: tools put them into orders of their own."""
    found = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in items}
    assert len(found) == len(items)
    return found


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """Return what `farandole kubernetes install --dry-run` prints."""
    assert main(["kubernetes", "install", "--dry-run", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


@pytest.mark.parametrize("gang", ["", "volcano"])
def test_helm_renders_same_objects_as_install(gang: str, capsys: pytest.CaptureFixture[str]) -> None:
    helm = pytest.importorskip("helm_python", reason="the package helm-python-sdk is not installed")
    values = {"image": "op:1", "replicas": 3, "gangScheduler": gang}
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name="operator", namespace="ops").values()
    kinds = yaml.safe_load_all((CHART / "crds" / "kinds.yaml").read_text())
    rendered = by_name([item for text in texts for item in yaml.safe_load_all(text) if item] + list(kinds))

    gang_words = ["--gang-scheduler", gang] if gang else []
    applied = by_name(dry_run(capsys, "--namespace", "ops", "--image", "op:1", "--replicas", "3", *gang_words))
    # Helm makes that itself, by --create-namespace.
    del applied["Namespace", "", "ops"]
    assert rendered == applied


def test_helm_lint_accepts_chart() -> None:
    helm = pytest.importorskip("helm_python", reason="the package helm-python-sdk is not installed")
    report = helm.lint(CHART, strict=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > INFORMATION] == []


@pytest.mark.parametrize("values", [{"replica": 3}, {"replicas": "three"}, {"image": ""}])
def test_helm_refuses_unknown_values(values: dict[str, Any]) -> None:
    helm = pytest.importorskip("helm_python", reason="the package helm-python-sdk is not installed")
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(values)


def test_kustomize_builds_same_objects_as_install(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl, which has Kustomize in it, is not installed")
    command = ["kubectl", "kustomize", str(DEPLOY / "kustomize" / "base")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert by_name(list(yaml.safe_load_all(built))) == by_name(dry_run(capsys))
