"""Rewrites TensorFlow scripts with their own training loop: a `tf.GradientTape`, an optimizer, a `tf.data.Dataset`."""

from __future__ import annotations

import ast

from farandole.control.rewriting.script import Script, argument
from farandole.control.rewriting.torch_script import learning_rate

PACKAGE = "farandole.tensorflow"
_SOURCES = ("from_tensor_slices", "from_tensors", "from_generator", "range", "list_files")
OWN_GPU = (
    'gpus = tf.config.list_physical_devices("GPU")',
    "if gpus:",
    '    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")',
)


def rewrite(script: Script) -> None:
    """Edit a script so that it is distributed, and record the places that cannot be rewritten."""
    for call in script.calls(lambda name: name.startswith("tensorflow.distribute.")):
        script.refuse(call, "it uses a strategy of tf.distribute", "remove the strategy and its scope()")
    if not script.evidence.uses_farandole:
        choose_device(script)
    if (
        not script.evidence.has("DistributedGradientTape", "DistributedOptimizer")
        and not script.evidence.reduces_by_hand()
    ):
        _wrap_tape(script)
    if not script.evidence.shares_data():
        _share_dataset(script)
    if not script.evidence.has("broadcast_variables", "broadcast_global_variables", "steps", "run"):
        _broadcast(script)


def choose_device(script: Script) -> None:
    """Give each worker a GPU of its own."""
    for call in script.calls(lambda name: name.endswith("config.set_visible_devices")):
        script.refuse(call, "it chooses its GPUs itself", "choose gpus[hvd.local_rank()], after hvd.init()")
    if script.imports("tensorflow", "tf"):
        script.add_at_begin(*OWN_GPU)


def _wrap_tape(script: Script) -> None:
    tapes = script.calls(lambda name: name == "tensorflow.GradientTape")
    if len(tapes) != 1:
        reason = f"there are {len(tapes)} gradient tapes" if tapes else "no tf.GradientTape was found"
        script.refuse(
            tapes[1] if tapes else None, reason, "wrap the one for training: tape = hvd.DistributedGradientTape(tape)"
        )
        return
    item = script.source.parent(tapes[0])
    block = script.source.parent(item) if isinstance(item, ast.withitem) else None
    if not isinstance(block, ast.With) or not isinstance(item.optional_vars, ast.Name):  # type: ignore[union-attr]
        script.refuse(tapes[0], "the tape is not used as `with tf.GradientTape() as tape:`", "write it so")
        return
    name = item.optional_vars.id  # type: ignore[union-attr]
    inside = [call for call in script.calls_of_method("gradient", block)]
    if inside:
        script.refuse(inside[0], "gradients are computed while the tape still records", "compute them below the `with`")
        return
    script.touch(block)
    script.source.insert_after(block, f"{name} = hvd.DistributedGradientTape({name})")


def _share_dataset(script: Script) -> None:
    made = script.calls(
        lambda name: name.startswith("tensorflow.data.Dataset.") and name.rpartition(".")[2] in _SOURCES
    )
    shuffled = [call for call in made if "shuffle" in _methods_after(script, call)]
    training = shuffled or (made if len(made) == 1 else [])
    if len(training) != 1:
        script.refuse(
            training[1] if training else None,
            "it is unclear which tf.data.Dataset is for training" if made else "no tf.data.Dataset was found",
            "share it before it is shuffled: hvd.shard(tf.data.Dataset.from_tensor_slices(...))",
        )
        return
    methods = _methods_after(script, training[0])
    if "batch" in methods and "shuffle" in methods and methods.index("batch") < methods.index("shuffle"):
        script.notes.append("the dataset is shuffled after it is batched: whole batches are shuffled")
    script.touch(training[0])
    script.source.around(training[0], "hvd.shard(", ")")
    batches = [call for call in script.calls_of_method("batch") if _comes_from(script, call, training[0])]
    for call in batches:
        script.divide_batch(call.args[0] if call.args else argument(call, "batch_size"))


def _comes_from(script: Script, call: ast.Call, made: ast.Call) -> bool:
    """Return whether a method is called in the chain of a dataset, or on the name that the dataset is assigned to."""
    if made in ast.walk(call):
        return True
    statement = script.source.statement(made)
    names = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return isinstance(call.func, ast.Attribute) and script.source.of(call.func.value).partition(".")[0] in names


def _methods_after(script: Script, call: ast.Call) -> list[str]:
    """Return the methods that follow a call in its chain, such as `shuffle` and `batch`."""
    methods: list[str] = []
    node: ast.AST = call
    while True:
        attribute = script.source.parent(node)
        if not isinstance(attribute, ast.Attribute):
            return methods + _methods_of_name(script, script.assigned_to(node) if isinstance(node, ast.expr) else "")
        methods.append(attribute.attr)
        following = script.source.parent(attribute)
        assert following is not None
        node = following


def _methods_of_name(script: Script, name: str) -> list[str]:
    """Return the methods in assignments of a dataset to its own name, such as `data = data.batch(8)`."""
    return [
        call.func.attr
        for each in script.assignments(name)
        for call in ast.walk(each.value)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and script.source.of(call.func).startswith(f"{name}.")
    ]


