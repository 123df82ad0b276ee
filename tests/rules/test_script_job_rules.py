"""Rules about jobs of training scripts on paid machines: what their PyTorch lacks, and demonstrations sent by mistake."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain as ct

CLOUDS = {
    "sagemaker": ct.SageMaker(region="eu-west-1", role="arn:aws:iam::111122223333:role/R"),
    "azureml": ct.AzureML(
        subscription_id="00000000-0000-0000-0000-000000000000",
        resource_group="g",
        workspace="w",
        compute="c",
    ),
}
PIPELINED = "from torch.distributed.pipelining import PipelineStage\n"
SHARDED = "def f():\n    from torch.distributed.fsdp import fully_shard\n"


def found(
    make_source: Callable[..., Path], target: str, code: str, source: str = "", **fields: Any
) -> list[tuple[str, str | None]]:
    """Message and hint of a rule's findings."""
    folder = make_source({"train.py": source or "print(1)\n"})
    job = ct.TrainingJob(
        **{
            "name": "job", "entry_point": "train.py", "source_dir": str(folder), "distribution": {"type": "torch"},
            "resources": {"instance_type": {"sagemaker": "ml.g5.12xlarge", "azureml": "Standard_NC48ads_A100_v4"}},
            **fields,
        }
    )  # fmt: skip
    plan = ct.plan(job, target=CLOUDS.get(target, ct.Local()))
    return [(item.message, item.hint) for item in plan.findings if item.code == code]


def pytorch(version: str) -> dict[str, Any]:
    """The environment with that PyTorch."""
    return {
        "environment": {"framework": "pytorch", "version": version, "image": {"azureml": "a/b:1"}}
    }


@pytest.mark.parametrize("target", CLOUDS)
@pytest.mark.parametrize(
    ("source", "fields", "old", "good", "message"),
    [
        (
            SHARDED,
            {},
            "2.5",
            "2.6",
            "imports `torch.distributed.fsdp.fully_shard`, which needs PyTorch 2.6 or newer",
        ),
        (
            PIPELINED,
            {},
            "2.3.0",
            "2.4",
            "imports `torch.distributed.pipelining`, which needs PyTorch 2.4 or newer",
        ),
        (
            PIPELINED,
            {"hyperparameters": {"schedule": "zero-bubble-v"}},
            "2.5",
            "2.6",
            "the schedule `zero-bubble-v`",
        ),
    ],
)
def test_what_a_version_cannot_run_is_found_before_it_is_paid_for(
    make_source: Callable[..., Path],
    target: str,
    source: str,
    fields: Any,
    old: str,
    good: str,
    message: str,
) -> None:
    """The import or the schedule is named, with the version that has it; that version is left alone."""
    said = found(make_source, target, "CT208", source, **fields, **pytorch(old))
    assert len(said) == 1
    assert message in said[0][0]
    assert f'set `environment.version` to "{good}"' in str(said[0][1])
    assert found(make_source, target, "CT208", source, **fields, **pytorch(good)) == []


def test_a_schedule_is_only_torchs_in_a_script_that_pipelines(
    make_source: Callable[..., Path],
) -> None:
    """`schedule` is a name that scripts use for other things."""
    schedule = {"hyperparameters": {"schedule": "zero-bubble-v"}}
    assert (
        found(make_source, "sagemaker", "CT208", "print(1)\n", **schedule, **pytorch("2.3")) == []
    )
    assert found(make_source, "local", "CT208", SHARDED, **pytorch("2.3")) == []


def test_smp_may_stand_beside_newer_names() -> None:
    """Its images end at PyTorch 2.0; the bundled script that can use it has a job file without errors."""
    job = ct.load_job(
        Path(__file__).parents[2] / "training_scripts" / "pipeline_gpt" / "job_smp.yaml"
    )
    assert [
        finding
        for finding in ct.plan(job, target=CLOUDS["sagemaker"]).findings
        if finding.level == "error"
    ] == []


