"""Run by an interpreter that has transformers, for `test_gpt_transformers.py`.

python gpt_check.py make FOLDER               small random models of transformers, and tokens to learn from
python gpt_check.py train FOLDER NAME         print the losses of ten steps by transformers, as JSON
python gpt_check.py held_out FOLDER EXPORTED  print the loss of exported models on the held-out tokens, as JSON
python gpt_check.py logits EXPORTED ...       print how far transformers' logits are from gpt_fsdp's, as JSON
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).parents[3]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "training_scripts" / name) for name in ("pipeline_gpt", "gpt_fsdp")),
]

import data  # noqa: E402
import gpt  # noqa: E402
import huggingface  # noqa: E402
import numpy as np  # noqa: E402, TID253
import torch  # noqa: E402, TID253
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config  # noqa: E402
from transformers.utils import logging  # noqa: E402

CONTEXT, BATCH, STEPS, RATE, DECAY = 32, 8, 10, 3e-3, 0.1
COMMON = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "max_position_embeddings": 64}  # fmt: skip
MODELS = {
    "llama": (LlamaConfig, {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 500_000.0}),
    "smollm2": (  # 9 heads, 3 of keys and values, tied
        LlamaConfig,
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "tie_word_embeddings": True},
    ),
    "tied": (LlamaConfig, {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}),
}  # fmt: skip


def make(folder: Path) -> None:
    """Write each model, with weights that matter, and a file of tokens."""
    for number, (name, (kind, changes)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        model = AutoModelForCausalLM.from_config(kind(**{**COMMON, **changes}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.08)
        model.save_pretrained(folder / name, max_shard_size="100KB" if name == "llama" else "5GB")
    (folder / "text").mkdir()
    draw = np.random.default_rng(1)
    for name, count in (("train", 4000), ("val", 400)):
        (draw.integers(0, 10, count).cumsum() % 300).astype(np.uint16).tofile(
            folder / "text" / f"{name}.bin"
        )


def train(folder: Path, name: str) -> list[float]:
    """Train as gpt_fsdp does, on the same windows."""
    model = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
    corpus, _ = data.read_corpus(folder / "text", CONTEXT, 300)
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": DECAY},
        {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    losses = []
    for step in range(STEPS):
        inputs, following, documents = corpus.batch(corpus.at(step * BATCH, BATCH, seed=1))
        assert documents is None
        loss = gpt.loss_of(model(inputs, use_cache=False).logits, following)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def held_out(text: Path, folder: Path) -> float:
    """Return transformers' loss on the windows that gpt_fsdp's test has."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    _, corpus = data.read_corpus(text, CONTEXT, 300)
    inputs, following, _ = corpus.batch([number % corpus.windows for number in range(64)])
    return gpt.loss_of(model(inputs, use_cache=False).logits, following).item()


@torch.no_grad()
def difference(folder: Path) -> dict[str, float]:
    """Compare the logits of an exported model in both programs."""
    shape = gpt.Shape(context=CONTEXT, **huggingface.shape_in(folder))
    ours = gpt.GPT(shape)
    huggingface.read_weights(ours, folder)
    tokens = torch.randint(
        shape.vocabulary, (2, CONTEXT), generator=torch.Generator().manual_seed(0)
    )
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits = theirs(tokens, use_cache=False).logits
    return {
        "difference": (ours(tokens) - logits).abs().max().item(),
        "range": (logits.max() - logits.min()).item(),
    }


if __name__ == "__main__":
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    command, *arguments = sys.argv[1:]
    if command == "make":
        make(Path(arguments[0]))
    elif command == "train":
        print(json.dumps({name: train(Path(arguments[0]), name) for name in arguments[1:]}))
    elif command == "held_out":
        print(
            json.dumps(
                {folder: held_out(Path(arguments[0]), Path(folder)) for folder in arguments[1:]}
            )
        )
    else:
        print(json.dumps({folder: difference(Path(folder)) for folder in arguments}))
