"""A script, and the functions and modules that its names refer to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from farandole.control.rewriting.source import ScriptSource


class Names:
    """Finds calls and assignments by the full names of functions.

    Attributes:
        source: the script's text and syntax.
        aliases: the full names of imported modules and functions, by the names that the script uses for them.
    """

    def __init__(self, source: ScriptSource) -> None:
        """Read the imports of a script."""
        self.source = source
        self.aliases = dict(_aliases(source.tree))

    def dotted(self, node: ast.AST) -> str:
        """Return the full name of the object that an expression refers to, such as `torch.optim.SGD`; "": unknown."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (owner := self.dotted(node.value)):
            full = f"{owner}.{node.attr}"
            return "keras" + full.removeprefix("tensorflow.keras") if full.startswith("tensorflow.keras") else full
        return ""

    def imports(self, module: str, name: str = "") -> bool:
        """Return whether a module is imported under a name; the default is the module's own name."""
        return self.aliases.get(name or module) == module

    def calls(self, matches: Callable[[str], bool]) -> list[ast.Call]:
        """Return the calls of functions whose full names match, in the order of the text."""
        found = [node for node in ast.walk(self.source.tree) if isinstance(node, ast.Call)]
        return sorted((call for call in found if matches(self.dotted(call.func))), key=place)

    def calls_of_method(self, name: str, under: ast.AST | None = None) -> list[ast.Call]:
        """Return the calls of methods of a name."""
        nodes = ast.walk(self.source.tree if under is None else under)
        found = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        return sorted((call for call in found if call.func.attr == name), key=place)  # type: ignore[attr-defined]

    def calls_in(self, node: ast.AST, name: str) -> list[ast.Call]:
        """Return the calls of a function in an expression or statement."""
        found = [each for each in ast.walk(node) if isinstance(each, ast.Call) and self.dotted(each.func) == name]
        return sorted(found, key=place)

    def assigned_to(self, value: ast.expr) -> str:
        """Return the name, or dotted name, to which a statement assigns a value, and only that; "" if it does not."""
        statement = self.source.parent(value)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target: ast.expr = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign) and statement.value is value:
            target = statement.target
        else:
            return ""
        return self.source.of(target) if isinstance(target, ast.Name | ast.Attribute) else ""

    def assignments(self, name: str) -> list[ast.Assign]:
        """Return the statements that assign to a name, alone or among others."""
        found = []
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Assign):
                targets = [each for target in node.targets for each in ast.walk(target)]
                if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                    found.append(node)
        return sorted(found, key=place)


def place(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
