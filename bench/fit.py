"""Hold estimates of `cloudtrain fit` against the bytes that the same scripts really allocate on a CPU.

    python bench/fit.py [--json FILE] [--only WORD ...]        (needs torch; about ten minutes on two cores)
    python bench/fit.py --estimate SCRIPT [OPTION ...]         only the estimate of one process

Scripts of packages that are not installed are left out; `--python` names an interpreter that has them (transformers,
monai). Each script runs twice: really, with the profiler of PyTorch's CPU allocator (`bench/allocated.py`), and as
`cloudtrain fit` runs it, on tensors without memory. Real runs of several ranks are several processes over gloo, and
rank 0 counts. Exit code 1 when an estimate is wrong by more than its row allows.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "training_scripts"
PROBE = ROOT / "cloudtrain" / "estimate" / "probe"


class Case(NamedTuple):
    """A script to run. `script` is a path below `training_scripts`, or the text of a script."""

    name: str
    script: str
    arguments: Sequence[str] = ()
    ranks: int = 1
    rank: int = 0
    allowed: float = 0.05
    """The share by which the estimate may differ."""
    needs: str = ""
    """A package that the script imports, besides torch."""


MLP = """
    import torch
    from torch import nn
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(5):
        x, y = torch.randn(256, 512), torch.randint(0, 10, (256,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
"""

DDP = """
    import os, sys, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
    model = DistributedDataParallel(model, gradient_as_bucket_view="view" in sys.argv)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        x, y = torch.randn(128, 512), torch.randint(0, 10, (128,))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

BLOCKS = """
    import sys, torch, torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, s, w = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Lora(nn.Module):
        def __init__(self, linear, rank=8):
            super().__init__()
            self.linear = linear.requires_grad_(False)
            self.a = nn.Linear(linear.in_features, rank, bias=False)
            self.b = nn.Linear(rank, linear.out_features, bias=False)

        def forward(self, x):
            return self.linear(x) + self.b(self.a(x))

    class Model(nn.Module):
        def __init__(self, width=256, layers=6, words=2000):
            super().__init__()
            self.embedding = nn.Embedding(words, width)
            self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
            self.head = nn.Linear(width, words)

        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if "recompute" in sys.argv else block(x)
            return self.head(x)

    model = Model()
    if "lora" in sys.argv:
        model.requires_grad_(False)
        for block in model.blocks:
            block.qkv, block.out = Lora(block.qkv), Lora(block.out)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-3)
    parts = 4 if "accumulate" in sys.argv else 1
    for step in range(5):
        for part in range(parts):
            tokens = torch.randint(0, 2000, (8, 129))
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / parts
            loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item():.4f}")
"""

TRAINER = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            words = torch.randint(0, 2000, (128,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": words, "labels": words}

    sizes = dict(hidden_size=256, intermediate_size=704, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2000, num_hidden_layers=4, **sizes))
    arguments = TrainingArguments("out", per_device_train_batch_size=8, report_to=[], use_cpu=True)
    Trainer(model, arguments, train_dataset=Words()).train()
"""

GPT = ("--width", "256", "--heads", "4", "--layers", "4", "--context", "128", "--global_batch", "8",
       "--checkpoint_every", "0", "--steps", "5")  # fmt: skip

PIPELINE = (*GPT, "--global_batch", "16", "--microbatches", "8", "--layers", "6", "--balance", "blocks",
            "--checkpoint_every", "99")  # fmt: skip

RESNET = ("--steps", "5", "--checkpoint_every", "99", "--cuts", "layer2.3")

CASES = (
    Case("plain MLP", MLP),
    Case("decoder", BLOCKS),
    Case("decoder, accumulated", BLOCKS, ("accumulate",)),
    Case("decoder, recomputed", BLOCKS, ("recompute",)),
    Case("decoder, LoRA", BLOCKS, ("lora",)),
    Case("DDP", DDP, (), 2),
    Case("DDP, views of buckets", DDP, ("view",), 2),
    Case("gpt_fsdp, one process", "gpt_fsdp/train.py", GPT),
    Case("gpt_fsdp, ddp", "gpt_fsdp/train.py", (*GPT, "--layout", "ddp"), 2),
    Case("gpt_fsdp, fsdp", "gpt_fsdp/train.py", GPT, 2),
    Case("gpt_fsdp, accumulated", "gpt_fsdp/train.py", (*GPT, "--accumulate", "2"), 2),
    Case(
        "gpt_fsdp, ddp, accumulated",
        "gpt_fsdp/train.py",
        (*GPT, "--layout", "ddp", "--accumulate", "2"),
        2,
    ),
    Case(
        "gpt_fsdp, gradients whole until the last part",
        "gpt_fsdp/train.py",
        (*GPT, "--accumulate", "2", "--sync_each_part", "False"),
        2,
    ),
    Case("gpt_fsdp, context parallel", "gpt_fsdp/train.py", (*GPT, "--context_parallel", "2"), 2),
    Case("gpt_fsdp, hsdp", "gpt_fsdp/train.py", (*GPT, "--layout", "hsdp"), 4),
    Case("gpt_fsdp, tp", "gpt_fsdp/train.py", (*GPT, "--layout", "tp"), 2),
    Case("gpt_fsdp, 2d", "gpt_fsdp/train.py", (*GPT, "--layout", "2d"), 4),
    Case("gpt_fsdp, recomputed", "gpt_fsdp/train.py", (*GPT, "--recompute", "full"), 2),
    Case("cifar_ddp", "cifar_ddp/train.py", ("--width", "32", "--global_batch", "256"), 2, 0, 0.1),
    Case("digits_ddp", "digits_ddp/train.py", (), 2),
    Case("resnet, one process", "resnet_model_parallel/train.py", RESNET, 1, 0, 0.1),
    Case("resnet, first stage", "resnet_model_parallel/train.py", RESNET, 2, 0, 0.1),
    Case("resnet, last stage", "resnet_model_parallel/train.py", RESNET, 2, 1, 0.1),
    Case("spleen", "spleen_segmentation/train.py", ("--steps", "5"), 2, 0, 0.1, "monai"),
    Case("pipeline, first stage", "pipeline_gpt/train.py", PIPELINE, 2, 0),
    Case("pipeline, last stage", "pipeline_gpt/train.py", PIPELINE, 2, 1),
    Case(
        "pipeline, interleaved",
        "pipeline_gpt/train.py",
        (*PIPELINE, "--schedule", "interleaved"),
        2,
        0,
    ),
    Case("pipeline, two replicas", "pipeline_gpt/train.py", (*PIPELINE, "--replicas", "2"), 4, 0),
    Case("Trainer", TRAINER, (), 1, 0, 0.05, "transformers"),
)


AGAIN = 3
"""How often a script is run again that held more than was estimated."""


class Row(NamedTuple):
    """The peak of a case in bytes: allocated, and estimated; or why it was not estimated. `whole` has the workspaces of
    a CPU's convolutions, which a GPU's do not take."""

    name: str
    whole: int
    allocated: int
    estimated: int
    allowed: float
    refused: str = ""

    @property
    def error(self) -> float:
        """The share by which the estimate is above what was allocated."""
        return self.estimated / self.allocated - 1 if self.allocated else 0.0

    @property
    def is_right(self) -> bool:
        """Whether the estimate is as right as the row demands."""
        return not self.refused and abs(self.error) <= self.allowed


def compare(case: Case, *, steps: int = 2, python: str = sys.executable) -> Row:
    """Run a script really and without memory."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        script = SCRIPTS / case.script
        if "\n" in case.script:
            script = scratch / "code" / "train.py"
            script.parent.mkdir()
            script.write_text(textwrap.dedent(case.script))
        whole, real = _allocated(case, script, scratch, steps, python)
        found = probe(case, script, scratch, steps, python)
        estimated = int(str(found["peak"]))
        for _ in range(AGAIN):
            if estimated > (1 - case.allowed) * real:
                break
            # gloo frees its copies when its thread gets to it, which is later on a busy machine
            whole, real = min((whole, real), _allocated(case, script, scratch, steps, python))
        refused = found["refused"]
        words = f"{refused['place']} {refused['message']}" if refused else ""
        return Row(case.name, whole, real, estimated, case.allowed, words)


def _environment(case: Case, rank: int, scratch: Path, port: int) -> dict[str, str]:
    home = scratch / "run"
    home.mkdir(exist_ok=True)
    variables = {
        "CLOUDTRAIN_RUN_DIR": str(home),
        "CLOUDTRAIN_CHECKPOINT_DIR": str(home / "checkpoint"),
        "CLOUDTRAIN_MODEL_DIR": str(home / "model"),
        "CLOUDTRAIN_RUN_TOKEN": "bench",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(scratch),
    }
    if case.ranks > 1:
        variables |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.ranks),
            "LOCAL_WORLD_SIZE": str(case.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
    return {**os.environ, **variables}


def _allocated(case: Case, script: Path, scratch: Path, steps: int, python: str) -> tuple[int, int]:
    """Return the most bytes that the rank of the case held at once, with and without workspaces."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    processes = []
    for rank in range(case.ranks):
        result = scratch / f"allocated{rank}.json"
        program = [
            python,
            str(ROOT / "bench" / "allocated.py"),
            str(result),
            str(steps),
            str(script),
        ]
        processes.append(subprocess.Popen(
            [*program, *case.arguments], cwd=scratch, env=_environment(case, rank, scratch, port),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ))  # fmt: skip
    printed = [process.communicate(timeout=600)[0] for process in processes]
    result = scratch / f"allocated{case.rank}.json"
    if not result.exists():
        raise SystemExit(printed[case.rank].decode(errors="replace"))
    found = json.loads(result.read_text())
    return found["whole"], found["peak"]


def probe(case: Case, script: Path, scratch: Path, steps: int, python: str) -> dict[str, object]:
    """Run the rank of a case without memory, and return what was seen. The ranks that it waits for run
    beside it: stages of a pipeline tell each other what they hold."""
    (scratch / "program").mkdir()
    (scratch / "program" / "fit_probe").symlink_to(PROBE)
    processes = {case.rank: _probing(case, case.rank, script, scratch, steps, python)}
    while None in [process.poll() for process in processes.values()]:
        for file in scratch.glob("wanted-*"):
            rank = int(file.name.removeprefix("wanted-"))
            if rank not in processes:
                processes[rank] = _probing(case, rank, script, scratch, steps, python)
        time.sleep(0.05)
    result = scratch / f"result{case.rank}.json"
    if not result.exists():
        raise SystemExit((scratch / f"printed{case.rank}.log").read_text(errors="replace"))
    found: dict[str, object] = json.loads(result.read_text())
    return found


def _probing(
    case: Case, rank: int, script: Path, scratch: Path, steps: int, python: str
) -> subprocess.Popen[str]:
    """Start a script as one rank without memory."""
    spec = {
        "program": str(script), "arguments": case.arguments, "module": False, "code": f"{script.parent}/",
        "scratch": str(scratch), "result": str(scratch / f"result{rank}.json"), "gpu": None, "mail": str(scratch), "steps": steps, "decide": False,
    }  # fmt: skip
    file = scratch / f"spec{rank}.json"
    file.write_text(json.dumps(spec))
    start = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from fit_probe.run import main; main()"
    )
    with (scratch / f"printed{rank}.log").open("w") as printed:
        return subprocess.Popen(
            [python, "-c", start, str(scratch / "program"), str(file)],
            cwd=scratch,
            env=_environment(case, rank, scratch, 1),
            stdout=printed,
            stderr=subprocess.STDOUT,
            text=True,
        )


def chosen(words: Sequence[str], python: str) -> Iterator[Case]:
    """Yield the cases whose names have one of the words, and whose packages are installed."""
    for case in CASES:
        if words and not any(word in case.name for word in words):
            continue
        if not case.needs or not subprocess.call([python, "-c", f"import {case.needs}"]):
            yield case


def estimate(script: str, *options: str) -> int:
    """Print the estimate of a script in one process, in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        case = Case("", script, options)
        found = probe(case, Path(script).resolve(), scratch, 2, sys.executable)
    if found["refused"]:
        print(found["refused"])
        return 1
    print(f"estimated {int(str(found['peak'])) / 2**30:.6f} GiB")
    return 0


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--estimate", nargs=argparse.REMAINDER, metavar="SCRIPT")
    arguments = parser.parse_args()
    if arguments.estimate:
        return estimate(*arguments.estimate)
    rows = []
    print(f"{'':24} {'with workspaces':>15} {'allocated':>12} {'estimated':>12} {'error':>7}")
    for case in chosen(arguments.only, arguments.python):
        row = compare(case, python=arguments.python)
        rows.append(row)
        words = row.refused or f"{row.error:+.1%}"
        mark = "" if row.is_right else "  WRONG"
        print(
            f"{row.name:24} {row.whole:>15,} {row.allocated:>12,} {row.estimated:>12,} {words:>7}{mark}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    return 0 if all(row.is_right for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
