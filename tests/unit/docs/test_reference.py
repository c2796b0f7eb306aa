"""The reference shows every public name of every front end, and nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("griffe")  # `make check` installs it, with what builds the site.

from tools import reference

PACKAGE = Path(__file__).resolve().parents[3] / "src" / "farandole"
FRONT_ENDS = ("torch", "tensorflow", "keras", "jax", "numpy", "mxnet")
# Names in `__all__` that are modules, and have a page of their own or only names that are on another one.
MODULES = {"backends", "callbacks", "elastic", "orbax"}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    package = reference.load()
    return {name: reference.module_page(package, page) for name, page in reference.PAGES.items()}


def declared(file: Path) -> set[str]:
    """Return what the `__all__` of a source says, without importing it; its rendered functions are those of a stub."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names |= set(ast.literal_eval(node.value))
        elif isinstance(node, ast.AugAssign) and ast.unparse(node) == "__all__ += _functions.__all__":
            (stub,) = file.parent.rglob("functions.pyi")
            names |= declared(stub)
    assert names, f"{file} has no __all__"
    return names


def shown(page: str) -> set[str]:
    return set(re.findall(r"^## `(\w+)`$", page, re.MULTILINE))


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_a_front_end_is_shown_whole(name: str, pages: dict[str, str]) -> None:
    assert shown(pages[name]) == declared(PACKAGE / name / "__init__.py") - MODULES


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_an_elastic_module_is_shown_whole(name: str, pages: dict[str, str]) -> None:
    assert shown(pages[f"{name}_elastic"]) == declared(PACKAGE / name / "elastic" / "__init__.py")


def test_what_is_shown_is_there_when_it_is_imported(pages: dict[str, str]) -> None:
    for name in ("torch", "torch_elastic", "numpy", "jobs"):
        modules = [importlib.import_module(module) for module in reference.PAGES[name].modules]
        for public in shown(pages[name]):
            assert any(hasattr(module, public) for module in modules), public


@pytest.mark.parametrize("name", reference.PAGES)
def test_every_entry_says_something(name: str, pages: dict[str, str]) -> None:
    entries = re.split(r"^##+ `([\w.]+)`$", pages[name], flags=re.MULTILINE)[1:]
    texts = dict(zip(entries[::2], entries[1::2], strict=True))
    assert texts
    silent = [entry for entry, text in texts.items() if not re.sub(r"~~~.*?~~~", "", text, flags=re.DOTALL).strip()]
    assert silent == []


def test_functions_of_stubs_have_signatures_and_docstrings(pages: dict[str, str]) -> None:
    for name, tensor in [("torch", "torch.Tensor"), ("numpy", "ArrayLike"), ("jax", "Any")]:
        entry = pages[name].partition("## `allreduce`")[2].partition("\n## ")[0]
        assert f"tensor: {tensor}" in entry and "prescale_factor: float = 1.0" in entry
        assert "**Args**" in entry and "**Raises**" in entry
