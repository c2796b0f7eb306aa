"""What a script of PyTorch does with gradients between `backward` and `step`: it clips or unscales them.

Gradients are reduced while the backward pass runs, and `step` waits for the last of them. What reads gradients before
must wait, too: `synchronize` stands before it, and the step then leaves its own out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from farandole.rewriting.script import Script

_READERS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_", "get_total_norm")


def steps(script: Script, call: ast.Call, optimizer: str) -> bool:
    """Say whether a call is a step of the optimizer, by itself or by a GradScaler: `scaler.step(optimizer)`."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    return script.source.of(call.func.value) == optimizer or _is_scaled(script, call, optimizer)


def synchronize_before_readers(script: Script, optimizer: str) -> None:
    """Let gradients be complete before they are clipped or scaled; take note where that cannot be done.

    Args:
        script: that is rewritten.
        optimizer: how it calls the optimizer.
    """
    served: set[ast.AST] = set()
    for step in script.calls_of_method("step"):
        if steps(script, step, optimizer):
            served |= set(_serve(script, step, optimizer))
    scalers = script.calls(lambda name: name.rpartition(".")[2] == "GradScaler")
    if scalers and not any(_is_scaled(script, each, optimizer) for each in script.calls_of_method("step")):
        script.refuse(scalers[0], f"no scaler.step({optimizer}) was found", "let the GradScaler make the step")
    for reader in _readers(script, script.source.tree):
        if reader not in served:
            script.refuse(
                reader,
                "gradients are read before they are reduced, elsewhere than between backward() and step() of one block",
                f"call {optimizer}.synchronize() before it, and the step below `with {optimizer}.skip_synchronize():`",
            )


def _is_scaled(script: Script, step: ast.Call, optimizer: str) -> bool:
    return bool(step.args) and script.source.of(step.args[0]) == optimizer


def _serve(script: Script, step: ast.Call, optimizer: str) -> Iterator[ast.AST]:
    """Put `synchronize` where a step needs it, and yield the readers that this is for."""
    statement = script.source.statement(step)
    block = list(script.source.block(statement))
    at = block.index(statement)
    begins = [index for index in range(at) if script.calls_of_method("backward", block[index])]
    between = block[begins[-1] + 1 : at] if begins else []
    reading = [each for each in between if any(_readers(script, each))]
    if not reading and not _is_scaled(script, step, optimizer):
        return
    if not begins:
        script.refuse(step, "no backward() was found before this step in its block", "write both in one block")
        return
    place = reading[0] if reading else statement
    if not script.source.begins_its_line(place) or not script.source.begins_its_line(statement):
        script.refuse(
            place, "several statements share a line", "write the step and what is before it in lines of their own"
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