@pytest.mark.parametrize("target", CLOUDS)
def test_a_demonstration_is_not_sent_to_a_paid_machine_unnoticed(
    make_source: Callable[..., Path], target: str
) -> None:
    """The tag of the bundled job files warns on the clouds, not here; without the tag there is nothing to say."""
    (said,) = found(make_source, target, "CT403", tags={"size": "toy"}, **pytorch("2.8"))
    assert "job_gpu.yaml" in str(said[1])
    assert found(make_source, target, "CT403", tags={"size": "large"}, **pytorch("2.8")) == []
    assert found(make_source, "local", "CT403", tags={"size": "toy"}) == []


@pytest.mark.parametrize("target", [*CLOUDS, "local"])
def test_copies_of_one_training_are_told_before_they_are_paid_for(
    make_source: Callable[..., Path], target: str
) -> None:
    """A script that joins no process group would be trained once per process; one that does is left alone."""
    alone = "import torch\nloss = torch.ones(1, requires_grad=True)\nloss.backward()\n"
    ((message, hint),) = found(make_source, target, "CT507", alone, **pytorch("2.8"))
    assert message.startswith("`train.py` joins no other process, so ")
    assert "`distribution: {type: none}`" in str(hint)
    by_library = alone.replace("loss.backward()", "accelerator.backward(loss)\nimport accelerate")
    for joined in (f"{alone}import torch.distributed\n", by_library):
        assert found(make_source, target, "CT507", joined, **pytorch("2.8")) == []
    code = {"sagemaker": "SM331", "azureml": "AZ321"}.get(target, "")
    idle = found(make_source, target, code, alone, distribution={"type": "none"}, **pytorch("2.8"))
    assert all("join several processes in the script" in str(hint) for _, hint in idle)
    assert target == "local" or idle


STARTS = "import torch\nimport torch.multiprocessing as mp\nimport torch.distributed as dist\nfrom torch.multiprocessing import spawn\n"


@pytest.mark.parametrize(
    ("line", "is_alone"),
    [
        ("mp.spawn(work, args=(8,), nprocs=8)", True),
        ("spawn(work, nprocs=torch.cuda.device_count())", True),
        ("torch.multiprocessing.start_processes(work, (8,), 8)", True),
        ("mp.spawn(work, nprocs=8) if 'RANK' not in os.environ else work(0)", False),
        ("pexpect.spawn('sh')", False),
        ("dist.init_process_group('nccl')", False),
    ],
)
def test_a_script_that_starts_its_processes(
    make_source: Callable[..., Path], line: str, is_alone: bool
) -> None:
    """One process runs it, which uses all GPUs; each process of a launcher would start as many again."""
    text = STARTS + line
    found_torch = found(make_source, "sagemaker", "CT507", text, **pytorch("2.8"))
    assert [message.split(", ")[0] for message, _ in found_torch] == (
        ["`train.py` starts its processes itself"] if is_alone else []
    )
    if is_alone:
        idle = found(
            make_source, "sagemaker", "SM331", text, distribution={"type": "none"}, **pytorch("2.8")
        )
        assert idle == []


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ('torch.save(net, "out/model.pt")', "out/model.pt"),
        ('net.save_pretrained(f"{FOLDER}/last")', "out/last"),
        ('torch.save(net, Path(FOLDER) / f"{epoch}.pt")', "out/..."),
        ('trainer.save_model("/tmp/model")', "/tmp/model"),
        ('TrainingArguments(per_device_train_batch_size=1, output_dir="./out")', "out"),
        ('torch.save(net, args.output_dir + "/a.pt")', "results/a.pt"),
        ('torch.save(net, f=os.path.join(args.output_dir, "a.pt"))', "results/a.pt"),
        ('torch.save(net, os.path.join(os.environ["SM_MODEL_DIR"], "a.pt"))', None),
        ('torch.save(net, "/opt/ml/model/a.pt")', None),
        ("torch.save(net, runtime.model_dir() / 'a.pt')", None),
        ("image.save('a.png')", None),
        ('model.save("digits.keras")', "digits.keras"),
        ('model.save(filepath=f"{FOLDER}/net.h5")', "out/net.h5"),
        ('model.save_weights(args.output_dir + "/net.weights.h5")', "results/net.weights.h5"),
        ('np.save("weights.npy", net)', "weights.npy"),
        ("HfArgumentParser((Ours, TrainingArguments))", "results"),
        ("HfArgumentParser((Ours, TrainingArguments)); integrations.train(trainer)", None),
        ("HfArgumentParser(Ours)", None),
        ('trainer.save_checkpoint("model.ckpt")', "model.ckpt"),
        ('callbacks=[ModelCheckpoint(dirpath="best", monitor="val_loss")]', "best"),
        ('callbacks=[ModelCheckpoint(runtime.checkpoint_dir() / "best")]', None),
    ],
)
def test_a_model_that_the_service_would_delete_is_told(
    make_source: Callable[..., Path], line: str, path: str | None
) -> None:
    """The line and the place are named on both clouds, in modules beside the script too; not on this machine."""
    own = f'FOLDER = "out"\nparser.add_argument("-o", "--output_dir", default="results")\n{line}\n'
    for target in CLOUDS:
        said = found(make_source, target, "CT404", own, **pytorch("2.8"))
        assert [message.split(",")[0] for message, _ in said] == (
            [f"line 3 of `train.py` saves to `{path}`"] if path else []
        )
    assert found(make_source, "local", "CT404", own) == []


