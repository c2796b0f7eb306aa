"""Rewrites JAX scripts: gradients by `jax.value_and_grad` or `jax.grad`, in a loop that takes batches from arrays."""

from __future__ import annotations

import ast

from farandole.control.rewriting.array_shares import share_arrays, stored_in
from farandole.control.rewriting.script import Script
from farandole.control.rewriting.torch_script import learning_rate

PACKAGE = "farandole.jax"
_GRADIENTS = {"jax.value_and_grad": "hvd.distributed_value_and_grad", "jax.grad": "hvd.distributed_grad"}
_REDUCING = ("distributed_value_and_grad", "distributed_grad")
_SEVERAL_DEVICES = ("jax.pmap", "jax.shard_map", "jax.experimental.shard_map.shard_map", "jax.sharding.Mesh")


def rewrite(script: Script) -> None:
    """Edit a script so that it is distributed, and record the places that cannot be rewritten."""
    for call in script.calls(lambda name: name in _SEVERAL_DEVICES):
        script.refuse(call, "it uses several devices in one process", "remove that: each worker has one device")
    gradients = script.calls(lambda name: name in _GRADIENTS)
    evidence = script.evidence
    reduces = evidence.has("distributed", *_REDUCING) or evidence.reduces_by_hand()
    shares, alike = evidence.shares_data(), evidence.has("broadcast_parameters", "broadcast_object", "steps")
    if reduces and shares and alike:
        return
    if reduces:
        gradients = script.calls(lambda name: name.rpartition(".")[2] in _REDUCING) or gradients
    if len(gradients) != 1:
        reason = f"gradients are computed in {len(gradients)} places" if gradients else "no jax.grad was found"
        by_hand = "compute those of the training with hvd.distributed_value_and_grad(loss)"
        script.refuse(gradients[1] if gradients else None, reason, by_hand)
        return
    script.touch(gradients[0])
    if not reduces:
        script.source.replace(gradients[0].func, _GRADIENTS[script.dotted(gradients[0].func)])
    if shares and alike:
        return
    found = _training_loop(script, gradients[0])
    if found is None:
        script.refuse(
            gradients[0],
            "no loop was found that assigns the results of a training step, such as params = step(params, x, y)",
            f"{_GRADIENTS.get(script.dotted(gradients[0].func), 'hvd.distributed_value_and_grad')} instead of "
            f"{script.source.of(gradients[0].func)}; before the loop params = hvd.broadcast_parameters(params); and "
            "images[hvd.rank() :: hvd.size()] for each array of samples",
        )
        return
    loop, state = found
    if not shares and not share_arrays(script, loop, _whole_arrays(script, gradients[0], loop)):
        script.refuse(
            loop,
            "no array was found that the loop takes its batches from, such as images[batch]",
            "before the loop, give each worker its share, of equal length on all: images[hvd.rank() :: hvd.size()]",
        )
        return
    if alike:
        return
    names = ", ".join(state)
    value = f"({names})" if len(state) > 1 else names
    script.source.insert_before(
        loop,
        *learning_rate(script),
        f"{names} = hvd.broadcast_parameters({value})",
    )


def _training_loop(script: Script, gradient: ast.Call) -> tuple[ast.stmt, list[str]] | None:
    """Return the outermost training loop, and the names of the variables that each step updates."""
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


def _whole_arrays(script: Script, gradient: ast.Call, loop: ast.stmt) -> list[str]:
    """Return the loss's arguments other than the parameters, if they are arrays that every step uses as a whole."""
    call = script.source.parent(gradient)
    function = script.source.function(gradient)
    if not isinstance(call, ast.Call) or call.func is not gradient:
        return []
    given = [each.id if isinstance(each, ast.Name) else "" for each in call.args[1:]]
    if function is not None and loop not in script.source.above(gradient):
        parameters = [each.arg for each in function.args.args]
        steps = [each for each in ast.walk(loop) if isinstance(each, ast.Call)]
        step = next((each for each in steps if script.dotted(each.func) == function.name), None)
        if step is None or not all(each in parameters[: len(step.args)] for each in given):
            return []
        arguments = [step.args[parameters.index(each)] for each in given]
        given = [each.id if isinstance(each, ast.Name) else "" for each in arguments]
    made_inside = stored_in(loop)
    if not all(given) or any(each in made_inside or _is_random(script, each) for each in given):
        return []
    return given


def _is_random(script: Script, name: str) -> bool:
    """Return whether a name is that of a JAX random key, which is not data to share."""
    keys = tuple(f"jax.random.{each}" for each in ("key", "PRNGKey", "split", "fold_in"))
    values = [each.value for each in script.assignments(name)]
    pieces = [piece for each in values for piece in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return any(isinstance(each, ast.Call) and script.dotted(each.func) in keys for each in pieces)
