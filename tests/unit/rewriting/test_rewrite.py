"""Which lines make a script distributed, and which scripts are refused."""

from __future__ import annotations

import pickle
import textwrap
from pathlib import Path

import pytest
from scripts_to_rewrite import BATCHES, TORCH, added, script

from farandole.control.cli.main import main
from farandole.control.rewriting.refusal import NotUnderstood, Refusal
from farandole.control.rewriting.rewrite import rewrite

SCRIPTS = ("torch", "tensorflow", "keras", "jax")


@pytest.mark.parametrize("framework", SCRIPTS)
def test_it_is_known_what_is_distributed_already(framework: str) -> None:
    once = rewrite(script(framework))
    assert once.framework == framework and once.after != once.before
    again = rewrite(once.after)
    assert (again.framework, again.after) == ("", once.after)


def test_pytorch() -> None:
    lines = added(script("torch"))
    for line in (
        "import farandole.torch as hvd",
        "hvd.init()",
        "torch.cuda.set_device(hvd.local_rank())",
        "train_loader = DataLoader(train, batch_size=32, sampler=DistributedSampler(train, hvd.size(), hvd.rank()))",
        "train_loader.sampler.set_epoch(epoch)",
        "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())",
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
        "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
    ):
        assert line in lines
    assert lines.count("if hvd.rank() == 0:") == 3
    assert any("learning rate is unchanged" in line for line in lines)


def test_tensorflow() -> None:
    lines = added(script("tensorflow"))
    for line in (
        "dataset = hvd.shard(tf.data.Dataset.from_tensor_slices(train)).shuffle(2000).batch(32)",
        "tape = hvd.DistributedGradientTape(tape)",
        "optimizer.build(model.trainable_variables)",
        "hvd.broadcast_variables(model.variables, root_rank=0)",
        "hvd.broadcast_variables(optimizer.variables, root_rank=0)",
    ):
        assert line in lines


def test_keras() -> None:
    text = rewrite(script("keras")).after
    assert "optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.002))" in text
    assert "*hvd.shard((images[train],\n" in text
    assert '[hvd.callbacks.Distributed(keras.callbacks.CSVLogger("log.csv")), keras.callbacks.Reduce' in text
    assert "verbose=2 if hvd.rank() == 0 else 0)[1]" in text


def test_an_optimizer_of_keras_that_is_a_word() -> None:
    text = "import tensorflow as tf\nmodel = make()\nmodel.compile('adam', loss='mse')\nmodel.fit(x, y)\n"
    after = rewrite(text).after
    assert "import keras\n\nimport farandole.keras as hvd\n\nhvd.init()\n" in after
    assert "model.compile(hvd.DistributedOptimizer(keras.optimizers.get('adam')), loss='mse')" in after
    assert "model.fit(*hvd.shard((x, y)), callbacks=[hvd.callbacks.Distributed()])" in after


def test_jax() -> None:
    lines = added(script("jax"))
    assert "params, state = hvd.broadcast_parameters((params, state))" in lines
    assert "loss, gradients = hvd.distributed_value_and_grad(loss_of)(params, images, labels)" in lines
    assert any(line.startswith("images, labels = (each[hvd.rank() : len(each) // hvd.size()") for line in lines)


def test_a_script_without_functions_begins_below_its_imports() -> None:
    after = rewrite(TORCH).after
    assert "import DistributedSampler\n\nimport farandole.torch as hvd\n\nhvd.init()\n\nloader = " in after


def test_state_is_broadcast_after_it_was_loaded() -> None:
    text = TORCH.replace("for epoch", "if resume:\n    model.load_state_dict(torch.load(path))\nfor epoch", 1)
    after = rewrite(text).after
    assert after.index("load_state_dict") < after.index("broadcast_parameters") < after.index("for epoch")


def test_a_dataset_without_a_name_gets_one() -> None:
    after = rewrite(TORCH.replace("DataLoader(data,", "DataLoader(TensorDataset(x, y),")).after
    assert "dataset_of_all = TensorDataset(x, y)\nloader = DataLoader(dataset_of_all, " in after
    assert "DistributedSampler(dataset_of_all, hvd.size(), hvd.rank())" in after


def test_the_only_loader_is_shared_in_its_order() -> None:
    after = rewrite(TORCH.replace(", shuffle=True", "")).after
    assert "DistributedSampler(data, hvd.size(), hvd.rank(), shuffle=False)" in after


def test_an_epoch_in_a_function_of_its_own_gets_a_note_or_an_order() -> None:
    text = TORCH.replace(
        "    for x, y in loader:", "    train(loader)\n\ndef train(batches):\n    for x, y in batches:"
    )
    assert "    loader.sampler.set_epoch(epoch)\n    train(loader)" in rewrite(text).after
    forever = TORCH.replace("for epoch in range(3)", "while True")
    assert any("set_epoch" in note for note in rewrite(forever).notes)


