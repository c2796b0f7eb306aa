"""What the package itself says about names that it does not have, and front ends about frameworks that are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import farandole


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
