"""Scripts of PyTorch: a DataLoader, a model, an optimizer, and a loop that calls `backward` and `step`."""

from __future__ import annotations

import ast

from farandole.rewriting.script import Script, argument, keyword

PACKAGE = "farandole.torch"
_LOADER = "torch.utils.data.DataLoader"
_SAMPLER = "torch.utils.data.distributed.DistributedSampler"


def rewrite(script: Script) -> None:
    """Ask for the edits that make a script distributed, or take note of what is not understood."""
    _refuse(script)
    backward = script.calls_of_method("backward")
    if not backward:
        script.refuse(None, "there is no loss.backward(), so no training was found", "see docs: PyTorch, by hand")
        return
    for call in backward:
        script.touch(call)
    _choose_device(script)
    _wrap_optimizer(script)
    _share_data(script, backward[0])


def _refuse(script: Script) -> None:
    for call in script.calls(lambda name: name.rpartition(".")[2] == "DataParallel"):
        script.refuse(call, "DataParallel uses several GPUs in one process", "take it away: each GPU gets a worker")
    for call in script.calls(lambda name: name.rpartition(".")[2] == "GradScaler"):
        script.refuse(
            call,
            "a GradScaler looks at gradients before the optimizer has reduced them",
            "call optimizer.synchronize() before scaler.step, and that below `with optimizer.skip_synchronize():`",
        )
    for call in script.calls(lambda name: name.rpartition(".")[2] in ("clip_grad_norm_", "clip_grad_value_")):
        script.refuse(
            call,
            "gradients are clipped before the optimizer has reduced them",
            "call optimizer.synchronize() before it, and optimizer.step() below `with optimizer.skip_synchronize():`",
        )
    for node in ast.walk(script.source.tree):
        if isinstance(node, ast.ClassDef) and any(
            script.dotted(base).rpartition(".")[2] == "IterableDataset" for base in node.bases
        ):
            script.refuse(node, "an IterableDataset decides itself what it reads", "skip what is not hvd.rank()'s")


