"""Shares arrays among workers, in scripts that index batches in them or pass them to the model as a whole."""

from __future__ import annotations

import ast
from collections.abc import Collection

from farandole.control.rewriting.script import Script, names_in


def share_arrays(script: Script, loop: ast.stmt, whole: Collection[str] = ()) -> bool:
    """Give each worker every N-th sample of the arrays from which a loop takes its batches.

    Args:
        script: the script that is rewritten.
        loop: the outermost training loop.
        whole: arrays that each step uses whole, if it takes no batches.

    Returns:
        Whether arrays were found. If some were found but cannot be shared, the script is refused.
    """
    arrays = _indexed(script, loop)
    uncounted = arrays and not _is_counted(script, loop, arrays)
    arrays = arrays or sorted(whole)
    if not arrays:
        return False
    if script.keeps_batch and arrays != sorted(whole):
        script.refuse(
            loop,
            "the place where the batch size is set was not found",
            "divide it by hvd.size() there, and run farandole init without --keep-batch",
        )
    made = {name: _last_assignment(script, loop, name) for name in arrays}
    listed = ", ".join(arrays)
    share = "each[hvd.rank() : len(each) // hvd.size() * hvd.size() : hvd.size()]"
    line = f"{listed} = ({share} for each in ({listed}))"
    if len(arrays) == 1:
        line = f"{listed} = {share.replace('each', listed)}"
    if uncounted:
        script.refuse(
            loop,
            f"the number of batches is not computed from the length of {listed}, which becomes shorter",
            f"count with len({arrays[0]}), after {line}",
        )
        return True
    place = max((each for each in made.values() if each is not None), key=lambda each: each.lineno, default=None)
    if place is not None and all(made.values()):
        script.source.insert_after(place, line)
        script.touch(place)
        return True
    function = script.source.function(loop)
    if function is not None and all(each in _parameters(function) for each in arrays):
        script.source.insert_before(_first_statement(function), line)
        script.touch(function)
    else:
        script.refuse(loop, f"no statement was found that creates {listed}", f"before the loop: {line}")
    return True


def _indexed(script: Script, loop: ast.stmt) -> list[str]:
    """Return the arrays that a loop indexes with values that it computes, such as a counter or random numbers."""
    inside = stored_in(loop)
    found: dict[str, None] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id not in inside:
            if isinstance(node.ctx, ast.Load) and names_in(node.slice) & inside and not _is_order(script, node):
                found[node.value.id] = None
    return sorted(found)


def _is_order(script: Script, node: ast.Subscript) -> bool:
    """Return whether the indexed array is an order of samples, such as the result of `randperm`, and not data."""
    assert isinstance(node.value, ast.Name)
    calls = [call for each in script.assignments(node.value.id) for call in ast.walk(each.value)]
    orders = ("randperm", "permutation", "arange")
    return any(isinstance(each, ast.Call) and script.dotted(each.func).rpartition(".")[2] in orders for each in calls)


def _is_counted(script: Script, loop: ast.stmt, arrays: Collection[str]) -> bool:
    """Return whether the indices are computed from the lengths that the arrays have after they were shared."""
    waiting = {
        name
        for node in ast.walk(loop)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in arrays
        for name in names_in(node.slice)
    }
    last = [each for each in (_last_assignment(script, loop, name) for name in arrays) if each is not None]
    shared = max((each.end_lineno or each.lineno for each in last), default=0)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for value in _values(script, loop, name, shared):
            if _asks_length(script, value, arrays):
                return True
            waiting |= names_in(value) - seen
    return False


def _asks_length(script: Script, value: ast.expr, arrays: Collection[str]) -> bool:
    """Return whether an expression contains the length of one of the arrays."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and script.dotted(node.func) == "len":
            asked: ast.expr | None = node.args[0] if node.args else None
        else:
            asked = node.value if isinstance(node, ast.Attribute) and node.attr in ("shape", "size") else None
        if isinstance(asked, ast.Name) and asked.id in arrays:
            return True
    return False


def _values(script: Script, loop: ast.stmt, name: str, after: int) -> list[ast.expr]:
    """Return the values that a name is assigned below a line, and the iterables of the loops over it."""
    function = script.source.function(loop)
    made = [each for each in script.assignments(name) if script.source.function(each) in (function, None)]
    values = [each.value for each in made if each.lineno > after]
    for node in ast.walk(loop):
        if isinstance(node, ast.For) and name in names_in(node.target):
            values.append(node.iter)
    return values


def _last_assignment(script: Script, loop: ast.stmt, name: str) -> ast.stmt | None:
    function = script.source.function(loop)
    before = [
        each
        for each in script.assignments(name)
        if each.lineno < loop.lineno and script.source.function(each) is function
    ]
    return before[-1] if before else None


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def _first_statement(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """Return the first statement of a function that is not its docstring."""
    has_docstring = ast.get_docstring(function) is not None and len(function.body) > 1
    return function.body[1] if has_docstring else function.body[0]


def stored_in(node: ast.AST) -> set[str]:
    """Return the names that a statement assigns to."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
