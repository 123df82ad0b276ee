"""The training: TRL's trainer with an exact held-out loss, on copies of the model or on shares of it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import datasets
import torch
import torch.distributed as dist
import transformers
from examples import encode_rows, read_rows
from models import make_tiny, merge_adapter, read_model, read_tokenizer
from peft import LoraConfig
from prepare import pairs, write_pairs
from sharding import FullyShard, shard_on_cpus
from transformers import EarlyStoppingCallback, PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

from cloudtrain import runtime
from cloudtrain.runtime import integrations

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
UNSEEN = -100
"""The label of a token that is not predicted."""


class Trainer(SFTTrainer):
    """Its evaluation is the mean over all learned tokens of `held_out`, each counted once, so it depends neither on the
    number of processes nor on the batches."""

    held_out: list[dict[str, list[int]]]

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        """Return the held-out loss, and tell the callbacks."""
        model = self.model_wrapped
        model.eval()
        total = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        with torch.no_grad():
            for batch in self._shares():
                labels = batch.pop("labels")[:, 1:]
                with self.compute_loss_context_manager():
                    logits = model(**batch, use_cache=False).logits[:, :-1]
                learned = labels != UNSEEN
                loss = torch.nn.functional.cross_entropy(logits[learned].float(), labels[learned], reduction="sum")
                total += torch.stack([loss.double(), learned.sum().double()])
        if dist.is_initialized():
            dist.all_reduce(total)
        metrics = {f"{metric_key_prefix}_loss": (total[0] / total[1]).item()}
        self.log(metrics)
        model.train()
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _shares(self) -> Any:
        """Yield this process's batches. All processes yield equally many, because a sharded model computes together."""
        size, world, rank = self.args.per_device_eval_batch_size, self.args.world_size, self.args.process_index
        padding = self.processing_class.pad_token_id
        for start in range(0, len(self.held_out), size * world):
            rows = self.held_out[start + rank : start + size * world : world]
            rows = rows or [{"input_ids": self.held_out[0]["input_ids"], "completion_mask": []}]  # computed with, not counted
            width = max(len(row["input_ids"]) for row in rows)
            batch = torch.full((3, len(rows), width), padding)
            batch[1], batch[2] = 0, UNSEEN
            for number, row in enumerate(rows):
                ids, mask = torch.tensor(row["input_ids"]), torch.tensor(row["completion_mask"])
                batch[0, number, : len(ids)], batch[1, number, : len(ids)] = ids, 1
                if len(mask):
                    batch[2, number, : len(ids)] = torch.where(mask == 1, ids, UNSEEN)
            batch = batch.to(self.args.device)
            yield {"input_ids": batch[0], "attention_mask": batch[1], "labels": batch[2]}


def options_of(config: Any, precision: str, learning_rate: float) -> SFTConfig:
    """Return TRL's options. Where a name has changed between its versions, take the one that this version has."""
    names = {field.name for field in dataclasses.fields(SFTConfig)}
    sharded, looks = config.layout == "fsdp", "steps" if config.eval_steps else "no"
    recompute = config.gradient_checkpointing and not sharded  # a sharded model computes whole layers again
    checkpointing = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
    same = (
        "max_length packing per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
        "num_train_epochs max_steps lr_scheduler_type weight_decay max_grad_norm logging_steps save_total_limit seed"
    )
    best = config.early_stopping_patience > 0
    return SFTConfig(
        output_dir=str(runtime.checkpoint_dir()),
        **{name: getattr(config, name) for name in same.split()},
        **{checkpointing: recompute, f"{checkpointing}_kwargs": {"use_reentrant": False} if recompute else None},
        **({"fsdp": True, "fsdp_config": _shares_of(config)} if sharded else {}),
        **({"gradient_checkpointing": False} if not recompute else {}),
        learning_rate=learning_rate,
        warmup_steps=config.warmup_ratio,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
        completion_only_loss=True,
        eval_packing=False,
        eval_strategy=looks,
        eval_steps=config.eval_steps or None,
        eval_on_start=True,
        save_strategy="steps",
        save_steps=config.eval_steps if best else config.save_steps,
        load_best_model_at_end=best,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
    )


def _shares_of(config: Any) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "state_dict_type": "FULL_STATE_DICT",
        "cpu_ram_efficient_loading": False,
        "activation_checkpointing": config.gradient_checkpointing,
    }


