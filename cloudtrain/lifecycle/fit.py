"""Estimate whether a job fits its GPUs: run a few steps of its script without memory, and compare.

The script runs in a process of its own, `cloudtrain/estimate/probe`, as one rank of the job. The
rank needs no GPU, no network and no memory for the model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from math import ceil, inf, prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from cloudtrain.code.unpack import unpack
from cloudtrain.documents import JsonObject
from cloudtrain.errors import UsageError, quoted
from cloudtrain.estimate.devices import GpuInstance
from cloudtrain.estimate.kept import FOLDER, Estimate, estimate_key, keep
from cloudtrain.estimate.memory import Decoder, Need, Training, kinds_of
from cloudtrain.estimate.report import Batch, FitReport, MachineFit
from cloudtrain.estimate.scaling import FEWER, MORE, Suggestion, largest_that_fits, stacked
from cloudtrain.estimate.time import Collective, StepTime, Work, step_time
from cloudtrain.job.training import TrainingJob
from cloudtrain.lifecycle.preparing.prepare import Ready
from cloudtrain.machines.overlay import apply_overlay
from cloudtrain.machines.table import InstanceType, has_gpu, instance_types, tables
from cloudtrain.plans.plan import Plan
from cloudtrain.rules.engine import Reading
from cloudtrain.runtime.torchrun_words import is_python
from cloudtrain.system.plugins import DEFAULT_TARGET
from cloudtrain.targets.common.compiling import paths_in, program_of, variables_of
from cloudtrain.targets.where import where

STEPS = 2
"""Steps of the optimizer that are run. The first one makes its state, and all others are alike."""

LIMIT = 600.0
"""Seconds after which a probed script is stopped."""


_PROBE = Path(__file__).parents[1].joinpath("estimate", "probe")
"""The program that runs a script."""


class Layout(NamedTuple):
    """The ranks of a job: all of them, and those of one instance."""

    world: int
    local_world: int

    @classmethod
    def of(cls, plan: Plan) -> Layout:
        """Return the ranks that a plan starts."""
        counts = getattr(plan.processes, "ranks", {})
        world = sum(counts.values())
        return cls(max(1, world), max(counts.values(), default=1))

    def variables(self, rank: int) -> dict[str, str]:
        """Return the variables in which a launcher tells a rank its place."""
        node, local_rank = divmod(rank, self.local_world)
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(min(self.local_world, self.world)),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }


@dataclass(frozen=True)
class Probed:
    """What one rank did. The values are those of `probe/run.py`."""

    rank: int
    result: Mapping[str, Any]

    @property
    def peak(self) -> int:
        return int(self.result["peak"])

    @property
    def exchanges(self) -> list[Collective]:
        return list(starmap(Collective, self.result["exchanges"]))

    def batch(self, layout: Layout) -> Batch | None:
        """Return what the rank computes in a step; None if the model got no tensor."""
        samples = 0
        tokens = 0
        for shape, is_tokens in self.result["batches"]:
            if shape:
                samples += shape[0]
            if is_tokens and len(shape) == 2:
                tokens += shape[0] * shape[1]
        if not samples:
            return None

        # as many ranks have different samples as reduce gradients with each other
        sizes = dict[str, int]()
        for item in self.exchanges:
            for kind in ("reduce_scatter", "allreduce", "all_reduce"):
                if kind in item.name and item.bytes > _SMALL:
                    sizes[kind[:3]] = max(sizes.get(kind[:3], 1), item.ranks)
        return Batch(samples, tokens, min(prod(sizes.values()), layout.world))


_SMALL = 1024
"""Bytes up to which a collective is taken for a number, such as a norm."""


class Question(NamedTuple):
    """What a user asks besides whether the job fits."""

    steps: int | None = None
    """Of the whole training."""
    samples: int | None = None
    """Of the whole training, over all ranks."""
    every: bool = False
    """Compare all types of the target."""
    suggest: str | None = None
    """The hyperparameter of which the largest value that fits is sought."""
    layers: str | None = None
    """The hyperparameter with the number of equal layers: run a few, and extrapolate."""
    python: str | None = None
    """The interpreter that runs the script. Default: that of the local target."""
    config: Path | None = None
    """The `config.json` of a model, or its folder: estimate by formulas, and run nothing."""
    training: Mapping[str, str] = MappingProxyType({})
    """The numbers for the formulas, as `Training` has them."""


def estimate(
    ready: Ready, plan: Plan, asked: Question, *, on_run: Callable[[str], None] | None
) -> FitReport:
    """Estimate the job, and keep what was found for the checks of later submissions.

    Args:
        plan: the plan of the job on its target.
        on_run: called with what is run, such as `rank 0` or `rank 0 with batch_size=8`.

    Raises:
        UsageError: the script cannot be followed; the message has the line and why.
    """
    job = ready.work
    if not isinstance(job, TrainingJob):
        hint = "estimate a training job"
        raise UsageError(f"`{job.name}` does not train", hint=hint, code="CT948")

    started = time.perf_counter()
    reading = ready.reading(plan)
    layout = Layout.of(plan)
    row = _row_of(reading)
    machine = None if row is None or not row.gpus else GpuInstance.of(row)
    if asked.config is not None:
        return _by_formulas(job, plan.target, asked, layout, machine)
    python = asked.python
    if not python:
        settings = where(DEFAULT_TARGET, near=ready.original.folder).settings
        python = getattr(settings, "python", None) or sys.executable
    probe = _Probe(ready, layout, machine, python, on_run, asked.layers)
    original = cast("TrainingJob", ready.original)
    batch_size = 1
    if asked.suggest is not None:
        if machine is None:
            hint = "name a target and an `instance_type`, or `resources.gpu`"
            raise UsageError("no GPU is known that a batch could fit", hint=hint, code="CT948")
        batch_size = _whole_number(original, asked.suggest)
    probed = probe.run(original)
    worst = max(probed, key=lambda item: item.peak)
    need = probe.need(probed)
    batch = worst.batch(layout)
    fit_on = partial(_fit_on, probed, layout, need, _steps(asked, batch))
    if machine is not None:
        found = Estimate(need.least, need.most, worst.result["place"])
        key = estimate_key(job, ready.tree.identity.sha256, layout.world)
        keep(ready.where.here.state_dir / FOLDER, key, found)
    others = []
    if asked.every:
        others = _others(reading, layout.local_world, fit_on)
    suggestion = None
    if asked.suggest is not None:
        suggestion = probe.largest(original, asked.suggest, batch_size, need)
    return FitReport(
        job_name=job.name,
        target=plan.target,
        ranks=layout.world,
        rank=worst.rank,
        peak=worst.peak,
        kinds=worst.result["kinds"],
        place=worst.result["place"],
        need=need,
        batch=batch,
        own=None if machine is None else fit_on(machine),
        others=others,
        suggestion=suggestion,
        notes=[*_notes(original, asked.layers, probed)],
        seconds=time.perf_counter() - started,
    )


def _by_formulas(
    job: TrainingJob, target: str, asked: Question, layout: Layout, machine: GpuInstance | None
) -> FitReport:
    """Return the estimate from the numbers of a model."""
    assert asked.config is not None
    if asked.suggest is not None or asked.layers is not None:
        hint = "leave out `--config`, which runs nothing"
        raise UsageError("`--suggest` and `--layers` run the script", hint=hint, code="CT948")
    file = asked.config / "config.json" if asked.config.is_dir() else asked.config
    try:
        model = Decoder.of_config(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        hint = "name the `config.json` of a model, or its folder"
        raise UsageError(f"cannot read `{file}`: {error}", hint=hint, code="CT948") from None
    training = Training.of(asked.training, layout.world)
    kinds = kinds_of(model, training)
    need = Need.of(sum(kinds.values()))
    notes = [
        f"by formulas for {model.parameters:,} parameters, mixed precision, Adam and {training}",
        "nothing was run; the formulas know no other layers, and no fragmentation",
    ]
    return FitReport(
        job_name=job.name,
        target=target,
        ranks=layout.world,
        rank=0,
        peak=sum(kinds.values()),
        kinds=kinds,
        place="",
        need=need,
        batch=None,
        own=None if machine is None else _fit_on([], layout, need, None, machine),
        notes=notes,
    )


def _row_of(reading: Reading) -> InstanceType | None:
    """Return the type of the job's instances. Where the target has no types, such as a cluster, the
    job may name the GPU: then any type with it stands for its nodes."""
    known = reading.machines.first.known
    gpu = reading.resources.gpu
    if known is not None or gpu is None:
        return known
    for target in tables():
        for row in instance_types(target):
            if has_gpu(row, gpu):
                gpus = reading.resources.gpus_per_instance or row.gpus
                return replace(row, name=gpu, gpus=gpus, price=None)
    return None


def _whole_number(job: TrainingJob, name: str) -> int:
    """Return the value of a hyperparameter that is a positive whole number.

    Raises:
        UsageError: it is none.
    """
    value = str(job.hyperparameters.get(name, ""))
    if value.isdecimal() and int(value):
        return int(value)
    hint = f"`--set hyperparameters.{name}=1` adds it, if the script has it"
    numbers = [key for key, number in job.hyperparameters.items() if str(number).isdecimal()]
    if numbers:
        hint = f"the job has {quoted(numbers)}; {hint}"
    message = f"the job has no hyperparameter `{name}` that is a positive whole number"
    raise UsageError(message, hint=hint, code="CT948")


def _steps(asked: Question, batch: Batch | None) -> float | None:
    """Return the steps of the whole training; None if they are not given."""
    if asked.steps is not None:
        return float(asked.steps)
    if asked.samples is None or batch is None:
        return None
    return ceil(asked.samples / (batch.samples * batch.ranks))


def _fit_on(
    probed: Sequence[Probed],
    layout: Layout,
    need: Need,
    steps: float | None,
    machine: GpuInstance,
) -> MachineFit:
    """Return how the job fits as many of these machines as its ranks need."""
    local_world = min(layout.local_world, machine.gpus)
    instances = ceil(layout.world / local_world)
    step: StepTime | None = None
    for item in probed:
        work = list(starmap(Work, item.result["operations"]))
        time = step_time(work, item.exchanges, machine, local_world)
        if time is None:
            step = None
            break
        if step is not None:  # all ranks wait for the slowest one
            time = StepTime(max(step.least, time.least), max(step.most, time.most))
        step = time
    return MachineFit.of(machine, instances, need, step, steps)


def _others(
    reading: Reading, ranks: int, fit_on: Callable[[GpuInstance], MachineFit]
) -> list[MachineFit]:
    """Return how the job fits every type of the target that has enough GPUs for the `ranks` of an
    instance, the cheapest first."""
    overlay = getattr(reading.account, "overlay", None) or ()
    found = []
    for row in apply_overlay(instance_types(reading.target), overlay):
        is_known = row.gpus and not row.retired
        if is_known and (row.gpus >= ranks or ranks % row.gpus == 0):
            found.append(fit_on(GpuInstance.of(row)))

    def cost(item: MachineFit) -> tuple[float, float, str]:
        price = item.machine.price
        rate = inf if price is None else price * item.instances
        dollars = rate if item.dollars is None else item.dollars[1]
        return dollars, rate, item.machine.name

    return sorted(found, key=cost)


_TAKEN_FOR_GRANTED = {
    "decisions": "decides by a value that only a real run has; here it decides no",
    "selections": "selects by values that only a real run has; here it selects all",
}
"""What is noted of lines of the script, by the key of a result."""


def _notes(job: TrainingJob, layers: str | None, probed: Sequence[Probed]) -> Iterable[str]:
    """Yield what the estimate takes for granted."""
    if layers is not None and _whole_number(job, layers) > MORE:
        yield f"{FEWER} and {MORE} of {_whole_number(job, layers)} `{layers}` were run"
    if not any(item.peak for item in probed):
        yield "the script puts nothing on the GPU"
    for kind, words in _TAKEN_FOR_GRANTED.items():
        places = dict[str, None]()
        for item in probed:
            places.update(dict.fromkeys(item.result[kind]))
        for place in places:
            yield f"{place or 'a library'} {words}"


# The process that runs the script.


class _Probe(NamedTuple):
    """Runs a job's script with one value of its hyperparameters or another."""

    ready: Ready
    layout: Layout
    machine: GpuInstance | None
    python: str
    on_run: Callable[[str], None] | None
    layers: str | None

    def run(self, job: TrainingJob, words: str = "") -> list[Probed]:
        """Run the job, or one with few layers and one with more. `words` say what is different
        about the job.

        Raises:
            UsageError: the script cannot be followed, or is a pipeline, of which all layers run.
        """
        name = self.layers
        if name is None or _whole_number(job, name) <= MORE:
            return self._run(job, words)
        fewer = self._run(_with(job, name, FEWER), f"{words} with {name}={FEWER}")
        more = self._run(_with(job, name, MORE), f"{words} with {name}={MORE}")
        if len(fewer) > 1 or len(more) > 1:
            message = "its stages divide the layers, and few of them otherwise than many"
            raise _refused(job, f"{message}: leave out `--layers`")
        result = stacked(fewer[0].result, more[0].result, _whole_number(job, name))
        return [Probed(more[0].rank, result)]

    def _run(self, job: TrainingJob, words: str) -> list[Probed]:
        """Run the first rank, and those that it waits for: the other stages of its pipeline."""
        with tempfile.TemporaryDirectory(prefix="cloudtrain-fit-") as folder:
            place = _Place(self, job, Path(os.path.realpath(folder)))
            ranks: Iterable[int] = (0,)
            try:
                while place.is_running():
                    for rank in ranks:
                        if self.on_run is not None:
                            self.on_run(f"rank {rank}{words}")
                        place.start(rank)
                    time.sleep(0.05)
                    ranks = place.wanted()
            finally:
                place.stop()
            return place.results()

    def need(self, probed: Sequence[Probed]) -> Need:
        """Return what the rank with the highest peak needs."""
        peak = max(item.peak for item in probed)
        if self.machine is None:
            return Need(float(peak), float(peak))
        return Need.of(peak)

    def largest(self, job: TrainingJob, name: str, first: int, need_of_first: Need) -> Suggestion:
        """Return the largest value of a hyperparameter that fits the GPU. `first`: its value in the
        job, which has been run."""
        assert self.machine is not None

        def need_of(value: int) -> Need | None:
            if value == first:
                return need_of_first
            with suppress(UsageError):
                return self.need(self.run(_with(job, name, value), f" with {name}={value}"))
            return None

        return largest_that_fits(name, first, need_of, self.machine.memory)


