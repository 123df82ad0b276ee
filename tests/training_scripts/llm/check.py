"""What the tests of llm_finetune look at with its own libraries: `check.py WHAT [FOLDER ...]`, in a folder with `data/`."""

import itertools
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
TURNS = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "First answer."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Second answer."},
    {"role": "user", "content": "Nobody answers this."},
]
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}{% else %}...{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Drops what an earlier answer said, as templates of reasoning models do."""


def masks() -> None:
    """Answers, and nothing else, are learned, whatever the form of the rows."""
    import models
    import rows

    tokenizer = models.read_tokenizer("data/tiny")

    def learned(row: dict) -> str:
        ids, mask, _ = rows.encode(row, tokenizer)
        assert len(ids) == len(mask)
        return tokenizer.decode([token for token, one in zip(ids, mask, strict=True) if one])

    assert learned({"messages": TURNS}) == "First answer.<|im_end|>\nSecond answer.<|im_end|>\n"
    assert learned({"prompt": TURNS[:3], "completion": TURNS[3:4]}) == "Second answer.<|im_end|>\n"
    assert learned({"prompt": "One? ", "completion": "Yes."}) == "Yes.<|im_end|>"
    assert learned({"text": "All of it."}) == "All of it.<|im_end|>"
    tokenizer.chat_template = FORGETFUL
    assert learned({"messages": TURNS}) == "Second answer.<|im_end|>\n"


def forms() -> None:
    """Files and folders, their splits, long rows, and what cannot be read."""
    import datasets
    import models
    import rows

    from cloudtrain.runtime import SetupError

    tokenizer = models.read_tokenizer("data/tiny")
    texts = [{"text": "word " * count} for count in (3, 300)]
    place = Path("forms")
    for folder in ("jsonl", "parquet", "split"):
        (place / folder).mkdir(parents=True)
    (place / "jsonl" / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    datasets.Dataset.from_list(texts).to_parquet(
        str(place / "parquet" / "train-00000-of-00001.parquet")
    )
    for split, count in (("train", 2), ("test", 1)):
        datasets.Dataset.from_list(texts[:count]).to_parquet(
            str(place / "split" / f"{split}-0.parquet")
        )
    datasets.Dataset.from_list(texts).save_to_disk(str(place / "saved"))
    datasets.DatasetDict({"train": datasets.Dataset.from_list(texts)}).save_to_disk(
        str(place / "dictionary")
    )
    for name in ("jsonl", "jsonl/mine.jsonl", "parquet", "split", "saved", "dictionary"):
        assert rows.read_rows(str(place / name), "train").to_list() == texts, name
    assert len(rows.read_rows(str(place / "split"), "test")) == 1
    said = []
    for wrong, split in (("jsonl", "test"), ("dictionary", "test"), ("nothing.jsonl", "train")):
        try:
            rows.read_rows(str(place / wrong), split)
        except SetupError as error:
            said.append(error.message)
    assert [message.split("` that")[0].split("`")[-1] for message in said] == [
        "test",
        "test",
        "train",
    ]

    read = rows.read_rows(str(place / "saved"), "train")
    encoded = rows.encode_rows(read, tokenizer, 50, True)
    whole = rows.encode_rows(read, tokenizer, 10_000, True)
    assert max(map(len, encoded["input_ids"])) == 50
    pieces, texts = (
        [token for ids in found["input_ids"] for token in ids] for found in (encoded, whole)
    )
    assert pieces == texts[: len(pieces)]
    # a last piece of one token has nothing to be predicted from
    assert len(pieces) >= len(texts) - 1
    chats = datasets.Dataset.from_list(
        [{"messages": TURNS}, {"messages": [{**TURNS[0], "content": "x " * 99}, TURNS[1]]}]
    )
    assert len(rows.encode_rows(chats, tokenizer, 40, True)) == 1  # the other's answer is cut off
    assert all(
        0 not in mask for mask in rows.encode_rows(chats, tokenizer, 40, False)["completion_mask"]
    )


def packed() -> None:
    """A row of several examples has the loss and the gradients of the examples one by one."""
    import torch
    from train import Config
    from tuning import make_trainer, options_of

    config = Config(
        max_length=256, packing=True, per_device_train_batch_size=1, gradient_checkpointing=False
    )
    trainer = make_trainer(
        config, "data/tiny", "data/pairs", torch.float32, options_of(config, "fp32", 1e-3)
    )
    model = trainer.model.train()
    batch = next(iter(trainer.get_train_dataloader()))
    starts = [
        *(batch["position_ids"][0] == 0).nonzero().flatten().tolist(),
        batch["input_ids"].shape[1],
    ]
    assert len(starts) > 2, "the row has one example"
    assert "attention_mask" not in batch
    trainer.compute_loss(model, dict(batch)).backward()
    together = [weight.grad.clone() for weight in model.parameters()]
    model.zero_grad()
    learned = (batch["labels"] != -100).sum()
    assert 0 < learned < batch["labels"].numel()
    for start, end in itertools.pairwise(starts):
        ids, labels = batch["input_ids"][:, start:end], batch["labels"][0, start + 1 : end]
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / learned
        loss.backward()
    for weight, other in zip(model.parameters(), together, strict=True):
        assert (weight.grad - other).norm() <= 1e-4 * other.norm(), "the examples see each other"


def flops() -> None:
    """As gpt_fsdp counts the same shape; a frozen weight costs 4 instead of 6."""
    import gpt
    import torch
    from train import Config
    from tuning import flops_per_token, make_trainer, options_of

    shape = gpt.Shape(4, 8, 256, 64, 2048, "llama", kv_heads=2, feed_width=704)
    whole, beside = (
        flops_per_token(
            make_trainer(
                config, "data/tiny", "data/pairs", torch.float32, options_of(config, "fp32", 1e-3)
            ).model,
            64,
        )
        for config in (Config(max_length=64), Config(max_length=64, use_peft=True, lora_r=1))
    )
    assert whole == gpt.flops_per_token(shape)
    looking_back = 12 * 4 * 256 * 64
    assert 4 / 6 < (beside - looking_back) / (whole - looking_back) < 0.69


def merged(folder: str, start: str = "data/tiny") -> None:
    """The model with the adapter beside it, and the merged model that needs no peft, say the same, and something new."""
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    asked = AutoTokenizer.from_pretrained(folder)(
        "What does `os.path.join` do?", return_tensors="pt"
    )["input_ids"]
    with torch.no_grad():
        beside = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(asked).logits
        alone = AutoModelForCausalLM.from_pretrained(f"{folder}/merged", dtype=torch.float32)(
            asked
        ).logits
        before = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)(asked).logits
    assert AutoTokenizer.from_pretrained(f"{folder}/merged").chat_template
    assert (beside - alone).abs().max() <= 1e-4 * beside.abs().max()
    assert (before - alone).abs().max() > 1e-3 * beside.abs().max()


def alike(*folders: str) -> None:
    """Whole models of two trainings say the same in transformers, and something else than before."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    asked = AutoTokenizer.from_pretrained(folders[0])(
        "What does `os.path.join` do?", return_tensors="pt"
    )["input_ids"]
    with torch.no_grad():
        places = (*folders, "data/tiny")
        one, other, before = (
            AutoModelForCausalLM.from_pretrained(place)(asked).logits for place in places
        )
    assert (one - other).abs().max() <= 1e-3 * one.abs().max()
    assert (one - before).abs().max() > 1e-2 * one.abs().max()


if __name__ == "__main__":
    sys.path.insert(0, os.environ["LLM_FINETUNE"])
    sys.path += [
        str(Path(os.environ["LLM_FINETUNE"]).parent / name) for name in ("gpt_fsdp", "pipeline_gpt")
    ]
    checks = {
        "masks": masks,
        "forms": forms,
        "packed": packed,
        "merged": merged,
        "alike": alike,
        "flops": flops,
    }
    checks[sys.argv[1]](*sys.argv[2:])
    print("checked")
