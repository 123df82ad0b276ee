"""llm_finetune: its options, rows and job files; and run for real where transformers, TRL and peft are installed.

They are not in the project's own environment. `make test-scripts` makes two that have them, one with the versions that
the script pins and one with today's, and names their interpreter in `CLOUDTRAIN_LLM_PYTHON`:

    python tools/run/training_scripts.py llm llm-pinned
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import cloudtrain as ct
from cloudtrain.lifecycle.rehearse import rehearse, run_whole
from tests.deadlines import DEADLINE, GRACE
from tests.training_scripts import runs
from tests.training_scripts.runs import HOLD, REPOSITORY, Run, check_out, plant

FOLDER = REPOSITORY / "training_scripts" / "llm_finetune"
PYTHON = os.environ.get("CLOUDTRAIN_LLM_PYTHON", sys.executable)
SMALL = ["--max_steps", "6", "--max_length", "64", "--eval_rows", "9", "--logging_steps", "1"]
LORA = ["--use_peft", "--lora_r", "4", "--learning_rate", "0.002"]
SAGEMAKER = ct.SageMaker(
    region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
)
SAME = 1e-4
READS_SHAPE = "        shape = AutoConfig.from_pretrained(place)\n"
FORBIDS_WEIGHTS = "        import transformers.modeling_utils\n        transformers.modeling_utils.safe_open = None\n"
"""What a process does that gets its weights from the first one, and what keeps it from opening their files."""
LOOK_UPS = """
import socket
real = socket.getaddrinfo
def looked_up(host, *arguments, **options):
    if host not in (None, "localhost", "127.0.0.1", "::1", socket.gethostname()):
        open(LOG, "a").write(f"{host}\\n")
    return real(host, *arguments, **options)
socket.getaddrinfo = looked_up
"""


def has(*modules: str) -> bool:
    """Asked of the interpreter that would run them, without importing them."""
    ask = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules!r})))"
    return subprocess.run([PYTHON, "-c", ask], check=False).returncode == 0


needs_libraries = pytest.mark.skipif(
    not has("transformers", "trl", "peft", "datasets", "bitsandbytes"),
    reason="set CLOUDTRAIN_LLM_PYTHON to a Python that has transformers, trl, peft, datasets and bitsandbytes",
)


def mistake(*options: str) -> str:
    """What the script says about options that it refuses: an error and a hint, without a traceback."""
    done = subprocess.run(
        [sys.executable, FOLDER / "train.py", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=FOLDER,
    )
    assert done.returncode
    assert "Traceback" not in done.stderr
    assert "\nhint: " in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--lora_rank 8",
            "`--lora_rank` is not an option of the script (did you mean `--lora_r`?)",
        ),
        ("--layout zero", "`zero` is not one of `ddp`, `fsdp`"),
        ("--load_in_4bit", "add `--use_peft`"),
        ("--load_in_4bit --use_peft --layout fsdp", "use `--layout ddp`"),
        ("--merge", "`--merge` needs an adapter"),
        ("--layout fsdp", "torchrun --nproc-per-node 2"),
        ("--early_stopping_patience 2", "set `--eval_steps`"),
    ],
)
def test_a_mistake_in_the_options_is_an_error_with_a_hint(options: str, said: str) -> None:
    """Before any library is imported."""
    assert said in mistake(*options.split())


@pytest.mark.skipif(find_spec("trl") is not None, reason="TRL is installed")
def test_missing_packages_are_named() -> None:
    """With the file that has them."""
    assert re.search(
        r"not installed: (torch, )?transformers, trl, .*bitsandbytes",
        mistake("--use_peft", "--load_in_4bit"),
    )
    assert "pip install -r requirements-qlora.txt" in mistake("--use_peft", "--load_in_4bit")
    assert "pip install -r requirements.txt" in mistake()


@pytest.mark.slow
def test_python_itself_has_questions_and_answers(tmp_path: Path) -> None:
    """Thousands, all different; they are not written over."""
    command = [sys.executable, FOLDER / "prepare.py", "pairs"]
    subprocess.run(command, check=True, cwd=tmp_path)
    rows = [
        json.loads(line)["messages"]
        for line in (tmp_path / "data/examples/pairs.jsonl").read_text().splitlines()
    ]
    assert len(rows) > 2000
    assert {tuple(message["role"] for message in row) for row in rows} == {("user", "assistant")}
    assert len({row[1]["content"] for row in rows}) > 0.99 * len(rows)
    again = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert (again.returncode, "hint: rm -r data/examples" in again.stderr) == (1, True)

    (tmp_path / "train.py").write_text("")
    job = ct.load_job(
        FOLDER / "job.yaml", [f"source_dir={tmp_path}", "environment.requirements=none"]
    )
    count = ct.plan(job, SAGEMAKER).uploads[0].file_count
    shutil.rmtree(tmp_path / "data")
    assert ct.plan(job, SAGEMAKER).uploads[0].file_count == count  # it was not sent with the code


def test_requirements_keep_pytorch_and_are_pinned() -> None:
    """Versions that the image's Python 3.10 on Azure ML can have, too; PyTorch is the image's."""
    lines = [
        line
        for file in FOLDER.glob("requirements*.txt")
        if "prepare" not in file.name
        for line in file.read_text().splitlines()
        if line and not line.startswith(("#", "-r"))
    ]
    assert [line for line in lines if "==" not in line or line.startswith("torch")] == []
    assert {"transformers==5.3.0", "trl==1.3.0", "peft==0.18.0"} <= set(lines)


# With the libraries


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script in a checkout without cloudtrain's other parts."""
    return check_out("llm_finetune", tmp_path_factory.mktemp("checkout"))