# --- variables -------------------------------------------------------------------------------------------------------


def _broadcast(script: Script) -> None:
    made = script.calls(lambda name: name.startswith("keras.optimizers.") and name.count(".") == 2)
    if len(made) != 1 or not (optimizer := script.assigned_to(made[0])):
        where = made[0] if made else None
        script.refuse(where, "no single optimizer of Keras was found", "optimizer = keras.optimizers....(...)")
        return
    model = _model(script)
    if model is None:
        return
    name, creation = model
    statement = script.source.statement(made[0])
    block = list(script.source.block(statement))
    if creation not in block:
        script.refuse(
            statement,
            "the optimizer is not created in the same place as the model",
            "create both in the same function, one after",
        )
        return
    script.touch(statement)
    script.source.insert_before(statement, *learning_rate(script))
    if not _is_built(script):
        _broadcast_after_the_first_step(script, name, optimizer, creation)
        return
    last = block[max(block.index(statement), block.index(creation), *_loads(script, block))]
    script.source.insert_after(
        last,
        f"{optimizer}.build({name}.trainable_variables)",
        f"hvd.broadcast_variables({name}.variables, root_rank=0)",
        f"hvd.broadcast_variables({optimizer}.variables, root_rank=0)",
    )


def _broadcast_after_the_first_step(script: Script, model: str, optimizer: str, creation: ast.stmt) -> None:
    """Broadcast rank 0's state after the first step, which creates the variables of such a model."""
    step = _step_in_a_loop(script)
    visible = script.source.function(creation)
    if step is None or visible not in (None, script.source.function(step)):
        script.refuse(
            creation,
            "the model's variables do not exist before the first step, and no loop was found that runs it",
            "begin the model with keras.Input(shape), or call model.build(shape)",
        )
        return
    loops = [each for each in script.source.above(step) if isinstance(each, ast.For | ast.While)]
    script.source.insert_before(loops[-1], "is_first_step = True")
    script.source.insert_after(
        step,
        "if is_first_step:  # the variables exist from now on; all workers go on with those of rank 0",
        f"    hvd.broadcast_variables({model}.variables, root_rank=0)",
        f"    hvd.broadcast_variables({optimizer}.variables, root_rank=0)",
        "    is_first_step = False",
    )
    script.touch(step)


def _step_in_a_loop(script: Script) -> ast.stmt | None:
    """Return the statement in a loop, outside of compiled functions, that runs a training step."""
    applied = [*script.calls_of_method("apply_gradients"), *script.calls_of_method("apply")]
    function = script.source.function(applied[0]) if applied else None
    calls = applied[:1]
    if function is not None and not any(
        isinstance(each, ast.For | ast.While) for each in script.source.above(applied[0])
    ):
        calls = script.calls(lambda name: name == function.name)
    for call in calls:
        statement = script.source.statement(call)
        inside = script.source.function(call)
        compiled = inside is not None and bool(inside.decorator_list)
        repeated = any(
            isinstance(each, ast.comprehension | ast.GeneratorExp | ast.ListComp) for each in _between(script, call)
        )
        in_a_loop = isinstance(script.source.parent(statement), ast.For | ast.While)
        if in_a_loop and not compiled and not repeated and script.source.begins_its_line(statement):
            return statement
    return None


def _between(script: Script, node: ast.AST) -> list[ast.AST]:
    """Return the nodes between a node and its statement."""
    statement = script.source.statement(node)
    above = [node, *script.source.above(node)]
    return above[: above.index(statement)]


def _loads(script: Script, block: list[ast.stmt]) -> list[int]:
    """Return the indices of the statements of a block that load a checkpoint."""
    loads = [*script.calls_of_method("load_weights"), *script.calls_of_method("restore")]
    return [index for index, each in enumerate(block) if any(each in script.source.above(load) for load in loads)]


def _model(script: Script) -> tuple[str, ast.stmt] | None:
    """Return the name of the model whose gradients are computed, and the statement that creates it."""
    gradient = script.calls_of_method("gradient")
    owners = {
        script.source.of(node.value)
        for node in ast.walk(script.source.tree)
        if isinstance(node, ast.Attribute) and node.attr in ("trainable_variables", "trainable_weights")
    }
    if len(owners) != 1:
        where = gradient[0] if gradient else None
        script.refuse(
            where, "it is unclear whose variables are trained", "use those of one model: model.trainable_variables"
        )
        return None
    (name,) = owners
    made = script.assignments(name)
    if len(made) != 1:
        script.refuse(
            gradient[0] if gradient else None,
            f"{name} is not created in exactly one place",
            f"assign it once: {name} = ...",
        )
        return None
    return name, made[0]


def _is_built(script: Script) -> bool:
    inputs = script.calls(lambda name: name in ("keras.Input", "keras.layers.Input", "keras.layers.InputLayer"))
    shapes = [call for call in script.calls(lambda name: True) if argument(call, "input_shape")]
    return bool(inputs or shapes or script.calls_of_method("build"))
