"""The examples, on one worker and on several: through the launcher once for each framework, else in forked workers."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked_scripts import run_alone, run_on_workers
from worlds import Nursery

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "digits.py"
SHORT = ["--epochs", "3", "--warmup-epochs", "1", "--limit", "500"]
CURVE_EPOCHS = ["--epochs", "4", "--warmup-epochs", "1"]
CURVE = ["--batch-size", "16", "--learning-rate", "0.05"]


def launch(count: int, script: Path, *arguments: str) -> str:
    """Run a script on several workers with the launcher and return rank 0's output; the others print nothing."""
    command = [sys.executable, "-m", "farandole", "run", "-np", str(count), sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    prefix = "[0]<stdout>:"
    lines = done.stdout.splitlines()
    assert all(line.startswith(prefix) for line in lines), lines
    return "".join(line.removeprefix(prefix) + "\n" for line in lines)


def on_workers(nursery: Nursery, count: int, script: Path, *arguments: str) -> str:
    """Run a script on this number of workers and return what rank 0 printed; the others print nothing."""
    output, *others = run_on_workers(nursery, count, script, *arguments)
    assert not any(others), others
    return output


# The same command on the same data: tests that only read what came of it share one run.
once_on_workers = functools.cache(on_workers)


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss ([0-9.]+)$", output, re.MULTILINE)]


def fingerprint(output: str) -> str:
    found = re.search(r"sha256 (\w+)", output)
    assert found, output
    return found[1]


def test_two_workers_learn_the_digits() -> None:
    output = launch(2, DIGITS, "--goal", "0.97")
    accuracy = re.search(r"^test accuracy: ([0-9.]+) ", output, re.MULTILINE)
    assert accuracy
    assert float(accuracy[1]) >= 0.97
    assert "parameters: bit-identical on 2 worker(s)" in output
    assert re.search(r"^speed: [1-9]\d* images/s on 2 worker\(s\)$", output, re.MULTILINE)
    assert re.search(r"^waiting for communication: [0-9.]+% of the step time$", output, re.MULTILINE)


@pytest.mark.parametrize("compression", ["int8", "topk", "powersgd"])
def test_two_workers_learn_the_digits_with_compressed_gradients(digits_nursery: Nursery, compression: str) -> None:
    output = on_workers(digits_nursery, 2, DIGITS, "--compression", compression, "--goal", "0.97")
    assert "parameters: bit-identical on 2 worker(s)" in output


# 500 images: with 3 workers the last batch has 20 of 48, shared out as 7, 7, 6. Of 97 the last one has a single image,
# so that two of three workers have none.
@pytest.mark.parametrize(("workers", "images"), [(2, 500), (3, 500), (3, 97)])
def test_the_loss_curve_is_that_of_one_process_with_a_larger_batch(
    digits_nursery: Nursery, workers: int, images: int
) -> None:
    common = [*CURVE_EPOCHS, "--limit", str(images)]
    many = once_on_workers(digits_nursery, workers, DIGITS, *common, *CURVE)
    one = run_alone(
        digits_nursery, DIGITS, *common, "--batch-size", str(16 * workers), "--learning-rate", str(0.05 * workers)
    )
    assert f"bit-identical on {workers} worker(s)" in many
    assert len(losses(one)) == 4
    assert losses(many) == pytest.approx(losses(one), rel=1e-4)


def test_the_same_run_gives_the_same_bits(digits_nursery: Nursery) -> None:
    options = (*CURVE_EPOCHS, "--limit", "500", *CURVE)
    again = on_workers(digits_nursery, 3, DIGITS, *options)
    assert fingerprint(again) == fingerprint(once_on_workers(digits_nursery, 3, DIGITS, *options))


def test_a_resumed_run_ends_like_one_that_was_never_stopped(digits_nursery: Nursery, tmp_path: Path) -> None:
    checkpoint = tmp_path / "folder" / "digits.pt"
    whole = on_workers(digits_nursery, 2, DIGITS, *SHORT)
    resumed = [*SHORT, "--checkpoint", str(checkpoint), "--resume"]
    # Without a checkpoint it begins anew.
    first = on_workers(digits_nursery, 2, DIGITS, *resumed, "--stop-after", "1")
    rest = on_workers(digits_nursery, 2, DIGITS, *resumed)
    assert losses(first) + losses(rest) == losses(whole)
    assert fingerprint(rest) == fingerprint(whole)
    assert [file.name for file in checkpoint.parent.iterdir()] == ["digits.pt"]


def test_digits_without_its_distributed_lines_is_a_plain_script(digits_nursery: Nursery, tmp_path: Path) -> None:
    text = (EXAMPLES / "digits.py").read_text()
    plain = [line for line in text.splitlines(keepends=True) if not line.rstrip().endswith("# distributed")]
    assert not [line for line in plain if re.search(r"\bhvd\.|import farandole", line)]
    script = tmp_path / "plain.py"
    script.write_text("".join(plain))
    output = run_alone(digits_nursery, script, *SHORT)
    assert losses(output) == pytest.approx(losses(run_alone(digits_nursery, DIGITS, *SHORT)), rel=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
def test_language_model(digits_nursery: Nursery, workers: int) -> None:
    small = ["--steps", "25", "--warmup-steps", "5", "--batch-size", "4", "--context", "32", "--width", "32"]
    small += ["--depth", "2", "--limit", "200000", "--sample", "10"]
    output = on_workers(digits_nursery, workers, EXAMPLES / "language_model.py", *small)
    bits = re.search(r"^held-out text: ([0-9.]+) bits per byte$", output, re.MULTILINE)
    assert bits
    assert float(bits[1]) < 7.5  # A model that has learned nothing needs 8.


# How gradients are sent does not depend on the model.
@pytest.mark.parametrize(("model", "options"), [("residual", []), ("wide", ["--fp16-allreduce"])])
def test_synthetic_benchmark(digits_nursery: Nursery, model: str, options: list[str]) -> None:
    few = ["--batch-size", "2", "--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"]
    few += ["--model", model, "--no-cuda", *options]
    output = on_workers(digits_nursery, 2, EXAMPLES / "synthetic_benchmark.py", *few)
    assert re.search(r"^Total img/sec on 2 worker\(s\): [0-9.]+ ", output, re.MULTILINE)


# --- NumPy ---------------------------------------------------------------------------------------------------------

KMEANS = EXAMPLES / "numpy_kmeans.py"


def test_clusters_are_the_same_on_one_worker_and_on_three(digits_nursery: Nursery) -> None:
    def distances(output: str) -> list[str]:
        return re.findall(r"^round \d+: mean squared distance ([0-9.]+)$", output, re.MULTILINE)

    short = ["--points", "3000", "--clusters", "8", "--rounds", "6"]
    many, one = launch(3, KMEANS, *short), run_alone(digits_nursery, KMEANS, *short)
    assert len(distances(one)) == 6
    assert distances(many) == distances(one)
    assert "centres: bit-identical on 3 worker(s)" in many


# --- JAX -----------------------------------------------------------------------------------------------------------


def test_two_workers_learn_the_digits_with_jax() -> None:
    for needed in ("jax", "optax"):
        pytest.importorskip(needed)
    output = launch(2, EXAMPLES / "jax_digits.py", "--goal", "0.97")
    accuracy = re.search(r"^test accuracy: ([0-9.]+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 0.97
    assert "parameters: bit-identical on 2 worker(s)" in output


# --- TensorFlow and Keras ------------------------------------------------------------------------------------------

KERAS_DIGITS = EXAMPLES / "keras_digits.py"


def test_two_workers_learn_the_digits_with_keras(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    checkpoint = tmp_path / "digits.keras"
    output = launch(2, KERAS_DIGITS, "--goal", "0.97", "--checkpoint", str(checkpoint))
    accuracy = re.search(r"^test accuracy: ([0-9.]+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 0.97
    assert "parameters: bit-identical on 2 worker(s), with tensorflow" in output
    assert checkpoint.exists()


@pytest.mark.parametrize("generation", [1, 2])
def test_two_workers_learn_the_digits_with_tensorflow(tensorflow_nursery: Nursery, generation: int) -> None:
    output = on_workers(tensorflow_nursery, 2, EXAMPLES / f"tensorflow{generation}_digits.py", "--goal", "0.96")
    accuracy = re.search(r"^test accuracy: ([0-9.]+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 0.96
    assert "parameters: bit-identical on 2 worker(s)" in output
