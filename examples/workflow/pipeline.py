"""From raw data to a prediction: the five steps of a machine-learning workflow, each an ordinary script.

    python pipeline.py OUT [--workers 2] [--min-workers 1] [--epochs 30]

    prepare.py    ->  OUT/data/train.npz, test.npz
    train.py      ->  OUT/trained.pt              farandole run, elastic; OUT/checkpoints meanwhile
    evaluate.py   ->  OUT/metrics.json            ends everything if the model is not good enough
    export.py     ->  OUT/export/model.safetensors, model.onnx
    predict.py    ->  one prediction, from serve.py over HTTP

The same steps on Kubernetes: kubeflow_pipeline.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = ("torch", "numpy", "sklearn", "safetensors", "onnx", "onnxscript", "onnxruntime")


def steps(given: argparse.Namespace) -> list[tuple[str, list[str], list[Path]]]:
    """Return each step's name, its command, and what it writes."""
    out: Path = given.out
    data, weights, export = out / "data", out / "trained.pt", out / "export"
    onnx = export / "model.onnx"

    def python(script: str, *arguments: object) -> list[str]:
        return [sys.executable, str(HERE / script), *map(str, arguments)]

    launch = [sys.executable, "-m", "farandole", "run", "-np", str(given.workers)]
    launch += ["--min-np", str(given.min_workers), "--checkpoint-dir", str(out / "checkpoints"), "--resume", "auto"]
    return [
        ("prepare", python("prepare.py", data), [data / "train.npz", data / "test.npz"]),
        ("train", [*launch, *python("train.py", data, weights, "--epochs", given.epochs)], [weights]),
        ("evaluate", python("evaluate.py", data, weights, out / "metrics.json"), [out / "metrics.json"]),
        ("export", python("export.py", weights, export), [export / "model.safetensors", onnx]),
        ("predict", python("predict.py", onnx, data), []),
    ]


def run(place: str, name: str, command: list[str], made: list[Path]) -> bool:
    """Run one step, show what it prints, and return whether it has done what it should."""
    print(f"{place} {name}: {shlex.join(command)}", flush=True)
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as step:
        for line in step.stdout or ():
            print(f"      {line}", end="", flush=True)
    missing = [path for path in made if not path.exists()]
    if step.returncode or missing:
        why = f"exit code {step.returncode}" if step.returncode else f"it has not written {missing[0]}"
        print(f"error: step {name} failed: {why}. What it printed is above.", file=sys.stderr)
        return False
    wrote = f", wrote {', '.join(map(str, made))}" if made else ""
    print(f"{place} {name}: done in {time.monotonic() - began:.1f} s{wrote}", flush=True)
    return True


def main() -> int:
    """Run all steps, one after the other, until one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder for everything that is made")
    parser.add_argument("--workers", type=int, default=2, help="that train (default: 2)")
    parser.add_argument("--min-workers", type=int, default=1, help="with which training goes on (default: 1)")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--resume", action="store_true", help="take up a training that was interrupted")
    given = parser.parse_args()
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        print(f"error: {', '.join(lacking)} cannot be imported.", file=sys.stderr)
        print("hint: pip install 'farandole[workflow]'", file=sys.stderr)
        return 2
    given.out = given.out.resolve()
    if not given.resume and (given.out / "checkpoints").exists():
        (given.out / "checkpoints").rename(given.out / f"checkpoints-{int(time.time())}")
    planned = steps(given)
    return int(not all(run(f"[{at}/{len(planned)}]", *step) for at, step in enumerate(planned, 1)))


if __name__ == "__main__":
    sys.exit(main())
