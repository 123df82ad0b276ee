"""The training: TRL's trainer with an exact held-out loss, on copies of the model or on shares of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import datasets
import torch
import torch.distributed as dist
import transformers
from meter import peak_mib, peak_of
from models import make_tiny, merge_adapter, read_model, read_on_one, read_tokenizer
from peft import LoraConfig
from prepare import data_folder, pairs, write_pairs
from rows import encode_rows, read_rows
from sharding import shard_on_cpus
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from cloudtrain import runtime
from cloudtrain.runtime import integrations

SAME = (
    "max_length packing per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
    "num_train_epochs max_steps lr_scheduler_type weight_decay max_grad_norm logging_steps save_total_limit seed "
    "full_determinism"
).split()  # options that are passed on as they are
UNSEEN = -100  # the label of a token that is not predicted


class Trainer(SFTTrainer):
    """Evaluates as the mean over all answers' tokens of `held_out`, each counted once. So the loss depends neither on
    the number of processes nor on the batches, as that of the Trainer does."""

    held_out: list[dict[str, list[int]]]
    is_sharded: bool

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        model = self.model_wrapped
        if (
            self.is_sharded
            and sum(isinstance(module, FSDPModule) for module in model.modules()) < 2
        ):
            raise runtime.SetupError(
                f"no layer of `{type(model).__name__}` is sharded", hint="use `--layout ddp`"
            )
        model.eval()
        total = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        for batch in self._shares():
            labels = batch.pop("labels")[:, 1:]
            with torch.no_grad(), self.compute_loss_context_manager():
                logits = model(**batch, use_cache=False).logits[:, :-1]
            learned = labels != UNSEEN
            loss = torch.nn.functional.cross_entropy(
                logits[learned].float(), labels[learned], reduction="sum"
            )
            total += torch.stack([loss.double(), learned.sum().double()])
        dist.all_reduce(total)
        metrics = {"eval_loss": (total[0] / total[1]).item()}
        self.log(metrics)
        model.train()
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def _shares(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield this process's batches. All processes yield equally many, because a sharded model computes together."""
        size, world, rank = (
            self.args.per_device_eval_batch_size,
            self.args.world_size,
            self.args.process_index,
        )
        for start in range(0, len(self.held_out), size * world):
            rows = self.held_out[start + rank : start + size * world : world]
            # computed with, not counted
            rows = rows or [{**self.held_out[0], "completion_mask": [0]}]
            width = max(len(row["input_ids"]) for row in rows)
            ids = torch.full((len(rows), width), self.processing_class.pad_token_id)
            seen, labels = torch.zeros_like(ids), torch.full_like(ids, UNSEEN)
            for number, row in enumerate(rows):
                tokens, length = torch.tensor(row["input_ids"]), len(row["input_ids"])
                ids[number, :length], seen[number, :length] = tokens, 1
                labels[number, :length] = torch.where(
                    torch.tensor(row["completion_mask"]) == 1, tokens, UNSEEN
                )
            batch = {"input_ids": ids, "attention_mask": seen, "labels": labels}
            yield {name: part.to(self.args.device) for name, part in batch.items()}


