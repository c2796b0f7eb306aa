"""Scripts that are distributed in part, several passes for a step, trainer classes, and batches that stay as large."""

from __future__ import annotations

import pytest
from scripts_to_rewrite import BATCHES, TORCH, added, script

from farandole.control.rewriting.refusal import NotUnderstood
from farandole.control.rewriting.rewrite import rewrite


def without(text: str, *words: str) -> str:
    """Return a script without the lines that have one of these words."""
    return "".join(line for line in text.splitlines(keepends=True) if not any(word in line for word in words))


@pytest.mark.parametrize(
    ("framework", "piece"),
    [
        ("torch", "hvd.DistributedOptimizer("),
        ("torch", "hvd.init()"),
        ("tensorflow", "hvd.DistributedGradientTape("),
        ("tensorflow", "hvd.broadcast_variables("),
        ("jax", "hvd.broadcast_parameters("),
        ("jax", "hvd.rank() : len"),
    ],
)
def test_missing_piece_is_added_again_and_the_rest_stays(framework: str, piece: str) -> None:
    whole = rewrite(script(framework)).after
    assert piece in whole
    again = rewrite(without(whole, piece))
    assert again.framework == framework and piece in again.after
    assert again.after.count("hvd.init()") == again.after.count("as hvd") == 1
    assert rewrite(again.after).framework == ""


def test_import_of_farandole_is_not_taken_for_gradients_that_are_reduced() -> None:
    whole = rewrite(script("jax")).after
    again = rewrite(whole.replace("hvd.distributed_value_and_grad", "jax.value_and_grad"))
    assert again.framework == "jax" and again.after == whole


SAMPLED = TORCH.replace("shuffle=True", "sampler=Mine(data)")


def test_script_is_understood_after_the_instructions_of_a_refusal_are_followed() -> None:
    with pytest.raises(NotUnderstood, match="a sampler of its own"):
        rewrite(SAMPLED)
    followed = SAMPLED.replace("Mine(data)", "DistributedSampler(data, hvd.size(), hvd.rank())").replace(
        "import DataLoader\n", "import DataLoader, DistributedSampler\nimport farandole.torch as hvd\n"
    )
    after = rewrite(followed).after
    assert after.count("sampler=") == 1 and "hvd.init()\n" in after
    assert "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())" in after
    assert rewrite(after).framework == ""


def test_files_written_by_rank_0_are_no_reason_to_refuse() -> None:
    text = rewrite(TORCH).after + "if hvd.rank() == 0:\n    file = open('log', 'w')\n"
    assert rewrite(text).framework == ""


def test_farandole_under_another_name_is_known_but_not_edited() -> None:
    whole = rewrite(TORCH).after.replace("as hvd", "as fd").replace("hvd.", "fd.")
    assert rewrite(whole).framework == ""
    with pytest.raises(NotUnderstood, match="under another name"):
        rewrite(without(whole, "fd.DistributedOptimizer(", "fd.broadcast"))


ACCUMULATED = """\
    for i, (x, y) in enumerate(loader):
        (loss_of(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
"""


def accumulated(condition: str) -> str:
    head = TORCH[: TORCH.index("    for x, y")]
    return head + ACCUMULATED.replace("(i + 1) % 4 == 0", condition)


def test_accumulated_gradients_are_reduced_once_in_a_step() -> None:
    after = rewrite(accumulated("(i + 1) % 4 == 0")).after
    assert "DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=4)" in after
    assert after.endswith(
        """\
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.synchronize()  # from here on gradients are those of all workers
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
"""
    )


def test_step_after_last_pass_of_an_epoch_stays_as_the_script_has_it() -> None:
    condition = "(i + 1) % 4 == 0 or (i + 1) == len(loader)"
    assert f"        if {condition}:\n" in rewrite(accumulated(condition)).after


@pytest.mark.parametrize("condition", ["last", "(i + 1) % unknown == 0", "not i % 4"])
def test_unknown_number_of_passes_is_refused_with_the_lines_to_write(condition: str) -> None:
    with pytest.raises(NotUnderstood, match="their number was not found") as error:
        rewrite(accumulated(condition))
    assert "backward_passes_per_step=N" in error.value.refusals[0].by_hand


TRAINER = """\
import torch
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader

    def train(self, epoch):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss_of(self.model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

loader = DataLoader(data, batch_size=8, shuffle=True)
model = make()
optimizer = torch.optim.Adam(model.parameters())
trainer = Trainer(model, optimizer, loader)
for epoch in range(3):
    trainer.train(epoch)
"""


def test_trainer_class_that_is_given_model_optimizer_and_loader() -> None:
    lines = added(TRAINER)
    assert "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())" in lines
    assert "self.loader.sampler.set_epoch(epoch)" in lines
    assert "self.optimizer.synchronize()  # from here on gradients are those of all workers" in lines
    assert "with self.optimizer.skip_synchronize():" in lines


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TORCH, "batch_size=max(1, 8 // hvd.size())"),
        (script("keras"), "batch_size=max(1, 32 // hvd.size())"),
        (script("tensorflow"), ".batch(max(1, 32 // hvd.size()))"),
    ],
)
def test_batch_of_all_workers_may_stay_as_large_as_it_was(text: str, line: str) -> None:
    assert line not in rewrite(text).after
    assert any("--keep-batch" in note for note in rewrite(text).notes)
    kept = rewrite(text, keep_batch=True)
    assert line in kept.after
    assert not any("--keep-batch" in note for note in kept.notes)


def test_batch_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="where the batch size is set"):
        rewrite(BATCHES, keep_batch=True)