def precision_of(config: Any) -> str:
    """Return the precision of the products.

    Raises:
        SetupError: fp16 without a GPU.
    """
    if config.precision == "fp16" and not torch.cuda.is_available():
        raise runtime.SetupError("fp16 needs a GPU, and none is visible", hint="use `--precision bf16`")
    if config.precision != "auto":
        return str(config.precision)
    return ("bf16" if runtime.has_bf16() else "fp16") if torch.cuda.is_available() else "fp32"


def split_rows(config: Any, examples: str) -> tuple[Any, Any]:
    """Return the rows to train on, shuffled, and the held-out rows."""
    rows = read_rows(examples, config.dataset_train_split).shuffle(seed=config.seed)
    if config.dataset_test_split:
        held_out = read_rows(examples, config.dataset_test_split)
        return rows, held_out.select(range(min(config.eval_rows, len(held_out))))
    cut = len(rows) - config.eval_rows
    if cut < 1:
        raise runtime.SetupError(
            f"{len(rows)} examples are too few to hold out {config.eval_rows}", hint="set a smaller `--eval_rows`"
        )
    return rows.select(range(cut)), rows.select(range(cut, len(rows)))


def tune(config: Any, place: str, examples: str) -> None:
    """Train, save to `model_dir()`, and print the held-out loss before and after."""
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    precision = precision_of(config)
    if config.layout == "fsdp" and not torch.cuda.is_available():
        shard_on_cpus()
    group = runtime.init_process_group()
    examples = examples or str(runtime.prepared("data/pairs", write_pairs))
    is_tiny = not place
    if is_tiny:
        texts = [message["content"] for pair in pairs() for message in pair["messages"]]
        place = str(runtime.prepared("data/tiny", lambda folder: make_tiny(folder, texts)))
    kind = "full" if not config.use_peft else "qlora" if config.load_in_4bit else "lora"
    # Weights of one kind cannot be loaded as another's, and a newer checkpoint would be.
    os.environ["CLOUDTRAIN_CHECKPOINT_DIR"] = str(runtime.checkpoint_dir() / f"{kind}-{config.layout}")

    learning_rate = config.learning_rate
    if learning_rate is None:
        learning_rate = 2e-3 if is_tiny else 2e-4 if config.use_peft else 2e-5
    frozen_only = config.use_peft and config.layout == "ddp" and torch.cuda.is_available()
    dtype = PRECISIONS[precision] if frozen_only else torch.float32  # weights that are trained stay fp32
    set_seed(config.seed)
    tokenizer = read_tokenizer(place)
    train_rows, held_out = (
        encode_rows(rows, tokenizer, config.max_length, config.completion_only_loss)
        for rows in split_rows(config, examples)
    )
    trainer = Trainer(
        read_model(place, dtype, config.attn_implementation, group.device, config.load_in_4bit),
        options_of(config, precision, learning_rate),
        train_dataset=train_rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
        peft_config=_adapter_of(config) if config.use_peft else None,
        callbacks=[EarlyStoppingCallback(config.early_stopping_patience)] if config.early_stopping_patience else None,
    )
    trainer.held_out = list(held_out)
    for weight in trainer.model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()  # TRL makes QLoRA's adapters bf16, which fp16's scaler cannot take
    trainer.remove_callback(PrinterCallback)  # cloudtrain's reports have the same numbers
    if config.layout == "fsdp":
        trainer.add_callback(FullyShard())
    if group.is_main:
        weights = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
        print(
            f"{kind} layout={config.layout} processes={group.world_size} device={group.device.type} precision={precision} "
            f"rows={len(train_rows)} trained weights={weights:,}",
            flush=True,
        )
    finish(config, trainer, place, dtype)


def _adapter_of(config: Any) -> LoraConfig:
    names = config.lora_target_modules
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=names if names == "all-linear" else names.split(","),
        task_type="CAUSAL_LM",
    )


def finish(config: Any, trainer: Trainer, place: str, dtype: torch.dtype) -> None:
    """Train to the end, save, compare, merge."""
    integrations.train(trainer)
    after = trainer.evaluate()["eval_loss"]
    before = next(row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row)
    trainer.save_model()
    folder = runtime.model_dir()
    saved = "adapter_model.safetensors" if config.use_peft else "*.safetensors"
    is_main = trainer.args.process_index == 0
    if is_main and not any(folder.glob(saved)):
        raise runtime.SetupError(f"the trainer has not written `{folder / saved}`", on_every_rank=False)
    runtime.destroy_process_group()
    if not is_main:
        return
    if config.merge:
        merge_adapter(place, folder, folder / "merged", dtype)
    print(f"held-out loss {before:.4f} before, {after:.4f} after ({after / before - 1:+.1%})", flush=True)