class Speed(TrainerCallback):
    """Tokens per second between two reports, without padding; the first one, with warm-up, does not count."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "num_tokens" in logs and "loss" in logs:
            self.seen.append((time.perf_counter(), logs["num_tokens"]))

    def summary(self, model: torch.nn.Module, length: int, group: Any, precision: str) -> str:
        """Return the speed, the most memory and, where the GPU's peak is known, MFU in one line."""
        if len(self.seen) < 2:
            return "too few reports to measure a speed"
        speed = median(
            (after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(self.seen)
        )
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        text = f"{speed:,.0f} tokens/s, {peak_mib(group.device):,.0f} MiB at most"
        peak = peak_of(name) if precision == "bf16" else None  # the table is of bf16
        if peak:
            text += f", MFU {flops_per_token(model, length) * speed / peak / group.world_size:.1%}"
        return f"{text} ({name})"


def flops_per_token(model: torch.nn.Module, length: int) -> int:
    """Return the operations of forward and backward for one token: 6 for each weight that is multiplied with, 4 for a
    frozen one, which gets no gradient, and attention as if a token saw the whole row (see gpt.py). What is computed
    again does not count."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    products = sum(
        (6 if layer.weight.requires_grad else 4) * layer.in_features * layer.out_features
        for layer in layers
    )
    shape: Any = model.config
    heads = shape.num_attention_heads
    width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    return products + 12 * int(shape.num_hidden_layers) * heads * width * length


class Options(SFTConfig):
    """TRL's options. On CPUs, accelerate's `cpu:1` is no device that transformers 5.3 can load an optimizer to."""

    @property
    def device(self) -> torch.device:
        device = super().device
        return device if device.type == "cuda" else torch.device("cpu")


def options_of(config: Any, precision: str, learning_rate: float) -> Options:
    takes_best = config.early_stopping_patience > 0
    # that of `fsdp_config` adds a word to the names of saved weights
    recompute = config.gradient_checkpointing
    shares = {
        "fsdp_version": 2,
        "cpu_ram_efficient_loading": True,  # the shares come from the first process
        "state_dict_type": "FULL_STATE_DICT",
    }
    return Options(
        output_dir=str(runtime.checkpoint_dir()),
        **{name: getattr(config, name) for name in SAME},
        **({"fsdp": True, "fsdp_config": shares} if config.layout == "fsdp" else {}),
        gradient_checkpointing=recompute, gradient_checkpointing_kwargs={"use_reentrant": False} if recompute else None,
        bf16=precision == "bf16", fp16=precision == "fp16", use_cpu=not torch.cuda.is_available(),
        learning_rate=learning_rate, warmup_steps=config.warmup_ratio, ddp_find_unused_parameters=False,
        completion_only_loss=True, eval_packing=False, eval_on_start=True, eval_steps=config.eval_steps or None,
        eval_strategy="steps" if config.eval_steps else "no", report_to="none", disable_tqdm=True,
        save_steps=config.eval_steps if takes_best else config.save_steps, load_best_model_at_end=takes_best,
        metric_for_best_model="eval_loss", greater_is_better=False,
    )  # fmt: skip


def precision_of(config: Any) -> str:
    has_gpu = torch.cuda.is_available()
    if config.precision == "fp16" and not has_gpu:
        raise runtime.SetupError(
            "fp16 needs a GPU, and none is visible", hint="use `--precision bf16`"
        )
    best = "fp32" if not has_gpu else "bf16" if runtime.has_bf16() else "fp16"
    return best if config.precision == "auto" else str(config.precision)


def split_rows(config: Any, examples: str) -> tuple[Any, Any]:
    """Return the rows to train on, shuffled, and the held-out rows."""
    rows = read_rows(examples, config.dataset_train_split).shuffle(seed=config.seed)
    if config.dataset_test_split:
        held_out = read_rows(examples, config.dataset_test_split)
        return rows, held_out.select(range(min(config.eval_rows, len(held_out))))
    cut = len(rows) - config.eval_rows
    if cut < 1:
        raise runtime.SetupError(
            f"{len(rows)} examples, {config.eval_rows} held out", hint="lower `--eval_rows`"
        )
    return rows.select(range(cut)), rows.select(range(cut, len(rows)))


def make_trainer(
    config: Any, place: str, examples: str, dtype: torch.dtype, options: Options
) -> Trainer:
    """Return the trainer of the model at `place`, with the rows of `examples` as tokens."""
    tokenizer = read_tokenizer(place)
    train_rows, held_out = (
        encode_rows(rows, tokenizer, config.max_length, config.completion_only_loss)
        for rows in split_rows(config, examples)
    )
    names, patience = config.lora_target_modules, config.early_stopping_patience
    adapter = LoraConfig(
        r=config.lora_r, lora_alpha=config.lora_alpha, lora_dropout=config.lora_dropout, task_type="CAUSAL_LM",
        target_modules=names if names == "all-linear" else names.split(","),
    )  # fmt: skip
    attention = config.attn_implementation
    if config.layout == "fsdp":
        model = read_on_one(place, dtype, attention)
    else:
        model = read_model(place, dtype, attention, options.device, config.load_in_4bit)
    model.config.use_cache = False
    trainer = Trainer(
        model, options, train_dataset=train_rows, eval_dataset=held_out, processing_class=tokenizer,
        peft_config=adapter if config.use_peft else None,
        callbacks=[EarlyStoppingCallback(patience)] if patience else None,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # cloudtrain's reports have the same numbers
    trainer.held_out, trainer.is_sharded = list(held_out), config.layout == "fsdp"
    if trainer.is_fsdp_enabled:  # transformers 5.3 does not pass these on, and would shard no layer
        plugin = trainer.accelerator.state.fsdp_plugin
        plugin.auto_wrap_policy = transformer_auto_wrap_policy
        plugin.transformer_cls_names_to_wrap = list(model._no_split_modules)
    for weight in trainer.model.parameters():
        if weight.requires_grad:
            # TRL makes QLoRA's adapters bf16, which fp16's scaler cannot take
            weight.data = weight.data.float()
    return trainer


def tune(config: Any, place: str, examples: str) -> None:
    """Train, save to `model_dir()`, and print the held-out loss before and after."""
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    precision, learning_rate = precision_of(config), config.learning_rate
    if learning_rate is None:
        learning_rate = 2e-3 if not place else 2e-4 if config.use_peft else 2e-5
    if config.layout == "fsdp" and not torch.cuda.is_available():
        shard_on_cpus()
    examples = examples or str(runtime.prepared(data_folder("pairs"), write_pairs))
    place = place or str(
        runtime.prepared(
            data_folder("tiny"), lambda folder: make_tiny(folder, pairs(), config.seed)
        )
    )
    # in a group, `save_pretrained` writes nothing but on rank 0
    group = runtime.init_process_group()
    kind = "full" if not config.use_peft else "qlora" if config.load_in_4bit else "lora"
    # Weights of one kind cannot be loaded as another's, so each has its own checkpoints.
    os.environ["CLOUDTRAIN_CHECKPOINT_DIR"] = str(
        runtime.checkpoint_dir() / f"{kind}-{config.layout}"
    )
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    frozen = config.use_peft and config.layout == "ddp" and torch.cuda.is_available()
    dtype = kinds[precision] if frozen else torch.float32  # what is trained stays fp32
    set_seed(config.seed)
    trainer = make_trainer(
        config, place, examples, dtype, options_of(config, precision, learning_rate)
    )
    if group.is_main:
        weights = sum(
            weight.numel() for weight in trainer.model.parameters() if weight.requires_grad
        )
        facts = f"layout={config.layout} processes={group.world_size} device={group.device.type} precision={precision}"
        print(
            f"{kind} {facts} rows={len(trainer.train_dataset)} trained_weights={weights:,}",
            flush=True,
        )
    trainer.add_callback(speed := Speed())
    integrations.train(trainer)
    after = trainer.evaluate()["eval_loss"]
    before = next(row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row)
    # transformers 5.3 writes checkpoints in shares; of those, `save_model` writes nothing
    if trainer.is_fsdp_enabled:
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model()
    folder = runtime.model_dir()
    if group.is_main and not any(
        folder.glob("adapter_model.safetensors" if config.use_peft else "model*.safetensors")
    ):
        raise runtime.SetupError(
            f"the trainer has not written the weights to `{folder}`", on_every_rank=False
        )
    summary = speed.summary(trainer.model, config.max_length, group, precision)
    runtime.destroy_process_group()
    if group.is_main:
        print(summary)
        if config.merge:
            merge_adapter(place, folder, folder / "merged", dtype)
        print(
            f"held-out loss {before:.4f} before, {after:.4f} after ({after / before - 1:+.1%})",
            flush=True,
        )