def test_progress_is_shown_by_rank_0() -> None:
    text = TORCH.replace("import torch\n", "import torch\nfrom tqdm import tqdm\n").replace(
        "in loader", "in tqdm(loader)"
    )
    assert "in tqdm(loader, disable=hvd.rank() != 0):" in rewrite(text).after


def test_a_print_that_shares_its_line_stays_in_it() -> None:
    after = rewrite(TORCH + "if done: print('done')\n").after
    assert "if done: print('done') if hvd.rank() == 0 else None\n" in after


CLIPPED = """\
        loss.backward()
        if most:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()
"""
SCALED = """\
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
STEP = "        loss.backward()\n        optimizer.step()\n"


def test_gradients_are_complete_before_they_are_clipped() -> None:
    after = rewrite(TORCH.replace(STEP, CLIPPED)).after
    assert after.endswith(
        """\
        loss.backward()
        optimizer.synchronize()  # from here on gradients are those of all workers
        if most:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        with optimizer.skip_synchronize():
            optimizer.step()
"""
    )


def test_gradients_are_complete_before_a_scaler_sees_them() -> None:
    text = TORCH.replace("for epoch", "scaler = torch.amp.GradScaler()\nfor epoch", 1)
    after = rewrite(text.replace(STEP, SCALED)).after
    assert after.endswith(
        """\
        scaler.scale(loss).backward()
        optimizer.synchronize()  # from here on gradients are those of all workers
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
"""
    )
    unclipped = [line for line in SCALED.splitlines() if "unscale" not in line and "clip" not in line]
    after = rewrite(text.replace(STEP, "\n".join(unclipped) + "\n")).after
    assert after.endswith(
        """\
        scaler.scale(loss).backward()
        optimizer.synchronize()  # from here on gradients are those of all workers
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
"""
    )


def test_each_branch_of_mixed_precision_is_served_by_itself() -> None:
    scaled, plain = (textwrap.indent(each, "    ") for each in (SCALED, STEP))
    text = TORCH.replace("for epoch", "scaler = torch.cuda.amp.GradScaler()\nfor epoch", 1)
    after = rewrite(text.replace(STEP, f"        if mixed:\n{scaled}        else:\n{plain}")).after
    assert after.count("optimizer.synchronize()") == after.count("skip_synchronize():") == 1
    assert after.endswith("        else:\n            loss.backward()\n            optimizer.step()\n")


SHARED = "x, y = (each[hvd.rank() : len(each) // hvd.size() * hvd.size() : hvd.size()] for each in (x, y))\n"
WHOLE = """\
import torch

