"""Rewrites PyTorch scripts: data, a model, an optimizer, and a loop that calls `backward` and `step`."""

from __future__ import annotations

import ast

from farandole.control.rewriting.script import Script, argument
from farandole.control.rewriting.torch_data import share_data
from farandole.control.rewriting.torch_steps import passes_per_step, synchronize_before_readers

PACKAGE = "farandole.torch"


def rewrite(script: Script) -> None:
    """Edit a script so that it is distributed, and record the places that cannot be rewritten."""
    reduces = (
        script.evidence.has("DistributedOptimizer", "DistributedAdasumOptimizer") or script.evidence.reduces_by_hand()
    )
    shares = script.evidence.shares_data()
    _refuse(script, shares)
    backward = script.calls_of_method("backward")
    if not backward:
        if not (reduces and shares):
            script.refuse(None, "there is no loss.backward(), so no training was found", "see docs: PyTorch, by hand")
        return
    for call in backward:
        script.touch(call)
    _choose_device(script)
    model = "" if reduces else _wrap_optimizer(script)
    if reduces and not script.evidence.has("broadcast_parameters", "broadcast_object", "steps", "run"):
        script.refuse(
            None,
            "nothing makes the workers begin with the same weights",
            "before the loop: hvd.broadcast_parameters(model.state_dict(), root_rank=0), and "
            "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
        )
    if not shares:
        share_data(script, backward[0], model)


def _refuse(script: Script, shares: bool) -> None:
    for call in script.calls(lambda name: name.rpartition(".")[2] == "DataParallel"):
        script.refuse(call, "DataParallel uses several GPUs in one process", "remove it: each GPU gets a worker")
    for node in ast.walk(script.source.tree):
        if (
            not shares
            and isinstance(node, ast.ClassDef)
            and any(script.dotted(base).rpartition(".")[2] == "IterableDataset" for base in node.bases)
        ):
            script.refuse(
                node,
                "an IterableDataset chooses itself which samples it reads",
                "in its __iter__: itertools.islice(samples, hvd.rank(), None, hvd.size())",
            )


def _choose_device(script: Script) -> None:
    mentions = False
    for node in ast.walk(script.source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value == "cuda":
                mentions = True
            elif node.value.startswith("cuda:") and node.value != "cuda:0":
                script.refuse(node, f"it asks for the GPU {node.value!r}", 'write "cuda": each worker gets its own')
            elif node.value == "cuda:0":
                mentions = True
                script.source.replace(node, '"cuda"')
    for call in script.calls_of_method("cuda"):
        mentions = True
        if call.args or call.keywords:
            script.refuse(call, "it asks for a certain GPU", "omit the number: each worker gets its own")
    if mentions and not script.calls(lambda name: name == "torch.cuda.set_device"):
        script.add_at_begin("if torch.cuda.is_available():", "    torch.cuda.set_device(hvd.local_rank())")
        if not script.imports("torch"):
            script.add_import("import torch")


# --- the optimizer ---------------------------------------------------------------------------------------------------


def _wrap_optimizer(script: Script) -> str:
    """Make the optimizer distributed; return how the script calls the model, or "" if that is not known."""
    made = script.calls(lambda name: name.startswith("torch.optim.") and name.count(".") == 2)
    if len(made) != 1:
        where = made[1] if made else None
        reason = f"there are {len(made)} optimizers" if made else "no optimizer of torch.optim was found"
        script.refuse(where, reason, "wrap each in hvd.DistributedOptimizer(optimizer, model.named_parameters())")
        return ""
    call = made[0]
    optimizer, model = script.assigned_to(call), _model_of(script, call)
    statement = script.source.statement(call)
    if not optimizer or not script.source.begins_its_line(statement):
        script.refuse(
            call,
            "the optimizer is not assigned to a name",
            "write optimizer = torch.optim...(...) in a line of its own",
        )
        return ""
    if not model:
        script.refuse(
            call, "it is unclear whose parameters these are", "pass the parameters of one model: model.parameters()"
        )
        return ""
    synchronize_before_readers(script, optimizer)
    passes = passes_per_step(script, optimizer, call)
    if script.dotted(call.func) == "torch.optim.LBFGS":
        script.refuse(call, "LBFGS computes the loss several times in a step", "use another optimizer")
    script.touch(call)
    script.source.insert_before(statement, *learning_rate(script))
    script.source.insert_after(
        statement, f"{optimizer} = hvd.DistributedOptimizer({optimizer}, {model}.named_parameters(){passes})"
    )
    _broadcast(script, statement, model, optimizer)
    return model


def learning_rate(script: Script) -> tuple[str]:
    """Return the comment about the learning rate."""
    if script.keeps_batch:
        return ("# The learning rate is unchanged, as is the batch of all workers together.",)
    script.note(LARGER_BATCH)
    return (
        "# The learning rate is unchanged. N workers process batches N times as large: a higher one may be better.",
    )


LARGER_BATCH = (
    "N workers process batches that are N times as large, so the result may be worse with the same learning rate and "
    "number of epochs; --keep-batch divides the size of a batch by the number of workers instead"
)


def _model_of(script: Script, call: ast.Call) -> str:
    parameters = call.args[0] if call.args else argument(call, "params")
    while isinstance(parameters, ast.Call) and isinstance(parameters.func, ast.Name) and len(parameters.args) == 1:
        parameters = parameters.args[0]  # list(model.parameters())
    is_method = isinstance(parameters, ast.Call) and isinstance(parameters.func, ast.Attribute)
    if not is_method or parameters.func.attr != "parameters":  # type: ignore[union-attr]
        return ""
    return script.source.of(parameters.func.value)  # type: ignore[union-attr]


def _broadcast(script: Script, made: ast.stmt, model: str, optimizer: str) -> None:
    """Broadcast rank 0's state after it is created and, if the script does that, loaded from a file."""
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
