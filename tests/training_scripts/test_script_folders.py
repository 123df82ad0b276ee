"""Every bundled script's folder holds what a user needs, and its job file is a valid job."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

import cloudtrain as ct
from cloudtrain import TrainingJob
from cloudtrain.code.bundled import copy_script
from cloudtrain.runtime import arguments

FOLDERS = sorted(
    path.parent for path in (Path(__file__).parents[2] / "training_scripts").glob("*/train.py")
)
SHARING = [folder for folder in FOLDERS if (folder / ".cloudtraininclude").is_file()]

AZUREML = {
    "subscription_id": "00000000-0000-0000-0000-000000000000",
    "resource_group": "group",
    "workspace": "work",
}
TARGETS = {
    "local": ct.Local(),
    "sagemaker": ct.SageMaker(
        region="us-west-2", role="arn:aws:iam::111122223333:role/SageMakerTraining"
    ),
    "azureml": ct.AzureML(**AZUREML),
    "slurm": ct.Slurm(shared_dir="/fsx"),
}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_job_file_is_a_valid_job(folder: Path) -> None:
    """It validates, runs the script beside it, and passes only hyperparameters that the script has."""
    job = TrainingJob(**yaml.safe_load((folder / "job.yaml").read_text("utf-8")))
    assert job.name == folder.name.replace("_", "-")
    assert job.entry_point == "train.py"
    declared = {
        node.target.id
        for node in ast.walk(ast.parse((folder / "train.py").read_text("utf-8")))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(job.hyperparameters) <= declared


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_job_of_seconds_is_not_sent_to_a_cloud_unnoticed(folder: Path) -> None:
    """Only the large jobs, and that for a library of one cloud, are without the tag that warns."""
    jobs = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in folder.glob("job*.yaml")}
    untagged = {name for name, job in jobs.items() if job.get("tags") != {"size": "toy"}}
    large = {"job_gpu.yaml", "job_gpu_7b.yaml", "job_gpu_one.yaml", "job_gpu_qlora.yaml"}
    assert "job_gpu.yaml" in untagged <= large | {"job_smp.yaml", "job_huggingface.yaml"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_job_names_an_instance_type_on_both_clouds(folder: Path) -> None:
    """The same job file runs on all three targets."""
    job = TrainingJob(**yaml.safe_load((folder / "job.yaml").read_text("utf-8")))
    described_by_gpu = job.resources.gpu is not None
    named = job.resources.instance_type
    assert described_by_gpu or (named is not None and named.sagemaker and named.azureml)
    if job.environment.requirements is not None:
        assert (folder / job.environment.requirements).is_file()


OF_DECODERS = [
    file
    for name in ("gpt_fsdp", "llm_finetune", "pipeline_gpt")
    for file in sorted((FOLDERS[0].parent / name).glob("*.yaml"))
]


@pytest.mark.slow_after(16)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("file", OF_DECODERS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_job_of_a_decoder_has_a_plan_on_every_target(file: Path, target: str) -> None:
    """Without an error or a warning, but for what is not of the job: data and PyTorch that are not there, Slurm's own
    programs, that a demonstration costs money, and that prepare.py divides the work itself."""
    only = {"job_huggingface.yaml": {"local", "sagemaker"}, "job_smp.yaml": {"sagemaker"}}
    if target not in only.get(file.name, TARGETS):
        pytest.skip("the library or the image is SageMaker's")
    plan = ct.plan(ct.load_job(file), TARGETS[target])
    found = {
        finding.code for finding in plan.findings if finding.level.value in ("error", "warning")
    }
    usual = {"local": {"LO101", "LO103"}, "slurm": {"SL901", "SL902"}}.get(
        target, {"CT403"} if file.name == "job.yaml" else set()
    )
    assert found <= usual | ({"CT521"} if file.name == "prepare.yaml" else set())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_docstring_holds_the_commands(folder: Path) -> None:
    """One line that says what the script trains, then the exact commands; and a README."""
    docstring = ast.get_docstring(ast.parse((folder / "train.py").read_text("utf-8")))
    assert docstring is not None
    assert len(docstring.splitlines()[0]) <= 100
    assert "cloudtrain submit job.yaml" in docstring
    assert (folder / "README.md").is_file()


def declared_in(folder: Path, script: str = "train.py") -> tuple[Any, dict[str, float]]:
    """`Config` and `AT_LEAST` of a script, without the script."""
    names = {"Config", "AT_LEAST"}
    nodes = [
        node
        for node in ast.parse((folder / script).read_text("utf-8")).body
        if isinstance(node, ast.ClassDef | ast.Assign)
        and names
        & {
            getattr(node, "name", ""),
            *(getattr(name, "id", "") for name in getattr(node, "targets", ())),
        }
    ]
    found: dict[str, Any] = {
        "dataclass": dataclass,
        "field": field,
        "Literal": Literal,
        "Path": Path,
    }
    exec(compile(ast.Module(nodes, []), "train.py", "exec", dont_inherit=True), found)
    return found["Config"], found.get("AT_LEAST", {})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_count_has_a_smallest_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script divides by most whole numbers that it takes, so each is refused below its bound, all in one line."""
    config, at_least = declared_in(folder)
    kinds = {one.name: str(getattr(one.type, "__name__", one.type)) for one in fields(config)}
    # seeds may be anything; the last has a message of its own
    free = {"seed", "local_rank", "zero_stage"}
    assert {
        name for name, kind in kinds.items() if kind in ("int", "int | None", "list[int]")
    } - free <= set(at_least)
    assert vars(arguments(config, [], at_least=at_least)) == vars(config())
    with pytest.raises(SystemExit) as left:
        arguments(
            config,
            [f"--{name}={least - 1:g}" for name, least in at_least.items()],
            at_least=at_least,
        )
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert [
        name for name, least in at_least.items() if f"`--{name}`: `{least - 1:g}" not in said
    ] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_smallest_values_are_asked_for(folder: Path) -> None:
    """Whenever a script reads its arguments."""
    text = (folder / "train.py").read_text("utf-8")
    assert text.count("runtime.arguments(") == text.count("at_least=AT_LEAST") >= 1


