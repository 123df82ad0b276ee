"""Measure the training scripts on this machine's GPU: a table of figures, what was expected, and verdicts.

    python bench/gpu.py [--only PART ...] [--json FILE] [--minutes 9]        (make gpu)
    python bench/gpu.py --rehearse                                           the same, tiny, on the CPU

It needs PyTorch and numpy, one GPU, and no network; the part `finetune` also transformers, TRL and peft. Each part has
its own process and time limit. Parts that do not fit into the minutes are skipped and listed. Writes bench-gpu.json and
bench-gpu-trace.json (a Chrome trace of two pipeline stages). Exit code 1 when an expectation is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "training_scripts"
PROBES = Path(__file__).resolve().parent / "gpu_probes.py"
TRACE = "bench-gpu-trace.json"


@dataclass(frozen=True)
class Figure:
    """One line of the table. `ok` is None where a figure is only reported."""

    name: str
    value: float
    unit: str
    expected: str
    ok: bool | None = None


@dataclass(frozen=True)
class Done:
    """The output of a command."""

    out: str
    errors: str
    exit_code: int
    seconds: float


class Machine:
    """Where parts run: a separate folder, the digits without scikit-learn, a deadline."""

    def __init__(self, folder: Path, minutes: float, *, rehearsed: bool) -> None:
        self.folder, self.rehearsed = folder, rehearsed
        self._end = time.monotonic() + 60 * minutes
        place = folder / "packages" / "sklearn" / "datasets" / "data"
        place.mkdir(parents=True)
        shutil.copy(ROOT / "bench" / "data" / "digits.csv.gz", place)
        (folder / "packages" / "sklearn" / "__init__.py").touch()

    @property
    def left(self) -> float:
        """Return the seconds left."""
        return self._end - time.monotonic()

    def run(
        self,
        name: str,
        *arguments: str | Path,
        processes: int = 1,
        stop_at: int | None = None,
        **variables: str,
    ) -> Done:
        """Run a script in the folder `name`; with `stop_at`, send SIGTERM once that step is reported."""
        work = self.folder / name
        work.mkdir(exist_ok=True)
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.folder / "packages")]),
            "PYTHONUNBUFFERED": "1", **({"CUDA_VISIBLE_DEVICES": ""} if self.rehearsed else {}), **variables,
        }  # fmt: skip
        command = [sys.executable, *map(str, arguments)]
        if processes > 1:
            launcher = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(processes),
            ]
            command = [sys.executable, *launcher, *map(str, arguments)]
        begun = time.perf_counter()
        with (work / "stderr.txt").open("w+") as errors:
            started = subprocess.Popen(
                command,
                cwd=work,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            assert started.stdout is not None
            watchdog = _Watchdog(started, max(1.0, self.left))
            lines = []
            for line in started.stdout:
                lines.append(line)
                step = re.search(r"\[metrics\] step=(\d+) ", line)
                if stop_at is not None and step and int(step[1]) >= stop_at:
                    started.send_signal(signal.SIGTERM)
                    stop_at = None
            exit_code = started.wait()
            watchdog.cancel()
            errors.seek(0)
            return Done("".join(lines), errors.read(), exit_code, time.perf_counter() - begun)


class _Watchdog:
    """Kills a command and its descendants when its time is over."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        import threading

        self._timer = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
        self._timer.start()

    def cancel(self) -> None:
        """Stop watching, because the command ended by itself."""
        self._timer.cancel()


class Failed(Exception):
    """A part ended without its figures."""


def checked(done: Done) -> str:
    """Return the output of a command that ended well."""
    if done.exit_code:
        raise Failed(
            f"exit code {done.exit_code}: {done.errors.strip().splitlines()[-1:] or ['killed: out of time']}"
        )
    return done.out


def number(pattern: str, text: str) -> float:
    """Return the first group, as a number."""
    found = re.search(pattern, text)
    if found is None:
        raise Failed(f"nothing like {pattern!r} was printed")
    return float(found[1].replace(",", ""))


def losses(text: str) -> dict[int, str]:
    """Return the losses by step, as printed."""
    return {int(step): loss for step, loss in re.findall(r"step=(\d+) .*?\bloss=(\S+)", text)}


def judged(machine: Machine, is_met: bool) -> bool | None:
    """Return a verdict on a GPU; None in a rehearsal."""
    return None if machine.rehearsed else is_met


Part = Callable[[Machine], Iterator[Figure]]
DIGITS = SCRIPTS / "digits_ddp" / "train.py"
GPT = SCRIPTS / "gpt_fsdp" / "train.py"
FIT = ROOT / "bench" / "fit.py"
TUNE = SCRIPTS / "llm_finetune" / "train.py"


