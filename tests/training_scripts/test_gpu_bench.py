"""bench/gpu.py, as far as a CPU allows: every part comes to its figures, and what it reads out of a trace is right."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from cloudtrain.runtime.hyperparameters import read_arguments
from tests.deadlines import DEADLINE
from tests.training_scripts.test_script_folders import declared_in

BENCH = Path(__file__).parents[2] / "bench" / "gpu.py"


def bench() -> ModuleType:
    """The module, without running it."""
    spec = importlib.util.spec_from_file_location("gpu_bench", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_bench"] = module
    spec.loader.exec_module(module)
    return module


def kernel(stream: int, begin: float, length: float) -> dict[str, object]:
    """A kernel in a trace of torch.profiler."""
    return {"cat": "kernel", "ph": "X", "tid": stream, "ts": begin, "dur": length}


@pytest.mark.parametrize(
    ("events", "share"),
    [
        ([kernel(7, 0, 10), kernel(7, 10, 10)], 0.0),
        ([kernel(7, 0, 10), kernel(20, 5, 10)], 5 / 15),
        (
            [
                kernel(7, 0, 10),
                kernel(20, 0, 10),
                {"cat": "cpu_op", "ph": "X", "tid": 1, "ts": 0, "dur": 99},
            ],
            1.0,
        ),
        ([], 0.0),
    ],
)
def test_overlap_is_the_time_in_which_two_streams_have_kernels(
    events: list[dict[str, object]], share: float
) -> None:
    """Kernels of one stream follow each other; what the host does is none."""
    assert bench().overlapped(events) == pytest.approx(share)


def test_the_memory_estimate_of_gpt2_is_the_sum_of_its_parts() -> None:
    """124 million weights at 18 bytes, 12 layers of 34 bytes, logits of 50,304."""
    found = bench().estimated_mib(
        layers=12, width=768, context=1024, vocabulary=50304, sequences=32
    )
    states, activations, logits = (
        18 * 124_354_560,
        32 * 1024 * 34 * 768 * 12,
        32 * 1024 * 12 * 50304,
    )
    assert found == pytest.approx((states + activations + logits) / 2**20, rel=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize(
    "parts", [["stopped"], ["ddp", "resnet", "overlap"], ["decoder"], ["gpt"]], ids="+".join
)
def test_parts_come_to_their_figures(parts: list[str], tmp_path: Path) -> None:
    """Rehearsed on the CPU: the table, the JSON and the trace are there, and nothing is NOT MET."""
    command = [sys.executable, str(BENCH), "--rehearse", "--only", *parts]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "bench-gpu.json").read_text())
    assert result["rehearsed"]
    assert all(figure["name"] in done.stdout for figure in result["figures"])
    assert (tmp_path / "bench-gpu-trace.json").exists() == ("overlap" in parts)


PRINTED = """\
[metrics] step=1 loss=2.5
[metrics] step=60 loss=2.0
backend=nccl, test accuracy 0.97, 9,000 images/s
500,000 tokens/s, 30,000 MiB at most, MFU 40.0% of 990 TFLOP/s (NVIDIA H100), training stood still 0.100 s
estimated 29.5 GiB
"""


def test_what_a_gpu_is_asked_for_are_options_of_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At full size, which no CPU runs: each option has a name and a value that the script takes, and what a script
    prints on a GPU becomes figures."""
    gpu, asked = bench(), []
    monkeypatch.setattr(gpu, "find_spec", lambda name: object())

    class Machine(gpu.Machine):  # type: ignore[misc, name-defined]
        def run(self, name: str, script: Path, *arguments: str, **_: object) -> object:
            if script.name == "train.py":
                config, at_least = declared_in(script.parent)
                read_arguments(config, list(arguments), at_least=at_least)
            asked.append((script.parent.name, *arguments))
            (self.folder / name).mkdir(exist_ok=True)
            return gpu.Done(PRINTED, "", 0, 1.0)

    machine = Machine(tmp_path, 9.0, rehearsed=False)
    figures = {
        part: list(gpu.PARTS[part](machine))
        for part in ("digits", "stopped", "norms", "gpt", "decoder", "finetune")
    }
    assert [one.name for found in figures.values() for one in found if one.ok is False] == [
        "losses that a stop changed"
    ]
    assert [round(one.value, 1) for one in figures["decoder"]] == [500_000, 40, 30_000, 1.0]
    assert len(figures["finetune"]) == 6
    assert {"gpt_fsdp", "llm_finetune", "digits_ddp", "cifar_ddp", "bench"} == {
        each[0] for each in asked
    }


@pytest.mark.torch
@pytest.mark.skipif(
    find_spec("trl") is not None,
    reason="TRL is installed; test_llm_finetune.py runs the part with it",
)
def test_a_part_without_its_packages_says_so(tmp_path: Path) -> None:
    """It fails nothing: a machine with a GPU often has no TRL."""
    command = [sys.executable, str(BENCH), "--rehearse", "--only", "finetune"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, "not run: not installed: transformers, trl" in done.stdout) == (
        0,
        True,
    )


@pytest.mark.torch
def test_a_part_that_fails_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    """Out of time before it begins: the others are still told."""
    command = [sys.executable, str(BENCH), "--rehearse", "--only", "digits", "--minutes", "0.01"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 1
    assert "not run: out of time" in done.stdout


@pytest.mark.torch
def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to try it all the same."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = subprocess.run(
        [sys.executable, str(BENCH)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: PyTorch sees no GPU here\n\nhint: --rehearse tries every part on the CPU\n"
    )
