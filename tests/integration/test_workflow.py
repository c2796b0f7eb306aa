"""The worked pipeline: five scripts, from raw data to a prediction, while a worker of the training is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

WORKFLOW = Path(__file__).resolve().parents[2] / "examples" / "workflow"
for package in ("torch", "sklearn", "safetensors", "onnx", "onnxscript", "onnxruntime"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the whole pipeline; return its folder and what it said. Worker 1 is killed in the second epoch."""
    out = tmp_path_factory.mktemp("workflow")
    said = []
    command = [sys.executable, str(WORKFLOW / "pipeline.py"), str(out), "--epochs", "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pipeline:
        try:
            assert pipeline.stdout is not None
            for line in pipeline.stdout:
                said.append(line)
                if "epoch 2 of 40" in line:
                    os.kill(_worker(out, 1), signal.SIGKILL)
            assert pipeline.wait(60) == 0, "".join(said)
        finally:
            pipeline.kill()
    return out, "".join(said)


def _worker(out: Path, number: int) -> int:
    """Return the process of a worker of this test's training."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:4] == [os.fsencode(each) for each in (WORKFLOW / "train.py", out / "data", out / "trained.pt")] and (
            b"FARANDOLE_WORKER=%d" % number in variables
        ):
            return int(process.name)
    raise AssertionError(f"there is no worker {number}")


def test_the_pipeline_comes_to_its_end_although_a_worker_is_killed(ran: tuple[Path, str]) -> None:
    _, said = ran
    for at, name in enumerate(("prepare", "train", "evaluate", "export", "predict"), 1):
        assert f"[{at}/5] {name}: done in " in said
    assert "1 worker\n" in said
    assert "the first test image is taken for a 6, and shows a 6" in said


def test_each_step_leaves_what_it_promises(ran: tuple[Path, str]) -> None:
    import numpy as np
    import onnxruntime
    from safetensors import safe_open

    out, _ = ran
    assert json.loads((out / "metrics.json").read_text())["accuracy"] >= 0.95
    with safe_open(out / "export" / "model.safetensors", framework="np") as opened:
        assert sorted(opened.keys()) == ["hidden.bias", "hidden.weight", "scores.bias", "scores.weight"]
        assert opened.metadata()["classes"] == "10"
    test = np.load(out / "data" / "test.npz")
    session = onnxruntime.InferenceSession(out / "export" / "model.onnx")
    (scores,) = session.run(["scores"], {"images": test["images"]})
    assert (scores.argmax(1) == test["labels"]).mean() >= 0.95


def test_a_model_that_is_not_good_enough_is_not_exported(ran: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = ran
    command = [sys.executable, WORKFLOW / "evaluate.py", out / "data", out / "trained.pt", tmp_path / "metrics.json"]
    done = subprocess.run([*command, "--goal", "1.01"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "less than --goal 1.01" in done.stderr


# --- without running steps -------------------------------------------------------------------------------------------


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"workflow_{name}", WORKFLOW / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"{}", b'{"images": "seven"}', b'{"images": [[1, 2]]}'])
def test_a_request_without_images_is_refused_in_a_sentence(body: bytes) -> None:
    serve = script("serve")
    with pytest.raises(serve.BadRequest, match=r"has to be|have to have the shape \[n, 8, 8\]"):
        serve.images_of(body)


def test_a_step_that_fails_or_leaves_nothing_ends_the_pipeline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = script("pipeline")
    assert not pipeline.run("[1/1]", "no", [sys.executable, "-c", "raise SystemExit(3)"], [])
    assert not pipeline.run("[1/1]", "lazy", [sys.executable, "-c", ""], [tmp_path / "result"])
    said = capfd.readouterr().err
    assert "step no failed: exit code 3" in said
    assert f"step lazy failed: it has not written {tmp_path / 'result'}" in said
