"""Train a small GPT-2 with transformers' Trainer: transformers_training.py FOLDER [BACKEND].

Without a backend, the Trainer creates the process group itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class WithSpareLayer(GPT2LMHeadModel):
    """GPT-2 with a layer that no loss depends on."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.spare = torch.nn.Linear(4, 4)
        self.post_init()


def make_model() -> WithSpareLayer:
    """Return a model of two layers with random weights, the same on all ranks."""
    set_seed(0)
    size = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return WithSpareLayer(GPT2Config(**size, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLMLoss"))


def train(folder: str, *, resume: bool = False) -> dict[str, Any]:
    """Train for 8 steps of two batches each, with a checkpoint after the fourth, or go on from that."""
    rows = [(torch.arange(16) * step + begin) % 50 for step in (1, 2, 3, 5) for begin in range(32)]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=8,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        ddp_find_unused_parameters=True,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=make_model(), args=arguments, train_dataset=data, eval_dataset=data[:16])
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-4" if resume else None)
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return {
        "workers": arguments.world_size,
        "losses": losses,
        "evaluated": trainer.evaluate()["eval_loss"],
        "weights": sum(each.double().abs().sum().item() for each in trainer.model.parameters()),
    }


def main() -> None:
    """Print what has been computed, as JSON."""
    folder, *backend = sys.argv[1:]
    if backend:
        dist.init_process_group(backend[0])
    whole = train(folder)
    resumed = train(folder, resume=True)
    print(json.dumps({"whole": whole, "resumed": resumed, "backend": dist.get_backend()}))


if __name__ == "__main__":
    main()