def torchrun(count: int) -> list[str]:
    """Of the other interpreter."""
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]


def tuned(
    script: Path,
    folder: Path,
    *options: str,
    made: Path | None = None,
    launcher: Sequence[str] = (),
    **more: object,
) -> Run:
    """A run with the tiny model; with that and the rows which the run in `made` has made."""
    folder.mkdir(exist_ok=True)
    if made is not None and not (folder / "data").exists():
        (folder / "data").symlink_to(made / "data")
    usual = {"HF_HOME": str(folder / "huggingface")}
    return runs.run(folder, *(launcher or torchrun(2)), script, *options, **usual, **more)  # type: ignore[arg-type]


def succeeded(run: Run) -> Run:
    """A run that ended well."""
    assert run.exit_code == 0, run.errors
    return run


def assert_same(found: Run, reference: Run) -> None:
    """All losses, and what was held out before and after."""
    assert found.losses == pytest.approx(reference.losses, abs=SAME)
    assert found.reported["eval_loss"] == pytest.approx(reference.reported["eval_loss"], abs=SAME)


def check(script: Path, folder: Path, *what: str | Path) -> None:
    """Run a part of `llm/check.py`."""
    variables = {
        **os.environ,
        "LLM_FINETUNE": str(script.parent),
        "PYTHONPATH": str(script.parents[2]),
        "HF_HOME": str(folder / "huggingface"),
    }
    program = Path(__file__).parent / "llm" / "check.py"
    command = [PYTHON, program, *what]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["checked"]), (
        done.stdout + done.stderr
    )