def digits(machine: Machine) -> Iterator[Figure]:
    """Measure DistributedDataParallel over NCCL, and compare the losses with those of a CPU."""
    out = checked(machine.run("digits", DIGITS))
    accuracy = number(r"test accuracy ([\d.]+)", out)
    yield Figure("digits_ddp, test accuracy", accuracy, "", "at least 0.95", accuracy >= 0.95)
    yield Figure(
        "digits_ddp over NCCL", float("nccl" in out), "", "1", judged(machine, "nccl" in out)
    )
    on_cpu = losses(checked(machine.run("digits_cpu", DIGITS, CUDA_VISIBLE_DEVICES="")))
    here = losses(out)
    worst = max(abs(float(here[step]) - float(on_cpu[step])) for step in on_cpu)
    yield Figure(
        "largest difference of a loss, GPU and CPU", worst, "", "at most 1e-3", worst <= 1e-3
    )


def stopped(machine: Machine) -> Iterator[Figure]:
    """Send SIGTERM in the middle and resume: every loss equals, bit for bit, that of an uninterrupted run."""
    whole = losses(checked(machine.run("whole", DIGITS, "--report_every", "1", "--epochs", "8")))
    slow = ["--report_every", "1", "--epochs", "8", "--step_delay", "0.01"]
    first = machine.run("stopped", DIGITS, *slow, stop_at=60)
    second = checked(machine.run("stopped", DIGITS, "--report_every", "1", "--epochs", "8"))
    again = losses(first.out) | losses(second)
    different = sum(whole[step] != again.get(step) for step in whole)
    both = min(losses(second)) == max(losses(first.out)) + 1
    yield Figure(
        "losses that a stop changed", different, f"of {len(whole)}", "0", different == 0 and both
    )


def gpt(machine: Machine) -> Iterator[Figure]:
    """Measure GPT-2 124M in bf16, compiled: tokens/s, MFU, memory, and the cost of an asynchronous checkpoint."""
    small = "--layers 2 --width 32 --context 32 --steps 30 --report_every 5".split()
    arguments = small if machine.rehearsed else "--preset gpu-124m --layout ddp --steps 60".split()
    out = checked(machine.run("gpt", GPT, *arguments))
    speed, peak = number(r"([\d,]+) tokens/s", out), number(r"([\d,]+) MiB at most", out)
    met = judged(machine, speed >= 346_000)
    yield Figure(
        "GPT-2 124M, bf16, compiled",
        speed,
        "tokens/s",
        "at least 346,000 (MFU 30%); aim: 463,000",
        met,
    )
    if "MFU" in out:
        yield Figure("GPT-2 124M, MFU", number(r"MFU ([\d.]+)%", out), "%", "at least 29.9")
    yield Figure("GPT-2 124M, peak memory", peak, "MiB", "reported")
    if not machine.rehearsed:
        estimate = estimated_mib(layers=12, width=768, context=1024, vocabulary=50304, sequences=32)
        yield Figure(
            "estimate of that memory",
            estimate / peak,
            "of measured",
            "0.75 to 1.25",
            0.75 <= estimate / peak <= 1.25,
        )
    saving = ["--async_checkpoints", "--checkpoint_every", "15", "--steps", "60"]
    out = checked(machine.run("gpt_saving", GPT, *arguments, *saving))
    stall = number(r"training stood still ([\d.]+) s", out)
    yield Figure(
        "asynchronous checkpoint of 1.5 GB",
        stall,
        "s stood still",
        "under 1",
        judged(machine, stall < 1),
    )


