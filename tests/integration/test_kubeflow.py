"""The workflow as a pipeline of Kubeflow: compiled, and run by kfp's own local runner, with the training in a queue.

kfp asks for other versions of packages than PyTorch's and TensorFlow's friends do, so it has an environment of its own:
`make test-frameworks FRAMEWORKS=kfp`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

for package in ("kfp", "torch", "sklearn", "onnxruntime"):
    if importlib.util.find_spec(package) is None:
        reason = f"{package} is not installed; `make test-frameworks FRAMEWORKS=kfp` runs these tests where all is"
        pytest.skip(reason, allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "examples" / "workflow"
# kfp and what it asks for use old names of others.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kubeflow_pipeline", WORKFLOW / "kubeflow_pipeline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have a queue of two slots on this machine; return the name of the place."""
    monkeypatch.delenv("FARANDOLE_ON")
    monkeypatch.setenv("FARANDOLE_QUEUE", str(tmp_path / "queue"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Steps are processes of their own, and so are the queue and its jobs.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    farandole = [sys.executable, "-m", "farandole", "queue"]
    subprocess.run([*farandole, "start", "--hosts", "localhost:2"], check=True, timeout=60)
    yield "queue"
    subprocess.run([*farandole, "stop"], check=True, timeout=60)


def run_locally(pipeline: Any, root: Path) -> None:
    from kfp import local

    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(root))
    pipeline()


def metrics(root: Path, step: str) -> dict[str, Any]:
    """Return the metrics that a step of the pipeline has passed on."""
    (file,) = root.glob(f"*/{step}/executor_output.json")
    found = json.loads(file.read_text())["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert isinstance(found, dict)
    return found


def test_the_whole_workflow_runs_by_the_local_runner(queue: str, tmp_path: Path) -> None:
    job = {"name": "digits", "command": [sys.executable], "workers": {"min": 1, "max": 2, "replicas": 2}}
    pipeline = example().make("python:local", str(WORKFLOW), str(tmp_path / "out"), job, queue)
    run_locally(pipeline, tmp_path / "root")

    accuracy = json.loads((tmp_path / "out" / "metrics.json").read_text())["accuracy"]
    assert accuracy >= 0.95
    assert (tmp_path / "out" / "export" / "model.onnx").exists()
    trained = metrics(tmp_path / "root", "run-training-job")
    assert trained["steps"] == 690
    # What the training passed on has come to the next step, which adds what it has found itself.
    evaluated = metrics(tmp_path / "root", "run-script-2")
    assert evaluated == {**trained, "accuracy": accuracy}


def test_a_training_that_fails_ends_the_pipeline(queue: str, tmp_path: Path) -> None:
    from kfp import dsl

    from farandole.kubeflow import training_job

    train = training_job("python:local", install_kfp=False)

    @dsl.pipeline
    def failing():  # kfp reads annotations, and does not take them as text.
        train(job={"command": ["sh", "-c", "exit 3"], "workers": 1}, on="queue")

    with pytest.raises(RuntimeError, match="run-training-job"):
        run_locally(failing, tmp_path / "root")


def test_the_pipeline_is_compiled_with_a_training_job_and_the_claim_of_all_steps(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    pytest.importorskip("kfp.kubernetes", reason="kfp-kubernetes is not installed")
    file = tmp_path / "digits.yaml"
    command = [sys.executable, WORKFLOW / "kubeflow_pipeline.py", file, "--image", "me/workflow:1", "--claim", "digits"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, env=environment, check=True, timeout=60)

    pipeline, platform = yaml.safe_load_all(file.read_text())
    tasks = pipeline["root"]["dag"]["tasks"]
    job = tasks["run-training-job"]["inputs"]["parameters"]["job"]["runtimeValue"]["constant"]
    assert job["command"] == ["python", "/workflow/train.py", "/work/data", "/work/trained.pt"]
    assert job["checkpoint"] == "/work/checkpoints"
    assert tasks["run-training-job"]["dependentTasks"] == ["run-script"]
    assert {each["container"]["image"] for each in pipeline["deploymentSpec"]["executors"].values()} == {
        "me/workflow:1"
    }
    mounted = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert sorted(name for name, each in mounted.items() if each["pvcMount"][0]["mountPath"] == "/work") == [
        "exec-run-script",
        "exec-run-script-2",
        "exec-run-script-3",
        "exec-run-script-4",
    ]
    from farandole.control.jobs.spec import from_dict

    pytest.importorskip("lightkube")
    from farandole.control.jobs.pipeline_step import with_whole_numbers
    from farandole.control.kubernetes.service import object_of
    from farandole.control.kubernetes.training_job.job_spec import read

    body, _ = object_of(from_dict(with_whole_numbers(job)))
    body["metadata"]["name"] = "digits"
    assert read(body)[1] == [], "the operator takes what the pipeline submits"
