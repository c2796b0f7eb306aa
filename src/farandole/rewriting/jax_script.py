"""Scripts of JAX: gradients by `jax.value_and_grad` or `jax.grad`, in a loop that takes batches from arrays."""

from __future__ import annotations

import ast

from farandole.rewriting.script import Script, names_in

PACKAGE = "farandole.jax"
_GRADIENTS = {"jax.value_and_grad": "hvd.distributed_value_and_grad", "jax.grad": "hvd.distributed_grad"}
_SEVERAL_DEVICES = ("jax.pmap", "jax.shard_map", "jax.experimental.shard_map.shard_map", "jax.sharding.Mesh")


def rewrite(script: Script) -> None:
    """Ask for the edits that make a script distributed, or take note of what is not understood."""
    for call in script.calls(lambda name: name in _SEVERAL_DEVICES):
        script.refuse(call, "it uses several devices in one process", "take that away: each worker has one device")
    gradients = script.calls(lambda name: name in _GRADIENTS)
    if len(gradients) != 1:
        reason = f"gradients are taken in {len(gradients)} places" if gradients else "no jax.grad was found"
        by_hand = "take those of the training by hvd.distributed_value_and_grad(loss)"
        script.refuse(gradients[1] if gradients else None, reason, by_hand)
        return
    script.touch(gradients[0])
    script.source.replace(gradients[0].func, _GRADIENTS[script.dotted(gradients[0].func)])
    found = _training_loop(script, gradients[0])
    if found is None:
        script.refuse(
            gradients[0],
            "no loop was found that assigns what a training step returns, such as params = step(params, x, y)",
            "before it: params = hvd.broadcast_parameters(params), and take every hvd.size()-th sample",
        )
        return
    loop, state = found
    _share_arrays(script, loop)
    names = ", ".join(state)
    value = f"({names})" if len(state) > 1 else names
    script.source.insert_before(
        loop,
        "# The learning rate is as it was. N workers make batches that are N times as large.",
        f"{names} = hvd.broadcast_parameters({value})",
    )


def _training_loop(script: Script, gradient: ast.Call) -> tuple[ast.stmt, list[str]] | None:
    """Return the outermost loop in which steps are taken, and the names that a step takes and returns anew."""
    function = script.source.function(gradient)
    for node in ast.walk(script.source.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        loops = [each for each in script.source.above(node) if isinstance(each, ast.For | ast.While)]
        is_step = function is not None and script.dotted(node.value.func) == function.name
        if not loops or not (is_step or (function is None or gradient in ast.walk(loops[-1]))):
            continue
        targets = {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        state = [each.id for each in node.value.args if isinstance(each, ast.Name) and each.id in targets]
        if state and script.source.begins_its_line(loops[-1]) is not None:
            return loops[-1], state
    return None


def _share_arrays(script: Script, loop: ast.stmt) -> None:
    """Give each worker every so-many-th sample of the arrays from which the loop takes its batches."""
    arrays = _arrays(script, loop)
    if not arrays:
        script.refuse(
            loop,
            "no array was found from which the loop takes its batches, as by images[batch]",
            "give each worker its share before the loop, as many samples on all: images[hvd.rank() :: hvd.size()]",
        )
        return
    made = {name: _last_assignment(script, loop, name) for name in arrays}
    listed = ", ".join(arrays)
    share = "each[hvd.rank() : len(each) // hvd.size() * hvd.size() : hvd.size()]"
    line = f"{listed} = ({share} for each in ({listed}))"
    if len(arrays) == 1:
        line = f"{listed} = {share.replace('each', listed)}"
    place = max((each for each in made.values() if each is not None), key=lambda each: each.lineno, default=None)
    if place is not None and all(made.values()):
        script.source.insert_after(place, line)
        return
    function = script.source.function(loop)
    if function is not None and all(each in _parameters(function) for each in arrays):
        script.source.insert_before(function.body[0], line)
    else:
        script.refuse(loop, f"where {listed} come from was not found", f"before the loop: {line}")


def _arrays(script: Script, loop: ast.stmt) -> list[str]:
    inside = {each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    found: dict[str, None] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id not in inside:
            if names_in(node.slice) & inside:
                found[node.value.id] = None
    return sorted(found)


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