x = torch.randn(100, 10)
y = x.sum(1, keepdim=True)
model = torch.nn.Linear(10, 1)
loss_of = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100):
    predicted = model(x.to(device))
    loss = loss_of(predicted, y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model(others)
"""


def test_arrays_that_are_read_by_an_index_are_shared() -> None:
    assert f"x, y = load()\n{SHARED}count = len(x)\n" in rewrite(BATCHES).after


def test_arrays_that_each_step_uses_whole_are_shared() -> None:
    assert f"y = x.sum(1, keepdim=True)\n{SHARED}model" in rewrite(WHOLE).after


def test_arrays_that_a_function_is_given_are_shared_in_it() -> None:
    head, _, loop = WHOLE.partition("for epoch")
    loop = textwrap.indent(f"for epoch{loop}", "    ")
    after = rewrite(f'{head}def train(x, y):\n    """Train."""\n{loop}\ntrain(x, y)\n').after
    assert f'def train(x, y):\n    """Train."""\n    {SHARED}    for epoch' in after


@pytest.mark.parametrize(
    ("text", "change", "reason"),
    [
        (BATCHES, ("count = len(x)", "count = 1000"), "is not computed from the length of x, y"),
        (BATCHES, ("range(0, count, 32)", "range(0, 1000, 32)"), ""),
        (
            BATCHES.replace("order[begin : begin + 32]", "range(begin, begin + 32)"),
            ("0, count", "0, 9"),
            "not computed from",
        ),
        (WHOLE, ("predicted, y.to(device)", "x, y"), ""),
        (WHOLE, ("model(x.to(device))", "model(draw())"), "come neither from a DataLoader"),
        (WHOLE, ("x = torch.randn(100, 10)", "from data import x"), "no statement was found that creates x, y"),
    ],
)
def test_arrays_that_cannot_be_shared(text: str, change: tuple[str, str], reason: str) -> None:
    assert change[0] in text
    if not reason:
        assert SHARED in rewrite(text.replace(*change)).after
        return
    with pytest.raises(NotUnderstood, match=reason):
        rewrite(text.replace(*change))


def test_the_loader_of_the_loop_that_trains_is_shared_if_none_is_shuffled() -> None:
    text = TORCH.replace(", shuffle=True", "").replace("loader = ", "test = DataLoader(other)\nloader = ")
    after = rewrite(text).after
    assert "sampler=DistributedSampler(data," in after and "test = DataLoader(other)\n" in after


def test_arrays_of_jax_that_each_step_uses_whole_are_shared() -> None:
    before = """\
import jax

x, y = load()
params = build()

def step(params, x, y):
    gradients = jax.grad(loss_of)(params, x, y)
    return update(params, gradients)

for _ in range(100):
    params = step(params, x, y)
"""
    assert f"x, y = load()\n{SHARED}params" in rewrite(before).after
    with pytest.raises(NotUnderstood, match="no array was found"):
        rewrite(before.replace("x, y = load()", "x, y = load(), jax.random.key(0)"))


def test_a_part_of_the_samples_of_keras_may_be_for_validation() -> None:
    done = rewrite(script("keras").replace("batch_size=32,", "validation_split=0.1,"))
    assert "validation_split=0.1," in done.after and "*hvd.shard((images[train],\n" in done.after
    assert any("the last of all" in note for note in done.notes)


def test_keras_may_compile_and_fit_again() -> None:
    again = "model.compile('sgd', loss=loss)\nmodel.fit(x, y)\n"
    after = rewrite(
        f"import keras\nmodel.compile('adam', loss=loss)\nmodel.fit(x, y)\nmodel.trainable = True\n{again}"
    ).after
    assert after.count("hvd.DistributedOptimizer(keras.optimizers.get(") == 2
    assert after.count("model.fit(*hvd.shard((x, y)), callbacks=[hvd.callbacks.Distributed()])") == 2


def test_variables_that_the_first_step_makes_are_broadcast_after_it() -> None:
    text = script("tensorflow").replace("keras.Input((64,)), ", "")
    comprehension = "losses = [float(step(images, labels)) for images, labels in dataset]"
    loop = "losses = []\n        for images, labels in dataset:\n            losses.append(float(step(images, labels)))"
    assert comprehension in text
    after = rewrite(text.replace(comprehension, loop)).after
    assert "    is_first_step = True\n    for epoch in range(EPOCHS):\n" in after
    assert (
        """\
            losses.append(float(step(images, labels)))
            if is_first_step:  # the variables exist from now on; all workers go on with those of rank 0
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(optimizer.variables, root_rank=0)
                is_first_step = False
"""
        in after
    )


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (("shuffle=True", "sampler=mine"), 4, "a sampler of its own"),
        (("shuffle=True", "shuffle=given"), 4, "not a constant"),
        (("batch_size=8, shuffle=True", "8, True"), 4, "given by position"),
        (("import torch\n", "import torch.distributed\nimport torch\n"), 1, "uses torch.distributed already"),
        (("import torch\n", "import horovod.torch as hvd\n"), 1, "uses Horovod already"),
        (("model.parameters()", "parameters"), 5, "it is unclear whose parameters these are"),
        (("        optimizer.step()", "        if last:\n            optimizer.step()"), 11, "several passes"),
        (("optimizer = ", "other = torch.optim.SGD(p)\noptimizer = "), 6, "2 optimizers"),
        (("loss = ", "hvd = "), 8, "hvd is in use"),
        (("DataLoader(data", "batches(data"), 9, "come neither from a DataLoader"),
        (("for epoch", "scaler = torch.amp.GradScaler()\nfor epoch"), 6, r"no scaler.step(optimizer)"),
        (("    for x, y", "    clip_grad_norm_(model.parameters(), 1)\n    for x, y"), 7, "but not between"),
        (("        optimizer.step()", "        clip_grad_norm_(p, 1); optimizer.step()"), 10, "share a line"),
        (("for epoch", "file = open('log', 'w')\nfor epoch"), 6, "every worker would write"),
        (("torch.optim.Adam", "torch.optim.LBFGS"), 5, "LBFGS"),
        (("torch.optim.Adam(", "torch.optim.Adam(device='cuda:1', params="), 5, "cuda:1"),
        (("loss.backward()", "pass"), 1, "no training"),
        (("import torch\nfrom torch", "from other"), 1, "none of torch"),
    ],
)
def test_what_is_refused(change: tuple[str, str], line: int, reason: str) -> None:
    assert change[0] in TORCH
    with pytest.raises(NotUnderstood) as error:
        rewrite(TORCH.replace(*change))
    found = [each for each in error.value.refusals if reason in each.reason]
    assert [each.line for each in found] == [line] and found[0].by_hand


def test_a_training_in_a_print_is_refused() -> None:
    text = "import torch\nfrom torch.utils.data import DataLoader\n" + textwrap.dedent(
        """\
        loader = DataLoader(data, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        def train():
            for x in loader:
                model(x).backward()
                optimizer.step()
            return 1
        for epoch in range(3):
            print(train())
        """
    )
    with pytest.raises(NotUnderstood, match="line 11: it trains inside a call of print"):
        rewrite(text)


@pytest.mark.parametrize(
    ("framework", "change", "reason"),
    [
        ("tensorflow", ("keras.Input((64,)), ", ""), "and no loop was found that runs it"),
        (
            "tensorflow",
            ("with tf.GradientTape() as tape", "with tf.GradientTape() as a, tf.GradientTape() as tape"),
            "2",
        ),
        ("tensorflow", ("tf.data.Dataset.from_tensor_slices(train)", "batches(train)"), "no tf.data.Dataset"),
        ("keras", ("batch_size=32,", "steps_per_epoch=9,"), "of all data"),
        ("keras", ("model.compile(", "prepare("), "no model.compile()"),
        ("keras", ("model.fit(", "model.fit(*"), "trained with was not found"),
        ("jax", ("params, state, loss = step(", "result = step("), "no loop"),
        ("jax", ("images[batch], labels[batch]", "*batch"), "no array"),
        ("jax", ("jax.value_and_grad", "other"), "no jax.grad"),
    ],
)
def test_what_is_refused_of_other_frameworks(framework: str, change: tuple[str, str], reason: str) -> None:
    text = script(framework)
    assert change[0] in text
    with pytest.raises(NotUnderstood) as error:
        rewrite(text.replace(*change))
    assert any(reason in each.reason for each in error.value.refusals), error.value.refusals


@pytest.mark.parametrize(
    ("text", "reason", "page"),
    [
        ("import lightning\n\nlightning.Trainer().fit(Model(), loader)\n", "uses Lightning already", "lightning.md"),
        ("from pytorch_lightning import Trainer\n\nTrainer()\n", "uses Lightning already", "lightning.md"),
        ("from accelerate import Accelerator\n\nAccelerator()\n", "uses accelerate already", "accelerate.md"),
        ("import transformers as t\n\nt.Seq2SeqTrainer(model).train()\n", "Trainer distributes it", "transformers.md"),
        ("import torch\nfrom transformers import Trainer\nTrainer(m)\n", "Trainer distributes it", "transformers.md"),
    ],
)
def test_script_of_a_library_that_distributes_it_is_told_its_page(text: str, reason: str, page: str) -> None:
    with pytest.raises(NotUnderstood) as error:
        rewrite(text)
    (only,) = error.value.refusals
    assert reason in only.reason and page in only.by_hand


def test_script_with_a_model_of_transformers_and_its_own_loop_is_rewritten() -> None:
    changed = rewrite(TORCH.replace("import torch\n", "import torch\nfrom transformers import AutoModel\n", 1))
    assert changed.framework == "torch" and "hvd.DistributedOptimizer(" in changed.after


def test_the_error_travels() -> None:
    error = NotUnderstood([Refusal(2, "b", "c"), Refusal(1, "a", "c")])
    assert pickle.loads(pickle.dumps(error)).refusals == error.refusals and error.refusals[0].line == 1


# --- the verb ---------------------------------------------------------------------------------------------------------


def test_the_diff_is_printed_and_nothing_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(TORCH)
    assert main(["init", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out == rewrite(TORCH).diff(str(path)) and path.read_text() == TORCH
    assert "farandole init --write changes it" in told.err


def test_it_is_written_and_only_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(TORCH)
    path.chmod(0o750)
    assert main(["init", "--write", str(path)]) == 0
    assert path.read_text() == rewrite(TORCH).after and path.stat().st_mode & 0o777 == 0o750
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]
    capsys.readouterr()
    assert main(["init", "--write", str(path)]) == 0
    assert capsys.readouterr().err.startswith(f"farandole: {path} is already distributed: it averages gradients and")


def test_a_refusal_names_the_line_the_reason_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(TORCH.replace("shuffle=True", "sampler=mine"))
    assert main(["init", "--write", str(path)]) == 1
    told = capsys.readouterr()
    assert told.out == "" and f"\n  {path}:4: it has a sampler of its own\n      by hand: " in told.err
    assert "hvd" not in path.read_text()


def test_what_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, words in (("none", "cannot be read"), ("bytes", "is not UTF-8 text"), (".", "cannot be read")):
        assert main(["init", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