def test_no_code_stands_twice() -> None:
    """What two scripts use stands in one of them; the other one's `.cloudtraininclude` names it."""
    files = [file for folder in FOLDERS for file in folder.rglob("*.py")]
    by_content: dict[bytes, list[str]] = {}
    for file in files:
        by_content.setdefault(file.read_bytes(), []).append(f"{file.parent.name}/{file.name}")
    assert [names for names in by_content.values() if len(names) > 1] == []
    assert {folder.name for folder in SHARING} == {
        "cifar_deepspeed",
        "gpt_fsdp",
        "llm_finetune",
        "pipeline_gpt",
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_copy_has_every_module_that_it_imports(folder: Path, tmp_path: Path) -> None:
    """Also those that stand in another script's folder; and the list of these is not in it."""
    copy = copy_script(folder.name, tmp_path / "copy")
    modules = {file.stem for other in FOLDERS for file in other.glob("*.py")}
    for file in copy.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in modules.intersection(names):
                assert (copy / f"{name}.py").is_file(), f"{file.name} imports {name}"
    assert not (copy / ".cloudtraininclude").exists()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("folder", SHARING, ids=lambda folder: folder.name)
def test_every_target_gets_the_bundle_of_a_copy(folder: Path, target: str, tmp_path: Path) -> None:
    """From the checkout, by `bundled:` and from a copy the plans have one hash; that of the checkout says what comes
    from elsewhere."""
    copy = copy_script(folder.name, tmp_path / "copy")
    (tmp_path / "bundled.yaml").write_text(
        (copy / "job.yaml").read_text() + f"source_dir: bundled:{folder.name}\n"
    )
    files = (folder / "job.yaml", tmp_path / "bundled.yaml", copy / "job.yaml")
    here, bundled, copied = (ct.plan(ct.load_job(file), TARGETS[target]) for file in files)
    assert here.uploads[0].file_count == copied.uploads[0].file_count > len(list(folder.iterdir()))
    assert here.sha256 == bundled.sha256 == copied.sha256
    assert "from elsewhere, as `.cloudtraininclude` says" in " ".join(here.notes)
    assert ".cloudtraininclude" not in " ".join(copied.notes)


def test_every_training_keeps_its_gradients_in_the_buckets() -> None:
    """A copy of all gradients less, in each script and example; the comparison of buckets measures both."""
    root = FOLDERS[0].parents[1]
    paths = [*root.glob("training_scripts/*/*.py"), *root.glob("examples/code/*/*.py")]
    calls = [
        (path.name, {keyword.arg for keyword in node.keywords})
        for path in paths
        if path.name != "compare.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("DistributedDataParallel")
    ]
    assert len(calls) >= 7
    assert [name for name, named in calls if "gradient_as_bucket_view" not in named] == []


def test_determinism_can_be_switched_wherever_it_is_on() -> None:
    """It has a price, and who measures speed does not want it; each script asks the runtime or its library, with its
    option."""
    root = FOLDERS[0].parent
    asks = (
        "runtime.use_determinism(config.deterministic",
        "if config.deterministic and not has_servers:",
    )
    texts = {folder.name: (folder / "train.py").read_text("utf-8") for folder in FOLDERS}
    having = {
        path.parent.name
        for path in root.glob("*/*.py")
        if any(ask in path.read_text("utf-8") for ask in asks)
    }
    having.add("pipeline_gpt")  # it begins as gpt_fsdp does
    usual = {
        "cifar_ddp",
        "digits_ddp",
        "gpt_fsdp",
        "spleen_segmentation",
        "mnist_horovod",
        "mnist_tensorflow",
    }
    assert having >= usual
    assert "group, device = begin(config" in texts["pipeline_gpt"]
    assert {name for name, text in texts.items() if "    deterministic: bool" in text} == having
    assert [
        name for name, text in texts.items() if "torch.use_deterministic_algorithms" in text
    ] == []
    # its library's word, off as there
    assert "full_determinism: bool = False" in texts["llm_finetune"]


GPU_JOBS = [file for folder in FOLDERS for file in sorted(folder.glob("job_gpu*.yaml"))]


@pytest.mark.parametrize("file", GPU_JOBS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_is_paid_for_runs_at_full_speed(file: Path) -> None:
    """A job for GPUs does not ask for equal numbers, and compiles, wherever its script has the option."""
    job = yaml.safe_load(file.read_text("utf-8"))
    config, _ = declared_in(file.parent)
    has = {one.name for one in fields(config)}
    given = presets_in(file.parent).get(job["hyperparameters"].get("preset"), {})
    given = given | job["hyperparameters"]
    assert given.get("deterministic", "deterministic" in has) is False
    assert given.get("compile", "compile" not in has) is True


def presets_in(folder: Path) -> dict[str, dict[str, Any]]:
    """`PRESETS` of a script, if it has any."""
    for node in ast.parse((folder / "train.py").read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PRESETS":
            assert node.value is not None
            presets: dict[str, dict[str, Any]] = ast.literal_eval(node.value)
            return presets
    return {}