def test_azure_keeps_its_own_folders(make_source: Callable[..., Path]) -> None:
    """Azure ML uploads `./outputs` and `./logs`; SageMaker does not."""
    line = 'torch.save(net, "./outputs/a.pt")\n'
    assert found(make_source, "azureml", "CT404", line, **pytorch("2.8")) == []
    assert found(make_source, "sagemaker", "CT404", line, **pytorch("2.8")) != []


def test_data_that_only_this_machine_has_is_told(
    make_source: Callable[..., Path], tmp_path: Path
) -> None:
    """An absolute path on the clouds, `../data` on every target, also as an option's default. What exists nowhere here,
    or in every container, is left alone."""
    (tmp_path / "data").mkdir()
    above = os.path.relpath(tmp_path / "data", make_source({"train.py": ""}))
    whole = str(tmp_path / "data")
    cases: list[tuple[dict[str, Any], str, list[str]]] = [
        ({"hyperparameters": {"data": whole}}, whole, list(CLOUDS)),
        ({"arguments": ("--flag", f"--data={whole}")}, whole, list(CLOUDS)),
        ({"arguments": ("--data", above, "-x")}, above, [*CLOUDS, "local"]),
        (
            {"hyperparameters": {"data": f"{whole}/none", "shell": "/bin/sh", "other": "../none"}},
            "",
            [],
        ),
    ]
    for fields, path, targets in cases:
        for target in (*CLOUDS, "local"):
            said = found(make_source, target, "CT212", **fields, **pytorch("2.8"))
            assert [message for message, _ in said] == (
                [f"`--data {path}` is a path of this machine, which the run does not have"]
                if target in targets
                else []
            )
            assert all(f"`--set inputs.data.{target}={whole}" in str(hint) for _, hint in said)
    default = f"parser.add_argument('--data', default={above!r})\n"
    assert len(found(make_source, "local", "CT212", default)) == 1
    ((message, hint),) = found(
        make_source, "local", "CT212", f"data = load({above!r}, '../none')\nload({above!r})\n"
    )
    assert f"line 1 of `train.py` names `{above}`, a path of this machine" in message
    assert f"`inputs: {{data: {{local: {whole}}}}}`" in str(hint)
    assert f"`command: ln -sfn ${{{{inputs.data}}}} {above} && python train.py`" in str(hint)
    for name in ("train.csv", "test.csv"):  # the folder is linked, because a run lacks it, too
        (tmp_path / "data" / name).write_text("")
    files = f"load({above + '/train.csv'!r}, {above + '/test.csv'!r}, '../data/none')\n"
    ((message, hint),) = found(make_source, "local", "CT212", files)
    assert f"names `{above}/train.csv`" in message
    assert f"`inputs: {{data: {{local: {whole}}}}}`" in str(hint)
    assert f"`command: ln -sfn ${{{{inputs.data}}}} {above} && python train.py`" in str(hint)
    assert found(make_source, "local", "CT212", default, inputs={"data": {"local": whole}},
                 hyperparameters={"data": "${{inputs.data}}"}) == []  # fmt: skip