@pytest.fixture(scope="module")
def whole(script: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """All weights in two copies, and the folder with the tiny model and the rows."""
    folder = tmp_path_factory.mktemp("whole")
    return succeeded(tuned(script, folder, *SMALL)), folder


@pytest.mark.torch
@needs_libraries
def test_one_process_copies_and_shares_learn_the_same(
    script: Path, whole: tuple[Run, Path], tmp_path: Path
) -> None:
    """The same rows in one process, with activations kept; and two shares of the model, whose files only the first
    process opens. Given folders, nothing is looked up."""
    copies, made = whole
    assert len(copies.losses) == 6
    assert copies.losses[6] < copies.losses[1] - 0.2
    assert copies.reported["eval_loss"][6] < copies.reported["eval_loss"][0] - 0.2
    assert (made / "model" / "model.safetensors").is_file()
    assert (made / "model" / "tokenizer.json").is_file()
    once = check_out("llm_finetune", tmp_path / "checkout")
    plant(once, ("models.py", READS_SHAPE, f"{FORBIDS_WEIGHTS}{READS_SHAPE}"))
    shares = succeeded(tuned(once, tmp_path / "fsdp", *SMALL, "--layout", "fsdp", made=made))
    assert_same(shares, copies)
    check(script, tmp_path / "fsdp", "alike", "model", made / "model")

    log, hooks = tmp_path / "looked_up", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(LOOK_UPS.replace("LOG", repr(str(log))))
    given = [
        "--model_name_or_path",
        "data/tiny",
        "--dataset_name",
        "data/pairs",
        "--learning_rate",
        "0.002",
    ]
    keeping = ["--gradient_checkpointing", "False", "--per_device_train_batch_size", "8"]
    alone = tuned(
        script,
        tmp_path / "one",
        *SMALL,
        *given,
        *keeping,
        made=made,
        launcher=[PYTHON],
        PYTHONPATH=str(hooks),
    )
    assert_same(succeeded(alone), copies)
    assert not log.exists()


@pytest.mark.torch
@needs_libraries
def test_a_model_that_is_not_sharded_is_not_trained_as_if(
    script: Path, whole: tuple[Run, Path], tmp_path: Path
) -> None:
    """accelerate ignores FSDP on CPUs without a word; the script does not."""
    copy = check_out("llm_finetune", tmp_path / "checkout")
    plant(copy, ("tuning.py", "        shard_on_cpus()\n", "        pass\n"))
    found = tuned(copy, tmp_path / "run", *SMALL, "--layout", "fsdp", made=whole[1])
    assert found.exit_code
    assert "error: no layer of `DistributedDataParallel` is sharded" in found.errors
    assert found.losses == {}


@pytest.mark.torch
@needs_libraries
def test_an_adapter_and_the_model_it_is_merged_into(
    script: Path, whole: tuple[Run, Path], tmp_path: Path
) -> None:
    """LoRA learns the same in copies and in shares; the adapter and the merged model say the same in transformers."""
    options = [*SMALL, *LORA, "--lora_dropout", "0", "--merge"]
    copies = succeeded(tuned(script, tmp_path / "ddp", *options, made=whole[1]))
    shares = succeeded(
        tuned(script, tmp_path / "fsdp", *options, "--layout", "fsdp", made=whole[1])
    )
    assert_same(shares, copies)
    assert copies.losses[6] < copies.losses[1]
    for folder in (tmp_path / "ddp", tmp_path / "fsdp"):
        assert {path.name for path in (folder / "model").glob("*.safetensors")} == {
            "adapter_model.safetensors"
        }
        check(script, folder, "merged", "model")


@pytest.mark.torch
@needs_libraries
def test_weights_of_4_bits_are_trained_beside(
    script: Path, whole: tuple[Run, Path], tmp_path: Path
) -> None:
    """QLoRA on a CPU, in one process. Rounded weights have another loss, which falls; the adapter opens."""
    found = tuned(
        script,
        tmp_path,
        *SMALL,
        *LORA,
        "--load_in_4bit",
        "--merge",
        made=whole[1],
        launcher=[PYTHON],
    )
    before, after = (succeeded(found).reported["eval_loss"][step] for step in (0, 6))
    assert 1e-4 < abs(before - whole[0].reported["eval_loss"][0]) < 0.1
    assert after < before
    check(script, tmp_path, "merged", "model")


def stop(script: Path, folder: Path, *options: str) -> int:
    """SIGTERM at step 3, where rank 0 holds before it reports the loss. Return the step that was saved."""
    variables = {HOLD: "3", "HF_HOME": str(folder / "huggingface")}
    process = runs.start(folder, *torchrun(2), script, *options, **variables)
    for line in runs.lines_of(process):
        if " step=3 " in line:
            process.terminate()
    process.wait()
    assert not (folder / "model").exists()
    return int(json.loads(next(folder.rglob("preempted")).read_text())["step"])


@pytest.mark.torch
@needs_libraries
def test_a_stopped_training_goes_on_as_if_never_stopped(
    script: Path, whole: tuple[Run, Path], tmp_path: Path
) -> None:
    """LoRA with dropout, in shares, and all weights, in copies: stopped, resumed, the same losses to 5 digits. Both in
    one folder, because neither may take the other's checkpoint for its own."""
    shares = [*SMALL, *LORA, "--layout", "fsdp"]
    straight = succeeded(tuned(script, tmp_path / "straight", *shares, made=whole[1]))
    folder = tmp_path / "stopped"
    folder.mkdir()
    (folder / "data").symlink_to(whole[1] / "data")
    for options, reference in ((shares, straight), (SMALL, whole[0])):
        shutil.rmtree(folder / "model", ignore_errors=True)
        last = stop(script, folder, *options)
        assert 3 <= last < 6
        resumed = succeeded(tuned(script, folder, *options))
        assert resumed.losses == pytest.approx(
            {step: reference.losses[step] for step in range(last + 1, 7)}, abs=1e-5
        )
        # the Trainer's mean over steps that this run has not seen
        assert "train_loss" not in resumed.reported
        assert resumed.last("eval_loss") == pytest.approx(reference.last("eval_loss"), abs=1e-5)
        # what was held out before the first step is remembered
        assert resumed.lines[-1] == reference.lines[-1]


@pytest.mark.torch
@needs_libraries
def test_a_rehearsed_preemption_changes_nothing(whole: tuple[Run, Path], tmp_path: Path) -> None:
    """The job file, smaller: SIGTERM at step 3 in two processes, and every loss is that of a run without it."""
    small = {"max_steps": 6, "max_length": 64, "eval_rows": 9, "logging_steps": 1}
    inputs = {"base": "tiny", "examples": "pairs"}
    job = ct.load_job(
        FOLDER / "job.yaml",
        [
            *(f"hyperparameters.{name}={value}" for name, value in small.items()),
            *(
                f"inputs.{name}.local={whole[1] / 'data' / folder}"
                for name, folder in inputs.items()
            ),
        ],
    )
    target = ct.Local(
        python=PYTHON, build_environment=False, processes_per_instance=2, grace_period=GRACE
    )
    found = rehearse(run_whole(job, lambda one: ct.submit(one, target)), at_step=3)
    assert (found.verdict.kind, found.left) == ("same", "saved"), found
    assert found.comparison.saved_at is not None
    assert 3 <= found.comparison.saved_at < 6
    assert found.comparison.compared >= 2


@pytest.mark.torch
@needs_libraries
def test_make_gpu_measures_it(tmp_path: Path) -> None:
    """Rehearsed on the CPU: speed and memory, with all weights and with LoRA."""
    command = [PYTHON, REPOSITORY / "bench" / "gpu.py", "--rehearse", "--only", "finetune"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False,
        env={**os.environ, "HF_HOME": str(tmp_path / "huggingface"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {
        figure["name"]: figure["value"]
        for figure in json.loads((tmp_path / "bench-gpu.json").read_text())["figures"]
    }
    assert sorted(figures) == [
        "llm_finetune, 0.8 billion, LoRA", "llm_finetune, 0.8 billion, all weights",
        "llm_finetune, LoRA, peak memory", "llm_finetune, all weights, peak memory",
    ]  # fmt: skip
    assert min(figures.values()) > 10


@pytest.mark.torch
@needs_libraries
def test_mfu_counts_what_is_computed(script: Path, whole: tuple[Run, Path], tmp_path: Path) -> None:
    """All weights: 6 operations for each that is multiplied with, as gpt_fsdp counts. Frozen ones: 4."""
    (tmp_path / "data").symlink_to(whole[1] / "data")
    check(script, tmp_path, "flops")


@pytest.mark.torch
@needs_libraries
def test_a_training_that_gets_worse_stops_with_its_best(
    script: Path, whole: tuple[Run, Path], tmp_path: Path
) -> None:
    """Two looks without a gain, at a learning rate that is far too high."""
    options = [
        "--eval_steps",
        "1",
        "--early_stopping_patience",
        "2",
        "--learning_rate",
        "0.1",
        "--eval_rows",
        "8",
    ]
    launcher = [PYTHON]
    found = succeeded(tuned(script, tmp_path, *SMALL, *options, made=whole[1], launcher=launcher))
    looks = [line for line in found.lines if "eval_loss" in line]
    values = [float(line.rpartition("eval_loss=")[2].split()[0]) for line in looks]
    assert max(found.losses) < 6
    assert values[-1] == pytest.approx(min(values[1:]), abs=SAME)
    assert values[-1] < values[-2] - 0.01


@pytest.mark.torch
@needs_libraries
@pytest.mark.parametrize("what", ["masks", "forms", "packed"])
def test_rows(script: Path, whole: tuple[Run, Path], tmp_path: Path, what: str) -> None:
    """Masks of answers; files, folders and splits; examples packed into a row do not see each other."""
    (tmp_path / "data").symlink_to(whole[1] / "data")
    check(script, tmp_path, what)


@pytest.mark.torch
@pytest.mark.slow
@needs_libraries
@pytest.mark.skipif(
    not has("gguf"), reason="gguf, which reads the model's package, is not installed"
)
def test_a_real_model_learns_to_answer(script: Path, tmp_path: Path) -> None:
    """SmolLM2, a package of 93 MB: LoRA lowers the loss of answers that were held out by 8% or more, and it answers
    otherwise. Merged, it says the same; so does gpt_fsdp's decoder, also after two shards have written it again."""
    for what in ("smollm2", "pairs"):
        subprocess.run([PYTHON, script.with_name("prepare.py"), what], check=True, cwd=tmp_path)
    options = [
        "--use_peft",
        "--max_steps",
        "8",
        "--max_length",
        "128",
        "--per_device_train_batch_size",
        "2",
    ]
    found = succeeded(
        tuned(script, tmp_path, *options, "--lora_r", "8", "--learning_rate", "0.002", "--merge")
    )
    losses = found.reported["eval_loss"]
    assert losses[8] <= 0.92 * losses[0]
    check(script, tmp_path, "merged", "model", "data/base")
    ask = [PYTHON, script.with_name("answer.py")], ["What does `os.path.join` do in Python?"]
    answers = [
        subprocess.run(
            [*ask[0], folder, *ask[1]], capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout
        for folder in ("data/base", "model")
    ]
    assert min(map(len, answers)) > 50
    assert answers[0] != answers[1]

    decoder, start = check_out("gpt_fsdp", tmp_path / "checkout"), tmp_path / "model" / "merged"
    shards = runs.run(
        tmp_path / "decoder", *runs.forks(2), decoder, "--init_from", start, "--export", "hf", "--steps", "0",
        "--context", "32", "--evaluate_windows", "2", PYTHONPATH=str(decoder.parents[2]),
    )  # fmt: skip
    exported = tmp_path / "decoder" / "model" / "hf"
    assert (shards.exit_code, exported.is_dir()) == (0, True), shards.errors
    compare = [PYTHON, Path(__file__).parent / "llm" / "gpt_check.py", "logits", start, exported]
    done = subprocess.run(compare, capture_output=True, text=True, check=True)
    assert all(
        found["difference"] <= 1e-5 * found["range"] for found in json.loads(done.stdout).values()
    ), done.stdout
