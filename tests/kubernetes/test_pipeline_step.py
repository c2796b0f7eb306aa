"""A training as a step of a pipeline, before a real API server: submitted, waited for, its metrics passed on.

The step is what `farandole.kubeflow.training_job` runs. Where kfp is installed, its local runner starts it as well.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator
from tests.kubernetes.training_jobs import Watched

pytestmark = pytest.mark.timeout(400)

TRAIN = """\
import json
import numpy
import farandole.numpy as hvd

hvd.init()
workers = float(hvd.allreduce(numpy.ones(1), op=hvd.Sum)[0])
if hvd.rank() == 0:
    print("metrics: " + json.dumps({"workers": workers, "loss": 0.25, "note": "good"}), flush=True)
hvd.shutdown()
"""

ALONE = """\
import json, sys
from farandole.control.jobs.pipeline_step import run_job
values = run_job(json.loads(sys.argv[1]), "kubernetes", 200)
open(sys.argv[2] + "/values.json", "w").write(json.dumps(values))
"""

BY_KFP = """\
import json, sys
from kfp import dsl, local
from farandole.kubeflow import training_job
train = training_job("python:local", install_kfp=False)
job = json.loads(sys.argv[1])

@dsl.pipeline
def workflow():
    train(job=job, timeout_seconds=200)

local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[2])
workflow()
"""


def run_step(cluster: Cluster, namespace: str, script: str, job: dict[str, Any], folder: Path) -> str:
    """Run a step as a pipeline does, and return what it has said; raises CalledProcessError where it fails."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.control.kubeconfig),
        "FARANDOLE_NAMESPACE": namespace,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", script, json.dumps(job), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def metrics_of(folder: Path) -> dict[str, float]:
    """Return what a step has passed on."""
    if (alone := folder / "values.json").exists():
        return dict(json.loads(alone.read_text()))
    (file,) = folder.glob("*/run-training-job/executor_output.json")
    return dict(json.loads(file.read_text())["artifacts"]["metrics"]["artifacts"][0]["metadata"])


@pytest.mark.parametrize("runner", ["alone", "kfp"])
def test_step_submits_waits_and_returns_metrics(
    operator: RunningOperator, cluster: Cluster, namespace: str, tmp_path: Path, runner: str
) -> None:
    if runner == "kfp" and importlib.util.find_spec("kfp") is None:
        pytest.skip("kfp is not installed: it asks for an environment of its own")
    code, output = tmp_path / "code", tmp_path / "output"
    code.mkdir()
    output.mkdir()
    (code / "train.py").write_text(TRAIN)
    job = {
        "name": "step",
        "command": ["python3", "train.py"],
        "workers": 2,
        "image": "none",
        "options": {"kubernetes": {"ship": str(code)}},
    }
    said = run_step(cluster, namespace, ALONE if runner == "alone" else BY_KFP, job, output)
    assert "job step on kubernetes" in said
    assert metrics_of(output) == {"workers": 2.0, "loss": 0.25}, said
    assert Watched(cluster, namespace, "step").status["state"] == "Succeeded"


def test_step_with_failed_training_fails_with_reason(
    operator: RunningOperator, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    job = {"name": "step", "command": ["sh", "-c", "exit 3"], "workers": 1, "image": "none"}
    with pytest.raises(AssertionError, match="JobFailed"):
        run_step(cluster, namespace, ALONE, job, tmp_path)
    assert Watched(cluster, namespace, "step").status["state"] == "Failed"
