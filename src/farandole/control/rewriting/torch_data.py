"""Shares the training data of PyTorch scripts: a DataLoader, or arrays in memory."""

from __future__ import annotations

import ast

from farandole.control.rewriting.array_shares import share_arrays, stored_in
from farandole.control.rewriting.script import Script, argument, keyword
from farandole.control.rewriting.torch_steps import same_object

_LOADER = "torch.utils.data.DataLoader"
_SAMPLER = "torch.utils.data.distributed.DistributedSampler"


def share_data(script: Script, backward: ast.Call, model: str) -> None:
    """Give each worker a share of the training data.

    Args:
        script: the script that is rewritten.
        backward: the call of `backward` in the training loop.
        model: the script's name for the model; "": not known.
    """
    loaders = script.calls(lambda name: name in (_LOADER, "torch.utils.data.dataloader.DataLoader"))
    if not loaders:
        _share_arrays(script, backward, model)
        return
    training = [call for call in loaders if _is_shuffled(call)] or (loaders if len(loaders) == 1 else [])
    if len(training) != 1:
        read = [call for call in training or loaders if _feeds(script, call, backward)]
        training = read if len(read) == 1 else training
    if len(training) != 1:
        where = training[1] if training else script.source.statement(backward)
        script.refuse(where, "it is unclear which DataLoader is for training", "pass shuffle=True to that one only")
        return
    _share_loader(script, training[0])


def _feeds(script: Script, loader: ast.Call, backward: ast.Call) -> bool:
    """Return whether the backward pass is inside a loop over a DataLoader."""
    name = script.assigned_to(loader)
    loops = [each for each in script.source.above(backward) if isinstance(each, ast.For)]
    return bool(name) and any(_uses(script, each.iter, name) for each in loops)


def _share_arrays(script: Script, backward: ast.Call, model: str) -> None:
    loops = _loops(script, backward)
    if loops and share_arrays(script, loops[-1], _whole_arrays(script, loops[0], backward, model)):
        return
    script.refuse(
        script.source.statement(backward),
        "the batches come neither from a DataLoader nor from arrays with an index, such as images[batch]",
        "give each worker its share, of equal length on all: images[hvd.rank() :: hvd.size()]",
    )


def _loops(script: Script, backward: ast.Call) -> list[ast.stmt]:
    """Return the loops around the backward pass, from the inside, or those around the call of its function."""
    node: ast.AST = backward
    for _ in range(2):
        loops: list[ast.stmt] = [each for each in script.source.above(node) if isinstance(each, ast.For | ast.While)]
        function = script.source.function(node)
        if loops or function is None:
            return loops
        calls = script.calls_in(script.source.tree, function.name)
        if not calls:
            return []
        node = calls[0]
    return []


def _whole_arrays(script: Script, loop: ast.stmt, backward: ast.Call, model: str) -> set[str]:
    """Return the arguments of the model and the loss in each step, if they are arrays created before the loop."""
    made_inside = stored_in(loop)
    inputs, targets = set(), set()
    losses = {each.id for each in ast.walk(backward.func) if isinstance(each, ast.Name)}
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and model and script.source.of(node.func) == model:
            if not _is_without_gradients(script, node):
                inputs |= {_plain(each) for each in node.args}
        if isinstance(node, ast.Assign) and losses & stored_in(node) and isinstance(node.value, ast.Call):
            targets |= {_plain(each) for each in node.value.args} - {""}
    if not inputs or "" in inputs or inputs & made_inside:
        return set()
    return inputs | (targets - made_inside)


def _is_without_gradients(script: Script, node: ast.AST) -> bool:
    blocks = [each for each in script.source.above(node) if isinstance(each, ast.With)]
    heads = [script.source.of(item.context_expr) for each in blocks for item in each.items]
    return any("no_grad" in each or "inference_mode" in each for each in heads)