def _with(job: TrainingJob, name: str, value: int) -> TrainingJob:
    """Return the job with another value of a hyperparameter."""
    return job.model_copy(update={"hyperparameters": {**job.hyperparameters, name: value}})


class _Place:
    """The folder in which the script is run, with its code."""

    def __init__(self, probe: _Probe, job: TrainingJob, scratch: Path) -> None:
        self.layout = probe.layout
        self.machine = probe.machine
        self.python = probe.python
        self.scratch = scratch
        self.code = scratch / "code"
        self.mail = scratch / "mail"
        self.mail.mkdir()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.deadline = time.monotonic() + LIMIT
        self.job = job

        archive = scratch / "code.tar.gz"
        tree = probe.ready.tree
        tree.write(archive)
        unpack(archive, self.code, tree.identity.sha256)
        # as a package of another name, because the interpreter may have another cloudtrain
        (scratch / "program").mkdir()
        (scratch / "program" / "fit_probe").symlink_to(_PROBE)
        self.paths = paths_in(str(scratch), job, DEFAULT_TARGET)
        for name in self.paths:
            # data is read where it is, and nothing is written where results belong
            if not name.startswith("inputs."):
                written = scratch / "written" / name
                written.mkdir(parents=True)
                self.paths[name] = str(written)
        self.datasets = scratch / "datasets"
        _link_datasets(self.datasets)

    def start(self, rank: int) -> None:
        own = self.scratch / f"rank{rank}"
        own.mkdir()
        spec = own / "spec.json"
        spec.write_text(json.dumps(self._spec(own / "result.json")))
        start = (
            "import sys; sys.path.insert(0, sys.argv.pop(1)); "
            "from fit_probe.run import main; main()"
        )
        try:
            with (own / "output.log").open("wb") as output:
                self.processes[rank] = subprocess.Popen(
                    [self.python, "-c", start, str(self.scratch / "program"), str(spec)],
                    cwd=self.code,
                    env=self._environment(rank),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            message = f"cannot start `{self.python}`: {error.strerror}"
            raise UsageError(
                message, hint="`--python` names an interpreter that has torch", code="CT948"
            ) from None

    def is_running(self) -> bool:
        """Return whether a rank is still running, and none has failed.

        Raises:
            UsageError: they take too long.
        """
        if time.monotonic() > self.deadline:
            raise _refused(self.job, f"{STEPS} steps of the script took more than {LIMIT:g} s")
        codes = [process.poll() for process in self.processes.values()]
        return not codes or (None in codes and not any(codes))

    def wanted(self) -> Iterator[int]:
        """Yield the ranks that others wait for, and that have not been started."""
        for file in self.mail.glob("wanted-*"):
            name = file.name.removeprefix("wanted-")
            rank = int(name) if name.isdecimal() else -1
            if 0 <= rank < self.layout.world and rank not in self.processes:
                yield rank

    def stop(self) -> None:
        """End the processes that still run, with all that they started."""
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def results(self) -> list[Probed]:
        """Return what the ranks did.

        Raises:
            UsageError: one of them could not be followed.
        """
        probed = []
        results = {rank: self._result(rank) for rank in self.processes}
        for rank, result in sorted(results.items(), key=lambda item: item[1] is None):
            output = _end_of(self.scratch / f"rank{rank}" / "output.log")
            if os.environ.get("CLOUDTRAIN_DEBUG"):
                sys.stderr.write(output)
            if result is None:
                raise self._without_result(output, self.processes[rank].returncode)
            refused = result["refused"]
            if refused:
                raise _refused(self.job, refused["message"], refused["place"])
            probed.append(Probed(rank, result))
        return probed

    def _result(self, rank: int) -> JsonObject | None:
        """Return what a rank has written; None if it was ended before or while it wrote, or if the
        script has overwritten it."""
        with suppress(OSError, ValueError):
            result = json.loads((self.scratch / f"rank{rank}" / "result.json").read_text("utf-8"))
            if isinstance(result, dict) and result.keys() >= _WRITTEN:
                return result
        return None

    def _spec(self, result: Path) -> dict[str, object]:
        program = program_of(self.job, self.paths)
        if not is_python(program[0]):
            raise _refused(self.job, f"`{program[0]}` is no Python script")
        is_module = program[0] == "-m"
        words = program[1:] if is_module else program
        gpu = None
        machine = self.machine
        if machine is not None:
            gpu = {
                "name": machine.gpu,
                "memory": int(machine.memory),
                "capability": machine.rates.capability if machine.rates else 8,
                "count": max(1, machine.gpus),
            }
        return {
            "program": words[0] if is_module else str(self.code / words[0]),
            "arguments": words[1:],
            "module": is_module,
            "code": f"{self.code}{os.sep}",
            "scratch": str(self.scratch),
            "result": str(result),
            "mail": str(self.mail),
            "gpu": gpu,
            "steps": STEPS,
            "decide": False,
        }

    def _environment(self, rank: int) -> dict[str, str]:
        variables = variables_of(
            self.job, DEFAULT_TARGET, self.paths, str(self.scratch), self.job.name
        )
        if self.job.distribution.type != "none":
            variables |= self.layout.variables(rank)
        python_path = [str(self.code), variables.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "TMPDIR": str(self.scratch),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(self.datasets),
            "WANDB_MODE": "disabled",
            "MPLBACKEND": "agg",
            "OMP_NUM_THREADS": "1",
            **variables,
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        }

    def _without_result(self, output: str, code: int) -> UsageError:
        """Return the error for a process that left no result."""
        if "No module named 'torch'" in output:
            return UsageError(
                f"`{self.python}` has no torch, which estimates the job",
                hint='pip install "cloudtrain[torch]", or name an interpreter with `--python`',
                code="CT948",
            )
        if code < 0:
            return _refused(self.job, f"{signal.Signals(-code).name} ended the script")
        lines = output.strip().splitlines()
        return _refused(self.job, lines[-1] if lines else f"the script ended with code {code}")


_WRITTEN = {
    "refused", "peak", "kinds", "place", "peaks", "batches", "operations", "exchanges",
    "decisions", "selections",
}  # fmt: skip
"""What the result of a rank consists of."""


def _link_datasets(folder: Path) -> None:
    """Make a folder with a link to each file that Hugging Face's `datasets` has prepared on this
    machine: what is written beside them stays in the folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(caches, "huggingface")
    source = os.environ.get("HF_DATASETS_CACHE") or Path(home, "datasets")
    with suppress(OSError, shutil.Error):
        ignored = shutil.ignore_patterns("downloads", "*.lock")
        shutil.copytree(source, folder, copy_function=os.symlink, ignore=ignored)


_KEPT = 2**16
"""Bytes of a script's output that are read."""


def _end_of(log: Path) -> str:
    """Return the last part of an output."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _KEPT))
        return file.read().decode(errors="replace")


_HINTS = {
    r"No module named|not installed|this script needs|there is no \w+ in `": (
        "`--python PATH` names an interpreter that has the packages of the job"
    ),
    r"FileNotFoundError|was not found": (
        "`--set inputs.NAME.local=FOLDER` names data that is here; a few rows of the same shape do"
    ),
}
"""What to type, by words of a refusal."""

_ELSE = (
    "`--config FOLDER` estimates from the numbers of a model instead; "
    "`cloudtrain explain CT948` says what can be followed"
)


def _refused(job: TrainingJob, message: str, place: str = "") -> UsageError:
    """Return the error for a script that cannot be followed. `place` is its line."""
    where = place or job.entry_point or "the command"
    hint = next((hint for words, hint in _HINTS.items() if re.search(words, message)), _ELSE)
    return UsageError(f"{where}: {message}", hint=hint, code="CT948")
