"""Every command that a README or a docstring shows for a script itself runs to its end, with further options that make it
small. `test_commands` plans those of cloudtrain.

Scripts that need more than PyTorch run where `tools/run/training_scripts.py` names an interpreter that has it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from cloudtrain.targets.common.launch import find_mpirun
from tests.ports import free_port
from tests.training_scripts.runs import REPOSITORY, check_out, lines_of, start
from tests.training_scripts.test_commands import THEIRS, Command
from tests.training_scripts.test_script_folders import FOLDERS

GPT = "--layers 4 --heads 4 --width 32 --context 32 --steps 2"
LLM = "--max_steps 2 --max_length 64 --eval_rows 4 --logging_steps 1"
SMALL = {
    "bandwidth/train.py": "--largest 65536 --width 16 --batch 8 --rounds 1",
    "cifar_ddp/train.py": "--epochs 1 --width 4 --blocks 1 --global_batch 256",
    "cifar_deepspeed/train.py": "--epochs 1 --width 4",
    "digits_ddp/train.py": "--epochs 1",
    "digits_ddp/compare.py": "--hidden 32 --layers 2 --rounds 1 --accumulate 2 --shares 32",
    "digits_ddp/elastic.py": "--epochs 2 --lose_at 6 --alone_for 6",
    "gpt_fsdp/train.py": f"{GPT} --vocabulary 256 --compile False --global_batch 16",
    "llm_finetune/train.py": LLM,
    "mnist_horovod/train.py": "--epochs 1",
    "mnist_tensorflow/train.py": "--epochs 1",
    "parameter_server/train.py": "--epochs 1 --step_seconds 0",
    "pipeline_gpt/train.py": f"{GPT} --layers 8 --repeat 1 --sleep 0.002",
    "resnet_model_parallel/train.py": "--steps 2 --tiny",
    "spleen_segmentation/train.py": (
        "--steps 4 --patch 16,16,8 --channels 4,8 --residual_units 0 --evaluate_every 4 --pictures 1"
    ),
    "spleen_segmentation/make_volumes.py": "--count 3",
    "spleen_segmentation/scaling.py": "--rounds 1 --count 2 --voxel 6 --steps 2",
    "toy_smddp/train.py": "--steps 2",
}
"""The options that make a script small."""

AS_IT_STANDS = {"--help", "--dry_run", "--costs"}
"""Options with which a script trains nothing, so that it needs not be made small."""

IN_PLACE_OF = {
    "Qwen/Qwen3-8B": "FOLDER",
    "Qwen3-0.6B": "FOLDER",
    "data/base": "FOLDER",
    "model": "FOLDER",
}
"""Models that nobody has here, and of which a tiny one takes the place."""

STAND_IN = str(REPOSITORY / "tests" / "fakes" / "horovod")

NOT_HERE = re.compile(r"prepare\.py (smollm2|pairs|--tokenizer)|horovodrun|1:N|--node-rank 1")
"""Commands that download or read what packages of the machine have, that need a Horovod that is built, that are for
machines which come and go, and the second of two that are started together."""

SUITES = {
    "cifar_deepspeed": "DEEPSPEED",
    "llm_finetune": "LLM",
    "mnist_tensorflow": "TENSORFLOW",
}
"""The folders whose scripts need more than PyTorch, and the word in the variable for an interpreter that has it."""

PYTHONS = {word: os.environ.get(f"CLOUDTRAIN_{word}_PYTHON", "") for word in SUITES.values()}
"""These interpreters. Read here, because a test's environment has no such variable."""

EXTENSIONS = {name: os.environ[name] for name in ("TORCH_EXTENSIONS_DIR",) if name in os.environ}
"""Where DeepSpeed keeps what it compiles."""


class Case(NamedTuple):
    """A command, and the folder of its script."""

    folder: str
    line: str

    @classmethod
    def of(cls, command: Command) -> Case:
        """The command without what a shell would do with its output."""
        line = re.split(r" (?:&|\||>|;)", command.line)[0]
        return cls(command.shown_in.parent.name, " ".join(line.split()))

    def __str__(self) -> str:
        return f"{self.folder}: {self.line}"


def is_of_folder(command: Command) -> bool:
    """Whether a training script shows it, and not an example, whose whole run is a test of its own."""
    return command.shown_in.parent in FOLDERS


CASES = [
    case
    for case in dict.fromkeys(Case.of(command) for command in THEIRS if is_of_folder(command))
    if not NOT_HERE.search(case.line)
]


def cases_of(suite: str) -> pytest.MarkDecorator:
    """The commands of the folders of a suite; of those that need no more than PyTorch without one."""
    cases = [case for case in CASES if SUITES.get(case.folder, "") == suite]
    return pytest.mark.parametrize("case", cases, ids=str)