def _plain(value: ast.expr) -> str:
    """Return the name of a tensor, also when a method is called on it as in `x.to(device)`; "": it is not a name."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


def _is_shuffled(call: ast.Call) -> bool:
    shuffle = argument(call, "shuffle")
    if shuffle is None and len(call.args) > 2:
        shuffle = call.args[2]
    return shuffle is not None and not (isinstance(shuffle, ast.Constant) and not shuffle.value)


def _share_loader(script: Script, call: ast.Call) -> None:
    dataset = call.args[0] if call.args else argument(call, "dataset")
    name = script.assigned_to(call)
    shuffle = keyword(call, "shuffle")
    if len(call.args) > 2:
        script.refuse(call, "shuffle is given by position", "write shuffle=... and the arguments after it by name")
    elif argument(call, "sampler") or argument(call, "batch_sampler"):
        script.refuse(
            call, "it has a sampler of its own", "let it give each worker a share, as a DistributedSampler does"
        )
    elif not name or dataset is None:
        script.refuse(call, "the DataLoader is not assigned to a name", "loader = DataLoader(dataset, ...)")
    elif shuffle is not None and not isinstance(shuffle.value, ast.Constant):
        script.refuse(call, "shuffle is not a constant", "use one DataLoader for training, with shuffle=True")
    elif not isinstance(dataset, ast.Name | ast.Attribute) and not script.source.begins_its_line(
        script.source.statement(call)
    ):
        script.refuse(call, "the dataset is not assigned to a name", "dataset = ...; loader = DataLoader(dataset, ...)")
    else:
        _add_sampler(script, call, dataset, shuffle)
        script.divide_batch(argument(call, "batch_size") or (call.args[1] if len(call.args) > 1 else None))
        _reshuffle(script, name)


def _add_sampler(script: Script, call: ast.Call, dataset: ast.expr, shuffle: ast.keyword | None) -> None:
    script.touch(call)
    script.add_import(f"from {_SAMPLER.rpartition('.')[0]} import DistributedSampler")
    named = script.source.of(dataset)
    if not isinstance(dataset, ast.Name | ast.Attribute):
        script.source.insert_before(script.source.statement(call), f"dataset_of_all = {named}")
        script.source.replace(dataset, "dataset_of_all")
        named = "dataset_of_all"
    order = "" if shuffle is not None else ", shuffle=False"
    sampler = f"sampler=DistributedSampler({named}, hvd.size(), hvd.rank(){order})"
    if shuffle is None:
        script.source.append_argument(call, sampler)
    else:
        script.source.replace(shuffle, sampler)


def _reshuffle(script: Script, loader: str) -> None:
    """Give each epoch a different order of samples."""
    loops = [each for each in ast.walk(script.source.tree) if isinstance(each, ast.For)]
    for loop in loops:
        if not isinstance(loop.target, ast.Name):
            continue
        if script.calls_in(loop.iter, "range") and any(_uses(script, each, loader) for each in loop.body):
            script.source.insert_before(loop.body[0], f"{loader}.sampler.set_epoch({loop.target.id})")
            return
    for loop in loops:
        function = script.source.function(loop)
        is_given = function is not None and "epoch" in {each.arg for each in function.args.args}
        if is_given and (name := _name_used(script, loop.iter, loader)):
            script.source.insert_before(loop, f"{name}.sampler.set_epoch(epoch)")
            return
    script.notes.append(
        f"no loop `for epoch in range(...)` was found around {loader}: call {loader}.sampler.set_epoch(epoch) before "
        "each epoch; otherwise all epochs have the same order"
    )


def _uses(script: Script, node: ast.AST, name: str) -> bool:
    return bool(_name_used(script, node, name))


def _name_used(script: Script, node: ast.AST, name: str) -> str:
    """Return the name, or the attribute, by which a node refers to an object; "": it does not refer to it."""
    nodes = (each for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute))
    return next((text for text in map(script.source.of, nodes) if same_object(text, name)), "")
