"""The modules that a script imports."""

from __future__ import annotations

import ast


def is_in(package: str, module: str) -> bool:
    """Return whether a module, or what a dotted name refers to, is a package or in it."""
    return module == package or module.startswith(f"{package}.")


def modules_of(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports, and the names that it imports from them."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def imported(tree: ast.AST) -> dict[str, ast.stmt]:
    """Return all modules that a script imports, with the import statements."""
    found: dict[str, ast.stmt] = {}
    for node in ast.walk(tree):
        for module in modules_of(node):
            assert isinstance(node, ast.stmt)
            found.setdefault(module, node)
    return found
