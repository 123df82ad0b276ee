"""Fine-tune a language model of Hugging Face: all its weights, LoRA or QLoRA; DDP or FSDP2.

A tiny random model on questions about Python, in one process, in two, and sharded over two:
    python train.py
    torchrun --nproc-per-node 2 train.py
    torchrun --nproc-per-node 2 train.py --layout fsdp

A real model of 135 million weights, with LoRA:
    python prepare.py smollm2
    torchrun --nproc-per-node 2 train.py --use_peft --max_steps 8 --max_length 128

Your own model and examples; QLoRA; and a merged model that needs no peft:
    torchrun --nproc-per-node 8 train.py --model_name_or_path Qwen/Qwen3-8B --dataset_name my.jsonl --layout fsdp
    python train.py --model_name_or_path FOLDER --dataset_name my.jsonl --use_peft --load_in_4bit --packing --merge

As a job: this machine, Amazon SageMaker, Azure Machine Learning:
    cloudtrain submit job.yaml
    cloudtrain submit job.yaml --target sagemaker
    cloudtrain submit job.yaml --target azureml

Stop it with SIGTERM (or lose the spot instance) and run it again: it continues from its last checkpoint, and the losses
are those of a run that was never stopped.
"""

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

try:
    from cloudtrain import runtime
# not installed; in a checkout it stands two folders up, and the runtime is plain Python
except ModuleNotFoundError:
    sys.path.append(str(Path(__file__).resolve().parent.parent.parent))
    from cloudtrain import runtime


@dataclass
class Config:
    # a folder or a name of the Hub; else the input `base`; else a tiny random model
    model_name_or_path: str = ""
    # a file, a folder or a name of the Hub; else the input `examples`; else Python's docstrings
    dataset_name: str = ""
    dataset_train_split: str = "train"
    # held-out examples; else the last `eval_rows` of the shuffled training split
    dataset_test_split: str = ""
    eval_rows: int = 32  # of the held-out examples, at most
    completion_only_loss: bool = True  # learn the answers; False: questions too
    max_length: int = 1024  # tokens of one example
    # several examples in a row of `max_length` tokens, none of which sees another
    packing: bool = False

    use_peft: bool = False  # LoRA: train two thin matrices beside each frozen one
    lora_r: int = 16  # their width
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: str = "all-linear"  # or names: q_proj,v_proj
    load_in_4bit: bool = False  # QLoRA: the frozen weights in 4 bits; with `--use_peft`
    merge: bool = False  # LoRA: also save the whole model, in the subfolder `merged`

    layout: Literal["ddp", "fsdp"] = "ddp"  # each process holds the model, or a share of it
    # auto: bf16 or fp16, by the GPU; fp32 without one
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    attn_implementation: str = "sdpa"
    gradient_checkpointing: bool = True  # compute activations again instead of keeping them

    per_device_train_batch_size: int = 4  # rows of one process and micro-batch
    per_device_eval_batch_size: int = 4
    gradient_accumulation_steps: int = 1
    num_train_epochs: float = 1.0
    max_steps: int = -1  # wins over the epochs
    # else 2e-4 for LoRA, 2e-5 for all weights, 2e-3 for the tiny model
    learning_rate: float | None = None
    lr_scheduler_type: str = "cosine"
    warmup_ratio: float = 0.03  # of all steps
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    logging_steps: int = 5
    # steps between two looks at the held-out examples; 0: only before and after
    eval_steps: int = 0
    # stop after so many looks without a gain, and take the best; needs `eval_steps`
    early_stopping_patience: int = 0
    save_steps: int = 100
    save_total_limit: int = 2
    seed: int = 1
    # equal runs give equal losses on GPUs, too, at some cost in speed
    full_determinism: bool = False


AT_LEAST = {
    "eval_rows": 1, "max_length": 2, "lora_r": 1, "lora_alpha": 1, "lora_dropout": 0, "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1, "gradient_accumulation_steps": 1, "num_train_epochs": 0, "max_steps": -1,
    "learning_rate": 0, "warmup_ratio": 0, "weight_decay": 0, "max_grad_norm": 0, "logging_steps": 1, "eval_steps": 0,
    "early_stopping_patience": 0, "save_steps": 1, "save_total_limit": 1,
}  # fmt: skip


def check(config: Config) -> None:
    """Check that the options go together, and that the packages are installed."""
    if config.load_in_4bit and not config.use_peft:
        raise runtime.SetupError(
            "weights of 4 bits cannot be trained", hint="add `--use_peft`: LoRA beside them"
        )
    if config.load_in_4bit and config.layout == "fsdp":
        raise runtime.SetupError(
            "`--load_in_4bit` does not go with `--layout fsdp`", hint="use `--layout ddp`"
        )
    if config.merge and not config.use_peft:
        raise runtime.SetupError(
            "`--merge` needs an adapter", hint="add `--use_peft`; without it the model is whole"
        )
    if config.layout == "fsdp" and runtime.detect_environment().world_size == 1:
        raise runtime.SetupError(
            "`--layout fsdp` shards the model over several processes, and this is one",
            hint="`torchrun --nproc-per-node 2 train.py --layout fsdp`, or `--processes-per-instance 2` for a job",
        )
    if config.early_stopping_patience and not config.eval_steps:
        raise runtime.SetupError(
            "`--early_stopping_patience` needs looks at the held-out loss",
            hint="set `--eval_steps`",
        )
    needed = [
        "torch",
        "transformers",
        "trl",
        "peft",
        "datasets",
        *(["bitsandbytes"] if config.load_in_4bit else []),
    ]
    if missing := [name for name in needed if find_spec(name) is None]:
        file = "requirements-qlora.txt" if "bitsandbytes" in missing else "requirements.txt"
        raise runtime.SetupError(
            f"not installed: {', '.join(missing)}", hint=f"pip install -r {file}"
        )


def found_input(given: str, name: str) -> str:
    """Return what the user gave; else the input `name`, if the job or `data/` has it; else an empty text."""
    try:
        return given or str(runtime.input_dir(name))
    except runtime.SetupError:
        return ""


def main() -> None:
    config = runtime.arguments(Config, at_least=AT_LEAST)
    check(config)
    model, examples = (
        found_input(config.model_name_or_path, "base"),
        found_input(config.dataset_name, "examples"),
    )
    if all(not place or Path(place).exists() for place in (model, examples)):
        # read when the libraries are imported: nothing is looked up
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # blocks that grow: rows of other lengths leave no gaps between them
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # transformers would take all GPUs, with DataParallel
    if runtime.detect_environment().world_size == 1:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    # In a checkout meter.py and gpt.py stand only there (.cloudtraininclude); a copy and a bundle
    # have them here.
    sys.path += [
        str(Path(__file__).resolve().parent.parent / name) for name in ("gpt_fsdp", "pipeline_gpt")
    ]
    from tuning import tune

    tune(config, model, examples)


if __name__ == "__main__":
    main()