def _choose_device(script: Script) -> None:
    mentions = False
    for node in ast.walk(script.source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value == "cuda":
                mentions = True
            elif node.value.startswith("cuda:") and node.value != "cuda:0":
                script.refuse(node, f"it wants the GPU {node.value!r}", 'write "cuda": each worker gets its own')
            elif node.value == "cuda:0":
                mentions = True
                script.source.replace(node, '"cuda"')
    for call in script.calls_of_method("cuda"):
        mentions = True
        if call.args or call.keywords:
            script.refuse(call, "it wants a certain GPU", "leave the number away: each worker gets its own")
    if mentions:
        script.add_at_begin("if torch.cuda.is_available():", "    torch.cuda.set_device(hvd.local_rank())")
        if not script.imports("torch"):
            script.add_import("import torch")


# --- the optimizer ---------------------------------------------------------------------------------------------------


def _wrap_optimizer(script: Script) -> None:
    made = script.calls(lambda name: name.startswith("torch.optim.") and name.count(".") == 2)
    if len(made) != 1:
        where = made[1] if made else None
        reason = f"there are {len(made)} optimizers" if made else "no optimizer of torch.optim was found"
        script.refuse(where, reason, "wrap each in hvd.DistributedOptimizer(optimizer, model.named_parameters())")
        return
    call = made[0]
    optimizer, model = script.assigned_to(call), _model_of(script, call)
    statement = script.source.statement(call)
    if not optimizer or not script.source.begins_its_line(statement):
        script.refuse(call, "the optimizer is not assigned to a name", "optimizer = torch.optim...(...) in a line")
        return
    if not model:
        script.refuse(call, "whose parameters are these?", "give it model.parameters(), of one model")
        return
    _check_steps(script, optimizer)
    if script.dotted(call.func) == "torch.optim.LBFGS":
        script.refuse(call, "LBFGS computes the loss several times in a step", "take another optimizer")
    script.touch(call)
    script.source.insert_before(statement, *LEARNING_RATE)
    script.source.insert_after(
        statement, f"{optimizer} = hvd.DistributedOptimizer({optimizer}, {model}.named_parameters())"
    )
    _broadcast(script, statement, model, optimizer)


LEARNING_RATE = (
    "# The learning rate is as it was. N workers make batches that are N times as large: a larger one may do better.",
)


def _model_of(script: Script, call: ast.Call) -> str:
    parameters = call.args[0] if call.args else argument(call, "params")
    while isinstance(parameters, ast.Call) and isinstance(parameters.func, ast.Name) and len(parameters.args) == 1:
        parameters = parameters.args[0]  # list(model.parameters())
    is_method = isinstance(parameters, ast.Call) and isinstance(parameters.func, ast.Attribute)
    if not is_method or parameters.func.attr != "parameters":  # type: ignore[union-attr]
        return ""
    return script.source.of(parameters.func.value)  # type: ignore[union-attr]


def _check_steps(script: Script, optimizer: str) -> None:
    """Refuse a step that does not follow each backward pass, as it is when gradients are accumulated."""
    for step in script.calls_of_method("step"):
        if script.source.of(step.func.value) != optimizer:  # type: ignore[attr-defined]
            continue
        parent = script.source.parent(script.source.statement(step))
        if isinstance(parent, ast.If) and not script.calls_of_method("backward", parent):
            script.refuse(
                step,
                "gradients of several passes are accumulated before a step",
                "hvd.DistributedOptimizer(..., backward_passes_per_step=N)",
            )


def _broadcast(script: Script, made: ast.stmt, model: str, optimizer: str) -> None:
    """Let all workers begin with rank 0's state: after it was made and, if the script does so, loaded from a file."""
    block = list(script.source.block(made))
    place = made
    for load in script.calls_of_method("load_state_dict"):
        above = [script.source.statement(load), *script.source.above(load)]
        place = next((each for each in reversed(block) if each in above and each.lineno >= place.lineno), place)
    script.source.insert_after(
        place,
        f"hvd.broadcast_parameters({model}.state_dict(), root_rank=0)",
        f"hvd.broadcast_optimizer_state({optimizer}, root_rank=0)",
    )


# --- the data --------------------------------------------------------------------------------------------------------


def _share_data(script: Script, backward: ast.Call) -> None:
    loaders = script.calls(lambda name: name in (_LOADER, "torch.utils.data.dataloader.DataLoader"))
    training = [call for call in loaders if _is_shuffled(call)] or (loaders if len(loaders) == 1 else [])
    if len(training) != 1:
        where = training[1] if training else script.source.statement(backward)
        reason = "which DataLoader is for training?" if loaders else "the batches do not come from a DataLoader"
        by_hand = (
            "only that one gets shuffle=True"
            if loaders
            else "give each worker its share, such as images[hvd.rank() :: hvd.size()], as many on all"
        )
        script.refuse(where, reason, by_hand)
        return
    _share_loader(script, training[0])


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
        script.refuse(call, "whether it shuffles is said by place", "write shuffle=... and what follows by name")
    elif argument(call, "sampler") or argument(call, "batch_sampler"):
        script.refuse(call, "it has a sampler of its own", "let it give each worker a share, as a DistributedSampler")
    elif not name or dataset is None:
        script.refuse(call, "the DataLoader is not assigned to a name", "loader = DataLoader(dataset, ...)")
    elif shuffle is not None and not isinstance(shuffle.value, ast.Constant):
        script.refuse(call, "whether it shuffles is decided while it runs", "one DataLoader for training, with True")
    elif not isinstance(dataset, ast.Name | ast.Attribute) and not script.source.begins_its_line(
        script.source.statement(call)
    ):
        script.refuse(call, "the dataset has no name", "dataset = ...; loader = DataLoader(dataset, ...)")
    else:
        _add_sampler(script, call, dataset, shuffle)
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
    """Let each epoch have an order of its own."""
    for loop in ast.walk(script.source.tree):
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
            continue
        if script.calls_in(loop.iter, "range") and any(_uses(script, each, loader) for each in loop.body):
            script.source.insert_before(loop.body[0], f"{loader}.sampler.set_epoch({loop.target.id})")
            return
    script.notes.append(
        f"no loop `for epoch in range(...)` was found around {loader}: call {loader}.sampler.set_epoch(epoch) before "
        "each epoch, or all have the same order"
    )


def _uses(script: Script, statement: ast.stmt, name: str) -> bool:
    nodes = (each for each in ast.walk(statement) if isinstance(each, ast.Name | ast.Attribute))
    return any(script.source.of(each) == name for each in nodes)
