"""Use of gradients between `backward` and `step` in PyTorch scripts: clipping, unscaling and accumulation.

Gradients are reduced while the backward pass runs, and `step` waits for the last of them. Code that reads gradients
before `step` must also wait: `synchronize` is inserted before it, and `step` then does not synchronize again. If a step
follows several passes, the optimizer must know their number, and the last pass of an epoch must be followed by a step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from farandole.control.rewriting.script import Script

_READERS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_", "get_total_norm")


def steps(script: Script, call: ast.Call, optimizer: str) -> bool:
    """Return whether a call is a step of the optimizer, by itself or by a GradScaler: `scaler.step(optimizer)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    return same_object(script.source.of(call.func.value), optimizer) or _is_scaled(script, call, optimizer)


def same_object(name: str, other: str) -> bool:
    """Return whether two names may refer to the same object: a variable, and an attribute that it was assigned to.

    Example:
        >>> same_object("self.optimizer", "optimizer"), same_object("scheduler", "optimizer")
        (True, False)
    """
    return name.rpartition(".")[2] == other.rpartition(".")[2]


def passes_per_step(script: Script, optimizer: str, made: ast.Call) -> str:
    """Return the optimizer's argument with the number of backward passes in a step; "": one pass.

    Args:
        script: the script that is rewritten.
        optimizer: the script's name for the optimizer.
        made: the call that creates the optimizer.
    """
    for step in script.calls_of_method("step"):
        if not steps(script, step, optimizer):
            continue
        condition = script.source.parent(script.source.statement(step))
        if not isinstance(condition, ast.If) or script.calls_of_method("backward", condition):
            continue
        passes = _modulus(condition.test)
        if passes is None or not _is_known_at(script, passes, made) or not _step_after_last(script, condition):
            script.refuse(
                step,
                "gradients of several passes are accumulated before a step, and their number was not found",
                "hvd.DistributedOptimizer(..., backward_passes_per_step=N), and a step after an epoch's last pass: "
                "`if (i + 1) % N == 0 or i + 1 == len(loader):`",
            )
            return ""
        return f", backward_passes_per_step={script.source.of(passes)}"
    return ""


def _modulus(test: ast.expr) -> ast.expr | None:
    """Return the N of `(i + 1) % N == 0`, which may be one of several conditions."""
    for each in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]:
        if isinstance(each, ast.Compare) and len(each.ops) == 1 and isinstance(each.ops[0], ast.Eq):
            if isinstance(each.left, ast.BinOp) and isinstance(each.left.op, ast.Mod):
                return each.left.right
    return None


def _is_known_at(script: Script, value: ast.expr, call: ast.Call) -> bool:
    """Return whether an expression can be evaluated at the place of a call, with the same value."""
    if isinstance(value, ast.Constant):
        return True
    root: ast.expr = value
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    function = script.source.function(call)
    if function is not None and root.id in {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}:
        return root.id != "self" or function is script.source.function(value)
    places = [(script.source.function(each), each.lineno) for each in script.assignments(root.id)]
    return any(where is None or where is function for where, line in places if line < call.lineno)


def _step_after_last(script: Script, condition: ast.If) -> bool:
    """Make a step follow the last pass of an epoch; return whether it is certain that one does."""
    if isinstance(condition.test, ast.BoolOp):
        return True
    loop = next((each for each in script.source.above(condition) if isinstance(each, ast.For)), None)
    if loop is None or not isinstance(loop.iter, ast.Call) or script.dotted(loop.iter.func) != "enumerate":
        return False
    batches = loop.iter.args[0] if len(loop.iter.args) == 1 else None
    if isinstance(batches, ast.Call) and script.dotted(batches.func).startswith("tqdm") and batches.args:
        batches = batches.args[0]
    index = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    if not isinstance(batches, ast.Name | ast.Attribute) or not isinstance(index, ast.Name):
        return False
    script.source.around(condition.test, "", f" or {index.id} + 1 == len({script.source.of(batches)})")
    script.note("a step follows the last batch of an epoch now, so no gradients are left over for the next one")
    return True


def synchronize_before_readers(script: Script, optimizer: str) -> None:
    """Insert `synchronize` before gradients are clipped or unscaled; record the places where that is not possible.

    Args:
        script: the script that is rewritten.
        optimizer: the script's name for the optimizer.
    """
    served: set[ast.AST] = set()
    for step in script.calls_of_method("step"):
        if steps(script, step, optimizer):
            served |= set(_serve(script, step, optimizer))
    scalers = script.calls(lambda name: name.rpartition(".")[2] == "GradScaler")
    if scalers and not any(_is_scaled(script, each, optimizer) for each in script.calls_of_method("step")):
        script.refuse(scalers[0], f"no scaler.step({optimizer}) was found", "let the GradScaler take the step")
    for reader in _readers(script, script.source.tree):
        if reader not in served:
            script.refuse(
                reader,
                "gradients are read before they are reduced, but not between backward() and step() in the same block",
                f"call {optimizer}.synchronize() before it, and the step below `with {optimizer}.skip_synchronize():`",
            )


def _is_scaled(script: Script, step: ast.Call, optimizer: str) -> bool:
    return bool(step.args) and same_object(script.source.of(step.args[0]), optimizer)


def _since_backward(script: Script, statement: ast.stmt) -> list[ast.stmt] | None:
    """Return the statements between `backward()` and a step, of the step's own block; None: no `backward()` was found.

    If gradients are accumulated, the step is in an `if` that follows `backward()`.
    """
    block = list(script.source.block(statement))
    at = block.index(statement)
    begins = [index for index in range(at) if script.calls_of_method("backward", block[index])]
    if begins:
        return block[begins[-1] + 1 : at]
    condition = script.source.parent(statement)
    if isinstance(condition, ast.If):
        outer = list(script.source.block(condition))
        if any(script.calls_of_method("backward", each) for each in outer[: outer.index(condition)]):
            return block[:at]
    return None


def _serve(script: Script, step: ast.Call, optimizer: str) -> Iterator[ast.AST]:
    """Insert `synchronize` where a step needs it, and yield the calls that read gradients after it."""
    statement = script.source.statement(step)
    assert isinstance(step.func, ast.Attribute)
    is_scaled = _is_scaled(script, step, optimizer)
    optimizer = script.source.of(step.args[0] if is_scaled else step.func.value)
    between = _since_backward(script, statement)
    reading = [each for each in between or () if any(_readers(script, each))]
    if not reading and not is_scaled:
        return
    if between is None:
        script.refuse(step, "no backward() was found before this step in its block", "write both in one block")
        return
    place = reading[0] if reading else statement
    if not script.source.begins_its_line(place) or not script.source.begins_its_line(statement):
        script.refuse(
            place,
            "several statements share a line",
            "write the step and the statements before it in lines of their own",
        )
        return
    script.touch(statement)
    script.source.insert_before(place, f"{optimizer}.synchronize()  # from here on gradients are those of all workers")
    script.source.put_below([statement], f"with {optimizer}.skip_synchronize():")
    for each in reading:
        yield from _readers(script, each)


def _readers(script: Script, under: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that read or change gradients."""
    for node in ast.walk(under):
        if isinstance(node, ast.Call):
            name = script.dotted(node.func).rpartition(".")[2]
            is_method = isinstance(node.func, ast.Attribute) and node.func.attr == "unscale_"
            if name in _READERS or is_method:
                yield node