def run(case: Case, folder: Path, python: str = sys.executable) -> None:
    """Run a command in a checkout of its script's folder, with what it reads."""
    script = check_out(case.folder, folder)
    place = script.parent
    line = case.line
    for name, other in IN_PLACE_OF.items():
        line = re.sub(rf"(?<=[ =]){re.escape(name)}(?= |$)", other, line)
    make_inputs(case, place, line, python)
    variables = {**EXTENSIONS, "HF_HOME": str(folder / "huggingface")}
    if case.folder == "mnist_horovod":
        short = tempfile.mkdtemp()  # a socket's path has at most a hundred characters
        variables |= {"PYTHONPATH": STAND_IN, "HOROVOD_STAND_IN": f"{short}/socket"}
    commands = [line]
    if "--node-rank 0" in line:
        port = str(free_port())
        line = line.replace("29400", port)
        commands = [line, line.replace("--node-rank 0", "--node-rank 1")]

    processes = [
        start(place, *words_of(command, case.folder, python), **variables, **set_in(command))
        for command in commands
    ]
    lines = [list(lines_of(process)) for process in processes]
    codes = [process.wait() for process in processes]
    assert codes == [0] * len(codes), ((place / "stderr.txt").read_text()[-3000:], lines)


def set_in(line: str) -> dict[str, str]:
    """The variables that stand before a command."""
    return dict(word.split("=", 1) for word in re.findall(r"(?:(?<=^)|(?<= ))[A-Z_]+=\S+", line))


def words_of(line: str, folder: str, python: str) -> list[str]:
    """The words of a command, with programs that are here, and the options that make it small."""
    words = [word for word in shlex.split(line) if not re.match("[A-Z_]+=", word)]
    programs = {
        "torchrun": [python, "-m", "torch.distributed.run"],
        "mpirun": [find_mpirun(python, os.environ) or "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
        "deepspeed": [str(Path(python).with_name("deepspeed"))],
    }  # fmt: skip
    first, *rest = words
    program = programs.get(first, [python])
    if first == "torchrun" and "--nnodes" not in words:
        program.append("--standalone")
    rest = [python if word == "python" else word for word in rest]
    script = next(word for word in rest if word.endswith(".py"))
    small = SMALL.get(f"{folder}/{script}", "").split()
    if "--init_from" in rest:  # its shape is that of the folder
        small = ["--context", "32", "--steps", "2"]
    if AS_IT_STANDS & {*rest}:
        small = []
    return [*program, *rest, *small]


def make_inputs(case: Case, place: Path, line: str, python: str) -> None:
    """Write the files that a command names: a tiny model, rows, an archive, volumes."""

    def make(*words: str) -> None:
        subprocess.run([python, *words], cwd=place, check=True, capture_output=True)

    if "FOLDER" in line and case.folder == "gpt_fsdp":
        make("train.py", "--layout", "ddp", "--family", "llama", *GPT.split(), "--export", "hf")
        (place / "FOLDER").symlink_to(place / "model" / "hf")
    elif case.folder == "gpt_fsdp" and "prepare.py" in line:
        (place / "data" / "raw").mkdir(parents=True)
        (place / "data" / "raw" / "a.txt").write_text("words " * 2000)
        if "--check" in line:
            make("prepare.py")
    elif "FOLDER" in line and case.folder == "llm_finetune":
        make("train.py", *LLM.split())
        (place / "FOLDER").symlink_to(place / "data" / "tiny")
    if "my.jsonl" in line:
        row = {
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        }
        (place / "my.jsonl").write_text(f"{json.dumps(row)}\n" * 20)
    if "cifar-10-python.tar.gz" in line:
        make("make_digits.py", ".", "--archive")
    if case.folder == "spleen_segmentation" and re.search(r"(prepare|scaling)\.py", line):
        make("make_volumes.py", "--count", "3")
        (place / "Task09_Spleen").symlink_to(place / "data" / "raw")
    if "ds_config_optimal.json" in line:
        (place / "autotuning_results").mkdir()
        made = json.loads((place / "ds_config_autotune.json").read_text())
        del made["autotuning"]  # as the tuner leaves it out
        made |= {"train_micro_batch_size_per_gpu": 16, "zero_optimization": {"stage": 1}}
        (place / "autotuning_results" / "ds_config_optimal.json").write_text(json.dumps(made))


pytestmark = [pytest.mark.torch, pytest.mark.slow]


@cases_of("")
def test_a_command_runs(case: Case, tmp_path: Path) -> None:
    """To its end, without an error."""
    if case.folder == "spleen_segmentation":
        pytest.importorskip("monai")
    if "mpirun" in case.line and find_mpirun(sys.executable, os.environ) is None:
        pytest.skip("there is no mpirun")
    if "--device cuda" in case.line and not Path("/dev/nvidia0").exists():
        pytest.skip("there is no GPU")
    run(case, tmp_path)


def interpreter(suite: str) -> str:
    """The interpreter of a suite; without one, the test is skipped."""
    if not PYTHONS[suite]:
        pytest.skip(f"set CLOUDTRAIN_{suite}_PYTHON, as `tools/run/training_scripts.py` does")
    return PYTHONS[suite]


@cases_of("DEEPSPEED")
def test_a_command_of_deepspeed_runs(case: Case, tmp_path: Path) -> None:
    """To its end, without an error."""
    run(case, tmp_path, interpreter("DEEPSPEED"))


@cases_of("TENSORFLOW")
def test_a_command_of_tensorflow_runs(case: Case, tmp_path: Path) -> None:
    """To its end, without an error."""
    run(case, tmp_path, interpreter("TENSORFLOW"))


@cases_of("LLM")
def test_a_command_of_llm_finetune_runs(case: Case, tmp_path: Path) -> None:
    """To its end, without an error."""
    run(case, tmp_path, interpreter("LLM"))
