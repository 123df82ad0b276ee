"""Hugging Face's Trainer on random sequences: a GPT of 10,000 parameters, 12 steps, three epochs, with dropout."""

import os
import signal

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from cloudtrain.runtime import destroy_process_group, detect_environment, integrations, model_dir

torch.manual_seed(1)
DATA = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (32, 8))]
SEEN = []


def collate(rows):
    """One batch. The last rank is asked to stop while it trains on batch STOP_AT."""
    SEEN.append(rows)
    if len(SEEN) == int(os.environ.get("STOP_AT", "0")) and detect_environment().rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


config = GPT2Config(
    vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
options = TrainingArguments(
    num_train_epochs=3,
    per_device_train_batch_size=4,
    logging_steps=1,
    save_strategy="epoch",
    eval_strategy="epoch",
    learning_rate=0.01,
    report_to=[],
    disable_tqdm=True,
    use_cpu=bool(os.environ.get("USE_CPU", "yes")),
)
trainer = Trainer(
    GPT2LMHeadModel(config), options, collate, train_dataset=DATA, eval_dataset=DATA[:4]
)
integrations.train(trainer)
trainer.save_model()
if detect_environment().is_main:
    print("saved", sorted(path.name for path in model_dir().glob("*.safetensors")))
destroy_process_group()