GUARDED = "if __name__ == '__main__':\n    input()\n"


@pytest.mark.parametrize("target", [*CLOUDS, "local"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "a = 1\nget_ipython().system('ls')\nget_ipython().system('pwd')\n",
            "`get_ipython()` is called in lines 2, 3 of",
        ),
        (
            "from IPython import get_ipython\nget_ipython().system('ls')\n",
            "`get_ipython()` is called in line 2 of",
        ),
        (
            "import pandas\ndisplay(pandas)\n",
            "`display()` is called in line 2 of `train.py`, which only a notebook has",
        ),
        (
            "def main():\n    return input('?')\nif __name__ == '__main__':\n    main()\n",
            "and a run has no keyboard",
        ),
        (
            "try:\n    import a\nexcept ImportError:\n    def a(x): return x\nname = input()\n",
            "called in line 5 of",
        ),
        ("with open('a') as file:\n    input(file.read())\n", "called in line 2 of"),
        ("import part\n", "`input()` is called in line 1 of `part.py`"),
        ("def ask():\n    return input()\n", None),
        ("import sys\nif not sys.stdin.isatty():\n    sys.exit()\ninput()\n", None),
        ("import sys\nname = input() if sys.stdin.isatty() else 'x'\n", None),
        ("from IPython.display import display\ndisplay(1)\n", None),
        ("def step(input):\n    return input(3)\nstep(len)\n", None),
        ("from ui import *\ninput()\n", None),
        ("for _ in []:\n    input()\n", None),
        ("from contextlib import suppress\nwith suppress(NameError):\n    get_ipython()\n", None),
        ("import guarded\n", None),
        ("try:\n    import part\nexcept EOFError:\n    pass\n", None),
    ],
)
def test_a_script_that_needs_a_notebook_or_a_person(
    make_source: Callable[..., Path], target: str, source: str, message: str | None
) -> None:
    """What certainly ends the script is told before a machine starts, and nothing that may never run."""
    folder = make_source({"train.py": source, "part.py": "input()\n", "guarded.py": GUARDED})
    job = ct.TrainingJob(
        name="job", entry_point="train.py", source_dir=str(folder), **pytorch("2.8"),
        resources={"instance_type": {"sagemaker": "ml.g5.xlarge", "azureml": "Standard_NC24ads_A100_v4"}},
    )  # fmt: skip
    plan = ct.plan(job, target=CLOUDS.get(target, ct.Local()))
    said = [item.message for item in plan.findings if item.code == "CT214"]
    assert [message in text for text in said if message] == ([True] if message else [])
    assert bool(said) == (message is not None)


