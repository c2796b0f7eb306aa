"""The examples, on one worker and on several: real processes through the real launcher."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DIGITS = str(EXAMPLES / "digits.py")
SHORT = ["--epochs", "3", "--warmup-epochs", "1", "--limit", "500"]
CURVE_EPOCHS = ["--epochs", "4", "--warmup-epochs", "1"]
CURVE = ["--batch-size", "16", "--learning-rate", "0.05"]


def run(command: list[str], **environment: str) -> str:
    """Run a command to its end and return its standard output."""
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_workers(count: int, script: str, *arguments: str) -> str:
    """Run a script on so many workers and return what rank 0 printed; the others print nothing."""
    launch = [sys.executable, "-m", "farandole", "run", "-np", str(count), sys.executable, script]
    lines = run([*launch, *arguments]).splitlines()
    prefix = "[0]<stdout>:"
    assert all(line.startswith(prefix) for line in lines), lines
    return "".join(line.removeprefix(prefix) + "\n" for line in lines)


# The same command on the same data: tests that only read what came of it share one run.
once_on_workers = functools.cache(on_workers)


def alone(script: str, *arguments: str) -> str:
    return run([sys.executable, script, *arguments])


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss ([0-9.]+)$", output, re.MULTILINE)]


def fingerprint(output: str) -> str:
    found = re.search(r"sha256 (\w+)", output)
    assert found, output
    return found[1]


def test_two_workers_learn_the_digits() -> None:
    output = on_workers(2, DIGITS, "--goal", "0.97")
    accuracy = re.search(r"^test accuracy: ([0-9.]+) ", output, re.MULTILINE)
    assert accuracy
    assert float(accuracy[1]) >= 0.97
    assert "parameters: bit-identical on 2 worker(s)" in output
    assert re.search(r"^speed: [1-9]\d* images/s on 2 worker\(s\)$", output, re.MULTILINE)
    assert re.search(r"^waiting for communication: [0-9.]+% of the step time$", output, re.MULTILINE)


@pytest.mark.parametrize("compression", ["int8", "topk", "powersgd"])
def test_two_workers_learn_the_digits_with_compressed_gradients(compression: str) -> None:
    output = on_workers(2, DIGITS, "--compression", compression, "--goal", "0.97")
    assert "parameters: bit-identical on 2 worker(s)" in output


# 500 images: with 3 workers the last batch has 20 of 48, shared out as 7, 7, 6. Of 97 the last one has a single image,
# so that two of three workers have none.
@pytest.mark.parametrize(("workers", "images"), [(2, 500), (3, 500), (3, 97)])
def test_the_loss_curve_is_that_of_one_process_with_a_larger_batch(workers: int, images: int) -> None:
    common = [*CURVE_EPOCHS, "--limit", str(images)]
    many = once_on_workers(workers, DIGITS, *common, *CURVE)
    one = alone(DIGITS, *common, "--batch-size", str(16 * workers), "--learning-rate", str(0.05 * workers))
    assert f"bit-identical on {workers} worker(s)" in many
    assert len(losses(one)) == 4
    assert losses(many) == pytest.approx(losses(one), rel=1e-4)


def test_the_same_run_gives_the_same_bits() -> None:
    options = (*CURVE_EPOCHS, "--limit", "500", *CURVE)
    assert fingerprint(on_workers(3, DIGITS, *options)) == fingerprint(once_on_workers(3, DIGITS, *options))


def test_a_resumed_run_ends_like_one_that_was_never_stopped(tmp_path: Path) -> None:
    checkpoint = tmp_path / "folder" / "digits.pt"
    whole = on_workers(2, DIGITS, *SHORT)
    resumed = [*SHORT, "--checkpoint", str(checkpoint), "--resume"]
    # Without a checkpoint it begins anew.
    first = on_workers(2, DIGITS, *resumed, "--stop-after", "1")
    rest = on_workers(2, DIGITS, *resumed)
    assert losses(first) + losses(rest) == losses(whole)
    assert fingerprint(rest) == fingerprint(whole)
    assert [file.name for file in checkpoint.parent.iterdir()] == ["digits.pt"]


def test_digits_without_its_distributed_lines_is_a_plain_script(tmp_path: Path) -> None:
    text = (EXAMPLES / "digits.py").read_text()
    plain = [line for line in text.splitlines(keepends=True) if not line.rstrip().endswith("# distributed")]
    assert not [line for line in plain if re.search(r"\bhvd\.|import farandole", line)]
    script = tmp_path / "plain.py"
    script.write_text("".join(plain))
    output = alone(str(script), *SHORT)
    assert losses(output) == pytest.approx(losses(alone(DIGITS, *SHORT)), rel=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
def test_language_model(workers: int) -> None:
    small = ["--steps", "25", "--warmup-steps", "5", "--batch-size", "4", "--context", "32", "--width", "32"]
    output = on_workers(
        workers, str(EXAMPLES / "language_model.py"), *small, "--depth", "2", "--limit", "200000", "--sample", "10"
    )
    bits = re.search(r"^held-out text: ([0-9.]+) bits per byte$", output, re.MULTILINE)
    assert bits
    assert float(bits[1]) < 7.5  # A model that has learned nothing needs 8.


# How gradients are sent does not depend on the model.
@pytest.mark.parametrize(("model", "options"), [("residual", []), ("wide", ["--fp16-allreduce"])])
def test_synthetic_benchmark(model: str, options: list[str]) -> None:
    few = ["--batch-size", "2", "--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"]
    output = on_workers(2, str(EXAMPLES / "synthetic_benchmark.py"), "--model", model, "--no-cuda", *few, *options)
    assert re.search(r"^Total img/sec on 2 worker\(s\): [0-9.]+ ", output, re.MULTILINE)


# --- NumPy ---------------------------------------------------------------------------------------------------------

KMEANS = str(EXAMPLES / "numpy_kmeans.py")


def test_clusters_are_the_same_on_one_worker_and_on_three() -> None:
    def distances(output: str) -> list[str]:
        return re.findall(r"^round \d+: mean squared distance ([0-9.]+)$", output, re.MULTILINE)

    short = ["--points", "3000", "--clusters", "8", "--rounds", "6"]
    many, one = on_workers(3, KMEANS, *short), alone(KMEANS, *short)
    assert len(distances(one)) == 6
    assert distances(many) == distances(one)
    assert "centres: bit-identical on 3 worker(s)" in many


# --- JAX -----------------------------------------------------------------------------------------------------------


def test_two_workers_learn_the_digits_with_jax() -> None:
    for needed in ("jax", "optax"):
        pytest.importorskip(needed)
    output = on_workers(2, str(EXAMPLES / "jax_digits.py"), "--goal", "0.97")
    accuracy = re.search(r"^test accuracy: ([0-9.]+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 0.97
    assert "parameters: bit-identical on 2 worker(s)" in output


# --- TensorFlow and Keras ------------------------------------------------------------------------------------------

KERAS_DIGITS = str(EXAMPLES / "keras_digits.py")


def test_two_workers_learn_the_digits_with_keras(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    checkpoint = tmp_path / "digits.keras"
    output = on_workers(2, KERAS_DIGITS, "--goal", "0.97", "--checkpoint", str(checkpoint))
    accuracy = re.search(r"^test accuracy: ([0-9.]+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 0.97
    assert "parameters: bit-identical on 2 worker(s), with tensorflow" in output
    assert checkpoint.exists()


@pytest.mark.parametrize("generation", [1, 2])
def test_two_workers_learn_the_digits_with_tensorflow(generation: int) -> None:
    for needed in ("tensorflow", "keras"):
        pytest.importorskip(needed)
    output = on_workers(2, str(EXAMPLES / f"tensorflow{generation}_digits.py"), "--goal", "0.96")
    accuracy = re.search(r"^test accuracy: ([0-9.]+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) >= 0.96
    assert "parameters: bit-identical on 2 worker(s)" in output