def decoder(machine: Machine) -> Iterator[Figure]:
    """Measure a Llama-shaped decoder on documents that are packed and masked, and the dry run beside its memory."""
    draw, work = random.Random(1), machine.folder / "decoder"
    (work / "data" / "raw").mkdir(parents=True)
    rows = (
        json.dumps({"text": "".join(draw.choices("etaoin shrdlu", k=draw.randint(50, 3000)))})
        for _ in range(3000)
    )
    (work / "data" / "raw" / "rows.jsonl").write_text("\n".join(rows))
    checked(machine.run("decoder", GPT.with_name("prepare.py")))
    large = "--layers 16 --heads 16 --kv_heads 4 --width 2048 --vocabulary 32000 --context 4096 --precision bf16 --compile"
    shape = "--layers 2 --width 32 --context 32" if machine.rehearsed else large
    arguments = (
        f"--family llama {shape} --global_batch 8 --accumulate 2 --deterministic False".split()
    )
    training = "--steps 40 --report_every 5 --checkpoint_every 0".split()
    out = checked(
        machine.run("decoder", GPT, *arguments, *training, CLOUDTRAIN_INPUT_TEXT=str(work / "text"))
    )
    yield Figure(
        "decoder of 0.8 billion, packed documents",
        number(r"([\d,]+) tokens/s", out),
        "tokens/s",
        "reported",
    )
    if "MFU" in out:
        mfu = number(r"MFU ([\d.]+)%", out)
        yield Figure("decoder, MFU", mfu, "%", "at least 30", judged(machine, mfu >= 30))
    peak = number(r"([\d,]+) MiB at most", out)
    yield Figure("decoder, peak memory", peak, "MiB", "reported")
    estimated = checked(
        machine.run(
            "decoder", FIT, "--estimate", str(GPT), *arguments,
            CLOUDTRAIN_INPUT_TEXT=str(work / "text"),
        )
    )  # fmt: skip
    ratio = 1024 * number(r"estimated ([\d.]+) GiB", estimated) / peak
    yield Figure(
        "estimate beside that memory",
        ratio,
        "of measured",
        "0.75 to 1.25",
        judged(machine, 0.75 <= ratio <= 1.25),
    )


def finetune(machine: Machine) -> Iterator[Figure]:
    """Measure llm_finetune on a random Llama, with all weights and with LoRA."""
    needed = ("transformers", "trl", "peft", "datasets")
    if missing := [name for name in needed if find_spec(name) is None]:
        yield Figure(
            "llm_finetune", float("nan"), "", f"not run: not installed: {', '.join(missing)}"
        )
        return
    # transformers would import the digits' scikit-learn
    own = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    checked(machine.run("finetune", PROBES, "model", *_size(machine), **own))
    size = "--max_length 64" if machine.rehearsed else "--max_length 2048"
    usual = f"--model_name_or_path model_to_tune {size} --packing --max_steps 20 --logging_steps 2 --eval_rows 8"
    for name, option in (("all weights", ()), ("LoRA", ("--use_peft",))):
        out = checked(machine.run("finetune", TUNE, *usual.split(), *option, **own))
        speed = number(r"([\d,]+) tokens/s", out)
        yield Figure(f"llm_finetune, 0.8 billion, {name}", speed, "tokens/s", "reported")
        if "MFU" in out:
            mfu = number(r"MFU ([\d.]+)%", out)
            yield Figure(
                f"llm_finetune, {name}, MFU", mfu, "%", "at least 25", judged(machine, mfu >= 25)
            )
        yield Figure(
            f"llm_finetune, {name}, peak memory",
            number(r"([\d,]+) MiB at most", out),
            "MiB",
            "reported",
        )
        shutil.rmtree(machine.folder / "finetune" / "checkpoint", ignore_errors=True)
        shutil.rmtree(machine.folder / "finetune" / "model", ignore_errors=True)


def estimated_mib(
    *, layers: int, width: int, context: int, vocabulary: int, sequences: int
) -> float:
    """Estimate the memory: weights, gradients and AdamW in fp32 with their bf16 casts; activations of a transformer
    with flash attention, 34 bytes for each number of the residual stream and layer (Korthikanti et al., 2022); logits
    in bf16 and fp32 with the gradients of both."""
    weights = layers * 12 * width**2 + vocabulary * width + context * width
    tokens = sequences * context
    return (18 * weights + tokens * (34 * width * layers + 12 * vocabulary)) / 2**20


def ddp(machine: Machine) -> Iterator[Figure]:
    """Measure what DistributedDataParallel costs beside the model itself, in one process."""
    out = json.loads(checked(machine.run("ddp", PROBES, "ddp", *_size(machine))))
    ratio = out["ddp"] / out["plain"]
    yield Figure(
        "DDP beside plain, one process",
        ratio,
        "times the step",
        "at most 1.05",
        judged(machine, ratio <= 1.05),
    )


def resnet(machine: Machine) -> Iterator[Figure]:
    """Measure ResNet50 at 224 pixels, bf16, channels_last."""
    out = json.loads(checked(machine.run("resnet", PROBES, "resnet", *_size(machine))))
    met = judged(machine, out["images_per_s"] >= 2000)
    yield Figure(
        "ResNet50, 224 pixels, bf16, channels_last",
        out["images_per_s"],
        "images/s",
        "A100: 2,470",
        met,
    )