@pytest.mark.parametrize(
    ("entry_point", "source", "hint"),
    [
        ("pkg/train.py", "from . import util\n", "`entry_point: -m pkg.train`"),
        (
            "pkg/sub/train.py",
            "import os\nfrom ..util import x\n",
            "`entry_point: -m pkg.sub.train`",
        ),
        ("train.py", "from .pkg import util\n", "`import util`"),
        ("pkg/train.py", "if 1:\n    from . import util\n", None),
        (
            "pkg/train.py",
            "try:\n    from . import util\nexcept ImportError:\n    import util\n",
            None,
        ),
        ("pkg/train.py", "__package__ = 'pkg'\nfrom . import util\n", None),
        ("pkg/train.py", "def main():\n    from . import util\n", None),
        ("-m pkg.train", "from . import util\n", None),
        ("train.py", "import pkg.part\n", None),
    ],
)
def test_a_file_that_imports_relative_to_its_package(
    make_source: Callable[..., Path], entry_point: str, source: str, hint: str | None
) -> None:
    """Python would end before the first line; a module of the script may import so."""
    file = entry_point if entry_point.endswith(".py") else "pkg/train.py"
    files = {"pkg/__init__.py": "", "pkg/util.py": "x = 1\n", "pkg/sub/__init__.py": ""}
    folder = make_source({**files, "pkg/part.py": "from . import util\n", file: source})
    job = ct.TrainingJob(name="job", entry_point=entry_point, source_dir=str(folder))
    found = [item for item in ct.plan(job, "local").findings if item.code == "CT220"]
    assert [hint in (item.hint or "") for item in found if hint] == ([True] if hint else [])
    assert bool(found) == (hint is not None)


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ('open("out/result.txt", "w")', "out"),
        ('open(f"out/{name}.txt", mode="ab")', "out"),
        ('torch.save(net, "a/b/net.pt")', "a/b"),
        ('plt.savefig(os.path.join(FOLDER, "loss.png"))', "plots"),
        ('frame.to_csv("./out/x.csv")', "out"),
        ('open("out/data.csv")', None),
        ('open("there/result.txt", "w")', None),
        ('open("result.txt", "w")', None),
        ('open("/tmp/result.txt", "w")', None),
        ('open(f"{name}/result.txt", "w")', None),
        ('Path("out").mkdir(); open("out/result.txt", "w")', None),
    ],
)
def test_a_folder_that_the_run_does_not_have_is_told(
    make_source: Callable[..., Path], line: str, folder: str | None
) -> None:
    """A script that wrote into an empty folder here would fail at its end; one that makes the folder is left alone."""
    source = make_source({"train.py": f"FOLDER = 'plots'\n{line}\n", "there/old.txt": "1"})
    (source / "out").mkdir()
    plan = ct.plan(ct.TrainingJob(name="job", entry_point="train.py", source_dir=str(source)))
    said = [item.message for item in plan.findings if item.code == "CT405"]
    assert said == (
        [f"line 2 of `train.py` writes into `{folder}`, a folder that the run does not have"]
        if folder
        else []
    )


POSITIONAL = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("epochs", type=int)
parser.add_argument("rest", nargs="*")
parser.add_argument("-l", "--lr", required=True)
parser.add_argument("--no-cuda", action="store_true")
parser.parse_args()
"""


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("data 3 --lr 1", []),
        ("-l1 --no-cuda data -3", []),
        ("--lr=1 -- data --epochs", []),
        ("--lr 1", ["`train.py` requires `epochs`, and the job's arguments end before"]),
        ("", [
            "`train.py` requires `data`, `epochs`, and the job's arguments end before",
            "`train.py` requires the option `--lr`, and the job has no value for it",
        ]),
        ("data 3 --lr 1 --no_cuda", ["`no_cuda` is not an option of `train.py`"]),
        ("data 3 --lrate=1 -l 1", ["`lrate` is not an option of `train.py`"]),
    ],
)  # fmt: skip
def test_arguments_that_argparse_refuses(
    make_source: Callable[..., Path], words: str, messages: list[str]
) -> None:
    """Missing arguments and unknown options are found beside flags and arguments without dashes, too."""
    said = found(
        make_source,
        "local",
        "CT209",
        POSITIONAL,
        arguments=words.split(),
        distribution={"type": "none"},
    )
    assert [message for message, _ in said] == messages
