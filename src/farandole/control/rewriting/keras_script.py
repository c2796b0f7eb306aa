"""Rewrites Keras scripts that train with `model.fit`."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from farandole.control.rewriting.script import RANK_0, Script, argument, keyword
from farandole.control.rewriting.tensorflow_script import choose_device
from farandole.control.rewriting.torch_script import learning_rate

PACKAGE = "farandole.keras"
_OF_RANK_0 = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "BackupAndRestore", "ProgbarLogger", "RemoteMonitor")


def rewrite(script: Script) -> None:
    """Edit a script so that it is distributed, and record the places that cannot be rewritten."""
    for call in script.calls(lambda name: name.startswith("keras.distribution.")):
        script.refuse(call, "it uses keras.distribution", "remove it: each worker has one device")
    fits, compiled = script.calls_of_method("fit"), script.calls_of_method("compile")
    if not script.evidence.has("DistributedOptimizer"):
        _wrap_optimizers(script, compiled)
    shares = script.evidence.shares_data()
    for call in fits:
        if not shares:
            _share_data(script, call)
        if not script.evidence.has("Distributed", "BroadcastGlobalVariablesCallback"):
            _add_callback(script, call)
    if not script.evidence.uses_farandole:
        choose_device(script)
        for call in script.calls_of_method("evaluate"):
            _be_quiet(script, call)


def _wrap_optimizers(script: Script, compiled: Sequence[ast.Call]) -> None:
    if not compiled:
        script.refuse(None, "no model.compile() was found", "compile with hvd.DistributedOptimizer(optimizer)")
        return
    for call in compiled:
        _wrap_optimizer(script, call)
    statement = script.source.statement(compiled[0])
    if script.source.begins_its_line(statement):
        script.source.insert_before(statement, *learning_rate(script))


def _wrap_optimizer(script: Script, call: ast.Call) -> None:
    optimizer = call.args[0] if call.args else argument(call, "optimizer")
    if optimizer is None:
        script.refuse(call, "it is compiled without an optimizer", 'such as keras.optimizers.get("rmsprop")')
        return
    script.touch(call)
    if isinstance(optimizer, ast.Constant):
        script.source.around(optimizer, "hvd.DistributedOptimizer(keras.optimizers.get(", "))")
        if not script.imports("keras"):
            script.add_import("import keras")
    else:
        script.source.around(optimizer, "hvd.DistributedOptimizer(", ")")


def _share_data(script: Script, fit: ast.Call) -> None:
    samples = fit.args[0] if fit.args else argument(fit, "x")
    labels = fit.args[1] if len(fit.args) > 1 else argument(fit, "y")
    if samples is None or any(isinstance(each, ast.Starred) for each in fit.args):
        script.refuse(fit, "the data that it is trained with was not found", "model.fit(*hvd.shard((x, y)), ...)")
        return
    if argument(fit, "validation_split") is not None:
        # Shares are every N-th sample, so that the last ones of all shares are the last ones of all data.
        script.note(
            "validation_split takes the last samples of each worker's share, which together are the last of all"
        )
    if argument(fit, "steps_per_epoch") is not None:
        script.refuse(
            fit, "steps_per_epoch counts the batches of all data", "divide it by hvd.size(), and share the data"
        )
        return
    script.touch(fit)
    size = argument(fit, "batch_size") or (fit.args[2] if len(fit.args) > 2 else None)
    if size is None and labels is not None and script.keeps_batch:
        script.source.append_argument(fit, "batch_size=max(1, 32 // hvd.size())")  # 32 is Keras' default.
    script.divide_batch(size)
    positional = len(fit.args) > 1 and labels is fit.args[1]
    if labels is not None and positional:
        script.source.around(samples, "*hvd.shard((", "")
        script.source.around(labels, "", "))")
    else:
        for each in (samples, labels):
            if each is not None:
                script.source.around(each, "hvd.shard(", ")")


def _add_callback(script: Script, fit: ast.Call) -> None:
    given = argument(fit, "callbacks")
    if given is None:
        script.source.append_argument(fit, "callbacks=[hvd.callbacks.Distributed()]")
        return
    listed: ast.expr = given
    if isinstance(given, ast.Name):
        made = script.assignments(given.id)
        changed = [call for name in ("append", "extend") for call in script.calls_of_method(name)]
        changed = [call for call in changed if script.source.of(call.func).startswith(f"{given.id}.")]
        if len(made) == 1 and not changed:
            listed = made[0].value
    if not isinstance(listed, ast.List):
        by_hand = "callbacks=[hvd.callbacks.Distributed(*those that write files), *the others]"
        script.refuse(given, "it is unclear which callbacks write files", by_hand)
        return
    writing = [each for each in listed.elts if _is_of_rank_0(script, each)]
    others = [each for each in listed.elts if each not in writing]
    texts = [f"hvd.callbacks.Distributed({', '.join(map(script.source.of, writing))})"]
    script.touch(listed)
    script.source.replace(listed, f"[{', '.join([*texts, *map(script.source.of, others)])}]")


def _is_of_rank_0(script: Script, each: ast.expr) -> bool:
    return isinstance(each, ast.Call) and script.dotted(each.func).rpartition(".")[2] in _OF_RANK_0


def _be_quiet(script: Script, call: ast.Call) -> None:
    """Let only rank 0 show the progress of a call."""
    given = keyword(call, "verbose")
    if given is None:
        script.source.append_argument(call, f'verbose="auto" if {RANK_0} else 0')
    elif not (isinstance(given.value, ast.Constant) and given.value.value == 0):
        script.source.around(given.value, "", f" if {RANK_0} else 0")
    else:
        return
    script.touch(call)
