"""bench/gpu.py, as far as a CPU allows: every part comes to its figures, and what it reads out of a trace is right."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.deadlines import DEADLINE

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
        ([kernel(7, 0, 10), kernel(20, 0, 10), {"cat": "cpu_op", "ph": "X", "tid": 1, "ts": 0, "dur": 99}], 1.0),
        ([], 0.0),
    ],
)
def test_overlap_is_the_time_in_which_two_streams_have_kernels(events: list[dict[str, object]], share: float) -> None:
    """Kernels of one stream follow each other; what the host does is none."""
    assert bench().overlapped(events) == pytest.approx(share)


def test_the_memory_estimate_of_gpt2_is_the_sum_of_its_parts() -> None:
    """163 million weights at 18 bytes, 12 layers of 34 bytes, logits of 50,304."""
    found = bench().estimated_mib(layers=12, width=768, context=1024, vocabulary=50304, sequences=32)
    states, activations, logits = 18 * 162_988_032, 32 * 1024 * 34 * 768 * 12, 32 * 1024 * 12 * 50304
    assert found == pytest.approx((states + activations + logits) / 2**20, rel=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("parts", [["stopped"], ["ddp", "resnet", "overlap"], ["decoder"]], ids="+".join)
def test_parts_come_to_their_figures(parts: list[str], tmp_path: Path) -> None:
    """Rehearsed on the CPU: the table, the JSON and the trace are there, and nothing is NOT MET."""
    command = [sys.executable, str(BENCH), "--rehearse", "--only", *parts]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "bench-gpu.json").read_text())
    assert result["rehearsed"]
    assert all(figure["name"] in done.stdout for figure in result["figures"])
    assert (tmp_path / "bench-gpu-trace.json").exists() == ("overlap" in parts)


@pytest.mark.torch
def test_a_part_that_fails_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    """Out of time before it begins: the others are still told."""
    command = [sys.executable, str(BENCH), "--rehearse", "--only", "digits", "--minutes", "0.01"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 1
    assert "not run: out of time" in done.stdout


@pytest.mark.torch
def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to try it all the same."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = subprocess.run([sys.executable, str(BENCH)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: PyTorch sees no GPU here\n\nhint: --rehearse tries every part on the CPU\n"
