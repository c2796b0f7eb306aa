"""Test front ends with versions of frameworks that need a separate environment: `make test-frameworks`.

`python tools/frameworks.py [NAME ...]` makes the environments of these rows of `ENVIRONMENTS`, or of all except those
made on demand, and runs the tests of each. A row for which there is no Python is skipped, and reported at the end.
Another version is another row. With `--for-record`, for `tools/verified.py`, a run of only some rows has another exit
code.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-frameworks"

FOR_RECORD = "--for-record"
# The exit code that tools/verified.py calls IN_PART.
SKIPPED = 75


class Environment(NamedTuple):
    """One environment and its tests.

    Attributes:
        pythons: versions of Python, in order of preference.
        packages: packages with versions, which replace those in constraints.txt. The requirements of farandole and its
            tests are added.
        tests: arguments of pytest.
        alone: packages that are installed without their dependencies.
        on_demand: whether the environment is made only when it is named, because it is large.
        is_installed: whether farandole is installed in it, so that its entry points are found, rather than imported
            from its folder.
    """

    pythons: tuple[str, ...]
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    alone: tuple[str, ...] = ()
    on_demand: bool = False
    is_installed: bool = False


# tf_keras asks for the package tensorflow, and tensorflow-cpu is smaller.
TENSORFLOW_TESTS = ("--numprocesses", "2", "tests/integration/tensorflow", "tests/integration/keras")
# Pages of the documentation, and rooms, that need the packages of `pytorch-ecosystem`.
ECOSYSTEM = ("accelerate", "images", "language_model", "lightning", "recipes", "trackers", "transformers")


ENVIRONMENTS = {
    # The oldest one that is supported, one between, and the newest one with the newest Python that has it.
    "tensorflow-2.17": Environment(
        ("3.11", "3.12", "3.10"),
        (
            "tensorflow-cpu==2.17.1",
            "keras==3.4.1",
            "ml_dtypes==0.4.1",
            "numpy==1.26.4",
            "protobuf==4.25.9",
            "safetensors==0.8.0",
            "scikit-learn==1.7.2",
            "scipy==1.15.3",
        ),
        TENSORFLOW_TESTS,
        ("tf_keras==2.17.0",),
    ),
    "tensorflow-2.19": Environment(
        ("3.10", "3.11", "3.12"),
        (
            "tensorflow-cpu==2.19.1",
            "keras==3.10.0",
            "ml_dtypes==0.5.4",
            "numpy==2.1.3",
            "protobuf==5.29.6",
            "safetensors==0.8.0",
            "scikit-learn==1.7.2",
            "scipy==1.15.3",
        ),
        TENSORFLOW_TESTS,
        ("tf_keras==2.19.0",),
    ),
    "tensorflow-2.21": Environment(
        ("3.13", "3.12"),
        ("tensorflow-cpu==2.21.0", "keras==3.15.1", "safetensors==0.8.0", "scikit-learn==1.9.1"),
        TENSORFLOW_TESTS,
        ("tf_keras==2.21.0",),
    ),
    # Pipelines of Kubeflow: kfp asks for an older protobuf, older requests and a newer certifi than others take.
    "kfp": Environment(
        ("3.11", "3.12"),
        (
            "kfp==2.17.3",
            "kfp-kubernetes==2.17.3",
            *("certifi==2026.10.19.post1", "protobuf==6.33.6", "requests==2.33.0"),
            *("torch==2.13.0", "numpy==2.4.6", "scikit-learn==1.9.1", "safetensors==0.8.0"),
            *("onnx==1.23.2", "onnxruntime==1.32.0", "onnxscript==0.7.2"),
            *("cryptography==50.0.2", "lightkube==1.0.1", "PyYAML==6.0.4"),
        ),
        ("tests/integration/test_kubeflow.py",),
    ),
    # The last version, which asks NumPy for names that newer ones lack.
    "mxnet": Environment(
        ("3.10", "3.11"),
        ("mxnet==1.9.1", "numpy==1.23.5", "scikit-learn==1.5.2", "scipy==1.15.3"),
        (
            "tests/unit/mxnet",
            "tests/integration/mxnet",
            "tests/integration/docs/test_code_blocks.py",
            "tests/compat/test_mxnet.py",
            "tests/conformance",
            *("-k", "mxnet", "--numprocesses", "2"),
        ),
    ),
    # PyTorch's build for CUDA, on a simulated GPU: 5.5 GB. `make test-cuda-fake`.
    "cuda-fake": Environment(
        ("3.11", "3.12", "3.13"),
        ("torch==2.14.1", "numpy==2.4.6", "nvidia-cuda-crt==13.5.37", "nvidia-cuda-cccl==13.0.85"),
        ("tests/cuda_fake", "--ignore=tests/cuda_fake/test_jax.py"),
        on_demand=True,
    ),
    # JAX's build for CUDA, on a simulated GPU, with as little of CUDA as it needs: 800 MB. `make test-cuda-fake`.
    "jax-cuda-fake": Environment(
        ("3.11", "3.12", "3.13"),
        ("jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6", "optax==0.2.8"),
        ("tests/cuda_fake/test_jax.py",),
        alone=(
            *("jax-cuda13-plugin==0.10.2", "jax-cuda13-pjrt==0.10.2"),
            # The headers of CUDA's runtime.
            *("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.5.37"),
        ),
        on_demand=True,
    ),
    # Libraries that train on PyTorch: 1.5 GB. `make test-ecosystem`.
    "pytorch-ecosystem": Environment(
        ("3.11", "3.12", "3.13"),
        (
            *("torch==2.13.0", "numpy==2.4.6", "safetensors==0.8.0", "scikit-learn==1.9.1"),
            *("lightning==2.6.6", "transformers==5.24.0", "accelerate==1.15.0"),
            *("torchmetrics==1.9.0", "torchdata==0.11.0", "webdataset==1.0.2"),
            *("hydra-core==1.3.8", "submitit==1.5.4", "optuna==5.0.0"),
            # MLflow asks for an older protobuf and other packages in versions that differ from the project's.
            *("mlflow-skinny==3.17.2", "wandb==0.31.0", "tensorboard==2.21.0", "protobuf==6.33.6"),
            *("importlib_metadata==9.1.0", "starlette==1.10.0", "uvicorn==0.54.0", "certifi==2026.10.19.post1"),
        ),
        (
            "tests/ecosystem",
            "tests/integration/docs/test_code_blocks.py",
            "tests/integration/docs/test_docstrings.py",
            *("-k", " or ".join(("ecosystem", *ECOSYSTEM)), "--numprocesses", "2"),
        ),
        on_demand=True,
        is_installed=True,
    ),
    # Spark in this process and its executors, on this machine: 800 MB, and Java 17. `make test-spark`.
    "spark": Environment(
        ("3.11", "3.12", "3.13"),
        (
            *("pyspark==4.3.0", "pyarrow==26.0.1", "pandas==2.3.3", "fsspec==2026.9.0"),
            # Of Spark Connect.
            *("grpcio==1.85.3", "grpcio-status==1.85.3", "googleapis-common-protos==1.76.0", "zstandard==0.25.0"),
            *("torch==2.13.0", "numpy==2.4.6", "safetensors==0.8.0", "keras==3.15.1", "lightning==2.6.6"),
        ),
        ("tests/spark", "tests/integration/docs/test_code_blocks.py", "-k", "spark", "--timeout", "500"),
        on_demand=True,
    ),
    # pyarrow is 150 MB, and only `farandole.parquet` needs it. `make test-parquet`.
    "parquet": Environment(
        ("3.11", "3.12", "3.13"),
        (
            *("pyarrow==26.0.1", "fsspec==2026.9.0"),
            *("torch==2.13.0", "numpy==2.4.6", "safetensors==0.8.0", "keras==3.15.1"),
        ),
        ("tests/parquet", "tests/integration/docs/test_code_blocks.py", "-k", "parquet or pyarrow", "--timeout", "500"),
        on_demand=True,
    ),
    # A cluster of Ray on this machine. `make test-ray`.
    "ray": Environment(
        ("3.11", "3.12", "3.13"),
        (
            *("ray[data,default,train]==2.60.0", "pandas==3.1.1", "pyarrow==26.0.1"),
            *("torch==2.13.0", "numpy==2.4.6", "safetensors==0.8.0"),
        ),
        ("tests/ray", "tests/integration/docs/test_code_blocks.py", "-k", "ray", "--timeout", "1500"),
        on_demand=True,
    ),
}


# --- what is installed -------------------------------------------------------------------------------------------


def package_of(requirement: str) -> str:
    """Return the normalized name of a requirement's package.

    Example:
        >>> package_of("Scikit_Learn==1.5.2; python_version < '3.11'")
        'scikit-learn'
    """
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def constraints(text: str, packages: Iterable[str]) -> str:
    """Return constraints without the lines of packages for which an environment has other versions.

    Example:
        >>> constraints("numpy==2.5.1\\npytest==9.2.0\\n", ["numpy==1.23.5"])
        'pytest==9.2.0\\n'
    """
    own = {package_of(each) for each in packages}
    return "".join(line for line in text.splitlines(keepends=True) if package_of(line) not in own)


def needed(project: dict[str, Any]) -> list[str]:
    """Return the requirements of farandole and pytest, from pyproject.toml."""
    tests = [each for each in project["dependency-groups"]["test"] if each.startswith("pytest")]
    return [*project["project"]["dependencies"], *tests]


def find_python(versions: Sequence[str]) -> str | None:
    """Return a Python of one of these versions that can create environments, or None."""
    for version in versions:
        code = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != ({version.replace('.', ', ')}))"
        # A name on the path may be a shim of pyenv's for a version that is installed, but not the chosen one.
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        shimmed = sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))
        for candidate in (sys.executable, shutil.which(f"python{version}"), *shimmed):
            if candidate and subprocess.run([candidate, "-c", code], capture_output=True, check=False).returncode == 0:
                return candidate
    return None


def prepare(name: str, environment: Environment, python: str) -> Path:
    """Create an environment, unless it exists as the table describes it, and return its Python."""
    folder = FOLDER / name
    made = folder / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = [*environment.packages, *needed(project)]
    alone = environment.alone
    pins = constraints((ROOT / "constraints.txt").read_text(), [*environment.packages, *alone])
    digest = hashlib.sha256(repr((python, requirements, alone, pins, environment.is_installed)).encode()).hexdigest()
    stamp = folder / "ready"
    if stamp.exists() and stamp.read_text() == digest:
        return made
    print(f"Making {folder.relative_to(ROOT)} with {python}: {', '.join(environment.packages)}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    (folder / "constraints.txt").write_text(pins)
    pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", folder / "constraints.txt", *requirements], check=True)
    if alone:
        subprocess.run([*pip, "--no-deps", *alone], check=True)
    if environment.is_installed:
        subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
    stamp.write_text(digest)
    return made


# --- tests -------------------------------------------------------------------------------------------------------


def test(python: Path, tests: Sequence[str]) -> bool:
    """Run tests in an environment, and return whether they passed. The library must have been built."""
    # The drop-in is not installed there, and mostly farandole is not either: both are imported from their folders. A
    # fork is not safe with many threads, and the machine has other work.
    variables = {"PYTHONPATH": os.fspath(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-m", "pytest", *tests], cwd=ROOT, env={**os.environ, **variables}, check=False)
    return done.returncode == 0


def main(names: Sequence[str]) -> int:
    """Test the environments of these names, or all; return 1 if one failed."""
    for_record, names = FOR_RECORD in names, [name for name in names if name != FOR_RECORD]
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        print(f"error: unknown environment {unknown[0]}; choose from {', '.join(ENVIRONMENTS)}.", file=sys.stderr)
        return 2
    outcomes = {}
    usual = [name for name, environment in ENVIRONMENTS.items() if not environment.on_demand]
    for name in names or usual:
        environment = ENVIRONMENTS[name]
        python = find_python(environment.pythons)
        if python is None:
            outcomes[name] = f"skipped: no Python {' or '.join(environment.pythons)} with venv was found"
            continue
        print(f"=== {name}", flush=True)
        outcomes[name] = "passed" if test(prepare(name, environment, python), environment.tests) else "FAILED"
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    if "FAILED" in outcomes.values():
        return 1
    whole = names if names and not set(names) & set(usual) else usual
    is_whole = all(outcomes.get(name) == "passed" for name in whole)
    return 0 if is_whole or not for_record else SKIPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
