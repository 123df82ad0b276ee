"""A small Llama learns Python's own manual with the Trainer of transformers.

torchrun --nproc-per-node 2 train.py --output_dir out --num_train_epochs 2
"""

import pydoc_data.topics
from dataclasses import dataclass

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

from cloudtrain.runtime import destroy_process_group, integrations


@dataclass
class Model:
    hidden_size: int = 64
    layers: int = 2
    context: int = 64  # bytes
    rows: int = 512  # texts of that length; every eighth is held out


def read_rows(model: Model) -> list[dict[str, torch.Tensor]]:
    size = model.rows * model.context
    text = "\n".join(pydoc_data.topics.topics.values()).encode()[:size]
    rows = torch.tensor(list(text)).view(-1, model.context)
    return [{"input_ids": row, "labels": row} for row in rows]


if __name__ == "__main__":
    parser = HfArgumentParser((Model, TrainingArguments))
    parser.set_defaults(use_cpu=not torch.cuda.is_available())
    model, options = parser.parse_args_into_dataclasses()
    set_seed(options.seed)
    rows = read_rows(model)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=model.hidden_size,
        intermediate_size=4 * model.hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=4,
        max_position_embeddings=model.context,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        options,
        train_dataset=[row for number, row in enumerate(rows) if number % 8],
        eval_dataset=rows[::8],
    )
    integrations.train(trainer)
    trainer.save_model()
    print(trainer.evaluate())
    destroy_process_group()
