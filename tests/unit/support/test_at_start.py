"""What frameworks do not import in processes of tests: nothing that would change a result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPTIMIZER = """
import sys, torch

def step():
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    assert weight.item() == 0.5
    assert torch.is_grad_enabled()

step()
assert "torch._dynamo" not in sys.modules
import torch._dynamo
step()
add = torch.optim.SGD.add_param_group
(plain,) = (cell.cell_contents for cell in add.__closure__ if callable(cell.cell_contents))
assert plain.__dynamo_disable is not plain
decorated = torch.optim.SGD.step
while "_use_grad" not in decorated.__code__.co_name:
    decorated = decorated.__wrapped__
assert "_dynamo" in decorated.__code__.co_names
"""


def test_optimizer_imports_no_compiler_and_is_left_alone_by_one_imported_later() -> None:
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", OPTIMIZER], check=True)


@pytest.mark.parametrize(("importer", "found"), [("keras.src.wrappers", False), ("mine", True)])
def test_optional_packages_are_hidden_from_their_importers_only(tmp_path: Path, importer: str, found: bool) -> None:
    (tmp_path / "sklearn.py").touch()
    module = tmp_path.joinpath(*importer.split(".")).with_suffix(".py")
    module.parent.mkdir(parents=True, exist_ok=True)
    for folder in module.relative_to(tmp_path).parents:
        (tmp_path / folder / "__init__.py").touch()
    module.write_text("try:\n    import sklearn\nexcept ImportError:\n    sklearn = None\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {importer} as it; print(it.sklearn is not None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(found)