def norms(machine: Machine) -> Iterator[Figure]:
    """Compare GroupNorm with BatchNorm, in the CIFAR script."""
    arguments = (
        "--epochs 1 --width 8".split()
        if machine.rehearsed
        else "--epochs 6 --width 64 --blocks 3".split()
    )
    rates = {}
    for norm in ("batch", "group"):
        out = checked(
            machine.run(
                f"cifar_{norm}", SCRIPTS / "cifar_ddp" / "train.py", *arguments, "--norm", norm
            )
        )
        rates[norm] = number(r"([\d,]+) images/s", out)
        yield Figure(f"cifar_ddp, {norm} norm", rates[norm], "images/s", "reported")
    ratio = rates["group"] / rates["batch"]
    yield Figure(
        "group beside batch norm",
        ratio,
        "times as fast",
        "at least 0.5",
        judged(machine, ratio >= 0.5),
    )


def overlap(machine: Machine) -> Iterator[Figure]:
    """Trace two pipeline stages on two streams: kernels of both must run at the same time."""
    out = json.loads(checked(machine.run("overlap", PROBES, "overlap", *_size(machine))))
    shutil.copy(machine.folder / "overlap" / "trace.json", TRACE)
    share = overlapped(json.loads(Path(TRACE).read_text())["traceEvents"])
    yield Figure("pipeline, microbatches in the trace", out["microbatches"], "", "reported")
    yield Figure(
        "two streams at once",
        100 * share,
        "% of kernel time",
        "above 0",
        judged(machine, share > 0),
    )


def overlapped(events: list[dict[str, object]]) -> float:
    """Return the share of the kernels' time in which kernels of more than one stream run, from a trace of
    torch.profiler."""
    spans = []
    for event in events:
        if event.get("cat") == "kernel" and event.get("ph") == "X":
            begin, length = float(event["ts"]), float(event["dur"])  # type: ignore[arg-type]
            spans += [(begin, 1, event["tid"]), (begin + length, -1, event["tid"])]
    running: dict[object, int] = {}
    busy = both = last = 0.0
    for moment, change, stream in sorted(spans, key=lambda span: (span[0], span[1])):
        active = sum(count > 0 for count in running.values())
        busy += (moment - last) * (active > 0)
        both += (moment - last) * (active > 1)
        last = moment
        running[stream] = running.get(stream, 0) + change
    return both / busy if busy else 0.0


def shared(machine: Machine) -> Iterator[Figure]:
    """Run two processes on one GPU. NCCL refuses that, or hangs, so gloo must be chosen, with a notice."""
    done = machine.run("shared", DIGITS, "--epochs", "2", processes=2)
    checked(done)
    good = "backend=gloo" in done.out and ("share one GPU" in done.errors or machine.rehearsed)
    yield Figure(
        "two processes on one GPU, over gloo", done.seconds, "s", "ends, and says so", good
    )


PARTS: dict[str, Part] = {
    "digits": digits, "stopped": stopped, "shared": shared, "ddp": ddp, "resnet": resnet, "overlap": overlap,
    "norms": norms, "gpt": gpt, "decoder": decoder, "finetune": finetune,
}  # fmt: skip


def _size(machine: Machine) -> list[str]:
    return ["--tiny"] if machine.rehearsed else []


def line(figure: Figure) -> str:
    """Return a row of the table."""
    verdict = {True: "ok", False: "NOT MET", None: ""}[figure.ok]
    return f"{figure.name:44} {figure.value:>14,.4g} {figure.unit:18} {figure.expected:42} {verdict}".rstrip()


def device_words() -> str:
    """Return the device, PyTorch and host, for the head of the table."""
    code = (
        "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no GPU', '|', "
        "torch.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return f"{done.stdout.strip()} | {socket.gethostname()} | {time.strftime('%Y-%m-%d')}"


def main() -> int:
    """Measure, print, write. Return 1 when an expectation is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path, default=Path("bench-gpu.json"), metavar="FILE")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="tiny and on the CPU; expectations of speed do not count",
    )
    options = parser.parse_args()
    head = device_words()
    if "no GPU" in head and not options.rehearse:
        print(
            "error: PyTorch sees no GPU here\n\nhint: --rehearse tries every part on the CPU",
            file=sys.stderr,
        )
        return 2
    print(f"{head}{' | rehearsed on the CPU' if options.rehearse else ''}\n", flush=True)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), options.minutes, rehearsed=options.rehearse)
        for name in options.only:
            if machine.left < 5:
                figures.append(Figure(name, float("nan"), "", "not run: out of time", False))
                print(line(figures[-1]), flush=True)
                continue
            try:
                for figure in PARTS[name](machine):
                    figures.append(figure)
                    print(line(figure), flush=True)
            except Failed as failure:
                figures.append(Figure(name, float("nan"), "", str(failure), False))
                print(line(figures[-1]), flush=True)
    result = {
        "device": head,
        "rehearsed": options.rehearse,
        "figures": [asdict(figure) for figure in figures],
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(figure.ok is not False for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
