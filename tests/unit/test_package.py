"""What the package itself says about names that it does not have, and front ends about frameworks that are missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import farandole

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["init", "rank", "allreduce", "DistributedOptimizer"])
def test_a_name_of_the_front_ends_leads_to_them(name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"'farandole' has no attribute '{name}': .*`import farandole.torch as hvd`"
    ):
        getattr(farandole, name)


def test_a_module_that_was_not_imported_is_told_without_importing_it() -> None:
    code = (
        "import sys, farandole\n"
        "try: farandole.numpy\n"
        "except AttributeError as error: print(error)\n"
        "print([name for name in sys.modules if name.startswith('farandole.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    sentence, imported = done.stdout.splitlines()
    assert sentence == "module 'farandole' has no attribute 'numpy': write `import farandole.numpy` first"
    assert imported == "[]"


def test_other_names_are_simply_not_there() -> None:
    with pytest.raises(AttributeError, match=r"'farandole' has no attribute '_private'$"):
        _ = farandole._private
    assert not hasattr(farandole, "__wrapped__")


@pytest.mark.parametrize(
    ("front_end", "framework"),
    [("torch", "PyTorch"), ("tensorflow", "TensorFlow"), ("keras", "Keras"), ("jax", "JAX"), ("numpy", "NumPy")],
)
def test_a_framework_that_is_not_installed_is_a_sentence(front_end: str, framework: str) -> None:
    script = f"import sys; sys.modules['{front_end}'] = None; import farandole.{front_end}"
    failed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: farandole.{front_end} needs {framework}, which is not installed here. "
        f"Run: pip install 'farandole[{front_end}]'"
    )


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("kubeflow", "kfp", "kfp"),
        ("parquet", "numpy", "parquet"),
        ("spark.estimator", "pyspark", "spark"),
        ("spark.keras", "cloudpickle", "spark,keras"),
        ("spark.lightning", "lightning", "spark,lightning"),
        ("spark.torch", "torch", "spark,torch"),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_the_extra(module: str, package: str, extra: str) -> None:
    script = f"import sys; sys.modules['{package}'] = None; import farandole.{module}"
    failed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    told = failed.stderr.splitlines()[-1]
    assert told.startswith("ModuleNotFoundError: farandole.") and told.endswith(
        f"needs {package}, which is not installed here. Run: pip install 'farandole[{extra}]'"
    )


def test_every_extra_that_is_named_exists() -> None:
    project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    declared = set(re.findall(r"^([a-z0-9-]+) = \[", project.partition("\n[")[0], re.MULTILINE))
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    named = {
        extra
        for text in texts
        for extras in re.findall(r"farandole\[([a-z0-9,_-]+)\]", text.read_text(errors="ignore"))
        for extra in extras.split(",")
    }
    assert named and named <= declared
